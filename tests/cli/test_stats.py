#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcellar stats: counters of a process that runs, from outside of it."""
import json
import os
import subprocess
import time

import support
from support import CONFIG, DONE, KVCELLAR, USAGE, environment, run


class Stats(support.Case):
    def start_writer(self):
        """A process with an open store: it waits for the bytes of its put."""
        process = subprocess.Popen([KVCELLAR, "-D", self.root, "put", "k"], stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)
        return process

    def wait_for(self, pid):
        end = time.monotonic() + support.TIMEOUT
        while time.monotonic() < end:
            document = self.check(run("stats", self.root, "--json"), DONE).json
            if pid in [one["pid"] for one in document["processes"]]:
                return document
            time.sleep(0.02)
        self.fail("the process does not show up")

    def test_nobody(self):
        self.check(self.k("put", "k", stdin=b"x"), DONE)
        document = self.check(run("stats", self.root, "--json"), DONE).json
        self.assertEqual(document["processes"], [])
        self.assertIn("total", document)
        idle = self.check(run("stats", self.root), DONE)
        self.assertEqual(idle.out, b"")
        self.assertIn("no process", idle.errors)

    def test_a_running_process_in_all_forms(self):
        process = self.start_writer()
        document = self.wait_for(process.pid)
        self.assertEqual([one["pid"] for one in document["processes"]], [process.pid])
        self.assertEqual(document["total"], document["processes"][0]["stats"])
        self.assertIn(f"process {process.pid}", run("stats", self.root).text)
        self.assertEqual(self.k("stats", "--json").json["processes"][0]["pid"], process.pid)
        text = self.check(run("stats", self.root, "--prometheus"), DONE).text
        for line in text.splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) kvcellar_|kvcellar_\w+(\{[^}]*\})? [-+.\deE]+$)")

    def test_processes_are_summed(self):
        first, second = self.start_writer(), self.start_writer()
        self.wait_for(first.pid)
        document = self.wait_for(second.pid)
        self.assertEqual({one["pid"] for one in document["processes"]}, {first.pid, second.pid})

    def test_a_process_that_was_killed_is_gone(self):
        process = self.start_writer()
        self.wait_for(process.pid)
        process.kill()
        process.wait()
        self.assertEqual(run("stats", self.root, "--json").json["processes"], [])

    def test_watch_prints_one_document_a_line(self):
        process = subprocess.Popen([KVCELLAR, "stats", self.root, "--json", "--watch", "0.1"],
                                   stdout=subprocess.PIPE, env=environment())
        for _ in range(3):
            self.assertIn("processes", json.loads(process.stdout.readline()))
        process.stdout.close()
        self.assertEqual(process.wait(support.TIMEOUT), support.IO)

    def test_errors(self):
        self.check(run("stats", self.path("absent")), CONFIG, "absent")
        self.check(run("stats", self.root, "--json", "--prometheus"), USAGE, "--prometheus")
        self.assertEqual(os.listdir(self.root), [])


if __name__ == "__main__":
    support.main()
