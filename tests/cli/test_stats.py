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
    def start_writer(self, roots=None):
        """A process with an open store: it waits for the bytes of its put."""
        process = subprocess.Popen([KVCELLAR, "-D", roots or self.root, "put", "k"],
                                   stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL,
                                   env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)
        return process

    def wait_for(self, pid):
        end = time.monotonic() + support.TIMEOUT
        while time.monotonic() < end:
            # An empty folder is no root yet.
            if os.path.exists(os.path.join(self.root, ".kvcellar")):
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
        self.assertIn("no page of counters of a running process lies under " + self.root,
                      idle.errors)

    def test_the_second_root_has_no_page_and_says_where_it_is(self):
        second = self.path("second")
        os.mkdir(second)
        process = self.start_writer(self.root + "," + second)
        self.wait_for(process.pid)
        done = self.check(run("stats", second), DONE)
        self.assertIn("under the first of its local roots that it can write", done.errors)
        self.assertNotIn("no process uses", done.errors)
        both = self.check(run("-D", self.root + "," + second, "stats", "--json"), DONE).json
        self.assertEqual([one["pid"] for one in both["processes"]], [process.pid])

    def test_what_is_no_root_is_named(self):
        other = self.path("other")
        os.mkdir(other)
        for _ in range(2):
            self.check(run("stats", other), CONFIG, other, "no root of a store")
            self.check(run("stats", other, "--prometheus"), CONFIG, other)
            self.assertIn(other, run("stats", other, "--json").error["message"])
            os.makedirs(os.path.join(other, "kv", "b1"), exist_ok=True)
        # Housekeeping is optional with nixl naming.
        self.check(run("stats", os.path.join(other, "kv")), DONE, "no page of counters")
        self.check(self.k("put", "k", stdin=b"x"), DONE)
        for below in (".kvcellar", ".kvcellar/stats"):
            self.check(run("stats", os.path.join(self.root, below)), DONE)

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

    def test_what_was_evicted(self):
        process = self.start_writer()
        self.assertEqual(self.wait_for(process.pid)["total"]["evicted"], 0)
        self.assertRegex(run("stats", self.root).text, r"(?m)^evicted +0$")
        text = run("stats", self.root, "--prometheus").text
        self.assertIn("\n# TYPE kvcellar_evicted_total counter\nkvcellar_evicted_total 0\n", text)

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
        self.check(self.k("put", "k", stdin=b"x"), DONE)
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
