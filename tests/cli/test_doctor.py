#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcellar doctor: each thing that is wrong is named, with a remedy, and nothing is changed."""
import json
import os
import resource
import socket
import struct
import subprocess
import time

import support
from support import DONE, KVCELLAR, USAGE, WRONG


def environment(**extra):
    """However full the disk of the tests is."""
    return support.environment(**{"KVCELLAR_L3_CLEANER_HIGH_WATERMARK": "100", **extra})


def run(*arguments, env=None, **options):
    return support.run(*arguments, env=env or environment(), **options)


def tree(folder):
    """Everything below a folder: path, size, time."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(at, name)
            status = os.lstat(path)
            found[path] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


class Doctor(support.Case):
    def k(self, *arguments, **options):
        return run("-D", self.root, *arguments, **options)

    def doctor(self, *arguments, code=DONE, **options):
        """The document of a run; its parts agree with one another."""
        done = self.k("doctor", "--json", *arguments, **options)
        self.assertEqual(done.code, code, done)
        document = done.json
        statuses = [one["status"] for one in document["checks"]]
        self.assertEqual(document["problems"], statuses.count("problem"))
        self.assertEqual(document["warnings"], statuses.count("warning"))
        self.assertEqual(document["ok"], "problem" not in statuses)
        self.assertEqual(code == DONE, document["ok"])
        for one in document["checks"]:
            self.assertEqual(set(one), {"check", "root", "status", "text", "remedy"})
            self.assertEqual(one["remedy"] is None, one["status"] == "ok", one)
            self.assertTrue(one["text"], one)
        return document["checks"]

    def find(self, checks, name, status, *fragments):
        matches = [one for one in checks if one["check"] == name and one["status"] == status]
        self.assertTrue(matches, (name, status, checks))
        for fragment in fragments:
            self.assertTrue(any(fragment in one["text"] + (one["remedy"] or "")
                                for one in matches), (fragment, matches))
        return matches[0]

    def put(self, *arguments):
        self.check(self.k("put", "k", *arguments, stdin=b"x" * 5000), DONE)

    def test_all_right(self):
        self.put()
        checks = self.doctor("-s", "identity=r1")
        self.assertEqual([one for one in checks if one["status"] == "problem"], [])
        for name in ("configuration", "plugin", "store", "mode", "access", "root.json", "opens",
                     "io_engine", "space", "processes", "files", "self-test"):
            self.find(checks, name, "ok")
        self.find(checks, "identity", "ok", "r1")

    def test_a_pipe_in_the_place_of_the_lock(self):
        self.put("-s", "storage_layout=files")
        lock = os.path.join(self.root, ".kvcellar", "cleaner.lock")
        if os.path.exists(lock):
            os.unlink(lock)
        os.mkfifo(lock)
        self.doctor()

    def test_text_names_the_directory_and_the_remedy(self):
        self.put()
        done = self.check(self.k("doctor"), DONE)
        self.assertIn("\n" + self.root + "\n", done.text)
        self.assertRegex(done.text, r"(?m)^  warning  identity +unset")
        self.assertRegex(done.text, r"(?m)^ +-> set `identity'")
        self.assertRegex(done.errors, r"^0 problems, \d+ warnings?, \d+ ok\n$")
        quiet = self.check(self.k("doctor", "-q"), DONE)
        self.assertNotRegex(quiet.text, r"(?m)^  ok ")
        self.assertEqual(quiet.errors, "")

    def test_an_empty_directory_stays_empty(self):
        before = tree(self.root)
        self.find(self.doctor(), "root.json", "ok", "a new root")
        self.assertEqual(tree(self.root), before)
        self.assertEqual(os.listdir(self.root), [])

    def test_read_only_changes_nothing(self):
        for layout in ("files", "packed"):
            with self.subTest(layout):
                root = self.path(layout)
                settings = ["-D", root, "-s", f"storage_layout={layout}", "-s", "capacity=64MiB"]
                self.check(run(*settings, "bench", "--pages", "4", "--reps", "1", "--keep",
                               "--part-bytes", "64K"), DONE)
                before = tree(root)
                done = self.check(run(*settings, "doctor", "--read-only", "--json"), DONE)
                self.assertEqual(tree(root), before)
                self.assertNotIn("self-test", [one["check"] for one in done.json["checks"]])

    def test_the_self_test_removes_no_page(self):
        root = self.path("packed")
        settings = ["-D", root, "-s", "storage_layout=packed"]
        self.check(run(*settings, "-s", "capacity=256MiB", "bench", "--pages", "64", "--reps", "1",
                       "--keep", "--part-bytes", "64K"), DONE)
        before = self.check(run(*settings, "ls", "--json"), DONE).json
        self.check(run(*settings, "-s", "capacity=1MiB", "-s", "l3_cleaner_high_watermark=2",
                       "-s", "l3_cleaner_low_watermark=1", "doctor", "--json"),
                   DONE)
        self.assertEqual(self.check(run(*settings, "ls", "--json"), DONE).json, before)

    def test_packed(self):
        settings = ["-s", "storage_layout=packed", "-s", "capacity=64MiB"]
        self.check(self.k(*settings, "bench", "--pages", "4", "--reps", "1", "--keep",
                          "--part-bytes", "64K"), DONE)
        checks = self.doctor(*settings)
        self.find(checks, "index", "ok", "4 live")
        self.find(checks, "segments", "ok")
        self.find(checks, "capacity", "ok", "of 64.0 MiB used")

    def test_packed_needs_descriptors(self):
        settings = ["-D", self.root, "-s", "storage_layout=packed"]
        self.check(run(*settings, "-s", "capacity=64MiB", "bench", "--pages", "4", "--reps", "1",
                       "--keep", "--part-bytes", "64K"), DONE)
        done = subprocess.run([KVCELLAR, *settings, "-s", "capacity=2GiB", "doctor", "--json"],
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                    (100, 100)),
                              capture_output=True, env=environment(), check=False)
        checks = json.loads(done.stdout)["checks"]
        self.find(checks, "descriptors", "problem", "RLIMIT_NOFILE is 100", "segment files")

    def test_configuration(self):
        checks = self.doctor("-s", "naming=foo", code=WRONG)
        self.find(checks, "configuration", "problem", "naming", "foo", "config options")
        # The others are made all the same.
        self.find(checks, "access", "ok")
        self.find(checks, "space", "ok")
        self.find(self.doctor("-c", self.path("absent.toml"), code=WRONG), "configuration",
                  "problem", "absent.toml")
        checks = self.doctor(env=environment(KVCELLAR_CAPACITIES="1"))
        self.find(checks, "configuration", "warning", "KVCELLAR_CAPACITIES")

    def test_missing_directories(self):
        new = self.path("new")
        checks = self.doctor("-D", new)
        self.assertEqual(self.find(checks, "folder", "warning", "mount its disk")["root"], new)
        checks = self.doctor("-D", self.path("a", "b", "c"), code=WRONG)
        self.find(checks, "folder", "problem", "mkdir -p")
        self.assertEqual(sorted(os.listdir(self.folder)), ["root"])
        # A good one beside a bad one is looked at as well.
        checks = self.doctor("-D", self.path("a", "b") + "," + self.root, code=WRONG)
        self.assertEqual(self.find(checks, "opens", "ok")["root"], self.root)

    def test_what_is_no_directory(self):
        file = self.write("file", b"x")
        self.find(self.doctor("-D", file, code=WRONG), "folder", "problem", "Not a directory")

    def test_two_roots_on_one_disk(self):
        second = self.path("second")
        os.mkdir(second, 0o700)
        checks = self.doctor("-D", self.root + "," + second)
        self.assertEqual(self.find(checks, "device", "warning", self.root)["root"], second)

    def test_root_json(self):
        self.put()
        path = os.path.join(self.root, ".kvcellar", "root.json")
        with open(path, encoding="ascii") as file:
            identity = json.load(file)
        self.write("root/.kvcellar/root.json", b"{ damaged")
        checks = self.doctor(code=WRONG)
        self.find(checks, "root.json", "problem", "damaged")
        self.find(checks, "opens", "problem", "root.json")
        identity["format"]["major"] = 7
        self.write("root/.kvcellar/root.json", json.dumps(identity).encode())
        checks = self.doctor(code=WRONG)
        self.find(checks, "root.json", "ok", "format 7.0")
        self.find(checks, "opens", "problem", "7")
        identity["format"]["major"] = 1
        identity["created"] = "2999-01-01T00:00:00Z"
        self.write("root/.kvcellar/root.json", json.dumps(identity).encode())
        self.find(self.doctor(code=WRONG), "clock", "problem", "2999")

    def test_modes(self):
        os.chmod(self.root, 0o777)
        self.find(self.doctor(), "mode", "warning", "0777", "chmod o-w")

    def test_an_unwritable_directory(self):
        # Root without the right to write everywhere is a user like others.
        caps = "-dac_override,-dac_read_search"
        prefix = ["setpriv", "--bounding-set", caps] if os.geteuid() == 0 else []
        self.put()
        os.chmod(self.root, 0o500)
        self.addCleanup(os.chmod, self.root, 0o700)
        for option, code, status in (([], WRONG, "problem"), (["--read-only"], DONE, "ok")):
            done = subprocess.run([*prefix, KVCELLAR, "-D", self.root, "doctor", "--json", *option],
                                  capture_output=True, env=environment(), check=False)
            self.assertEqual(done.returncode, code, done)
            self.find(json.loads(done.stdout)["checks"], "access", status, "cannot be written")

    def test_a_read_only_mount(self):
        self.need_mounts()
        self.put()
        done = support.in_mounts("""
            mount --bind "$work/root" "$work/root"; mount -o remount,bind,ro "$work/root"
            $k -D "$work/root" doctor --json; echo "code $?"
            $k -D "$work/root" doctor --read-only --json >/dev/null; echo "code $?"
            """, self.folder)
        text = done.text
        self.assertIn("code 1", text, done)
        self.assertIn("code 0", text, done)
        self.assertIn("mounted read-only", text)

    def test_a_tmpfs_that_is_full(self):
        self.need_mounts()
        done = support.in_mounts("""
            mkdir "$work/small"; mount -t tmpfs -o size=4m none "$work/small"
            echo x | $k -D "$work/small" -s storage_layout=files put k
            dd if=/dev/zero of="$work/small/others" bs=1M count=8 2>/dev/null
            $k -D "$work/small" -s capacity=1GiB doctor --json; echo "code $?"
            $k -D "$work/small" -s l3_cleaner_high_watermark=80 doctor | grep -A1 watermark
            """, self.folder, env=environment())
        self.assertIn("code 1", done.text, done)
        text = done.text
        checks = json.loads(text[text.index("{"):text.rindex("}") + 1])["checks"]
        self.find(checks, "file_system", "warning", "tmpfs", "reboot")
        self.find(checks, "space", "problem", "full")
        self.find(checks, "capacity", "problem", "more than the disk has")
        # Watermarks are for roots without a capacity.
        self.assertNotIn("watermark", [one["check"] for one in checks])
        self.assertRegex(text, r"(?s)problem  watermark.*others'.*cannot mend")

    def test_space(self):
        self.put()
        self.find(self.doctor("-s", "min_free=100%", code=WRONG), "space", "problem", "min_free")
        self.find(self.doctor("-s", "capacity=900PiB", code=WRONG), "capacity", "problem",
                  "more than the disk has")
        self.find(self.doctor("-s", "l3_cleaner_enabled=false"), "cleaner", "warning",
                  "fill the disk")
        self.find(self.doctor("-s", "l3_cleaner_enabled=false", "-s", "capacity=1GiB"), "cleaner",
                  "ok")

    files = ["-s", "storage_layout=files"]

    def test_at_capacity_without_a_cleaner(self):
        self.put(*self.files)
        off = [*self.files, "-s", "l3_cleaner_enabled=false"]
        at = [*off, "-s", "capacity=12300"]
        self.check(run("-D", self.root, *at, "put", "k2", stdin=b"x" * 5000), support.NO_SPACE)
        checks = self.doctor(*at, "--read-only")
        self.find(checks, "full", "warning", "sets end FULL", "l3_cleaner_enabled = true",
                  "stat --recount")
        self.find(checks, "capacity", "ok")
        for well in ([*off, "-s", "capacity=24600"], [*self.files, "-s", "capacity=12300"]):
            self.assertNotIn("full", [one["check"] for one in self.doctor(*well, "--read-only")])

    def test_over_capacity(self):
        self.put(*self.files)
        low = [*self.files, "-s", "capacity=8192", "--read-only"]
        self.find(self.doctor(*low), "capacity", "warning", "over capacity",
                  "is given back by a running process")
        self.find(self.doctor(*low, "-s", "l3_cleaner_enabled=false"), "capacity", "warning",
                  "over capacity", "the cleaner is off", "clean --to 100%")

    def test_pins(self):
        self.put(*self.files, "--model", "a")
        self.put(*self.files, "--model", "b")
        spaces = self.check(self.k("ls", "--json"), DONE).json["namespaces"]
        first, second = (one["namespace"] for one in spaces)
        self.check(self.k("pin", first), DONE)
        self.find(self.doctor("--read-only", "-s", "capacity=1GiB"), "pins", "ok",
                  "1 namespace of 12.0 KiB")
        self.find(self.doctor("--read-only", "-s", "capacity=12300"), "pins", "warning",
                  "all that `capacity' has room for", "unpin")
        self.check(self.k("pin", second), DONE)
        self.find(self.doctor("--read-only"), "pins", "warning", "24.0 KiB of 2 namespaces",
                  "everything that is stored", "end FULL", "unpin")

    def test_counts_that_are_off(self):
        for number in range(4):
            self.check(self.k(*self.files, "put", f"k{number}", stdin=b"x" * 1000000), DONE)
        checks = self.doctor("--read-only")
        self.assertNotIn("counts", [one["check"] for one in checks])
        for path in self.objects()[:2]:
            os.remove(path)
        self.find(self.doctor("--read-only"), "counts", "warning", "stat --recount")
        self.check(self.k("stat", "--recount"), DONE)
        checks = self.doctor("--read-only")
        self.assertNotIn("counts", [one["check"] for one in checks])

    def test_counts_of_a_packed_root_are_of_its_files(self):
        settings = ["-s", "storage_layout=packed", "-s", "capacity=64MiB"]
        self.check(self.k(*settings, "bench", "--pages", "64", "--reps", "1", "--keep",
                          "--part-bytes", "64K"), DONE)
        self.check(self.k(*settings, "put", "k", stdin=b"x" * 3000000), DONE)
        self.assertNotIn("counts", [one["check"] for one in self.doctor(*settings, "--read-only")])
        os.remove(next(path for path in self.objects() if ".object." in path))
        self.find(self.doctor(*settings, "--read-only"), "counts", "warning", "2.9 MiB")

    def test_what_is_wrong_is_told_once(self):
        for wrong in ("metrics_listen=0.0.0.0:1", "naming=foo", "capacity=much"):
            checks = self.doctor("-s", wrong, code=WRONG)
            self.assertEqual([one["check"] for one in checks if one["status"] == "problem"],
                             ["configuration"], checks)
        checks = self.doctor(env=environment(KVCELLAR_METRICS_LISTEN="0.0.0.0:1"), code=WRONG)
        self.assertEqual([one["check"] for one in checks if one["status"] == "problem"],
                         ["configuration"])

    def test_a_process_that_died(self):
        process = subprocess.Popen([KVCELLAR, "-D", self.root, "put", "k"],
                                   stdin=subprocess.PIPE, env=environment())
        folder = os.path.join(self.root, ".kvcellar", "stats")
        end = time.monotonic() + support.TIMEOUT
        while time.monotonic() < end and not (os.path.isdir(folder) and os.listdir(folder)):
            time.sleep(0.02)
        self.find(self.doctor("--read-only"), "processes", "ok", "1 with counters")
        process.kill()
        process.wait()
        process.stdin.close()
        self.find(self.doctor("--read-only"), "processes", "warning", "died")

    def start_writer(self, *arguments):
        """A process with an open store of files: it waits for the bytes of its put."""
        process = subprocess.Popen([KVCELLAR, "-D", self.root, "-s", "storage_layout=files",
                                    *arguments, "put", "k"], stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)
        return process

    def until(self, status, fragment):
        """Until the cleaner of the root is told so; a process needs a moment to become it."""
        end = time.monotonic() + support.TIMEOUT
        found = []
        while time.monotonic() < end:
            checks = self.doctor("--read-only")
            found = [one for one in checks if one["check"] == "cleaner" and one["root"]]
            if any(one["status"] == status and fragment in one["text"] for one in found):
                return
            time.sleep(0.05)
        self.fail(f"{status} {fragment}: {found}")

    def test_who_is_the_cleaner(self):
        self.put("-s", "storage_layout=files")
        self.until("ok", "no process")
        with self.subTest("disabled"):
            process = self.start_writer("-s", "l3_cleaner_enabled=false")
            self.until("warning", "none is the cleaner")
            process.communicate(b"x")
        self.start_writer()
        self.until("ok", "a process is the cleaner")

    def test_orphans_and_times_in_the_future(self):
        self.put()
        orphan = self.write("root/.kvctmp.0123456789abcdef0123456789abcdef.1", b"x" * 9000)
        os.utime(orphan, (time.time() - 7200,) * 2)
        self.find(self.doctor("--read-only"), "orphans", "warning", "1 unfinished file")
        self.assertTrue(os.path.exists(orphan))
        os.remove(orphan)
        os.utime(self.objects()[0], (time.time() + 86400,) * 2)
        self.find(self.doctor("--read-only"), "clock", "warning", "1 file with a time in the future")

    def test_another_host(self):
        settings = ["-s", "storage_layout=packed", "-s", "capacity=64MiB"]
        self.check(self.k(*settings, "bench", "--pages", "2", "--reps", "1", "--keep",
                          "--part-bytes", "64K"), DONE)
        path = os.path.join(self.root, ".kvcellar", "packed", "root.shm")
        with open(path, "r+b") as shm:
            shm.seek(144)
            shm.write(b"f" * 32 + struct.pack("<Q", int(time.time())))
        self.find(self.doctor(*settings, code=WRONG), "host", "problem", "f" * 32, "root of its own")
        with open(path, "r+b") as shm:
            shm.seek(176)
            shm.write(struct.pack("<Q", int(time.time()) - 3600))
        self.find(self.doctor(*settings, "--read-only"), "host", "warning", "had it last")

    def test_metrics(self):
        self.find(self.doctor("-s", "metrics_file=" + self.path("out.prom")), "metrics_file", "ok")
        self.assertFalse(os.path.exists(self.path("out.prom")))
        self.find(self.doctor("-s", "metrics_file=" + self.path("absent", "out.prom"), code=WRONG),
                  "metrics_file", "problem", "make the folder")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            self.find(self.doctor("-s", "metrics_listen=" + address), "metrics_listen", "warning",
                      address, "in use", "{rank}", "KVCELLAR_METRICS_LISTEN")

    def test_plugins(self):
        checks = self.doctor("-s", "plugin.obj.active=true", "-s", "plugin.obj.bucket=b",
                             code=WRONG)
        self.find(checks, "plugin", "warning", "obj")
        self.find(checks, "plugin", "problem", "plugin_dir")
        self.find(self.doctor("-s", "plugin.mem.active=true"), "store", "ok")

    def test_a_symlink_in_the_place_of_the_default(self):
        self.need_mounts()
        done = support.in_mounts("""
            mkdir /tmp/elsewhere; ln -s /tmp/elsewhere /tmp/hicache_storage
            $k doctor --json; echo "code $?"
            """, self.folder)
        self.assertIn("code 1", done.text, done)
        self.assertIn("symlink to /tmp/elsewhere", done.text)

    def test_secrets_stay_secret(self):
        done = self.k("-s", "plugin.obj.secrete_key=hunter2", "-s", "plugin.obj.access_key=ak", "-s",
                      "plugin.obj.bucket=b", "doctor")
        self.assertNotIn("hunter2", done.text + done.errors)

    def test_usage(self):
        self.check(self.k("doctor", "extra"), USAGE, "extra", "-D")


if __name__ == "__main__":
    support.main()
