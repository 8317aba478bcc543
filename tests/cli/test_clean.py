#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcellar clean: makes room, says what would go, and leaves alone what is not to go."""
import os

import support
from support import CONFIG, DONE, MISS, USAGE, run


class Clean(support.Case):
    settings = ["-s", "storage_layout=files"]

    def put(self, count, model="llama", root=None):
        for number in range(count):
            self.check(run("-D", root or self.root, *self.settings, "put", f"k{number}", "--model",
                           model, stdin=b"x" * 5000), DONE)

    def clean(self, *arguments, root=None):
        done = self.check(run("-D", root or self.root, *self.settings, "clean", "--json",
                              *arguments), DONE).json
        self.assertEqual(set(done), {"to", "dry_run", "reached", "groups", "objects", "bytes",
                                     "failed", "left_bytes", "missing_bytes", "pinned_bytes"})
        self.assertEqual(done["reached"], done["missing_bytes"] == 0)
        self.assertEqual(done["failed"], 0)
        self.assertIs(done["dry_run"], "--dry-run" in arguments)
        return done

    def own_bytes(self):
        return sum(os.path.getsize(path) for path in self.objects())

    def test_a_dry_run_says_what_goes_and_changes_nothing(self):
        self.put(6)
        before = self.objects()
        size = os.path.getsize(before[0])
        plan = self.clean("--to", str(2 * size), "--dry-run")
        self.assertEqual(self.objects(), before)
        self.assertEqual((plan["objects"], plan["bytes"]), (4, 4 * size))
        self.assertEqual(plan["left_bytes"], 2 * size)
        done = self.clean("--to", str(2 * size))
        self.assertEqual((done["objects"], done["bytes"]), (plan["objects"], plan["bytes"]))
        self.assertEqual(self.own_bytes(), 2 * size)
        self.assertEqual(self.clean("--to", str(2 * size))["objects"], 0)

    def test_percent_of_the_capacity(self):
        self.put(10)
        size = os.path.getsize(self.objects()[0])
        done = self.clean("-s", f"capacity={10 * size}", "--to", "50%")
        self.assertEqual(done["objects"], 5)
        self.assertEqual(done["to"], "50%")
        self.assertEqual(self.own_bytes(), 5 * size)

    def test_everything_goes_but_files_of_others_and_pins(self):
        self.put(3)
        self.put(2, "qwen")
        spaces = self.check(self.k("ls", "--json"), DONE).json["namespaces"]
        pinned = next(one["namespace"] for one in spaces if one["objects"] == 2)
        self.check(self.k("pin", pinned), DONE)
        foreign = self.write("root/others.bin", b"x" * 100)
        size = os.path.getsize(self.objects()[0])
        plan = self.clean("--to", "0%", "-s", f"capacity={1 << 30}", "--dry-run")
        done = self.clean("--to", "0%", "-s", f"capacity={1 << 30}")
        self.assertEqual((plan["reached"], plan["missing_bytes"]), (False, done["missing_bytes"]))
        self.assertEqual(done["objects"], 3)
        self.assertIs(done["reached"], False)
        self.assertEqual((done["missing_bytes"], done["pinned_bytes"], done["left_bytes"]),
                         (2 * size, 2 * size, 2 * size))
        shown = self.check(self.k("clean", "--to", "0"), DONE).text
        self.assertIn("goal not reached: ", shown)
        self.assertIn(" are of pinned namespaces\n", shown)
        self.assertIs(self.clean("--to", str(2 * size))["reached"], True)
        self.assertTrue(os.path.exists(foreign))
        left = self.check(self.k("ls", "--json"), DONE).json["namespaces"]
        self.assertEqual([(one["namespace"], one["objects"]) for one in left], [(pinned, 2)])
        self.check(self.k("unpin", pinned), DONE)
        self.assertEqual(self.clean("--to", "0")["objects"], 2)

    def test_the_cleaner_need_not_be_enabled(self):
        self.put(2)
        self.assertEqual(self.clean("-s", "l3_cleaner_enabled=false", "--to", "0")["objects"], 2)

    def test_the_watermarks_are_not_looked_at(self):
        # A cleaner with these would empty the root at once.
        self.put(4)
        before = self.objects()
        self.clean("-s", "l3_cleaner_high_watermark=2", "-s", "l3_cleaner_low_watermark=1", "--to",
                   "1TiB", "--dry-run")
        self.assertEqual(self.objects(), before)

    def test_one_of_several_roots(self):
        second = self.path("second")
        os.mkdir(second, 0o700)
        roots = self.root + "," + second
        self.put(16, root=roots)
        here = len(self.objects())
        self.assertTrue(0 < here < 16)
        done = self.clean("--to", "0", "--root", self.root + "/", root=roots)
        self.assertEqual(done["objects"], here)
        self.assertEqual(self.objects(), [])
        self.assertEqual(self.clean("--to", "0", root=roots)["objects"], 16 - here)
        self.check(run("-D", roots, "clean", "--to", "0", "--root", self.folder), USAGE, "--root",
                   self.folder)

    def test_a_packed_root_gives_back_segments(self):
        settings = ["-D", self.root, "-s", "storage_layout=packed", "-s", "capacity=256MiB"]
        for model in ("llama", "qwen"):
            self.check(run(*settings, "bench", "--pages", "128", "--reps", "1", "--keep",
                           "--part-bytes", "64K", "--model", model), DONE)

        def space():
            document = self.check(run(*settings, "usage", "--json"), DONE).json
            return {one["model"]: one for one in document["namespaces"]}

        def clean(*arguments):
            return self.check(run(*settings, "clean", "--json", *arguments), DONE).json

        before = space()
        total = sum(one["allocated_bytes"] for one in before.values())
        self.check(run(*settings, "pin", before["qwen"]["namespace"]), DONE)
        self.assertEqual(clean("--to", "100%")["objects"], 0)
        plan = clean("--to", "0", "--dry-run")
        self.assertEqual(space(), {name: {**one, "pinned": name == "qwen"}
                                   for name, one in before.items()})
        done = clean("--to", "0")
        self.assertEqual((done["objects"], done["bytes"], done["left_bytes"]),
                         (plan["objects"], plan["bytes"], plan["left_bytes"]))
        self.assertEqual((done["objects"], done["bytes"]),
                         (128, before["llama"]["allocated_bytes"]))
        self.assertEqual(done["left_bytes"], total - done["bytes"])
        self.assertIs(done["reached"], False)
        self.assertEqual((done["missing_bytes"], done["pinned_bytes"]),
                         (before["qwen"]["allocated_bytes"],) * 2)
        again = clean("--to", "0")
        self.assertEqual((again["objects"], again["bytes"], again["left_bytes"]),
                         (0, 0, done["left_bytes"]))
        after = space()
        self.assertEqual((after["llama"]["objects"], after["llama"]["allocated_bytes"]), (0, 0))
        self.assertEqual(after["qwen"]["objects"], 128)
        self.check(run(*settings, "unpin", before["qwen"]["namespace"]), DONE)
        self.assertEqual(clean("--to", "0%")["left_bytes"], 0)

    def test_text(self):
        self.put(1)
        done = self.check(self.k("clean", "--to", "0", "--dry-run"), DONE)
        self.assertEqual(done.text, "1 object in 1 group, 12.0 KiB, would be removed; 0 B left\n")
        self.assertEqual(done.errors, "Nothing was changed.\n")
        done = self.check(self.k("clean", "--to", "0"), DONE)
        self.assertEqual(done.text, "1 object in 1 group, 12.0 KiB, removed; 0 B left\n")
        self.assertEqual(done.errors, "")
        self.check(self.k("get", "k0", "--model", "llama"), MISS)

    def test_an_empty_root(self):
        self.put(1)
        self.clean("--to", "0")
        self.assertEqual(self.clean("--to", "0")["objects"], 0)

    def test_a_read_only_mount(self):
        self.need_mounts()
        self.put(1)
        done = support.in_mounts("""
            mount --bind "$work/root" "$work/root"; mount -o remount,bind,ro "$work/root"
            $k -D "$work/root" clean --to 0; echo "code $?" >&2
            """, self.folder)
        self.assertIn("read-only", done.errors)
        self.assertIn(f"code {support.DENIED}", done.errors)
        self.assertEqual(len(self.objects()), 1)

    def test_a_disk_that_others_have_filled(self):
        self.need_mounts()
        done = support.in_mounts("""
            mkdir disk; mount -t tmpfs -o size=64m none disk; head -c 50m /dev/zero > disk/others
            head -c 1m /dev/zero > object; set -- -D disk -s storage_layout=files
            $k "$@" put page object
            $k "$@" clean --to 70% --dry-run; $k "$@" clean --to 70%; $k "$@" ls --json
            $k "$@" clean --to 0
            """, self.folder)
        lines = done.text.splitlines()
        self.assertIn("0 objects in 0 groups, 0 B, would be removed", done.text)
        self.assertIn("others have that: nothing would be removed. --to SIZE", done.text)
        self.assertIn("0 objects in 0 groups, 0 B, removed", done.text)
        self.assertIn("others have that: nothing was removed. --to SIZE", done.text)
        self.assertIn('"objects": 1', done.text)
        self.assertTrue(lines[-1].startswith("1 object in 1 group"), lines[-1])

    def test_slots_on_a_disk_that_others_have_filled(self):
        self.need_mounts()
        self.write("trace.jsonl", "".join(
            f'{{"timestamp": {i}, "input_length": 512, "output_length": 1, "hash_ids": [{i}]}}\n'
            for i in range(40)).encode())
        done = support.in_mounts("""
            mkdir disk; mount -t tmpfs -o size=64m none disk
            set -- -D disk -s storage_layout=packed
            $k "$@" replay "$work/trace.jsonl" --part-bytes 64K > /dev/null
            head -c 25m /dev/zero > disk/others
            $k "$@" clean --to 30%; $k "$@" clean --to 0
            """, self.folder)
        lines = done.text.splitlines()
        self.assertIn("0 objects in 0 groups, 0 B, removed", lines[0])
        self.assertIn("others have that: nothing was removed. --to SIZE", lines[1])
        self.assertRegex(lines[2], "^[1-9][0-9]* objects in .*, removed; 0 B left")

    def test_two_roots_on_one_file_system(self):
        self.need_mounts()
        done = support.in_mounts("""
            mkdir disk; mount -t tmpfs -o size=64m none disk; head -c 1m /dev/zero > object
            for i in $(seq 16); do
                $k -D disk/a -s storage_layout=files put key$i object > /dev/null
                $k -D disk/b -s storage_layout=files put key$i object > /dev/null
            done
            set -- -D disk/a,disk/b -s storage_layout=files
            $k "$@" clean --to 25% --dry-run; $k "$@" clean --to 25%
            ls disk/a/*/*/* | wc -l; ls disk/b/*/*/* | wc -l
            """, self.folder)
        lines = done.text.splitlines()
        went = int(lines[0].split()[0])
        self.assertIn(went, range(16, 21), done.text)
        self.assertEqual(lines[0].replace("would be removed", "removed"), lines[1])
        self.assertEqual(int(lines[2]) + int(lines[3]), 32 - went)
        self.assertLessEqual(abs(int(lines[2]) - int(lines[3])), 1)

    def test_errors(self):
        self.check(self.k("clean"), USAGE, "--to is not given", "70%")
        self.check(self.k("clean", "--to", "101%"), USAGE, "--to", "100%")
        self.check(self.k("clean", "--to", "70"), USAGE, "--to: '70': 70% or 70B?")
        self.check(self.k("clean", "--to", "half%"), USAGE, "--to", "half%")
        self.check(self.k("clean", "--to", "-1%"), USAGE, "--to")
        self.check(self.k("clean", "--to", "70%%"), USAGE, "--to", "70%%")
        self.check(self.k("clean", "--to", "many"), USAGE, "--to", "many")
        self.check(self.k("clean", "--to", "0", "extra"), USAGE, "extra")
        self.check(run("-D", self.path("absent"), "clean", "--to", "0"), CONFIG, "absent")
        self.assertFalse(os.path.exists(self.path("absent")))
        self.check(self.k("-s", "plugin.mem.active=true", "clean", "--to", "0"), CONFIG)


if __name__ == "__main__":
    support.main()
