#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arguments: help, version, unknown things with the nearest known one, bad values."""
import json

import support
from support import COMMANDS, CONFIG, DONE, MISS, USAGE, run


class Usage(support.Case):
    def test_help_of_the_program_names_every_command(self):
        text = self.check(run("--help"), DONE).text
        for command in COMMANDS:
            self.assertRegex(text, rf"(?m)^  {command} +\S")
        self.assertIn("Examples:", text)
        self.assertIn("Exit codes:", text)
        self.assertEqual(run("help").text, text)

    def test_help_of_each_command(self):
        for command in COMMANDS:
            with self.subTest(command):
                shown = self.check(run(command, "--help"), DONE)
                self.assertEqual(shown.err, b"")
                self.assertTrue(shown.text.startswith(f"Usage: kvcellar {command} "), shown)
                self.assertIn("Example", shown.text)
                self.assertIn("--json", shown.text)
                self.assertEqual(run("help", command).text, shown.text)

    def test_version(self):
        self.assertRegex(self.check(run("--version"), DONE).text, r"^kvcellar \d+\.\d+\.\d+\S*\n$")

    def test_no_command(self):
        self.check(run(), USAGE, "no command given")

    def test_unknown_command_names_the_nearest(self):
        self.check(run("exist"), USAGE, "unknown command 'exist'", "did you mean 'exists'?")
        self.check(run("verfy", "x", "-y"), USAGE, "'verify'")
        self.assertNotIn("did you mean", run("zzzzzzzz").errors)
        self.check(run("help", "exsts"), USAGE, "did you mean 'exists'?")

    def test_unknown_options_name_the_nearest(self):
        self.check(run("--jsn", "ls"), USAGE, "unknown option '--jsn'", "'--json'")
        self.check(run("put", "--overwite", "k"), USAGE, "'--overwrite'")
        self.check(run("put", "-Z", "k"), USAGE, "unknown option '-Z'")
        self.check(run("ls", "-alZ"), USAGE, "unknown option '-Z'")
        self.check(run("ls", "--json=yes"), USAGE, "'--json' takes no value")
        self.check(run("ls", "--con"), USAGE, "'--config' needs a value")
        self.check(run("ls", "-D"), USAGE, "'-D' needs a value")
        self.check(run("where", "--tp", "2"), USAGE, "ambiguous")

    def test_a_namespace_that_begins_with_a_dash(self):
        name = "-models-x-0123456789abcdef"
        for command in ("clear", "ls", "verify"):
            self.check(run(command, name), USAGE, "unknown option", "put -- before it")
            self.check(run(command, "-" + name), USAGE, "unknown option", "put -- before it")
            self.check(self.k(command, "--", name), MISS, name)
        self.assertNotIn("put --", run("clear", "-models-x").errors)

    def test_arguments_too_few_and_too_many(self):
        for command in ("put", "get", "exists", "rm", "where"):
            self.check(run(command), USAGE, "no key given")
        self.check(run("clear"), USAGE, "no namespace given")
        self.check(run("clear", ""), USAGE, "no namespace given")
        self.check(run("stat"), USAGE, "no key or path given")
        self.check(run("config"), USAGE, "check, options, show or sample")
        self.check(run("config", "shw"), USAGE, "did you mean 'show'?")
        for command in ("info", "selftest"):
            self.check(run(command, "x"), USAGE, "unexpected argument 'x'")
        for command in ("ls", "verify", "stats", "clear"):
            self.check(run(command, "a", "b"), USAGE, "unexpected argument 'b'")
        for command in ("put", "get"):
            self.check(run(command, "a", "b", "c"), USAGE, "unexpected argument 'c'")

    def test_bad_values_name_option_and_value(self):
        for arguments in (("--tp-size", "0"), ("--tp-size", "x"), ("--tp-rank", "-1"),
                          ("--page-tokens", "99999999999999999999"), ("--writer", "maybe"),
                          ("--byte-order", "x"), ("--page-tokens", "")):
            with self.subTest(arguments):
                self.check(run("where", "k", *arguments), USAGE, arguments[0], arguments[1])
        self.check(run("get", "k", "--timeout", "0"), USAGE, "--timeout")
        self.check(run("get", "k", "--timeout", "nan"), USAGE, "--timeout")
        self.check(run("stats", "--watch", "-1"), USAGE, "--watch")
        self.check(run("put", "--hex", "abc", "-"), USAGE, "'abc' is not hexadecimal")
        self.check(run("put", "--hex", "zz", "-"), USAGE, "'zz' is not hexadecimal")
        for sizes in ("0", "64K,", "4Q", "-1", "1e400", ",".join(["4K"] * 65)):
            with self.subTest(sizes[:20]):
                self.check(self.k("exists", "k", "--part-bytes", sizes), USAGE, "--part-bytes")
        self.check(run("-s", "nonsense", "ls"), USAGE, "PATH=VALUE")
        self.check(self.k("where", "k", "--tp-size", "2", "--tp-rank", "2"), USAGE, "tp_rank")

    def test_errors_as_json(self):
        bad = run("--json", "exist")
        self.assertEqual((bad.code, bad.out), (USAGE, b""))
        self.assertEqual(bad.error["kind"], "usage")
        self.assertEqual(bad.error["exit_code"], USAGE)
        self.assertIn("did you mean 'exists'?", bad.error["message"])
        late = run("put", "--bogus", "--json")
        self.assertEqual(late.error["exit_code"], USAGE)
        config = run("ls", "--json", "-s", "namng=nixl")
        self.assertEqual((config.code, config.error["kind"]), (CONFIG, "configuration"))

    def test_global_options_stand_before_and_after_the_command(self):
        self.assertEqual(json.loads(run("--json", "config", "check").out),
                         json.loads(run("config", "check", "--json").out))

    def test_hostile_arguments_do_not_crash(self):
        for arguments in (["\x1b[31mred"], ["put", "k\x07", "--bad\x1b"], ["-\xff"],
                          ["--" + "x" * 100000], ["x" * 100000], ["put", "x" * 100000, "/nope"],
                          ["where", "--model", "m" * 100000, "k"], ["", ""], ["ls", "\xff" * 300]):
            with self.subTest(str(arguments)[:40]):
                result = self.k(*arguments)
                self.assertIn(result.code, range(10), result)
                self.assertFalse(any(byte < 32 and byte != 10 for byte in result.err), result)
                self.assertLess(len(result.err), 4096)


if __name__ == "__main__":
    support.main()
