#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcellar top: rates of running processes, which come, go and begin anew."""
import fcntl
import json
import os
import re
import signal
import struct
import subprocess

import support
from support import CONFIG, DONE, KVCELLAR, USAGE, environment, run

OPERATIONS = ("exists", "get", "set", "remove")
OPERATION_CELLS = 116
FIELDS = {"calls": 0, "pages": 1, "bytes": 2, "ok": 3, "miss": 4, "absent": 20, "sum": 83}
LATENCY = 84
OTHERS = {"overruns": 928, "retries": 929, "parked_queues": 934, "evicted": 938,
          "ghost_hits": 940, "prefix_pages_asked": 942, "prefix_pages_found": 943}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Page:
    """A page of counters as a running process keeps it (docs/on-disk-format.md, 7)."""

    def __init__(self, root, pid, number=0):
        folder = os.path.join(root, ".kvcellar", "stats")
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, f"{pid}-{number:032x}")
        header = struct.pack("<8sHHIQIIq84x", b"KVCSTS\r\n", 1, 0, 128, 8192, 944, pid, 0)
        header += struct.pack("<I", crc32c(header))
        self.cells = [0] * ((8192 - 128) // 8)
        with open(self.path, "wb") as file:
            file.write(header + bytes(8192 - 128))
        self.fd = os.open(self.path, os.O_RDWR)
        fcntl.fcntl(self.fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK

    def add(self, operation, bucket=None, **counts):
        base = OPERATIONS.index(operation) * OPERATION_CELLS
        for name, count in counts.items():
            self.cells[base + FIELDS[name]] += count
        if bucket is not None:
            self.cells[base + LATENCY + bucket] += counts["calls"]

    def write(self):
        os.pwrite(self.fd, struct.pack(f"<{len(self.cells)}Q", *self.cells), 128)

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            os.remove(self.path)
        self.fd = -1


class Top(support.Case):
    def setUp(self):
        super().setUp()
        self.check(self.k("-s", "storage_layout=files", "put", "k", stdin=b"x"), DONE)

    def page(self, pid, number=0):
        page = Page(self.root, pid, number)
        self.addCleanup(page.close)
        return page

    def start(self, *arguments):
        process = subprocess.Popen([KVCELLAR, "top", self.root, "--json", "--interval", "0.1",
                                    *arguments], stdout=subprocess.PIPE, env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def sample(self, process):
        return json.loads(process.stdout.readline())

    def until(self, process, condition):
        """The first sample of those that come for which it holds."""
        for _ in range(200):
            sample = self.sample(process)
            if condition(sample):
                return sample
        self.fail("it never comes")

    def amount(self, sample, *path):
        value = sample["total"]
        for name in path:
            value = value[name]
        return round(value * sample["seconds"], 3)

    def test_rates_shares_and_latencies(self):
        page = self.page(4000000)
        page.add("get", calls=7, pages=700, ok=700)  # long ago
        page.write()
        top = self.start()
        self.assertEqual(self.amount(self.sample(top), "operations", "get", "pages_per_second"), 0)
        page.add("get", bucket=10, calls=10, pages=100, bytes=4000000, ok=90, miss=10, absent=10,
                 sum=7680)
        page.add("exists", calls=1, pages=4, ok=4)
        page.cells[OTHERS["evicted"]] += 5
        page.cells[OTHERS["overruns"]] += 3
        page.cells[OTHERS["retries"]] += 2
        page.cells[OTHERS["parked_queues"]] = 1
        page.cells[OTHERS["ghost_hits"]] += 4
        page.cells[OTHERS["prefix_pages_asked"]] += 200
        page.cells[OTHERS["prefix_pages_found"]] += 150
        page.write()
        sample = self.until(top, lambda s: s["total"]["operations"]["get"]["pages_per_second"] > 0)
        get = sample["total"]["operations"]["get"]
        self.assertEqual(self.amount(sample, "operations", "get", "pages_per_second"), 100)
        self.assertEqual(self.amount(sample, "operations", "get", "calls_per_second"), 10)
        self.assertEqual(self.amount(sample, "operations", "get", "bytes_per_second"), 4000000)
        self.assertEqual(self.amount(sample, "operations", "get", "not_ok_per_second", "absent"), 10)
        self.assertAlmostEqual(get["ok_share"], 0.9)
        self.assertAlmostEqual(get["mean_us"], 768)
        self.assertTrue(512 <= get["p99_us"] <= 1024, get)
        self.assertEqual(self.amount(sample, "events_per_second", "evicted"), 5)
        self.assertEqual(self.amount(sample, "events_per_second", "overruns"), 3)
        self.assertEqual(self.amount(sample, "events_per_second", "retries"), 2)
        self.assertEqual(sample["total"]["parked_queues"], 1)
        self.assertEqual(self.amount(sample, "events_per_second", "ghost_hits"), 4)
        self.assertEqual(self.amount(sample, "prefix_pages_asked_per_second"), 200)
        self.assertAlmostEqual(sample["total"]["prefix_found_share"], 0.75)
        self.assertIsNone(sample["total"]["operations"]["set"]["p99_us"])
        self.assertEqual([one["pid"] for one in sample["processes"]], [4000000])
        again = self.sample(top)
        self.assertEqual(self.amount(again, "operations", "get", "pages_per_second"), 0)

    def test_processes_come_go_and_begin_anew(self):
        first = self.page(4000001)
        first.add("set", calls=50, pages=5000, ok=5000)
        first.write()
        top = self.start()
        self.assertEqual([one["new"] for one in self.sample(top)["processes"]], [False])
        second = Page(self.root, 4000002)
        self.addCleanup(second.close)
        second.add("set", calls=1, pages=8, ok=8)
        second.write()
        sample = self.until(top, lambda s: len(s["processes"]) == 2)
        new = [one for one in sample["processes"] if one["new"]]
        self.assertEqual([one["pid"] for one in new], [4000002])
        first.cells = [0] * len(first.cells)
        first.add("set", calls=1, pages=3, ok=3)
        first.write()
        sample = self.until(top, lambda s: any(one["restarted"] for one in s["processes"]))
        self.assertEqual([one["pid"] for one in sample["processes"] if one["restarted"]], [4000001])
        one = [one for one in sample["processes"] if one["pid"] == 4000001][0]
        self.assertAlmostEqual(one["operations"]["set"]["pages_per_second"] * sample["seconds"], 3)
        first.close()
        self.until(top, lambda s: [one["pid"] for one in s["processes"]] == [4000002])
        second.close()
        self.until(top, lambda s: s["processes"] == [])

    def test_two_stores_of_a_process(self):
        self.page(4000003, 1).write()
        other = self.page(4000003, 2)
        other.add("get", calls=1, pages=1, ok=1)
        other.write()
        sample = self.sample(self.start())
        self.assertEqual([(one["pid"], one["store"]) for one in sample["processes"]],
                         [(4000003, 0), (4000003, 1)])

    def test_space(self):
        done = self.check(self.k("-s", "capacity=1GiB", "top", "--once", "--interval", "0.1",
                                 "--json"), DONE).json
        (root,) = done["roots"]
        self.assertEqual(root["path"], self.root)
        self.assertEqual(root["state"], "ok")
        self.assertEqual(root["capacity_bytes"], 1 << 30)
        self.assertGreater(root["total_bytes"], root["free_bytes"])
        packed = self.path("packed")
        settings = ["-D", packed, "-s", "storage_layout=packed", "-s", "capacity=64MiB"]
        self.check(run(*settings, "bench", "--pages", "4", "--reps", "1", "--keep", "--part-bytes",
                       "64K"), DONE)
        (root,) = self.check(run(*settings, "top", "--once", "--interval", "0.1", "--json"),
                             DONE).json["roots"]
        self.assertEqual((root["objects"], root["stored_bytes"]), (4, 4 * 2 * 65536))
        self.assertEqual(root["capacity_bytes"], 64 << 20)

    def test_plain_lines_without_a_terminal(self):
        self.page(4000004).write()
        done = self.check(run("top", self.root, "--count", "2", "--interval", "0.1"), DONE)
        self.assertNotIn("\033", done.text)
        self.assertEqual(len(re.findall(r"(?m)^kvcellar top ", done.text)), 2)
        for operation in OPERATIONS:
            self.assertRegex(done.text, rf"(?m)^{operation} +0 +0 ")
        self.assertRegex(done.text, r"(?m)^4000004 ")
        self.assertIn(self.root, done.text)
        self.assertIn("not ok/s   none", done.text)

    def test_a_terminal_is_redrawn_and_not_overrun(self):
        for pid in range(4100000, 4100030):
            self.page(pid).write()
        code, shown, _ = support.on_terminal(["top", self.root, "--count", "2", "--interval", "0.1"],
                                             columns=40)
        self.assertEqual(code, DONE)
        text = shown.decode()
        self.assertEqual(text.count("\033[H"), 2)
        self.assertEqual(text.count("\033[2J"), 1)
        first = text.split("\033[H")[1]
        self.assertLessEqual(first.count("\n"), 23)
        for line in re.sub(r"\033\[[0-9;]*[A-Za-z]", "", first).splitlines():
            self.assertLessEqual(len(line), 40)
        _, shown, _ = support.on_terminal(["top", self.root, "--once", "--interval", "0.1"],
                                          env=environment(NO_COLOR="1"))
        self.assertNotIn(b"\033", shown)

    def test_until_interrupted(self):
        top = self.start()
        self.sample(top)
        top.send_signal(signal.SIGINT)
        self.assertEqual(top.wait(support.TIMEOUT), DONE)

    def test_nothing_is_written(self):
        metrics = self.path("out.prom")
        self.check(self.k("-s", "metrics_file=" + metrics, "top", "--once", "--interval", "0.1"), DONE)
        self.assertFalse(os.path.exists(metrics))

    def test_roots_that_do_not_open_have_counters(self):
        self.page(4000005).write()
        self.write("root/.kvcellar/root.json", b"damaged")
        done = self.check(run("top", self.root, "--once", "--interval", "0.1", "--json"), DONE).json
        self.assertEqual([one["pid"] for one in done["processes"]], [4000005])
        self.assertEqual(done["roots"][0]["state"], "does not open")

    def test_errors(self):
        self.check(run("top", self.path("absent")), CONFIG, "absent")
        other = self.path("other")
        os.mkdir(other)
        self.check(run("top", other), CONFIG, other, "no root of a store")
        self.check(run("top", self.root, "--interval", "0"), USAGE, "--interval")
        self.check(run("top", self.root, "--interval", "soon"), USAGE, "--interval", "soon")
        self.check(run("top", self.root, "--count", "0"), USAGE, "--count")
        self.check(run("top", self.root, "--count", "2", "--once"), USAGE, "--once")
        self.check(run("top", self.root, self.root), USAGE, "unexpected")


if __name__ == "__main__":
    support.main()
