#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""convert: between layouts and namings; interrupted, full, corrupt, refused."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import support
from support import (CONFIG, CORRUPT, DONE, KVCELLAR, MISS, NO_SPACE, USAGE, WRONG, environment,
                     run)

PACKED = ["--layout", "packed", "--to-set", "capacity=64MiB"]
PAGES = 16


class Convert(support.Case):
    def setUp(self):
        super().setUp()
        self.target = self.path("target")
        self.check(self.k("-s", "storage_layout=files", "put", "seed", stdin=b""), DONE)
        self.check(self.k("rm", "seed", "-q"), DONE)

    def fill(self, sizes="4K,5000", pages=PAGES, *more):
        """Pages of the pool "bench" and a single object; how many objects."""
        self.check(self.k("bench", "--keep", "--pages", str(pages), "--reps", "1", "-q",
                          "--part-bytes", sizes, *more), DONE)
        self.check(self.k("put", "greeting", stdin=b"hello"), DONE)
        return self.count(self.root)

    def listed(self, root, *options):
        return self.check(run("-D", root, *options, "ls", "--all", "--json"), DONE).json["objects"]

    def count(self, root):
        return len(self.listed(root))

    def names(self, root):
        return sorted((one["namespace"], one["name"]) for one in self.listed(root))

    def damage_a_page(self):
        path = next(path for path in self.objects() if ".bench." in path)
        with open(path, "r+b") as file:
            file.write(b"\xff\x00\xff")
        return path

    def convert(self, *arguments, code=DONE):
        result = self.check(self.k("convert", "--to-dir", self.target, "--json", *arguments), code)
        return result.json if result.out else result

    def contents(self, root):
        """What a file of the layout "files" holds, without the trailer: by path below the root."""
        found = {}
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name != ".kvcellar"]
            for name in files:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    data = file.read()
                found[os.path.relpath(path, root)] = data if name.endswith(".json") else \
                    data[:-4096]
        return found

    def test_files_into_slots_and_back(self):
        count = self.fill()
        names, before = self.names(self.root), self.contents(self.root)
        done = self.convert(*PACKED)
        self.assertEqual((done["converted"], done["complete"]), (count, True))
        self.assertEqual(self.names(self.target), names)
        self.assertEqual(sum("/slots-" in one["path"] for one in self.listed(self.target)),
                         count - 1)
        verified = self.check(run("-D", self.target, "verify", "--json"), DONE).json
        self.assertEqual(verified["statuses"]["ok"], count)
        self.assertEqual(run("-D", self.target, "get", "greeting").out, b"hello")
        again = self.convert(*PACKED)
        self.assertEqual((again["converted"], again["existed"]), (0, count))
        back = self.path("back")
        self.check(run("-D", self.target, "convert", "--to-dir", back, "--layout", "files",
                       "--move", "-q"), DONE)
        self.assertEqual(self.contents(back), before)
        self.assertEqual(self.count(self.target), 0)
        self.assertEqual([name for name in os.listdir(self.target) if name != ".kvcellar"], [])

    def test_a_dry_run_changes_nothing(self):
        count = self.fill()
        shown = self.k("convert", "--to-dir", self.target, *PACKED, "--dry-run")
        self.check(shown, DONE)
        self.assertIn("would be converted", shown.text)
        self.assertFalse(os.path.exists(self.target))
        os.mkdir(self.target)
        done = self.convert(*PACKED, "--dry-run", "--move")
        self.assertEqual(done["converted"], count)
        self.assertEqual(self.count(self.root), count)
        self.assertEqual(os.listdir(self.target), [])

    def test_one_namespace(self):
        self.check(self.k("put", "a", "--model", "one", stdin=b"1"), DONE)
        self.check(self.k("put", "b", "--model", "two", stdin=b"2"), DONE)
        one = self.listed(self.root)[0]["namespace"]
        self.assertEqual(self.convert(one)["converted"], 1)
        self.assertEqual([name[0] for name in self.names(self.target)], [one])
        self.convert("other-0123456789abcdef", code=MISS)
        self.convert("none", code=USAGE)

    def test_corrupt_objects_stay_and_are_named(self):
        count = self.fill()
        path = self.damage_a_page()
        done = self.convert(*PACKED, "--move", code=CORRUPT)
        self.assertEqual((done["converted"], done["corrupt"]), (count - 1, 1))
        self.assertEqual(os.path.join(self.root, done["problems"][0]["path"]), path)
        self.assertEqual(self.objects(), [path])
        shown = self.k("convert", "--to-dir", self.target)
        self.check(shown, CORRUPT)
        self.assertIn(path, shown.text)

    def test_a_full_target_keeps_the_rest_in_the_source(self):
        count = self.fill("256K", 64)
        full = self.k("convert", "--to-dir", self.target, "--layout", "packed", "--to-set",
                      "capacity=8MiB", "--move")
        self.assertEqual(full.code, NO_SPACE, full)
        self.assertIn("full", full.errors)
        self.assertEqual(self.count(self.root) + self.count(self.target), count)
        self.assertGreater(self.count(self.target), 8)
        self.check(run("-D", self.target, "verify", "-q"), DONE)
        self.assertGreater(self.count(self.root), 8)
        # A place that has room takes the rest.
        rest = self.path("rest")
        self.check(self.k("convert", "--to-dir", rest, "--move", "-q"), DONE)
        self.assertEqual(self.count(rest) + self.count(self.target), count)
        self.assertEqual(self.objects(), [])

    def wait_for_notes(self, process, cursor):
        """Until the cursor notes an object, or the process ends."""
        end = time.monotonic() + support.TIMEOUT
        while time.monotonic() < end and process.poll() is None:
            if os.path.exists(cursor) and os.path.getsize(cursor) > 64:
                return
            time.sleep(0.001)

    def kill_midway(self, arguments, cursor):
        """SIGKILL once the cursor has noted something; how many objects it has noted."""
        process = subprocess.Popen([KVCELLAR, *arguments], env=environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for_notes(process, cursor)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return (os.path.getsize(cursor) - 64) // 16 if os.path.exists(cursor) else None

    def test_a_killed_run_goes_on(self):
        count = self.fill("4K", 3000)
        names, cursor = self.names(self.root), self.path("cursor")
        noted = self.kill_midway(["-D", self.root, "convert", "--to-dir", self.target, *PACKED,
                                  "--cursor", cursor], cursor)
        self.assertIsNotNone(noted, "it was faster than its killer")
        self.assertGreater(noted, 0)
        with open(cursor, "ab") as file:
            file.write(b"torn")
        done = self.convert(*PACKED, "--cursor", cursor)
        self.assertEqual(done["resumed"], noted)
        self.assertEqual(done["converted"] + done["existed"] + done["resumed"], count)
        self.assertFalse(os.path.exists(cursor))
        self.assertEqual(self.names(self.target), names)
        self.check(run("-D", self.target, "verify", "-q"), DONE)

    def test_a_killed_move_loses_nothing(self):
        self.fill("4K", 200)
        names = self.names(self.root)
        for milliseconds in (60, 120, 200):
            process = subprocess.Popen(
                [KVCELLAR, "-D", self.root, "convert", "--to-dir", self.target, *PACKED, "--move"],
                env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(milliseconds / 1000)
            process.kill()
            process.wait()
            if os.path.exists(os.path.join(self.target, ".kvcellar", "root.json")):
                both = set(self.names(self.root)) | set(self.names(self.target))
                self.assertEqual(sorted(both), names)
        self.convert(*PACKED, "--move")
        self.assertEqual(self.names(self.target), names)
        self.assertEqual(self.objects(), [])
        self.check(run("-D", self.target, "verify", "-q"), DONE)

    def test_a_root_whose_index_is_not_made_yet(self):
        """Who makes a root may be killed between root.json and the index."""
        count = self.fill()
        names = self.names(self.root)
        self.check(run("-D", self.target, "-s", "storage_layout=packed", "-s", "capacity=64MiB",
                       "put", "seed", stdin=b""), DONE)
        self.check(run("-D", self.target, "rm", "seed", "-q"), DONE)
        for name in os.listdir(self.target):
            if name != ".kvcellar":
                shutil.rmtree(os.path.join(self.target, name))
        housekeeping = os.path.join(self.target, ".kvcellar")
        for name in os.listdir(housekeeping):
            path = os.path.join(housekeeping, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif name != "root.json":
                os.unlink(path)
        self.assertEqual(self.listed(self.target), [])
        self.assertEqual(os.listdir(housekeeping), ["root.json"])
        self.assertEqual(self.convert(*PACKED, "--move")["converted"], count)
        self.assertEqual(self.names(self.target), names)
        # What lies in the slots is read without it, too.
        shutil.rmtree(os.path.join(housekeeping, "packed"))
        self.assertEqual(self.names(self.target), names)
        self.assertFalse(os.path.exists(os.path.join(housekeeping, "packed")))
        self.check(run("-D", self.target, "verify", "-q"), DONE)

    def test_what_was_moved_is_counted(self):
        count = self.fill()
        self.convert(*PACKED)
        shown = self.check(self.k("convert", "--to-dir", self.target, *PACKED), DONE).text
        self.assertIn(f"0 objects, 0 B, converted; {count} were there already", shown)
        self.assertNotIn("removed", shown)
        self.assertNotIn("not of the pool", shown)
        self.check(self.k("put", "one more", stdin=b"x"), DONE)
        shown = self.check(self.k("convert", "--to-dir", self.target, *PACKED, "--move"), DONE).text
        self.assertIn(f"1 object, 8.0 KiB, converted; {count} were there already", shown)
        self.assertIn(f"; {count + 1} removed from the source; ", shown)
        self.assertEqual(self.objects(), [])
        self.assertEqual(self.convert("--move")["removed"], 0)

    def test_an_interrupted_run_says_how_to_go_on(self):
        self.fill("4K", 3000)
        cursor = self.path("cursor")
        for attempt in range(10):
            self.target = self.path(f"target-{attempt}")
            done = support.interrupt(["-D", self.root, "convert", "--to-dir", self.target, *PACKED,
                                      "--cursor", cursor],
                                     lambda process: self.wait_for_notes(process, cursor))
            if done.code != DONE:  # else it was faster than the signal
                break
        self.check(done, support.INTERRUPTED)
        self.assertIn("(interrupted)", done.text)
        self.assertIn(f"The same command goes on; what '{cursor}' notes is skipped.", done.errors)
        self.assertGreater(self.convert(*PACKED, "--cursor", cursor)["resumed"], 0)

    def test_cursors_of_something_else(self):
        self.fill()
        cursor = self.write("cursor", b"something else\n" * 10)
        self.check(self.k("convert", "--to-dir", self.target, "--cursor", cursor), USAGE, cursor)
        os.unlink(cursor)
        self.damage_a_page()
        self.convert("--cursor", cursor, code=CORRUPT)
        self.assertTrue(os.path.exists(cursor))
        self.check(self.k("convert", "--to-dir", self.path("other"), "--cursor", cursor), USAGE,
                   "other directories", "name another file, or delete it")
        self.assertFalse(os.path.exists(self.path("other")))
        unused = self.path("unused")
        self.check(self.k("convert", "--to-dir", self.path("no", "where"), "--cursor", unused),
                   CONFIG)
        self.assertFalse(os.path.exists(unused))
        self.check(self.k("convert", "--to-dir", self.target, "--cursor", self.folder), USAGE,
                   self.folder)

    def test_other_bytes_are_kept_on_both_sides(self):
        self.check(self.k("put", "k", stdin=b"one"), DONE)
        self.check(run("-D", self.target, "put", "k", stdin=b"two"), DONE)
        done = self.convert("--move", code=WRONG)
        self.assertEqual((done["kept"], done["problems"][0]["problem"]), (1, "differs"))
        self.assertEqual(run("-D", self.target, "get", "k").out, b"two")
        self.assertEqual(self.k("get", "k").out, b"one")
        self.assertEqual(self.convert("--move", "--overwrite")["converted"], 1)
        self.assertEqual(run("-D", self.target, "get", "k").out, b"one")

    def test_refused(self):
        self.fill()
        self.check(self.k("convert"), USAGE, "--to-config or --to-dir")
        os.symlink(self.root, self.path("link"))
        for same in (self.root, self.path("link"), os.path.join(self.root, ".")):
            for layout in ("files", "packed"):
                self.check(self.k("convert", "--to-dir", same, "--layout", layout), USAGE,
                           "source and target are one folder", same)
        copy = self.path("copy")
        shutil.copytree(self.root, copy)
        self.assertIn("one root", self.k("convert", "--to-dir", copy).errors)
        self.check(self.k("convert", "--to-dir", self.target, "--layout", "odd"), CONFIG, "odd")
        self.check(self.k("convert", "--to-dir", self.target, "--to-set", "x"), USAGE, "--to-set")
        self.check(self.k("convert", "--to-config", "stroage_dirs=['/x']"), CONFIG, "stroage_dirs")
        self.check(run("-D", self.path("nowhere"), "convert", "--to-dir", self.target), CONFIG,
                   "nowhere")

    def test_the_targets_configuration(self):
        count = self.fill()
        config = self.write("to.json", json.dumps({"storage_dirs": [self.target],
                                                   "storage_layout": "packed",
                                                   "capacity": "64MiB"}).encode())
        self.check(self.k("convert", "--to-config", config, "-q"), DONE)
        self.assertEqual(self.count(self.target), count)
        self.check(self.k("convert", "--to-config", f"storage_dirs=['{self.path('text')}']", "-q"),
                   DONE)
        self.assertEqual(self.count(self.path("text")), count)

    # ------------------------------------------------------------------ namings

    def page_keys(self, root, *options):
        """Keys of the pool "bench" by their names."""
        return sorted({one["name"].split(".")[0].split("_")[0]
                       for one in self.listed(root, *options) if "bench" in one["name"]})

    def pages_are_there(self, root, keys, *options):
        shown = self.check(run("-D", root, *options, "exists", *keys, "--json", "--pool", "bench",
                               "--part-bytes", "4K,4K", "--model", "a/m"), DONE)
        self.assertEqual({one["status"] for one in shown.json["keys"]}, {"ok"})

    def test_kvcellar_to_nixl_and_back(self):
        pool = ["--model", "a/m", "--pool", "bench", "--part-bytes", "4K,4K"]
        nixl, back = self.path("nixl"), self.path("back")
        self.check(self.k("bench", "--keep", "--pages", str(PAGES), "--reps", "1", "-q",
                          "--part-bytes", "4K", "--model", "a/m"), DONE)
        self.check(self.k("put", "other", stdin=b"hello"), DONE)
        before = {path: data for path, data in self.contents(self.root).items() if "bench" in path}
        keys = self.page_keys(self.root)
        self.assertEqual(len(keys), PAGES)
        done = self.check(self.k("convert", "--to-dir", nixl, "--naming", "nixl", *pool, "--json"),
                          DONE).json
        self.assertEqual((done["converted"], done["passed_over"]), (PAGES, 1))
        listed = self.listed(nixl, "-s", "naming=nixl")
        self.assertEqual(len(listed), 2 * PAGES)
        self.assertEqual({one["name"].split("_", 1)[1] for one in listed},
                         {"a-m_0_1_bench_k", "a-m_0_1_bench_v"})
        self.pages_are_there(nixl, keys, "-s", "naming=nixl")
        done = self.check(run("-D", nixl, "-s", "naming=nixl", "convert", "--to-dir", back,
                              "--naming", "kvcellar", *pool, "--layout", "files", "--move",
                              "--json"), DONE).json
        self.assertEqual(done["converted"], PAGES)
        self.pages_are_there(back, keys)
        after = {path: data for path, data in self.contents(back).items() if "bench" in path}
        self.assertEqual(after, before)
        self.assertEqual(self.listed(nixl, "-s", "naming=nixl"), [])

    def test_single_objects_between_namings(self):
        self.check(self.k("put", "greeting", "--model", "m", stdin=b"hello"), DONE)
        self.check(self.k("convert", "--to-dir", self.target, "--naming", "nixl", "--model", "m",
                          "-q"), DONE)
        got = run("-D", self.target, "-s", "naming=nixl", "get", "greeting", "--model", "m")
        self.assertEqual(self.check(got, DONE).out, b"hello")

    def test_files_without_trailers(self):
        """As HiCacheNixl writes them."""
        key = "ab" * 32
        hicache = self.path("hicache")
        place = run("-D", hicache, "where", key, "--model", "m", "--part-bytes", "4K,4K",
                    "--json").json["namings"]
        files = next(one for one in place if one["naming"] == "nixl")["objects"]
        for number, one in enumerate(files):
            path = os.path.join(hicache, one["path"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(bytes([number + 1]) * 4096)
        options = ["convert", "--to-dir", self.target, "--naming", "kvcellar", "--model", "m",
                   "--part-bytes", "4K,4K", "--layout", "files", "--json"]
        kept = self.check(run("-D", hicache, "-s", "naming=nixl", *options), WRONG).json
        self.assertEqual((kept["converted"], kept["kept"]), (0, 1))
        done = self.check(run("-D", hicache, "-s", "naming=nixl", "-s", "verify=if-present",
                              *options, "--to-set", "verify=require"), DONE).json
        self.assertEqual((done["converted"], done["kept"]), (1, 0))
        stored = [data for path, data in self.contents(self.target).items()
                  if not path.endswith(".json")]
        self.assertEqual(stored, [b"\1" * 4096 + b"\2" * 4096])

    def test_a_move_into_slots_between_namings_is_refused(self):
        nixl = ["-D", self.path("nixl"), "-s", "naming=nixl"]
        self.check(run(*nixl, "put", "a", "--model", "m", stdin=b"1"), DONE)
        self.check(run(*nixl, "convert", "--to-dir", self.target, "--naming", "kvcellar",
                       "--model", "m", *PACKED, "--move"), USAGE, "evict")
        self.check(run(*nixl, "convert", "--to-dir", self.target, "--naming", "kvcellar",
                       "--model", "m", "-q"), DONE)
        self.assertEqual(run("-D", self.target, "get", "a", "--model", "m").out, b"1")


if __name__ == "__main__":
    sys.exit(support.main())
