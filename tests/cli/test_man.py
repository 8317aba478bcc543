#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Man pages, --help and the completion say the same."""
import os
import re
import shutil
import subprocess
import sys

import support
from support import DONE, KVCELLAR, SOURCE, run

MAN = os.path.join(SOURCE, "man")
COMPLETION = os.path.join(SOURCE, "cli", "completion", "kvcellar.bash")
SHARED = {
    "OPTIONS OF EVERY COMMAND": "Options of every command:",
    "OPTIONS FOR A NAMESPACE": "Which namespace, and which rank of it:",
    "OPTIONS FOR KEYS": "Which objects a key stands for:",
    "OPTIONS FOR PAGES": "Pages of a pool instead of single objects:",
}


def commands():
    return re.findall(r"(?m)^  ([a-z]+) +\S", run("--help").text.split("Commands:")[1]
                      .split("Options of every command")[0])


def help_groups(command):
    """{title: set of options}; the command's own have the title ""."""
    groups, title = {}, ""
    text = run(command, "--help").text.split("Mandatory or optional")[0]
    for line in text.splitlines():
        heading = re.match(r" (\S.*:)$", line)
        option = re.match(r"  (?:-(\w), |    )--([\w-]+)(=\S+)?", line)
        if heading:
            title = heading.group(1)
        elif option:
            name = f"--{option.group(2)}{option.group(3) or ''}"
            groups.setdefault(title, set()).add((option.group(1), name))
    return groups


def man_sections():
    """{title of .SH or .SS: set of options}."""
    with open(os.path.join(MAN, "kvcellar.1"), encoding="utf-8") as page:
        text = page.read()
    sections, title = {}, None
    for line in text.splitlines():
        heading = re.match(r"\.S[HS] (.*)", line)
        if heading:
            title = heading.group(1)
            sections[title] = set()
        plain = re.sub(r"\\f[BIR]", "", line).replace("\\-", "-")
        option = re.match(r"(?:-(\w), )?--([\w-]+)(=\S+)?$", plain)
        if option:
            sections[title].add((option.group(1), f"--{option.group(2)}{option.group(3) or ''}"))
    return sections


class Man(support.Case):
    def test_every_option_in_both_directions(self):
        sections, names = man_sections(), commands()
        self.assertGreater(len(names), 10)
        for command in names:
            groups = help_groups(command)
            with self.subTest(command):
                self.assertEqual(sections[command], groups.get("", set()))
                for section, title in SHARED.items():
                    if title in groups:
                        self.assertEqual(sections[section], groups[title], section)
        with_options = {title for title, options in sections.items() if options}
        self.assertEqual(with_options - set(SHARED) - set(names), set())

    def test_exit_codes_are_those_of_the_documentation(self):
        with open(os.path.join(SOURCE, "docs", "errors.md"), encoding="utf-8") as page:
            documented = re.findall(r"(?m)^\| (\d+) \| ", page.read().split("## Exit codes")[1]
                                    .split("\n## ")[0])
        with open(os.path.join(MAN, "kvcellar.1"), encoding="utf-8") as page:
            written = re.findall(r"(?m)^(\d+)\t", page.read())
        self.assertEqual(written, documented)
        self.assertEqual(written, [str(code) for code in (*range(10), 130)])

    def test_options_of_the_configuration(self):
        done = subprocess.run([sys.executable, "-B", os.path.join(MAN, "write_options.py"),
                               "--check", KVCELLAR, os.path.join(MAN, "kvcellar.toml.5")],
                              capture_output=True, env=support.environment(), check=False)
        self.assertEqual(done.returncode, DONE, done.stderr)

    def test_pages_are_well_formed(self):
        if not shutil.which("groff"):
            self.skip("groff is not installed")
        for page in ("kvcellar.1", "kvcellar.toml.5"):
            done = subprocess.run(["groff", "-man", "-t", "-ww", "-z", "-Tutf8",
                                   os.path.join(MAN, page)], capture_output=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, b""), page)

    def test_completion(self):
        script = f"""
            source "{COMPLETION}"
            complete_words() {{
                COMP_WORDS=("{KVCELLAR}" "$@"); COMP_CWORD=$#; COMPREPLY=()
                _kvcellar; echo "${{COMPREPLY[*]}}"
            }}
            complete_words ''
            complete_words -D /x ver
            complete_words put --over
            complete_words config sam
            """
        done = subprocess.run(["bash", "-c", script], capture_output=True,
                              env=support.environment(), check=False)
        every, verify, over, sample = done.stdout.decode().splitlines()
        self.assertEqual(set(every.split()), {*commands(), "help"}, done)
        self.assertEqual(verify, "verify")
        self.assertEqual(over, "--overwrite")
        self.assertEqual(sample, "sample")


if __name__ == "__main__":
    support.main()
