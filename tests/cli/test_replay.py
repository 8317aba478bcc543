#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""replay and bench: the trace forms, the tier against a model, wrong bytes, the report."""
import collections
import html.parser
import json
import os
import re
import time
import xml.dom.minidom

import support
from support import DONE, INTERRUPTED, USAGE, WRONG

SAMPLES = os.path.join(support.SOURCE, "traces")
MOONCAKE = os.path.join(SAMPLES, "mooncake_conversation_sample.jsonl")
COMPACT = os.path.join(SAMPLES, "agentic_compact_sample.jsonl")
MEM = ("-s", "plugin.mem.active=true")
SMALL = ("--part-bytes", "2K", "--json")


def has_open(process, path):
    """Waits until the process has this file open."""
    folder = f"/proc/{process.pid}/fd"
    end = time.monotonic() + support.TIMEOUT
    while time.monotonic() < end:
        try:
            if path in [os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder)]:
                return
        except OSError:  # closed meanwhile
            pass


def mooncake(limit):
    with open(MOONCAKE) as lines:
        return [[(0, page) for page in json.loads(line)["hash_ids"]]
                for _, line in zip(range(limit), lines)]


def compact(limit):
    requests = []
    with open(COMPACT) as lines:
        for _, line in zip(range(limit), lines):
            session, _, _, _, runs = json.loads(line)
            requests.append([(session, page) for first, count in runs
                             for page in range(first, first + count)])
    return requests


def model(requests, tier_pages=0, stored=None):
    """(tier hits, store hits, pages stored): what a serving engine in front of a store that forgets
    nothing sees. The tier forgets the least recently used page; a request uses its last page first."""
    stored = set() if stored is None else stored
    tier = collections.OrderedDict()
    tier_hits = store_hits = 0
    for pages in requests:
        hit = 0
        while hit < len(pages) and pages[hit] in tier:
            hit += 1
        tier_hits += hit
        while hit < len(pages) and pages[hit] in stored:
            hit += 1
            store_hits += 1
        stored.update(pages)
        for page in reversed(pages):
            tier[page] = True
            tier.move_to_end(page)
            if len(tier) > tier_pages:
                tier.popitem(last=False)
    return tier_hits, store_hits, len(stored)


class Page(html.parser.HTMLParser):
    """Everything in the page that could make a browser fetch something."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags = [], collections.Counter()

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        if tag in ("link", "script", "iframe", "img", "object", "embed", "base"):
            self.fetched.append(tag)
        self.fetched += [name for name, _ in attributes
                         if name in ("src", "href", "xlink:href", "srcset", "data", "action")]


class Replay(support.Case):
    def replay(self, trace, *arguments, code=DONE):
        return self.check(self.k("replay", trace, *arguments), code)

    def on_mem(self, trace, *arguments, code=DONE):
        return self.check(support.run("replay", trace, *MEM, *arguments), code)

    def expect(self, document, requests, tier_pages=0):
        tier_hits, store_hits, stored = model(requests, tier_pages)
        total = document["total"]
        self.assertEqual(total["requests"], len(requests))
        self.assertEqual(total["pages"], sum(map(len, requests)))
        self.assertEqual((total["tier_hits"], total["store_hits"]), (tier_hits, store_hits))
        self.assertEqual(document["wrong_bytes"], 0)
        self.assertEqual(document["operations"]["set"]["bytes"], stored * 4096)
        self.assertEqual(document["operations"]["get"]["bytes"], store_hits * 4096)
        self.assertEqual(document["checked_pages"], store_hits)

    def test_mooncake_form(self):
        document = self.replay(MOONCAKE, "--limit", "60", *SMALL).json
        self.assertEqual(document["form"], "mooncake")
        self.expect(document, mooncake(60))

    def test_compact_form(self):
        document = self.on_mem(COMPACT, "--limit", "12", *SMALL).json
        self.assertEqual(document["form"], "compact")
        self.expect(document, compact(12))

    def test_the_tier_is_the_model_s(self):
        for tier_pages in (1, 60, 700, 5000):
            with self.subTest(tier_pages):
                document = self.on_mem(MOONCAKE, "--limit", "400", "--l2-pages", str(tier_pages),
                                       *SMALL).json
                self.expect(document, mooncake(400), tier_pages)

    def test_a_second_replay_finds_everything(self):
        self.replay(MOONCAKE, "--limit", "40", *SMALL)
        document = self.replay(MOONCAKE, "--limit", "40", *SMALL).json
        self.assertEqual(document["total"]["hit_rate"], 1)
        self.assertEqual(document["operations"]["set"]["pages"], 0)

    def test_passes(self):
        document = self.on_mem(MOONCAKE, "--limit", "40", "--passes", "3", *SMALL).json
        self.assertEqual([one["requests"] for one in document["passes"]], [40] * 3)
        self.assertEqual([one["hit_rate"] == 1 for one in document["passes"]],
                         [False, True, True])
        self.assertEqual(document["total"]["requests"], 120)

    def test_clients_keep_sessions_in_order(self):
        # Each session's second request repeats its first: in order, it finds all of it.
        lines = [f"[{session},{time},0,0,[[1,20]]]" for session in range(30) for time in (0, 1)]
        trace = self.write("t", "\n".join(lines).encode())
        for clients in ("1", "2", "7"):
            with self.subTest(clients):
                document = self.on_mem(trace, "--clients", clients, *SMALL).json
                self.assertEqual(document["total"]["requests"], 60)
                self.assertEqual(document["total"]["store_hits"], 600)
                self.assertEqual(document["wrong_bytes"], 0)

    def test_clients_share_the_store(self):
        document = self.replay(MOONCAKE, "--limit", "40", "--clients", "4", *SMALL).json
        total, requests = document["total"], mooncake(40)
        self.assertEqual(total["pages"], sum(map(len, requests)))
        self.assertEqual(document["wrong_bytes"], 0)
        # Every page is there afterwards, whoever stored it.
        again = self.replay(MOONCAKE, "--limit", "40", *SMALL).json
        self.assertEqual(again["total"]["hit_rate"], 1)

    def test_layouts_batches_and_odd_parts(self):
        requests = mooncake(25)
        for layout in ("page_first", "page_first_direct", "page_head", "layer_first", "explicit"):
            with self.subTest(layout):
                document = self.on_mem(MOONCAKE, "--limit", "25", "--layout", layout, "--batch",
                                       "7", *SMALL).json
                self.expect(document, requests)
        document = self.replay(MOONCAKE, "--limit", "25", "--layout", "explicit", "--part-bytes",
                               "4097", "--parts", "3", "--json").json
        self.assertEqual(document["total"]["store_hits"], model(requests)[1])
        self.assertEqual(document["wrong_bytes"], 0)
        # layer_first and page_first_direct store the same bytes.
        self.replay(MOONCAKE, "--limit", "20", "--layout", "layer_first", *SMALL)
        document = self.replay(MOONCAKE, "--limit", "20", "--layout", "page_first_direct",
                               *SMALL).json
        self.assertEqual((document["total"]["hit_rate"], document["wrong_bytes"]), (1, 0))

    def test_ranks_read_their_own(self):
        for ranks in (("--tp-size", "2"), ("--pp-size", "2"), ("--mla", "--tp-size", "2")):
            with self.subTest(ranks):
                for _ in range(2):
                    for rank in "01":
                        which = "--pp-rank" if "--pp-size" in ranks else "--tp-rank"
                        document = self.replay(MOONCAKE, "--limit", "10", "--model",
                                               "/".join(ranks), *ranks, which, rank, *SMALL).json
                        self.assertEqual(document["wrong_bytes"], 0)
                self.assertEqual(document["total"]["hit_rate"], 1)

    def test_other_tp_sizes_share_head_groups(self):
        arguments = ("--limit", "10", "--tp-lcm-size", "4", "--layout", "page_head", "--json")
        self.replay(MOONCAKE, *arguments, "--part-bytes", "8K", "--tp-size", "1", "--heads", "8")
        for rank in "01":
            document = self.replay(MOONCAKE, *arguments, "--part-bytes", "4K", "--tp-size", "2",
                                   "--tp-rank", rank, "--heads", "4").json
            self.assertEqual((document["total"]["hit_rate"], document["wrong_bytes"]), (1, 0))

    def test_speed_keeps_the_times(self):
        trace = self.write("t", b'{"timestamp":0,"hash_ids":[1]}\n'
                                b'{"timestamp":1000,"hash_ids":[1]}\n')
        slow = self.on_mem(trace, "--speed", "4", *SMALL).json
        self.assertGreaterEqual(slow["total"]["seconds"], 0.25)
        self.assertEqual(slow["total"]["store_hits"], 1)

    def test_wrong_bytes_are_found(self):
        result = support.run("replay", MOONCAKE, "--limit", "60", *SMALL, "-s", "verify=off", "-s",
                             "plugin.fault.active=true", "-s", "plugin.fault.lower=mem", "-s",
                             "plugin.fault.seed=1", "-s", "plugin.fault.rules=read corrupt after=8")
        self.check(result, WRONG)
        document = result.json
        self.assertGreater(document["wrong_bytes"], 0)
        self.assertGreater(document["wrong_pages"], 0)
        self.assertRegex(document["first_wrong"]["key"], "^[0-9a-f]{64}$")
        # With verification the same faults are misses, and no byte is wrong.
        result = support.run("replay", MOONCAKE, "--limit", "60", *SMALL, "-s", "verify=require",
                             "-s", "plugin.fault.active=true", "-s", "plugin.fault.lower=mem",
                             "-s", "plugin.fault.seed=1", "-s",
                             "plugin.fault.rules=read corrupt after=8")
        self.assertEqual(self.check(result, DONE).json["wrong_bytes"], 0)
        self.assertGreater(result.json["operations"]["get"]["statuses"]["corrupt"], 0)

    def test_text_output(self):
        text = self.on_mem(MOONCAKE, "--limit", "30", "--part-bytes", "2K").text
        hits, pages = model(mooncake(30))[1], sum(map(len, mooncake(30)))
        self.assertIn(f"{100 * hits / pages:.1f}% of {pages} pages", text)
        self.assertRegex(text, r"(?m)^set +\d+ +\d+ ")
        self.assertIn(f"wrong bytes  0 in 0 of {hits} compared pages", text)

    def test_malformed_lines(self):
        good = b'{"timestamp":0,"hash_ids":[1,2]}\n'
        trace = self.write("t", good + b'{"timestamp":0,"hash_ids":"x"}\n' + good)
        self.check(self.k("replay", trace, "-q"), USAGE, "line 2", "hash_ids")
        self.assertEqual(self.on_mem(trace, "--json", code=USAGE).error["kind"], "usage")
        document = self.on_mem(trace, "--skip-bad", *SMALL).json
        self.assertEqual((document["bad_lines"], document["total"]["requests"]), (1, 2))
        for content, cause in ((b"", "holds no requests"), (b"hello\n", "line 1: not JSON"),
                               (b"{}\n", "line 1: neither")):
            self.check(self.k("replay", self.write("t", content)), USAGE, cause)
        self.check(self.k("replay", self.path("missing")), USAGE, "missing")
        self.check(self.k("replay", self.folder), USAGE, self.folder)
        header = self.write("t", b'{"kvcellar_trace":1}\n')
        self.check(self.k("replay", header), USAGE, "holds no requests", "single objects")

    def test_lines_without_an_end(self):
        self.check(self.k("replay", "/dev/zero"), USAGE, "line 1", "longer than 16 MiB")
        result = support.interrupt(["replay", "/dev/zero", "--skip-bad", "-D", self.root],
                                   lambda process: has_open(process, "/dev/zero"))
        self.assertEqual((result.code, result.out), (INTERRUPTED, b""), result)

    def test_a_pipe_without_an_end(self):
        pipe = self.path("pipe")
        os.mkfifo(pipe)

        def ready(process):
            has_open(process, pipe)
            support.wait_until_reading(process.pid)

        with open(pipe, "r+b", buffering=0):
            result = support.interrupt(["replay", pipe, "-D", self.root], ready)
        self.assertEqual((result.code, result.out), (INTERRUPTED, b""), result)

    def test_quiet(self):
        self.assertEqual(self.on_mem(MOONCAKE, "--limit", "5", "--part-bytes", "2K", "-q").out, b"")

    def test_bad_arguments(self):
        for arguments, cause in ((("--part-bytes", "100"), "--part-bytes"),
                                 (("--layout", "x"), "--layout: 'x'"),
                                 (("--speed", "-1"), "--speed"),
                                 (("--clients", "0"), "--clients"),
                                 (("--pool-pages", "1"), "--pool-pages"),
                                 (("--heads", "3"), "--heads"),
                                 (("another",), "more than one TRACE")):
            with self.subTest(arguments):
                self.check(self.k("replay", MOONCAKE, *arguments), USAGE, cause)
        self.check(self.k("replay"), USAGE, "no TRACE")

    def test_the_report_stands_alone(self):
        report = self.path("report.html")
        secret = "hush" * 4
        self.on_mem(MOONCAKE, "--limit", "150", "--l2-pages", "1", "--report", report, *SMALL,
                    "-s", f"plugin.obj.access_key={secret}", "-s", "plugin.obj.active=false")
        with open(report) as file:
            text = file.read()
        self.assertTrue(text.startswith("<!doctype html>\n"))
        xml.dom.minidom.parseString(text.split("\n", 1)[1])
        page = Page()
        page.feed(text)
        self.assertEqual(page.fetched, [])
        self.assertNotRegex(text, r"url\(|@import")
        self.assertEqual(re.findall("https?://[^ ]+", text.split("<details>")[0]), [])
        self.assertGreaterEqual(page.tags["svg"], 5)
        self.assertGreater(page.tags["rect"], 10)
        self.assertNotIn(secret, text)
        self.assertIn("prefers-color-scheme", text)

    def test_the_report_agrees_with_itself(self):
        """The sums of get and set lie within what the chart over time shows."""
        report = self.path("report.html")
        document = self.on_mem(MOONCAKE, "--limit", "150", "--report", report, *SMALL).json
        with open(report) as file:
            chart = file.read().split("<h2>Throughput over time</h2>")[1].split("</section>")[0]
        ticks = [(float(y), float(value)) for y, value in
                 re.findall(r'text-anchor="end" x="[^"]*" y="([^"]*)">([^<]*)<', chart)]
        zero, top = ticks[0], ticks[-1]
        for op in ("get", "set"):
            points = re.search(rf'class="line s-{op}" points="([^"]*)"', chart).group(1).split()
            highest = max((zero[0] - 4 - float(point.split(",")[1])) /
                          (zero[0] - top[0]) * top[1] for point in points)
            self.assertGreaterEqual(highest * 1.02, document["operations"][op]["gb_per_s"], op)

    def test_no_report_is_left_when_nothing_was_played(self):
        report = self.path("report.html")
        in_the_way = self.write("file", b"")
        result = support.run("replay", MOONCAKE, "--limit", "1", "-D", in_the_way, "--report",
                             report)
        self.assertNotEqual(result.code, DONE, result)
        self.assertFalse(os.path.exists(report))
        self.check(self.k("replay", MOONCAKE, "--report", self.path("no", "r.html")), USAGE)

    def test_interrupt(self):
        lines = [f'{{"timestamp":{3600000 if i else 0},"hash_ids":[1]}}' for i in range(2)]
        trace = self.write("t", "\n".join(lines).encode())

        def ready(process):
            del process
            while not self.objects():
                pass

        result = support.interrupt(["replay", trace, "-D", self.root, "--speed", "1", *SMALL],
                                   ready)
        self.check(result, INTERRUPTED)
        document = json.loads(result.out)
        self.assertTrue(document["interrupted"])
        self.assertEqual(document["total"]["requests"], 1)

    def test_a_recording_is_played(self):
        recording = self.path("trace.jsonl")
        first = self.replay(MOONCAKE, "--limit", "30", *SMALL, "-s",
                            f"trace_file={recording}").json
        with open(recording) as lines:
            rows = [json.loads(line) for line in lines]
        self.assertEqual(rows[0]["kvcellar_trace"], 1)
        self.assertTrue(all(len(key) == 16 for row in rows[1:] for key in row["keys"]))
        other = self.path("other")
        os.mkdir(other, 0o700)
        again = self.check(support.run("replay", recording, "-D", other, *SMALL), DONE).json
        self.assertEqual(again["form"], "recording")
        self.assertEqual(again["wrong_bytes"], 0)
        for op in ("exists", "get", "set"):
            self.assertEqual(again["operations"][op]["statuses"],
                             first["operations"][op]["statuses"], op)
        self.check(support.run("replay", recording, *MEM, "--l2-pages", "5"), USAGE, "--l2-pages")

    def test_removes_of_a_recording(self):
        key = "00112233445566aa"
        line = ('{"t_ms":%d,"op":"%s","pool":"kv","thread":1,"n":1,"ok":1,"keys":["' + key + '"]}\n')
        trace = self.write("t", ('{"kvcellar_trace":1}\n' + "".join(
            line % (at, op) for at, op in enumerate(["set", "get", "remove", "get"]))).encode())
        document = self.on_mem(trace, *SMALL).json
        self.assertEqual(document["operations"]["get"]["statuses"], {"ok": 1, "miss": 1})
        self.assertEqual(document["total"]["hit_rate"], 0.5)


class Bench(support.Case):
    def test_bench(self):
        files = ["-s", "storage_layout=files"]
        document = self.check(self.k(*files, "bench", "--pages", "16", "--reps", "3",
                                     "--part-bytes", "4K,10000", "--threads", "2", "--json"),
                              DONE).json
        cases = [(case["op"], case["part_bytes"]) for case in document["cases"]]
        self.assertEqual(cases, [(op, size) for op in ("set", "exists_first", "exists", "get")
                                 for size in (4096, 10000)])
        for case in document["cases"]:
            self.assertEqual(len(case["seconds"]), 3)
            self.assertGreater(case["median_us"], 0)
        self.assertEqual(self.objects(), [])

    def test_keep_and_ops(self):
        files = ["-s", "storage_layout=files"]
        result = self.check(self.k(*files, "bench", "--pages", "8", "--reps", "1", "--part-bytes",
                                   "4K", "--ops", "get", "--keep", "--warm"), DONE)
        self.assertRegex(result.text, r"(?m)^get +4.0 KiB x 2 ")
        self.assertNotRegex(result.text, "(?m)^set")
        self.assertEqual(len(self.objects()), 8 + 4)  # and those of the warm-up

    def test_bad_arguments(self):
        for arguments, cause in ((("--ops", "put"), "--ops: 'put'"),
                                 (("--part-bytes", "0"), "--part-bytes"), (("x",), "'x'")):
            self.check(self.k("bench", *arguments), USAGE, cause)


if __name__ == "__main__":
    support.main()
