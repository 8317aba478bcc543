#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Terminals, colours, progress, interrupts, and readers or disks that go away."""
import os
import re
import subprocess

import support
from support import DONE, INTERRUPTED, IO, KVCELLAR, NO_SPACE, USAGE, environment, on_terminal

ESCAPE = b"\x1b["


class Output(support.Case):
    def setUp(self):
        super().setUp()
        self.check(self.k("put", "k", stdin=b"text\n"), DONE)

    def terminal(self, *arguments, **options):
        return on_terminal(["-D", self.root, *arguments], **options)

    def test_progress_on_a_terminal_only(self):
        code, shown, out = self.terminal("verify", descriptors=(2,))
        self.assertEqual(code, DONE, shown)
        self.assertIn(b"verify", shown)
        self.assertIn(b"\r", shown)
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)
        self.assertIn(b"1 object,", out)
        self.assertNotIn(b"\r", out)
        piped = self.k("verify")
        self.assertEqual(piped.err, b"")
        self.assertNotIn(ESCAPE, piped.out)

    def test_progress_can_be_left_out(self):
        for option in ("--no-progress", "-q", "--json"):
            with self.subTest(option):
                code, shown, _ = self.terminal("verify", option, descriptors=(2,))
                self.assertEqual((code, shown), (DONE, b""))
        code, shown, _ = self.terminal("verify", descriptors=(2,), env=environment(TERM="dumb"))
        self.assertEqual((code, shown), (DONE, b""))

    def test_progress_fits_the_terminal(self):
        for columns in (1, 10, 20, 40, 200):
            with self.subTest(columns):
                code, shown, _ = self.terminal("verify", descriptors=(2,), columns=columns)
                self.assertEqual(code, DONE)
                plain = re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", shown)
                self.assertLessEqual(max(len(part) for part in plain.split(b"\r")),
                                     max(columns - 1, 1), plain)

    def test_colours_on_a_terminal_only_and_not_with_no_color(self):
        code, shown, _ = self.terminal("exists", "k", descriptors=(1,))
        self.assertEqual(code, DONE)
        self.assertIn(ESCAPE, shown)
        for name in ("NO_COLOR", "TERM"):
            env = environment(**{name: "1" if name == "NO_COLOR" else "dumb"})
            _, shown, _ = self.terminal("exists", "k", descriptors=(1,), env=env)
            self.assertNotIn(ESCAPE, shown, name)
            self.assertIn(b"ok", shown)
        _, shown, _ = self.terminal("exists", "k", descriptors=(1,), env=environment(NO_COLOR=""))
        self.assertIn(ESCAPE, shown)
        _, shown, _ = self.terminal("verify", descriptors=(2,), env=environment(NO_COLOR="1"))
        self.assertNotIn(b"\x1b[3", shown)
        self.assertNotIn(ESCAPE, self.k("exists", "k").out)

    def test_binary_is_not_written_to_a_terminal(self):
        self.check(self.k("put", "binary", stdin=b"\x00\x1b[2J"), DONE)
        code, shown, err = self.terminal("get", "binary", descriptors=(1,))
        self.assertEqual((code, shown), (USAGE, b""))
        self.assertIn(b"-o FILE", err)
        code, shown, _ = self.terminal("get", "k", descriptors=(1,))
        self.assertEqual((code, shown), (DONE, b"text\r\n"))

    def test_interrupted_while_reading(self):
        def ready(process):
            process.stdin.write(b"some")
            process.stdin.flush()
            support.wait_until_reading(process.pid)

        stopped = support.interrupt(["-D", self.root, "put", "new"], ready)
        self.assertEqual((stopped.code, stopped.out), (INTERRUPTED, b""), stopped)
        self.check(self.k("get", "new"), support.MISS)
        self.assertEqual(len(self.objects()), 1)

    def test_interrupted_while_watching(self):
        def ready(process):
            process.stdout.readline()

        stopped = support.interrupt(["-D", self.root, "stats", "--json", "--watch", "0.1"], ready)
        self.assertEqual((stopped.code, stopped.err), (INTERRUPTED, b""), stopped)

    def test_reader_that_goes_away(self):
        for arguments in (["--help"], ["ls", "-a", "--json"], ["get", "k"], ["config", "sample"]):
            with self.subTest(arguments):
                reader, writer = os.pipe()
                os.close(reader)
                done = self.k(*arguments, stdout=writer)
                os.close(writer)
                self.assertEqual((done.code, done.err), (IO, b""), done)

    def test_full_device_under_the_output(self):
        for arguments in (["--help"], ["--version"], ["ls", "-a"], ["get", "k"], ["info"],
                          ["config", "sample"], ["ls", "--json"]):
            with self.subTest(arguments), open("/dev/full", "wb") as full:
                done = self.k(*arguments, stdout=full)
                self.check(done, NO_SPACE, "standard output: No space left on device")
        self.check(self.k("get", "k", "-o", "/dev/full"), NO_SPACE, "/dev/full")

    def test_closed_standard_descriptors(self):
        closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', KVCELLAR, "-D", self.root,
                                 "ls"], stderr=subprocess.PIPE, env=environment(), check=False)
        self.assertEqual(closed.returncode, IO, closed)
        self.assertIn(b"standard output", closed.stderr)
        for redirect in ("<&-", "2>&-", "<&- 2>&-"):
            done = subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirect}', KVCELLAR, "-D",
                                   self.root, "get", "k"], stdout=subprocess.PIPE,
                                  env=environment(), check=False)
            self.assertEqual((done.returncode, done.stdout), (DONE, b"text\n"), redirect)
        self.check(self.k("verify"), DONE)

    def test_quiet_and_verbose(self):
        plain = self.k("put", "k", stdin=b"text\n")
        self.assertIn("was there already", plain.errors)
        self.assertEqual(self.k("-q", "put", "k", stdin=b"text\n").err, b"")
        loud = self.k("-vv", "put", "k", stdin=b"text\n")
        self.assertEqual(loud.code, DONE)
        self.assertRegex(loud.errors, r"(?m)^kvcellar: (error|warning|info|debug): ")
        lines = self.k("-vv", "--json", "put", "k", stdin=b"text\n").errors.splitlines()
        self.assertTrue(lines)
        for line in lines:
            self.assertRegex(line, r'^\{"log":\{"level":"')


if __name__ == "__main__":
    support.main()
