#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that scripts/ctest-summary.py counts no failure and no unlisted skip as a pass.

    test_summary.py PATH_OF_CTEST_SUMMARY
"""
import pathlib
import subprocess
import sys
import tempfile

PASS = '<testcase name="{}" status="run"><system-out>{}</system-out></testcase>'
FAIL = ('<testcase name="{}" status="fail"><failure message="Failed"/>'
        '<system-out>{}</system-out></testcase>')
SKIP = ('<testcase name="{}" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
        '<system-out>{}</system-out></testcase>')
NOT_RUN = ('<testcase name="{}" status="notrun"><skipped message="Unable to find executable"/>'
           '<system-out>{}</system-out></testcase>')

# what happened, the test cases, expected counts, text that must be shown
CASES = [
    ("a pass", [PASS.format("a", "fine")], "1 0 0", ""),
    ("a failure shows its output", [FAIL.format("a", "first\nlast words")], "0 1 0", "last words"),
    ("a failure shows what a crash ended",
     [FAIL.format("a", "[ RUN      ] t_well\n[       OK ] t_well\n[ RUN      ] t_crash\nSegv")],
     "0 1 0", "FAILED a: Failed\n    | [ RUN      ] t_crash\n    | Segv"),
    ("a listed skip", [SKIP.format("skippable.x", "SKIP: no loop device")], "0 0 1",
     "no loop device"),
    ("an unlisted skip", [SKIP.format("other", "SKIP: no mood")], "0 1 0", "does not list"),
    ("a skip without a reason", [SKIP.format("skippable.x", "bye")], "0 1 0", "without a line"),
    ("a program that is missing", [NOT_RUN.format("a", "")], "0 1 0", "Unable to find"),
    ("a part skipped in a pass", [PASS.format("a", "SKIP: no xfs")], "0 1 0", "no xfs"),
    ("a listed part skipped in a pass", [PASS.format("skippable.y", "SKIP: no xfs")], "1 0 1",
     "no xfs"),
    ("an unlisted cmocka skip", [PASS.format("a", "[  SKIPPED ] t_one\n[  SKIPPED ] t_one")],
     "0 1 0", "a/t_one"),
    ("a listed cmocka skip", [PASS.format("unit", "[  SKIPPED ] t_one\n[  SKIPPED ] t_one")],
     "1 0 1", "unit/t_one"),
    ("an empty suite", [], "0 1 0", "no test has its label"),
]

PY = '<testcase classname="tests.python.test_a.TestB" name="{}">{}</testcase>'
PYTEST_CASES = [
    ("a pass", [PY.format("t", "")], "1 0 0", ""),
    ("a failure shows its trace", [PY.format(
        "t", '<failure message="assert 1 == 2\nmore">line 7</failure>')], "0 1 0", "line 7"),
    ("an error of a fixture", [PY.format("t", '<error message="no disk">trace</error>')], "0 1 0",
     "FAILED python.test_a.TestB.t: no disk"),
    ("an unlisted skip", [PY.format("t", '<skipped message="no torch">x</skipped>')], "0 1 0",
     "does not list"),
    ("a listed skip", [PY.format("listed[1-x]", '<skipped message="no torch">x</skipped>')],
     "0 0 1", "no torch"),
    ("a module that cannot be imported", [
        '<testcase classname="" name="tests.python.test_a"><error message="collection failure">'
        'ImportError</error></testcase>'], "0 1 0", "ImportError"),
    ("an empty suite", [], "0 1 0", "no test has its label"),
]


def check(summary, allowed, results, document, case):
    """True when it is counted and shown as it must be."""
    what, cases, counts, shown = case
    results.write_text(document.format("".join(cases)))
    run = subprocess.run([sys.executable, summary, "--allowed", str(allowed), str(results)],
                         stdout=subprocess.PIPE, text=True, check=False)
    lines = run.stdout.splitlines()
    if not run.returncode and lines and lines[-1] == f"counts {counts}" and shown in run.stdout:
        return True
    print(f"{what}: expected 'counts {counts}' and '{shown}', got:\n{run.stdout}")
    return False


def main():
    summary = sys.argv[1]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        allowed = pathlib.Path(folder, "allowed")
        allowed.write_text("# comment\n\nskippable.*  a reason\nunit/t_one  another\n"
                           "python.test_a.*.listed*  a reason\n")
        results = pathlib.Path(folder, "results.xml")
        failed += sum(not check(summary, allowed, results, "<testsuite>{}</testsuite>", case)
                      for case in CASES)
        document = '<testsuites><testsuite name="pytest">{}</testsuite></testsuites>'
        failed += sum(not check(summary, allowed, results, document, case)
                      for case in PYTEST_CASES)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
