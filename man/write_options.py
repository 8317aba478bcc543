#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The option lists of kvcellar.toml.5, from `kvcellar config options --json`.

    write_options.py KVCELLAR kvcellar.toml.5            rewrites what stands between the marks
    write_options.py --check KVCELLAR kvcellar.toml.5    only compares; exit code 1: differs
"""
import json
import subprocess
import sys

BEGIN = '.\\" begin of the generated part: man/write_options.py'
END = '.\\" end of the generated part'


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return text.replace("`", "\\(ga")


def default_text(option):
    value = option["default"]
    if value is None:
        return "not set by default"
    if isinstance(value, list):
        value = ", ".join(value)
    return "default " + json.dumps(value, ensure_ascii=False)


def entry(option):
    name = option["path"].split(".")[-1]
    facts = [option["type"], option["unit"], option["range"], default_text(option)]
    if option["secret"]:
        facts.append("secret")
    variables = [name for name in (option["env"], option["seed_env"]) if name]
    facts = "; ".join(fact for fact in facts if fact)
    yield ".TP"
    yield f"\\fB{escape(name)}\\fR ({escape(facts)})"
    yield escape(option["help"])
    if variables:
        yield ".br"
        yield "Environment: " + escape(", ".join(variables))


def generated(program):
    options = json.loads(subprocess.run([program, "config", "options", "--json"], check=True,
                                        stdout=subprocess.PIPE).stdout)
    section = None
    yield BEGIN
    for option in options:
        path = option["path"].split(".")
        if path[:-1] != section:
            section = path[:-1]
            yield ".SS " + (escape("[" + ".".join(section) + "]") if section else "Top level")
        yield from entry(option)
    yield END


def main():
    arguments = sys.argv[1:]
    check = arguments[:1] == ["--check"]
    program, page = arguments[check:]
    with open(page, encoding="utf-8") as file:
        before = file.read()
    head, rest = before.split(BEGIN + "\n", 1)
    tail = rest.split(END + "\n", 1)[1]
    after = head + "\n".join(generated(program)) + "\n" + tail
    if check:
        if after != before:
            sys.exit(f"{page} is not what the option tables say: run man/write_options.py")
        return
    with open(page, "w", encoding="utf-8") as file:
        file.write(after)


if __name__ == "__main__":
    main()
