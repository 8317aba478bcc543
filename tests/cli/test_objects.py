#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects in and out: put, get, exists, rm, ls, stat, where, verify, clear, info, selftest."""
import base64
import functools
import os
import re
import subprocess

import support
from support import CORRUPT, DONE, MISS, USAGE, run

SIZES = (0, 1, 4095, 4096, 4097, 1 << 20, (3 << 20) + 1)


class Objects(support.Case):
    def namespace(self):
        return self.check(self.k("ls", "--json"), DONE).json["namespaces"][0]["namespace"]

    def corrupt(self, path):
        with open(path, "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))

    def test_bytes_come_back(self):
        for size in SIZES:
            with self.subTest(size):
                data = os.urandom(size)
                path = self.write("in", data)
                self.check(self.k("put", f"key{size}", path), DONE)
                self.assertEqual(self.check(self.k("get", f"key{size}"), DONE).out, data)
                self.check(self.k("get", f"key{size}", "-o", self.path("out")), DONE)
                with open(self.path("out"), "rb") as out:
                    self.assertEqual(out.read(), data)
                document = self.k("get", f"key{size}", "--json").json
                self.assertEqual(base64.b64decode(document["base64"]), data)
                self.assertEqual(document["bytes"], size)

    def test_standard_input_and_output(self):
        self.check(self.k("put", "a", stdin=b"\0binary\xff"), DONE)
        self.check(self.k("put", "b", "-", stdin=b""), DONE)
        self.assertEqual(self.k("get", "a").out, b"\0binary\xff")
        got = self.check(self.k("get", "b"), DONE)
        self.assertEqual((got.out, got.err), (b"", b""))

    def test_put_says_what_it_did(self):
        first = self.k("put", "k", stdin=b"12345", *["--json"]).json
        again = self.k("put", "k", "--json", stdin=b"12345").json
        self.assertEqual((first["bytes"], first["existed"]), (5, False))
        self.assertTrue(again["existed"])
        self.assertEqual(self.k("put", "k", "-q", stdin=b"12345").err, b"")
        over = self.k("put", "k", "--overwrite", "--json", stdin=b"54321").json
        self.assertFalse(over["existed"])
        self.assertEqual(self.k("get", "k").out, b"54321")

    def test_a_miss_is_exit_code_3_and_leaves_no_output(self):
        self.check(self.k("get", "nothing"), MISS, "get 'nothing'")
        self.check(self.k("get", "nothing", "-o", self.path("out")), MISS)
        self.assertFalse(os.path.exists(self.path("out")))
        self.assertEqual(self.k("get", "nothing", "--json").error["kind"], "miss")

    def test_get_does_not_lose_the_file_it_replaces(self):
        out = self.write("out", b"old")
        os.chmod(out, 0o640)
        self.check(self.k("get", "nothing", "-o", out), MISS)
        with open(out, "rb") as file:
            self.assertEqual(file.read(), b"old")
        self.check(self.k("put", "k", stdin=b"new"), DONE)
        self.check(self.k("get", "k", "-o", out), DONE)
        with open(out, "rb") as file:
            self.assertEqual(file.read(), b"new")
        self.assertEqual(os.stat(out).st_mode & 0o777, 0o640)
        self.assertEqual([name for name in os.listdir(self.folder) if name != "root"], ["out"])
        self.check(self.k("get", "k", "-o", self.path("no", "such")), USAGE, "no/such")
        self.check(self.k("get", "k", "-o", self.root), USAGE, self.root)
        self.check(self.k("get", "k", self.path("second")), DONE)
        with open(self.path("second"), "rb") as file:
            self.assertEqual(file.read(), b"new")
        self.check(self.k("get", "k", self.path("a"), self.path("b")), USAGE, "unexpected")
        self.check(self.k("get", "k", "-o", self.path("a"), self.path("b")), USAGE, "unexpected")
        self.assertFalse(os.path.exists(self.path("a")))

    def test_files_that_cannot_be_put(self):
        self.check(self.k("put", "k", self.path("absent")), USAGE, "absent")
        self.check(self.k("put", "k", self.folder), USAGE, self.folder)
        os.truncate(self.write("huge", b""), 1 << 43)
        self.check(self.k("put", "k", self.path("huge")), support.IO, "larger than")
        if not os.environ.get("KVC_SANITIZE"):  # which needs all the address space there is
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            os.truncate(self.path("huge"), memory * 3 // 4)
            tight = subprocess.run(["prlimit", f"--as={1 << 29}", support.KVCELLAR, "-D", self.root,
                                    "put", "k", self.path("huge")], env=support.environment(),
                                   capture_output=True, check=False)
            self.assertEqual(tight.returncode, support.IO, tight)
            self.assertIn(b"Cannot allocate memory", tight.stderr)
            self.assertNotIn(b"larger than", tight.stderr)
        self.assertEqual(self.objects(), [])

    def test_hostile_keys_stay_distinct_and_inside(self):
        keys = ["../../etc/x", "a/b", "a%2Fb", "a b", "line\nbreak", "\x1b[0m", "é", "\U0001f600",
                "-dash", "%h-00", ".", "..", "k" * 300, "k" * 5000]
        for index, key in enumerate(keys):
            self.check(self.k("put", "--", key, "-", stdin=b"%d" % index), DONE)
        for index, key in enumerate(keys):
            self.assertEqual(self.check(self.k("get", "--", key), DONE).out, b"%d" % index, key)
        self.assertEqual(len(self.objects()), len(keys))
        self.assertEqual(os.listdir(self.folder), ["root"])

    def test_hexadecimal_keys_are_bytes(self):
        self.check(self.k("put", "--hex", "6b00FF", stdin=b"bytes"), DONE)
        self.assertEqual(self.k("get", "--hex", "6B00ff").out, b"bytes")
        self.check(self.k("put", "--hex", "6b", stdin=b"text"), DONE)
        self.assertEqual(self.k("get", "k").out, b"text")

    def test_namespaces_and_pools_do_not_share(self):
        self.check(self.k("put", "k", "--model", "a", stdin=b"a"), DONE)
        self.check(self.k("get", "k", "--model", "b"), MISS)
        self.check(self.k("get", "k", "--model", "a", "--dtype", "fp8_e4m3"), MISS)
        self.check(self.k("get", "k", "--model", "a", "--tenant", ""), MISS)
        self.check(self.k("get", "k", "--model", "a", "--page-tokens", "32"), MISS)
        self.check(self.k("get", "k", "--model", "a", "--pool", "other"), MISS)
        self.check(self.k("get", "k", "--model", "a", "--page-tokens", "64"), DONE)

    def test_exists_and_rm(self):
        self.check(self.k("put", "a", stdin=b"1"), DONE)
        self.check(self.k("put", "b", stdin=b"22"), DONE)
        self.check(self.k("exists", "a", "b"), DONE)
        mixed = self.check(self.k("exists", "a", "c", "--json"), MISS)
        self.assertEqual([item["status"] for item in mixed.json["keys"]], ["ok", "miss"])
        self.assertEqual(mixed.json["keys"][0]["bytes"], 1)
        self.assertEqual(self.k("exists", "a", "c", "-q").out, b"")
        self.check(self.k("rm", "a"), DONE)
        self.check(self.k("rm", "a"), MISS)
        self.check(self.k("rm", "-f", "a", "b"), DONE)
        self.check(self.k("exists", "b"), MISS)

    def test_pages_of_a_pool(self):
        arguments = ["--part-bytes", "64K,64K", "--model", "m"]
        gone = self.check(self.k("exists", "p", *arguments, "--json"), MISS)
        self.assertEqual(gone.json["keys"][0]["cause"], "absent")
        self.check(self.k("rm", "p", "-f", *arguments), DONE)
        for command in ("put", "get"):  # which move single objects
            self.check(self.k(command, "p", *arguments), USAGE, "--part-bytes")
            self.assertNotIn("--part-bytes", run(command, "--help").text)

    def test_ls(self):
        self.assertEqual(self.check(self.k("ls", "--json"), DONE).json, {"namespaces": []})
        self.assertEqual(self.check(self.k("ls", "-a", "--json"), DONE).json, {"objects": []})
        for key in ("a", "b"):
            self.check(self.k("put", key, "--model", "llama", stdin=b"x" * 10), DONE)
        row, = self.k("ls", "--json").json["namespaces"]
        self.assertEqual(row["objects"], 2)
        self.assertTrue(row["namespace"].startswith("llama-"))
        objects = self.k("ls", row["namespace"], "--json").json["objects"]
        self.assertEqual(len(objects), 2)
        self.assertEqual(sum(item["stored_bytes"] for item in objects), row["stored_bytes"])
        for item in objects:
            self.assertTrue(os.path.isfile(os.path.join(item["root"], item["path"])), item)
        self.assertEqual(self.k("ls", "-a", "--json").json["objects"], objects)
        text = self.k("ls", "-l", row["namespace"]).text
        self.assertEqual(text.count(objects[0]["path"]), 1)
        self.assertIn(row["namespace"], self.k("ls").text)

    def test_stat_by_key_and_by_path(self):
        self.check(self.k("put", "k", "--model", "m", stdin=b"x" * 5000), DONE)
        detail, = self.check(self.k("stat", "k", "--model", "m", "--json"), DONE).json["objects"]
        self.assertEqual((detail["payload_bytes"], detail["part_bytes"]), (5000, [5000]))
        self.assertEqual(detail["stored_bytes"], 8192 + 4096)
        self.assertEqual(detail["checksum_kind"], "full")
        path = os.path.join(detail["root"], detail["path"])
        self.assertEqual(self.k("stat", path, "--json").json["objects"], [detail])
        self.assertIn("payload     5000", self.k("stat", path).text)
        self.check(self.k("stat", "nothing"), MISS, "nothing")
        self.check(self.k("stat", "/nowhere/x"), USAGE, "/nowhere/x")

    def test_usage_counts_and_recounts(self):
        self.check(self.k("put", "k", stdin=b"x" * 5000), DONE)
        for option in ("--usage", "--recount"):
            root, = self.check(self.k("stat", option, "--json"), DONE).json["roots"]
            self.assertEqual((root["own_objects"], root["own_bytes"]), (1, 12288), option)
            self.assertGreater(root["total_bytes"], 0)
            self.assertEqual(root["root"], self.root)
        self.assertIn(self.root, self.k("stat", "--usage").text)
        self.assertIs(root["corrected"], False)
        self.assertIn(self.root + ": the counts were right\n", self.k("stat", "--recount").text)
        self.check(self.k("put", "k2", stdin=b"x" * 5000), DONE)
        os.remove(self.objects()[0])
        self.assertIn(self.root + ": corrected, 2 objects of 24.0 KiB were counted\n",
                      self.k("stat", "--recount").text)
        os.remove(self.objects()[0])
        root, = self.k("stat", "--recount", "--json").json["roots"]
        self.assertEqual((root["own_objects"], root["counted_objects"], root["counted_bytes"],
                          root["corrected"]), (0, 1, 12288, True))
        self.check(self.k("stat", "--usage", "k"), USAGE, "--usage")

    def test_where_in_both_namings(self):
        self.check(self.k("put", "k", "--model", "org/m", stdin=b"x"), DONE)
        before = self.objects()
        answer = self.check(self.k("where", "k", "--model", "org/m", "--json"), DONE).json
        ours, theirs = answer["namings"]
        self.assertEqual((ours["naming"], ours["configured"]), ("kvcellar", True))
        self.assertEqual((theirs["naming"], theirs["configured"]), ("nixl", False))
        place, = ours["objects"]
        self.assertEqual([os.path.join(place["root"], place["path"])], before)
        self.assertEqual(theirs["objects"][0]["root"], self.root)
        self.assertEqual(self.objects(), before)
        text = self.k("where", "k", "--model", "org/m").text
        self.assertIn(before[0], text)
        self.assertIn("naming nixl", text)

    def test_where_of_pages_has_the_names_of_the_seed(self):
        answer = self.check(self.k("where", "abc", "--model", "org/m", "--part-bytes", "4K,4K",
                                   "--tp-size", "2", "--tp-rank", "1", "--json"), DONE).json
        names = [item["name"] for item in answer["namings"][1]["objects"]]
        self.assertEqual(names, ["abc_org-m_1_2_k", "abc_org-m_1_2_v"])

    def test_where_needs_no_root(self):
        absent = self.path("absent")
        answer = self.check(run("-D", absent, "where", "k", "--json"), DONE).json
        self.assertEqual([one["naming"] for one in answer["namings"]], ["kvcellar", "nixl"])
        self.assertEqual(answer["namings"][0]["objects"][0]["root"], absent)
        self.assertFalse(os.path.exists(absent))
        bad = self.check(run("-D", absent, "where", "a/b", "--json"), DONE).json["namings"][1]
        self.assertTrue(bad["error"], "a key with a slash is no file name of the seed")

    def test_verify(self):
        for key in "abc":
            self.check(self.k("put", key, stdin=os.urandom(5000)), DONE)
        good = self.check(self.k("verify", "--json"), DONE).json
        self.assertEqual((good["objects"], good["statuses"]["ok"], good["problems"]), (3, 3, []))
        victim = self.objects()[0]
        self.corrupt(victim)
        bad = self.check(self.k("verify", "--json"), CORRUPT).json
        problem, = bad["problems"]
        self.assertEqual((problem["status"], problem["cause"]), ("corrupt", "checksum"))
        self.assertEqual(os.path.join(problem["root"], problem["path"]), victim)
        self.assertTrue(os.path.exists(victim), "without --remove nothing goes")
        shown = self.check(self.k("verify"), CORRUPT)
        self.assertIn(victim, shown.text)
        self.assertIn("3 objects", shown.text)
        self.check(self.k("verify", "--remove"), CORRUPT)
        self.assertFalse(os.path.exists(victim))
        self.check(self.k("verify"), DONE)

    def test_get_of_corrupt_bytes_is_exit_code_4(self):
        self.check(self.k("put", "k", stdin=b"right"), DONE)
        self.corrupt(self.objects()[0])
        bad = self.check(self.k("get", "k"), CORRUPT, "get 'k'")
        self.assertEqual(bad.out, b"")

    def test_clear_counts_first(self):
        for model in ("llama", "llama-2"):
            self.check(self.k("put", "k", "--model", model, stdin=b"x"), DONE)
        rows = self.k("ls", "--json").json["namespaces"]
        llama, = [row["namespace"] for row in rows
                  if not row["namespace"].startswith("llama-2-")]
        dry = self.check(self.k("clear", llama, "--json"), DONE).json
        self.assertEqual((dry["dry_run"], dry["objects"]), (True, 1))
        self.assertGreater(dry["bytes"], 0)
        self.assertIn("would be removed", self.k("clear", llama).text)
        self.assertEqual(len(self.objects()), 2)
        wet = self.check(self.k("clear", llama, "--yes", "--json"), DONE).json
        self.assertEqual((wet["dry_run"], wet["objects"], wet["failed"]), (False, 1, 0))
        self.check(self.k("get", "k", "--model", "llama"), MISS)
        self.check(self.k("get", "k", "--model", "llama-2"), DONE)

    def test_what_is_no_namespace(self):
        for command in (["ls"], ["ls", "--json"], ["ls", "-l"], ["verify"], ["verify", "--remove"],
                        ["clear"], ["clear", "--yes"]):
            with self.subTest(command):
                for bad in ("no-such", "../h", "none-0123456789abcde", "x"):
                    self.check(self.k(*command, bad), USAGE, bad)
                self.check(self.k(*command, "none-0123456789abcdef"), MISS,
                           "none-0123456789abcdef")
        self.assertEqual(os.listdir(self.root), [])

    def test_info_and_selftest(self):
        document = self.check(self.k("info", "--json"), DONE).json
        loads = {plugin["name"]: plugin["loads"] for plugin in document["plugins"]}
        self.assertTrue(loads["posix"])
        self.assertIsInstance(document["store"], dict)
        for plugin in document["plugins"]:
            self.assertTrue(plugin["loads"] or plugin["reason"], plugin)
        text = self.check(self.k("info"), DONE).text
        self.assertIn(self.root, text)
        self.assertRegex(text, r"(?m)^\s+identity\s+unset in the configuration \(an engine may .*\)$")
        self.assertEqual(document["store"]["store"]["identity"], "unset")
        given = ["-s", "identity=rev7", "info"]
        self.assertRegex(self.k(*given).text, r"(?m)^\s+identity\s+rev7$")
        self.assertTrue(self.check(self.k("selftest", "--json"), DONE).json["ok"])
        self.assertIn("ok", self.k("selftest").text)
        self.assertEqual(self.objects(), [])

    def test_stat_takes_the_paths_that_ls_prints(self):
        self.check(self.k("put", "key", stdin=b"x"), DONE)
        os.symlink(self.root, self.path("link"))
        absolute = self.check(self.k("ls", "-al"), DONE).text.split()[-1]
        for root in (self.root, "root", "./root", "link"):
            with self.subTest(root):
                at = functools.partial(run, "-D", root, cwd=self.folder)
                printed = self.check(at("ls", "-al"), DONE).text.split()[-1]
                for path in (printed, absolute):
                    self.assertRegex(self.check(at("stat", path), DONE).text,
                                     r"(?m)^payload +1 ")
        self.check(run("-D", "root", "stat", "/etc/hostname", cwd=self.folder), USAGE,
                   "in none of the roots")

    def packed(self, capacity="1GiB"):
        """This test's root with four pages in slots; its options."""
        options = ["-D", self.root, "-s", "storage_layout=packed", "-s", f"capacity={capacity}"]
        self.check(run(*options, "bench", "--keep", "--pages", "4", "--reps", "1", "-q",
                       "--part-bytes", "4K"), DONE)
        return options

    def test_paths_of_slots(self):
        self.packed()
        for root in (self.root, "root", "./root"):
            at = functools.partial(run, "-D", root, cwd=self.folder)
            listed = self.check(at("ls", "--all", "--json"), DONE).json["objects"]
            self.assertEqual(len(listed), 4)
            slot = listed[3]["path"]
            self.assertRegex(slot, r"/slots-\d+/seg\.1@\d+$")
            for path in (os.path.join(self.root, slot), f"{root}/{slot}"):
                self.assertIn(listed[3]["name"], self.check(at("stat", path), DONE).text)
        self.check(run("-D", "root", "stat", f"./root/{slot}", cwd=self.folder), MISS,
                   "taken as a key: a path begins with / or as ls --long prints it")
        self.assertNotIn("taken as", self.k("stat", "nothing").errors)

    def test_where_a_page_without_a_slot_would_lie(self):
        self.packed()
        shown = self.check(self.k("where", "none", "--part-bytes", "4K"), DONE).text
        self.assertRegex(shown, r"(?m)^  path .*/slots-4096  \(not stored\)$")
        self.assertEqual(shown.count("not stored"), 1)
        answer = self.check(self.k("where", "none", "--part-bytes", "4K", "--json"), DONE).json
        self.assertIs(answer["namings"][0]["objects"][0]["stored"], False)

    def test_info_of_a_lowered_capacity(self):
        """A read-only opening gives nothing back by itself."""
        options = self.packed()
        shown = self.check(run(*options, "info", "--read-only"), DONE).text
        self.assertRegex(shown, r"(?m)^  allocated +\d+ of 1073741824 bytes \(.* of 1\.0 GiB\) in 1 segment$")
        lower = ["-s", "capacity=1MiB", "info", "--read-only"]
        self.assertRegex(self.check(run(*options, *lower), DONE).text,
                         r"(?m)^  allocated +\d+ of 1048576 bytes \(.* of 1\.0 MiB\) in 1 segment "
                         r"\(being given back\)$")

    def test_info_of_limits_and_pins(self):
        files = ["-D", self.root, "-s", "storage_layout=files", "-s", "capacity=1GiB"]
        self.check(run(*files, "put", "k", "--model", "m", stdin=b"x" * 5000), DONE)
        shown = self.check(run(*files, "info", "--read-only"), DONE).text
        self.assertRegex(shown, r"(?m)^  own +12288 bytes \(12\.0 KiB\) in 1 object$")
        self.assertRegex(shown, r"(?m)^  capacity +1073741824 bytes \(1\.0 GiB\)$")
        self.assertRegex(shown, r"(?m)^  free +\d+ of \d+ bytes \(.+ of .+\)$")
        self.assertNotIn("pinned", shown)
        spaces = self.check(self.k("ls", "--json"), DONE).json["namespaces"]
        self.check(self.k("pin", spaces[0]["namespace"]), DONE)
        shown = self.check(run(*files, "info", "--read-only"), DONE).text
        self.assertRegex(shown, r"(?m)^  pinned +1 namespace of 12288 bytes \(12\.0 KiB\)$")
        root, = self.check(run(*files, "info", "--read-only", "--json"), DONE).json["store"]["roots"]
        self.assertEqual((root["capacity_bytes"], root["pins"], root["pinned_bytes"]),
                         (1 << 30, 1, 12288))

    def test_the_alignment_is_what_was_tried(self):
        self.check(self.k("put", "k", stdin=b"x"), DONE)
        tried = re.search(r"(?m)^  alignment +(\d+)$", self.k("info").text)
        self.assertTrue(tried)
        doctor = self.k("-s", "l3_cleaner_high_watermark=100", "doctor", "--json").json["checks"]
        told = [one["text"] for one in doctor if one["check"] == "direct_io"]
        if "yes" in told[0]:
            self.assertEqual(told, ["yes, alignment " + tried[1]])
            self.assertRegex(self.k("info", "--read-only").text,
                             r"(?m)^  alignment +at most \d+, not tried by a read-only open$")

    def test_why_a_new_root_gets_files(self):
        self.need_mounts()
        done = support.in_mounts("""
            mount -t tmpfs -o size=400m none "$work/root"
            dd if=/dev/zero of="$work/root/others" bs=1M count=350 2>/dev/null
            echo x | $k -D "$work/root" put k
            $k -D "$work/root" info --read-only
            $k -D "$work/root" -s l3_cleaner_low_watermark=71 doctor --read-only
            rm "$work/root/others"
            $k -D "$work/root" info --read-only | grep -c layout_reason
            """, self.folder)
        self.assertRegex(done.text, r"(?m)^  storage_layout files\n  layout_reason  .*with `capacity`")
        self.assertRegex(done.text, r"(?m)^  ok +layout +files, as a new root .*high_watermark")
        self.assertTrue(done.text.endswith("\n0\n"), done)

    def test_memory_of_the_process(self):
        """The reference plugin through the same commands."""
        plugin = ["-s", "plugin.mem.active=true"]
        self.assertTrue(self.check(self.k(*plugin, "selftest", "--json"), DONE).json["ok"])
        self.check(self.k(*plugin, "put", "k", stdin=b"x"), DONE)
        self.assertEqual(os.listdir(self.root), [])


if __name__ == "__main__":
    support.main()
