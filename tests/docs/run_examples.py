#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of a Markdown page and compares what they show.

    run_examples.py PAGE...      exit code 1: an example failed or showed something else
    run_examples.py --self-test

A block is fenced with ```console. In it "$ command" is run by bash and the lines up to the next "$ "
are its output, standard output and standard error together; "> " continues a command, and so does a
backslash at the end of a line. In the output "..." alone in a line stands for any number of lines,
within a line for any text. Without any line of output the output is not compared.

The blocks of a page share one shell session, so folders and variables last, in a new folder that is
the working directory and $HOME, with the built kvcellar first in PATH and, where it is built, the
Python package in PYTHONPATH. A command ends with 0 unless its last line of output is "[exit code N]".
Comments before a fence, alone in their line:

    <!-- run: new -->              begin again in a new folder
    <!-- run: skip REASON -->      not run; the reason is printed
    <!-- run: needs PATH -->       a skip where the build folder has no such file
    <!-- run: file NAME -->        a fence of any language: its text is written to NAME
"""
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile

TIMEOUT = 150
FENCE = re.compile(r"^( *)(```+)\s*([\w-]*)\s*$")
DIRECTIVE = re.compile(r"^\s*<!-- run: (new|skip|file|needs)\s*(.*?)\s*-->\s*$")
EXIT_CODE = re.compile(r"^\[exit code (\d+)\]$")


class Step:
    def __init__(self, line, command):
        self.line, self.command = line, command
        self.shown, self.code = [], 0


def read_blocks(text):
    """(line number, language, lines, directives) of every fenced block."""
    blocks, directives, fence = [], [], None
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            if line.strip() == fence[1]:
                blocks.append((start, fence[2], lines, directives))
                fence, directives = None, []
            else:
                lines.append(line[len(fence[0]):] if line.startswith(fence[0]) else line)
            continue
        match = FENCE.match(line)
        directive = DIRECTIVE.match(line)
        if match:
            fence, lines, start = match.groups(), [], number + 1
        elif directive:
            directives.append((directive.group(1), directive.group(2)))
        elif line.strip():
            directives = []
    if fence:
        raise ValueError(f"line {start - 1}: the block has no end")
    return blocks


def read_steps(start, lines):
    steps = []
    for number, line in enumerate(lines, start):
        open_command = steps and not steps[-1].shown
        if line.startswith("$ "):
            steps.append(Step(number, line[2:]))
        elif open_command and (line.startswith("> ") or line == ">"):
            steps[-1].command += "\n" + line[2:]
        elif open_command and steps[-1].command.endswith("\\"):
            steps[-1].command += "\n" + line
        elif steps:
            steps[-1].shown.append(line)
        elif line.strip():
            raise ValueError(f"line {number}: output without a command")
    for step in steps:
        while step.shown and not step.shown[-1].strip():
            step.shown.pop()
        match = EXIT_CODE.match(step.shown[-1]) if step.shown else None
        if match:
            step.code = int(match.group(1))
            step.shown.pop()
    return steps


def pattern_of(shown):
    parts = []
    for line in shown:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            pieces = [re.escape(piece) for piece in line.rstrip().split("...")]
            parts.append(r"[^\n]*?".join(pieces) + r"[ \t]*\n")
    return re.compile("".join(parts) + r"\s*\Z")


def matches(shown, output):
    text = output.rstrip() + "\n" if output.strip() else ""
    return pattern_of(shown).match(text) is not None


def build_path(*names):
    return os.path.join(os.path.abspath(os.environ.get("KVC_BUILD_DIR", "build/release")), *names)


class Session:
    """One bash in one folder."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="kvcellar-docs-")
        # Not beside what the page makes: it may list its folder.
        self.state = tempfile.mkdtemp(prefix="kvcellar-docs-state-")
        self.script = os.path.join(self.state, "step")
        self.saved = os.path.join(self.state, "saved")

    def environment(self):
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("KVCELLAR_", "SGLANG_", "AWS_"))
               or name == "KVCELLAR_PLUGIN_DIR"}
        # A disk that others have filled is no defect.
        env["KVCELLAR_L3_CLEANER_HIGH_WATERMARK"] = "99.9"
        env["PATH"] = build_path("bin") + os.pathsep + env.get("PATH", "")
        if os.path.isdir(build_path("python")):
            env["PYTHONPATH"] = build_path("python")
        env.update(HOME=self.folder, LC_ALL="C.UTF-8", TERM="dumb")
        return env

    def run(self, command):
        """(exit code, output). Variables and the working directory last until the next one."""
        with open(self.script, "w", encoding="utf-8") as script:
            script.write(f'[ ! -e "{self.saved}" ] || . "{self.saved}"\n'
                         f"trap 'code=$?; {{ export -p; printf \"cd %q\\n\" \"$PWD\"; }} "
                         f">\"{self.saved}\"; exit $code' EXIT\n{command}\n")
        done = subprocess.run(["bash", self.script], cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=self.environment(), timeout=TIMEOUT, check=False)
        return done.returncode, done.stdout.decode(errors="replace")

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.state, ignore_errors=True)


def run_step(session, step, name):
    """True when it ended and showed as the page says."""
    try:
        code, output = session.run(step.command)
    except subprocess.TimeoutExpired:
        print(f"{name}:{step.line}: not done within {TIMEOUT} s: {step.command}")
        return False
    if code == step.code and (not step.shown or matches(step.shown, output)):
        return True
    print(f"{name}:{step.line}: $ {step.command}")
    if code != step.code:
        print(f"  exit code {code}, the page says {step.code}")
    for title, lines in (("the page shows", step.shown), ("shown", output.splitlines())):
        print(f"  {title}:")
        for line in lines:
            print(f"    | {line}")
    return False


def run_page(text, name):
    """(examples that ran, examples that failed)."""
    ran = failed = 0
    session = Session()
    try:
        for start, language, lines, directives in read_blocks(text):
            actions = dict(directives)
            if "new" in actions:
                session.close()
                session = Session()
            if "needs" in actions and not os.path.exists(build_path(actions["needs"])):
                print(f"SKIP: {name}:{start}: {actions['needs']} is not built")
            elif "skip" in actions:
                print(f"{name}:{start}: not run: {actions['skip'] or 'no reason given'}")
                failed += not actions["skip"]
            elif "file" in actions:
                target = os.path.join(session.folder, actions["file"])
                with open(target, "w", encoding="utf-8") as out:
                    out.write("\n".join(lines) + "\n")
            elif language == "console":
                for step in read_steps(start, lines):
                    ran += 1
                    failed += not run_step(session, step, name)
    finally:
        session.close()
    return ran, failed


# ---------------------------------------------------------------- does the runner catch it?

GOOD = """
<!-- run: file in.txt -->
```toml
two
lines
```

```console
$ cat in.txt
two
lines
$ export word=kept
$ echo start; seq 5; echo end
start
...
end
$ echo "a b c"
a ... c
```
text between
```console
$ echo $word
kept
$ echo one \\
  two
one two
$ cat <<EOF
> here
> EOF
here
$ false
[exit code 1]
$ mkdir sub && cd sub
$ basename "$PWD"
sub
```
<!-- run: skip needs a GPU -->
```console
$ exit 9
```
<!-- run: needs no/such/file -->
```console
$ exit 9
```
<!-- run: new -->
```console
$ ls
```
"""
BAD = (
    "```console\n$ echo a\nb\n```\n",
    "```console\n$ echo a; echo b\na\n```\n",
    "```console\n$ echo a\na\nb\n```\n",
    "```console\n$ false\n```\n",
    "```console\n$ true\n[exit code 1]\n```\n",
    "```console\n$ seq 3\n1\n...\n4\n```\n",
    "```console\n$ no-such-command-at-all\n```\n",
    "<!-- run: skip -->\n```console\n$ true\n```\n",
)


def self_test():
    # Kept: a line "SKIP:" of this test itself would count.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        ran, failed = run_page(GOOD, "good")
    assert (ran, failed) == (11, 0), (ran, failed)
    assert "SKIP: good:43: no/such/file is not built" in printed.getvalue()
    for page in BAD:
        _, failed = run_page(page, "bad")
        assert failed == 1, page
    for page in ("```console\n$ true\n", "```console\noutput\n```\n"):
        try:
            run_page(page, "malformed")
        except ValueError:
            continue
        raise AssertionError(page)
    print("the runner catches what it must")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    total = bad = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as page:
            try:
                ran, failed = run_page(page.read(), os.path.basename(path))
            except ValueError as error:
                sys.exit(f"{path}: {error}")
        total += ran
        bad += failed
    print(f"{total} examples ran, {bad} failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
