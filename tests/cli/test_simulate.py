#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""simulate: options, what it says of bad ones, a model beside it, the curves."""
import collections
import itertools
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import xml.dom.minidom
import zlib

import support
from support import DONE, IO, NO_SPACE, USAGE, run

SAMPLES = os.path.join(support.SOURCE, "traces")
MOONCAKE = os.path.join(SAMPLES, "mooncake_conversation_sample.jsonl")
COMPACT = os.path.join(SAMPLES, "agentic_compact_sample.jsonl")
STEP, HIGH, LOW = 50, 80, 70
# What cairo's fonts keep until the end of the process is no leak.
NO_LEAKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lsan.supp")
LSAN_OPTIONS = "print_suppressions=0:suppressions="
os.environ["LSAN_OPTIONS"] = LSAN_OPTIONS + NO_LEAKS
HAVE_PNG = os.environ.get("KVC_HAVE_CAIRO", "1") == "1"


def png_chunks(path):
    """(type, data) of each chunk, their checksums compared."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("no PNG")
    at = 8
    while at < len(data):
        size, = struct.unpack_from(">I", data, at)
        body = data[at + 4:at + 8 + size]
        if struct.unpack_from(">I", data, at + 8 + size)[0] != zlib.crc32(body):
            raise ValueError(f"checksum of {body[:4]}")
        yield body[:4], body[4:]
        at += 12 + size


def paeth(left, above, corner):
    nearest = left + above - corner
    return min((abs(nearest - left), 0, left), (abs(nearest - above), 1, above),
               (abs(nearest - corner), 2, corner))[2]


def png_rows(rows, width, height):
    """The rows of an 8-bit RGB image, without their filters."""
    above = bytes(3 * width)
    for y in range(height):
        start = y * (3 * width + 1)
        kind, row = rows[start], bytearray(rows[start + 1:start + 3 * width + 1])
        for x in range(3 * width if kind else 0):
            left, corner = (row[x - 3], above[x - 3]) if x >= 3 else (0, 0)
            row[x] = row[x] + (left, above[x], (left + above[x]) // 2,
                               paeth(left, above[x], corner))[kind - 1] & 255
        yield row
        above = row


def png_colors(path):
    """(width, height, how many pixels have each color)"""
    chunks = list(png_chunks(path))
    if chunks[0][0] != b"IHDR" or chunks[-1] != (b"IEND", b""):
        raise ValueError(f"chunks {[name for name, _ in chunks]}")
    width, height, depth, kind, packing, filters, interlaced = struct.unpack(
        ">IIBBBBB", chunks[0][1])
    if (depth, kind, packing, filters, interlaced) != (8, 2, 0, 0, 0):
        raise ValueError(f"header {chunks[0][1]}")
    rows = zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT"))
    if len(rows) != (3 * width + 1) * height:
        raise ValueError(f"{len(rows)} bytes of pixels")
    counts = collections.Counter()
    for row in png_rows(rows, width, height):
        counts.update(zip(row[::3], row[1::3], row[2::3]))
    return width, height, collections.Counter(
        {red << 16 | green << 8 | blue: count for (red, green, blue), count in counts.items()})


def mooncake(limit):
    with open(MOONCAKE) as lines:
        return [json.loads(line)["hash_ids"] for line in itertools.islice(lines, limit)]


class Lru:
    """Strictly the least recently used page; the first page of a call is the newest."""

    def __init__(self, capacity, by_use=True):
        self.capacity, self.by_use = capacity, by_use
        self.stamps, self.clock = {}, 0

    def call(self, pages, before=()):
        self.clock += len(pages)
        for i, page in enumerate(pages):
            if page in self.stamps:
                if self.by_use:
                    self.stamps[page] = self.clock - i
                continue
            if len(self.stamps) == self.capacity:
                del self.stamps[min(self.stamps, key=self.stamps.get)]
            self.stamps[page] = self.clock - i
        for page in reversed(before if pages else ()):
            if page not in self.stamps:
                break
            self.clock += 1
            if self.by_use:
                self.stamps[page] = self.clock

    def __contains__(self, page):
        return page in self.stamps


class Reference:
    """By the time of writing; at the capacity down to below 70/80 of it, 50 pages at a time."""

    def __init__(self, capacity):
        self.capacity, self.pages = capacity, collections.OrderedDict()

    def call(self, pages, _before=()):
        for page in pages:
            if page in self.pages:
                continue
            if len(self.pages) == self.capacity:
                while self.pages and len(self.pages) * HIGH >= self.capacity * LOW:
                    for _ in range(min(STEP, len(self.pages))):
                        self.pages.popitem(last=False)
            self.pages[page] = True

    def __contains__(self, page):
        return page in self.pages


def play(store, requests):
    """(hits, pages that were computed again)"""
    hits, again, seen = 0, 0, set()
    for pages in requests:
        found = 0
        while found < len(pages) and pages[found] in store:
            found += 1
        hits += found
        for page in pages[found:]:
            again += page in seen
            seen.add(page)
        store.call(pages[:found])
        store.call(pages[found:], pages[:found])
    return hits, again


class Simulate(support.Case):
    def simulate(self, *arguments, code=DONE):
        return self.check(run("simulate", *arguments), code)

    def points(self, *arguments):
        document = self.simulate(*arguments, "--json").json
        return {(point["policy"], point["capacity"]): point for point in document["points"]}

    def need_png(self):
        if not HAVE_PNG:
            self.skip("this build has no cairo")

    def refuse(self, expected, *arguments):
        result = self.simulate(*arguments, code=USAGE)
        self.assertIn(expected, result.errors)
        self.assertEqual(result.out, b"")

    def test_strict_orders_are_the_models(self):
        requests = mooncake(300)
        points = self.points(MOONCAKE, "--limit", "300", "--exact", "--batch", "0", "--capacity",
                             "150,600,1500", "--policy", "lru,fifo,reference")
        for capacity in (150, 600, 1500):
            models = {"lru": Lru(capacity), "fifo": Lru(capacity, by_use=False),
                      "reference": Reference(capacity)}
            for policy, model in models.items():
                with self.subTest((policy, capacity)):
                    point = points[policy, str(capacity)]
                    self.assertEqual((point["hits"], point["recomputed"]), play(model, requests))
                    self.assertLessEqual(point["most_pages"], capacity)

    def test_candidates_come_near_to_the_strict_order(self):
        for trace in (MOONCAKE, COMPACT):
            arguments = (trace, "--limit", "1500", "--capacity", "5%,20%,60%", "--policy",
                         "lru,fifo")
            near, strict = self.points(*arguments), self.points(*arguments, "--exact")
            for key, point in strict.items():
                with self.subTest((os.path.basename(trace), *key)):
                    self.assertGreater(near[key]["hits"], 0.95 * point["hits"])
                    self.assertLess(near[key]["hits"], 1.02 * point["hits"])
                    self.assertLessEqual(near[key]["most_pages"], point["capacity_pages"])

    def test_a_store_for_everything_computes_nothing_again(self):
        requests = mooncake(10 ** 6)
        point, = self.points(MOONCAKE, "--capacity", "60000", "--policy",
                             "lru").values()
        distinct = len({page for pages in requests for page in pages})
        self.assertEqual(point["computed"], distinct)
        self.assertEqual((point["recomputed"], point["evicted"]), (0, 0))

    def test_it_is_the_same_every_time(self):
        first = self.simulate(MOONCAKE, "--capacity", "5%,10%", "--json").out
        self.assertEqual(self.simulate(MOONCAKE, "--capacity", "5%,10%", "--json").out, first)
        text = self.simulate(MOONCAKE, "--capacity", "5%", "--seed", "7").text
        self.assertIn("seed 7", text)

    def test_a_chart_is_not_the_trace(self):
        with open(MOONCAKE, "rb") as file:
            trace = self.write("own.jsonl", file.read())
        self.refuse("is the trace itself", trace, "--capacity", "5%", "--svg", trace)
        self.assertGreater(os.path.getsize(trace), 0)

    def test_sessions(self):
        one = self.simulate(COMPACT, "--capacity", "5%", "--policy", "lru", "--sessions", "1",
                            "--json").json
        many = self.simulate(COMPACT, "--capacity", "5%", "--policy", "lru", "--json").json
        self.assertEqual((one["side_by_side"], many["side_by_side"]), (1, 16))
        self.assertEqual(one["sessions"], 42)
        lines = self.simulate(COMPACT, "--capacity", "5%", "--policy", "lru", "--sessions", "0",
                              "--json").json
        self.assertEqual(lines["points"], one["points"])  # its sessions stand one after the other
        self.assertEqual(one["pages"], many["pages"])
        self.assertLess(one["points"][0]["recomputed"], many["points"][0]["recomputed"])
        self.refuse("--sessions", MOONCAKE, "--sessions", "4")

    def test_the_order_of_the_sessions_as_a_trace(self):
        script = os.path.join(support.SOURCE, "bench", "interleave.py")
        with open(COMPACT, "rb") as trace:
            lines = subprocess.run([sys.executable, "-B", script, "4"], stdin=trace, check=True,
                                   stdout=subprocess.PIPE).stdout
        arguments = ("--capacity", "5%", "--policy", "lru,reference")
        found = self.points(self.write("four", lines), "--sessions", "0", *arguments)
        for key, point in self.points(COMPACT, "--sessions", "4", *arguments).items():
            for name in ("hits", "recomputed", "stored", "evicted"):
                self.assertEqual(found[key][name], point[name], (key, name))

    def test_capacities(self):
        document = self.simulate(MOONCAKE, "--policy", "lru", "--page-bytes", "1MiB",
                                 "--capacity", "10%,500,1GiB", "--json").json
        found = [(point["capacity"], point["capacity_pages"], point["capacity_bytes"])
                 for point in document["points"]]
        tenth = document["distinct_pages"] // 10
        self.assertEqual(found, [("500", 500, 500 << 20), ("1.0 GiB", 1024, 1 << 30),
                                 ("10%", tenth, tenth << 20)])

    def test_text(self):
        text = self.simulate(MOONCAKE, "--capacity", "10%,20%", "--policy", "lru,reference").text
        self.assertIn("mooncake form, 1300 requests, 36300 pages, 27686 of them distinct", text)
        rows = [line.split() for line in text.splitlines() if line.startswith(("10%", "20%"))]
        self.assertEqual([len(row) for row in rows], [4] * 4)
        self.assertGreater(float(rows[0][2].rstrip("%")), float(rows[0][3].rstrip("%")))

    def test_what_is_refused(self):
        self.refuse("no TRACE given")
        self.refuse("more than one TRACE", MOONCAKE, COMPACT)
        self.refuse("not from standard input", "-")
        self.refuse("'lfu' is none of lru, fifo, s3fifo, reference", MOONCAKE, "--policy", "lfu")
        self.refuse("lru twice", MOONCAKE, "--policy", "lru,lru")
        self.refuse("--policy: an empty list", MOONCAKE, "--policy", "")
        self.refuse("--capacity: an empty list", MOONCAKE, "--capacity", "")
        for bad in ("0%", "101%", "-3%", "x", "0x10%", "nan%", "5%,,7%", "0"):
            with self.subTest(bad):
                self.refuse("--capacity", MOONCAKE, "--capacity=" + bad)
        self.refuse("--page-bytes has to say", MOONCAKE, "--capacity", "64GiB")
        self.refuse("are 0 pages", MOONCAKE, "--capacity", "4K", "--page-bytes", "1M")
        self.refuse("--page-bytes", MOONCAKE, "--page-bytes", "0")
        self.refuse("--sessions", COMPACT, "--sessions", "-1")
        self.refuse("more than 64", MOONCAKE, "--capacity", ",".join(["5%"] * 65))

    def test_traces_that_cannot_be_read(self):
        self.refuse("No such file", self.path("none"))
        self.refuse("line 2", self.write("bad", b'{"timestamp":0,"hash_ids":[1]}\n{"hash_ids":2}'))
        self.refuse("no request asks for a page", self.write("empty", b""))
        self.refuse("no request asks for a page",
                    self.write("nothing", b'{"timestamp":0,"hash_ids":[]}\n'))
        lines = b'{"timestamp":0,"hash_ids":[1]}\nnonsense\n{"timestamp":1,"hash_ids":[1]}\n'
        document = self.simulate(self.write("some", lines), "--skip-bad", "--capacity", "1",
                                 "--json").json
        self.assertEqual((document["bad_lines"], document["requests"]), (1, 2))
        self.assertEqual(document["points"][0]["hits"], 1)

    def test_svg(self):
        path = self.path("curves.svg")
        self.simulate(MOONCAKE, "--capacity", "5%,10%,50%", "--svg", path)
        drawing = xml.dom.minidom.parse(path).documentElement
        self.assertEqual(drawing.tagName, "svg")
        points = drawing.getElementsByTagName("circle")
        self.assertEqual(len(points), 3 * 4)
        notes = [point.firstChild.firstChild.data for point in points]
        self.assertTrue(any(note.startswith("lru at 10%: ") for note in notes), notes)
        width, height = (float(drawing.getAttribute(name)) for name in ("width", "height"))
        for point in points:
            self.assertTrue(0 < float(point.getAttribute("cx")) < width)
            self.assertTrue(0 < float(point.getAttribute("cy")) < height)

    def test_png(self):
        self.need_png()
        path = self.path("curve.png")
        self.simulate(MOONCAKE, "--capacity", "5%,10%", "--policy", "lru,fifo", "--png", path)
        width, height, counts = png_colors(path)
        self.assertEqual((width, height), (1520, 860))
        self.assertGreater(counts[0xffffff], width * height // 2)  # paper
        # Letters, grid, and a curve for each of the two policies.
        for color in (0x30343a, 0xdcdfe4, 0x1f6fb4, 0xd0741c):
            self.assertGreater(counts[color], 500, f"{color:06x}")
        for color in (0x3a9450, 0x8a4fa8):
            self.assertEqual(counts[color], 0, f"{color:06x}")

    def test_a_build_without_png_says_so(self):
        if HAVE_PNG:
            return
        path = self.path("curve.png")
        self.check(run("simulate", MOONCAKE, "--png", path), USAGE, "--png",
                   "this build has no PNG", "cairo", "--svg")
        self.assertFalse(os.path.exists(path))

    def test_a_chart_that_cannot_be_written_is_told_first(self):
        self.refuse("curve.svg", MOONCAKE, "--svg", self.path("none/curve.svg"))
        self.need_png()
        svg = self.path("left.svg")
        self.refuse("curve.png", MOONCAKE, "--svg", svg, "--png", self.path("none/curve.png"))
        self.assertFalse(os.path.exists(svg))

    def test_no_part_of_a_chart_stays(self):
        # A size that both charts are above, as a full disk would cut them off.
        for kind in ("svg", "png") if HAVE_PNG else ("svg",):
            with self.subTest(kind):
                path = self.path("curve." + kind)
                done = subprocess.run(
                    [support.KVCELLAR, "simulate", MOONCAKE, "--" + kind, path],
                    capture_output=True, timeout=support.TIMEOUT, check=False,
                    env=support.environment(), restore_signals=False,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
                self.check(support.Result(done.returncode, done.stdout, done.stderr), IO)
                self.assertIn(f"chart '{path}': ".encode(), done.stderr)
                self.assertFalse(os.path.exists(path))

    def test_a_full_disk(self):
        self.need_png()
        self.need_mounts()
        shutil.copy(MOONCAKE, self.path("trace.jsonl"))
        shutil.copy(NO_LEAKS, self.path("no-leaks"))
        done = support.in_mounts("""
            mkdir small; mount -t tmpfs -o size=16k none small
            $k simulate "$work/trace.jsonl" --capacity 10% --png small/curve.png
            echo "code $?" >&2; ls -A small >&2
            """, self.folder,
            env=support.environment(LSAN_OPTIONS=LSAN_OPTIONS + "/tmp/work/no-leaks"))
        self.assertIn("chart 'small/curve.png': No space left on device\n", done.errors)
        self.assertTrue(done.errors.endswith(f"code {NO_SPACE}\n"), done.errors)

    def test_a_link_to_a_device_stays(self):
        self.need_png()
        link = self.path("full")
        os.symlink("/dev/full", link)
        self.check(run("simulate", MOONCAKE, "--capacity", "10%", "--png", link), NO_SPACE,
                   link, "No space left")
        self.assertTrue(os.path.islink(link))


if __name__ == "__main__":
    support.main()
