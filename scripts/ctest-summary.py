#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a JUnit file of ctest or pytest: shows failures and skips, checks the skips, counts.

    ctest-summary.py --allowed tests/allowed-skips RESULTS.xml
    ctest-summary.py --allowed tests/allowed-skips --one NAME LOG   (one step that exited with 77)

A skip is a test that exited with 77 after a line "SKIP: reason", a "SKIP: reason" line of a test
that passed, a cmocka test marked as skipped, or one that pytest skipped or expected to fail. Each must
match a line "glob  reason" of the allowed file, by the test's name (cmocka: program/test; pytest:
python.test_store.test_get[16], its file below tests/ with dots); any other skip is a failure, and so is
exit code 77 without a reason. The last line printed is "counts PASSED FAILED SKIPPED".
"""
import argparse
import fnmatch
import re
import sys
import xml.etree.ElementTree as ElementTree

TAIL_LINES = 60
# Of cmocka: a test that went well, and said nothing.
PASSED_TEST = re.compile(r"^\[ RUN      \] (\S+)\n\[       OK \] \1\n", re.MULTILINE)
SKIP_LINE = re.compile(r"^\s*SKIP: *(\S.*)$", re.MULTILINE)
CMOCKA_SKIP = re.compile(r"^\[  SKIPPED \] (\w+)\s*$", re.MULTILINE)


def read_allowed(path):
    allowed = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            fields = line.split(None, 1)
            if len(fields) != 2:
                sys.exit(f"{path}:{number}: expected 'test-name-glob  reason'")
            allowed.append(fields[0])
    return allowed


class Summary:
    def __init__(self, allowed):
        self.allowed = allowed
        self.passed = self.failed = self.skipped = 0

    def fail(self, name, why, output):
        self.failed += 1
        print(f"    FAILED {name}: {why}")
        for line in PASSED_TEST.sub("", output).rstrip().splitlines()[-TAIL_LINES:]:
            print(f"    | {line}")

    def skip(self, name, reason, output):
        """True when the skip is allowed; else it counts as a failure."""
        if any(fnmatch.fnmatchcase(name, glob) for glob in self.allowed):
            self.skipped += 1
            print(f"    skipped {name}: {reason}")
            return True
        self.fail(name, f"skipped ({reason}), and tests/allowed-skips does not list it", output)
        return False

    def whole_skip(self, name, output):
        reasons = SKIP_LINE.findall(output)
        if reasons:
            self.skip(name, reasons[-1], output)
        else:
            self.fail(name, "exit code 77 without a line 'SKIP: reason'", output)

    def pytest_case(self, case):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        name = name.removeprefix("tests.")
        failures = case.findall("failure") + case.findall("error")
        skip = case.find("skipped")
        if failures:
            printed = [case.findtext("system-out"), case.findtext("system-err")]
            output = "\n".join(filter(None, printed + [node.text for node in failures]))
            self.fail(name, first_line(failures[0].get("message")), output)
        elif skip is not None:
            self.skip(name, first_line(skip.get("message")), skip.text or "")
        else:
            self.passed += 1

    def case(self, case):
        name = case.get("name")
        status = case.get("status")
        output = case.findtext("system-out") or ""
        skip = case.find("skipped")
        if skip is not None and "SKIP_RETURN_CODE" in (skip.get("message") or ""):
            self.whole_skip(name, output)
            return
        if status != "run":
            node = skip if skip is not None else case.find("failure")
            message = node.get("message") if node is not None else None
            # ctest gives no message for an exit code or a time-out: the seconds tell them apart.
            self.fail(name, message or f"{status} after {float(case.get('time') or 0):.1f} s", output)
            return
        # Parts of a passed test that did not run.
        parts = [(name, reason) for reason in SKIP_LINE.findall(output)]
        # cmocka names its skipped tests twice: while running and in the closing list.
        names = dict.fromkeys(CMOCKA_SKIP.findall(output))
        if not parts:
            parts = [(f"{name}/{test}", "skipped inside the program") for test in names]
        if all([self.skip(part, reason, output) for part, reason in parts]):
            self.passed += 1


def first_line(text):
    return (text or "no reason given").strip().partition("\n")[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--allowed", required=True)
    parser.add_argument("--one")
    parser.add_argument("file")
    arguments = parser.parse_args()
    summary = Summary(read_allowed(arguments.allowed))
    if arguments.one:
        with open(arguments.file, encoding="utf-8", errors="replace") as log:
            summary.whole_skip(arguments.one, log.read())
    else:
        root = ElementTree.parse(arguments.file).getroot()
        cases = list(root.iter("testcase"))
        count = summary.pytest_case if root.find("testsuite[@name='pytest']") is not None else \
            summary.case
        for case in cases:
            count(case)
        if not cases:
            summary.fail("the suite", "no test has its label", "")
    print(f"counts {summary.passed} {summary.failed} {summary.skipped}")


if __name__ == "__main__":
    main()
