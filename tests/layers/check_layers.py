#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the tree that a compiler does not check: layers, banned calls, texts.

    check_layers.py SOURCE_DIR    names every breach as file:line: what
    check_layers.py --self-test   each rule catches its example and leaves its counter-example
"""
import pathlib
import re
import subprocess
import sys

SOURCE_SUFFIXES = {".c", ".h", ".cpp"}
MAX_COLUMNS = 100

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
# Comments, strings and character constants, so that a rule about code does not read them.
TOKEN = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

BANNED_EVERYWHERE = re.compile(
    r"\b(strcpy|strcat|stpcpy|sprintf|vsprintf|atoi|atol|atoll|atof|strtok|gets|alloca)\s*\(")
ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|setenv|putenv|unsetenv|environ)\b")
PRINTING = re.compile(
    r"\b(printf|vprintf|puts|putchar|perror|psignal)\s*\(|\b(stdout|stderr)\b")
ENDING = re.compile(r"\b(abort|exit|_exit|quick_exit)\s*\(")
NO_COLOR = re.compile(r'\bgetenv\s*\(\s*"(NO_COLOR|TERM)"\s*\)')

# Written in pieces, so that this file keeps its own rules.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATH = re.compile(
    r"(?<![\w.$}])/(" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me/[a-z]\\w*", "tmp/" + "w",
                               "Us" + "ers")) + r")(?=/)")
REGISTRY_HOST = re.compile(
    r"\b(" + "|".join(re.escape(host) for host in (
        "py" + "pi.org", "pythonhosted" + ".org", "registry.npm" + "js.org", "npm" + "js.com",
        "proxy.go" + "lang.org", "crates" + ".io", "deb.de" + "bian.org",
        "archive.ubu" + "ntu.com", "docker" + ".io", "ghcr" + ".io", "quay" + ".io")) + r")\b")


def is_public(name):
    return name.startswith("kvcellar/")


def include_breach(path, quote, name):
    """Why the file `path` (relative, '/') may not include `name`, or None."""
    parts = path.split("/")
    system = quote == "<" and not is_public(name)
    if ".." in name.split("/"):
        return f"'{name}' climbs out of its folder"
    if path.startswith("include/kvcellar/"):
        return None if quote == "<" else "a public header includes with <>"
    if path.startswith("src/core/"):
        if name.startswith("connector/"):
            return f"core includes '{name}' of the layer above"
        if name.startswith(("plugins/", "common/", "cli/")):
            return f"core includes '{name}'"
        return None
    if path.startswith("src/connector/"):
        if name.startswith(("plugins/", "common/", "cli/")):
            return f"connector includes '{name}'"
        return None
    if parts[0] == "plugins":
        if system:
            return None
        if is_public(name):
            return None if name in ("kvcellar/plugin.h", "kvcellar/memory.h") else \
                f"a plugin includes '{name}'; it sees kvcellar/plugin.h and kvcellar/memory.h"
        if name.startswith("common/") or "/" not in name:
            return None
        return f"a plugin includes '{name}'; it sees its own folder and common/"
    if parts[0] == "cli":
        if system or is_public(name) or "/" not in name:
            return None
        # What decides in the store decides in `kvcellar simulate`, too: pure functions.
        if parts[-1].startswith("simulate_") and name in ("core/order.h", "core/victim.h"):
            return None
        return f"the command line includes '{name}'; it uses the public headers"
    return None


def without_comments(text, keep_strings=False):
    """The text with comments (and strings) blanked, line numbers kept."""
    def blank(match):
        token = match.group(0)
        if keep_strings and token[0] in "\"'":
            return token
        filler = '""' if token[0] == '"' else " "
        return filler + "\n" * token.count("\n")
    return TOKEN.sub(blank, text)


def line_comment(text):
    """Line numbers of // comments."""
    for match in TOKEN.finditer(text):
        if match.group(0).startswith("//"):
            yield text.count("\n", 0, match.start()) + 1


def check_source(path, text):
    """Breaches of one C or C++ file as (line, what)."""
    in_library = path.startswith(("src/", "plugins/"))
    in_config = re.match(r"src/core/config\w*\.(c|h|cpp)$", path)
    product = path.startswith(("src/", "plugins/", "include/", "cli/", "bench/"))
    code = without_comments(text).splitlines()
    kept = without_comments(text, keep_strings=True).splitlines()

    for number, line in enumerate(kept, 1):
        match = INCLUDE.match(line)
        if match:
            why = include_breach(path, match.group(1), match.group(2))
            if why:
                yield number, why
    if not path.endswith(".cpp"):
        for number in line_comment(text):
            yield number, "a // comment; this tree writes /* */"
    for number, line in enumerate(text.splitlines(), 1):
        if len(line.expandtabs(8)) > MAX_COLUMNS:
            yield number, f"longer than {MAX_COLUMNS} columns"
    for number, line in enumerate(code, 1):
        match = BANNED_EVERYWHERE.search(line)
        if match:
            yield number, f"{match.group(1)}() is banned"
        if product and not in_config:
            allowed = path.startswith("cli/") and number <= len(kept) and \
                NO_COLOR.search(kept[number - 1])
            if ENVIRONMENT.search(line) and not allowed:
                yield number, "the environment is read in src/core/config*.c only"
        if in_library:
            match = PRINTING.search(line)
            if match:
                yield number, f"{match.group(1) or match.group(2)}: the library prints nothing"
            # The crash points of the fault plugin are there to end it.
            match = ENDING.search(line)
            if match and not path.startswith("plugins/fault/"):
                yield number, f"{match.group(1)}(): the library does not end the process"


def check_text(path, text):
    """Breaches of any text file as (line, what)."""
    for number, line in enumerate(text.splitlines(), 1):
        match = UNFINISHED.search(line)
        if match:
            yield number, f"{match.group(1)}: finish it or leave it out"
        match = MACHINE_PATH.search(line)
        if match:
            yield number, f"a path of one machine, '{match.group(0)}/'"
        match = REGISTRY_HOST.search(line)
        if match:
            yield number, f"the host of a package registry, '{match.group(0)}'"


def tree_files(root):
    if (root / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", f"safe.directory={root}", "-C", str(root), "ls-files", "-z", "-co",
             "--exclude-standard"], check=True, stdout=subprocess.PIPE).stdout
        names = [name for name in listed.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*")
                 if path.relative_to(root).parts[0] not in ("build", "install")]
    for name in sorted(names):
        path = root / name
        if path.is_file() and not path.is_symlink():
            yield name, path


def check_tree(root):
    checked = 0
    for name, path in tree_files(root):
        data = path.read_bytes()
        if b"\0" in data[:8192] or len(data) > 4 << 20:
            continue  # data, not text
        text = data.decode("utf-8", errors="replace")
        checked += path.suffix in SOURCE_SUFFIXES
        breaches = list(check_text(name, text))
        if path.suffix in SOURCE_SUFFIXES:
            breaches += check_source(name, text)
        for number, what in sorted(breaches):
            yield f"{name}:{number}: {what}"
    if not checked:
        yield f"{root}: no C source found, wrong folder?"


# (path, text, expected part of the one breach, or None)
EXAMPLES = [
    ("src/core/a.c", '#include "connector/name.h"\n', "layer above"),
    ("src/core/a.c", '#include "core/log.h"\n#include <kvcellar/kvcellar.h>\n', None),
    ("src/connector/a.c", '#include "core/log.h"\n', None),
    ("plugins/mem/a.c", "#include <kvcellar/kvcellar.h>\n", "a plugin includes"),
    ("plugins/mem/a.c", '#include "core/log.h"\n', "a plugin includes"),
    ("plugins/mem/a.c", '#include <kvcellar/plugin.h>\n#include "common/fsobj.h"\n', None),
    ("plugins/mem/a.c", '#include "../../src/core/log.h"\n', "climbs"),
    ("plugins/mem/a.c", "#include <sys/stat.h>\n", None),
    ("cli/a.c", '#include "core/log.h"\n', "public headers"),
    ("src/core/a.c", 'x = getenv("A");\n', "environment"),
    ("src/core/config_env.c", 'x = getenv("A");\n', None),
    ("cli/a.c", 'x = getenv("HOME");\n', "environment"),
    ("cli/a.c", 'x = getenv("NO_COLOR");\n', None),
    ("src/core/a.c", 'printf("x");\n', "prints nothing"),
    ("src/core/a.c", 'fputs("x", stderr);\n', "prints nothing"),
    ("src/core/a.c", '/* printf("x"); */ snprintf(a, 3, "printf(");\n', None),
    ("cli/a.c", 'printf("x");\n', None),
    ("src/core/a.c", "abort();\n", "end the process"),
    ("plugins/fault/a.c", "_exit(9);\n", None),
    ("src/core/a.c", "strcpy(a, b);\n", "banned"),
    ("tests/unit/a.c", "n = atoi(a);\n", "banned"),
    ("src/core/a.c", "strtok_r(a, b, &c);\n", None),
    ("src/core/a.c", "int a; // why\n", "// comment"),
    ("src/core/a.c", 'const char *a = "http://x"; /* http://y */\n', None),
    ("src/core/a.c", "int a;" + " " * 100 + "int b;\n", "columns"),
    ("docs/a.md", "TO" + "DO: write it\n", "finish it"),
    ("docs/a.md", "name.X" + "XXXXX\n", None),
    ("docs/a.md", "see /wo" + "rk/main/x\n", "one machine"),
    ("docs/a.md", "see path/to/wo" + "rk/x\n", None),
    ("docs/a.md", "from py" + "pi.org\n", "registry"),
]


def self_test():
    for path, text, expected in EXAMPLES:
        found = [what for _, what in check_text(path, text)]
        if pathlib.PurePosixPath(path).suffix in SOURCE_SUFFIXES:
            found += [what for _, what in check_source(path, text)]
        if expected is None and found:
            yield f"{path}: {text!r} was refused: {found}"
        elif expected is not None and not (len(found) == 1 and expected in found[0]):
            yield f"{path}: {text!r}: expected one breach with '{expected}', found {found}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        breaches = list(self_test())
    else:
        breaches = list(check_tree(pathlib.Path(sys.argv[1]).resolve()))
    for breach in breaches:
        print(breach)
    sys.exit(1 if breaches else 0)


if __name__ == "__main__":
    main()
