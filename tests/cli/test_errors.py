#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong at a user's place: one clear line, the right exit code, nothing lost."""
import os
import subprocess

import support
from support import CONFIG, DENIED, DONE, NO_SPACE, USAGE, in_mounts, run


class Errors(support.Case):
    def test_wrong_key(self):
        self.check(self.k("-s", "storage_dir=/x", "ls"), CONFIG, "storage_dir", "storage_dirs")
        config = self.write("c.toml", b"naming = 'nixl'\n[plugin.posix]\nuse_urng = 'true'\n")
        self.check(self.k("-c", config, "ls"), CONFIG, "use_urng", "use_uring")
        self.check(run("config", "check", config), CONFIG, "use_urng", "use_uring")
        self.check(self.k("-c", "{\"namng\": \"nixl\"}", "ls"), CONFIG, "namng")

    def test_wrong_type(self):
        self.check(self.k("-s", "use_direct_io=flase", "ls"), CONFIG, "use_direct_io", "flase")
        self.check(self.k("-s", "get_timeout_ms=soon", "ls"), CONFIG, "get_timeout_ms")
        self.check(self.k("-c", "l3_cleaner_low_watermark = 'low'", "ls"), CONFIG,
                   "l3_cleaner_low_watermark")

    def test_configuration_file_that_cannot_be_read(self):
        self.check(run("-c", self.path("absent.toml"), "ls"), CONFIG, "absent.toml")
        self.check(run("-c", "@" + self.path("absent.toml"), "ls"), CONFIG, "absent.toml")
        self.check(run("-c", self.folder, "ls"), CONFIG, self.folder)
        self.check(run("-c", self.write("c.json", b'{"naming": }'), "ls"), CONFIG, "line 1")

    def test_missing_folder(self):
        """Only commands that store something make the folder."""
        absent = self.path("absent", "root")
        for command in (["ls"], ["get", "k"], ["exists", "k"], ["stat", "k"], ["verify"],
                        ["stat", "--usage"], ["info", "--read-only"], ["rm", "k"],
                        ["stat", "--recount"], ["verify", "--remove"],
                        ["clear", "none-0123456789abcdef"],
                        ["clear", "none-0123456789abcdef", "--yes"]):
            with self.subTest(command):
                self.check(run("-D", absent, *command), CONFIG, absent)
                self.assertFalse(os.path.exists(self.path("absent")))
        self.check(run("stats", absent), CONFIG, absent)
        # Only the last folder of a path is made: a disk may not be mounted.
        self.check(run("-D", absent, "put", "k", stdin=b"x"), CONFIG, absent)
        self.assertFalse(os.path.exists(self.path("absent")))
        os.mkdir(self.path("absent"))
        self.check(run("-D", absent, "put", "k", stdin=b"x"), DONE)
        self.assertEqual(os.stat(absent).st_mode & 0o777, 0o700)

    def test_folder_that_cannot_be_made(self):
        for folder in ("/proc/kvcellar", self.path("root", "f", "x")):
            self.write("root/f", b"")
            bad = self.k("-D", folder, "put", "k", stdin=b"x")
            self.assertIn(bad.code, (CONFIG, DENIED), bad)
            self.assertIn(folder, bad.errors)

    def test_a_file_instead_of_a_folder(self):
        self.check(run("-D", self.write("file", b"x"), "ls"), CONFIG, "file")

    def test_folder_without_permission(self):
        if os.geteuid() == 0:
            self.skip("root may enter every folder")
        self.k("put", "k", stdin=b"x")
        os.chmod(self.root, 0)
        self.addCleanup(os.chmod, self.root, 0o700)
        self.check(self.k("get", "k"), DENIED, self.root)

    def test_unknown_io_engine(self):
        self.check(self.k("-s", "io_engines=io_ring", "ls"), CONFIG, "io_ring", "io_uring")

    def test_engines_that_contradict(self):
        self.check(self.k("-c", '{"plugin": {"posix": {"use_uring": "true", "use_aio": "true"}}}',
                          "config", "check"), CONFIG, "use_uring", "use_aio")

    def test_unknown_plugin(self):
        self.check(self.k("-s", "plugin.posx.active=true", "ls"), CONFIG, "posx", "posix")
        env = support.environment(SGLANG_HICACHE_NIXL_BACKEND_PLUGIN="POSX")
        self.check(self.k("ls", env=env), CONFIG, "POSX")

    def test_plugin_that_is_not_built(self):
        bad = self.check(self.k("-s", "plugin.gusli.active=true", "put", "k"), CONFIG, "gusli")
        self.assertEqual(self.objects(), [], bad)

    def test_info_shows_plugins_although_the_store_does_not_open(self):
        self.write("file", b"")
        bad = run("-D", self.path("file", "root"), "info")
        self.check(bad, CONFIG, "file/root")
        self.assertIn("posix", bad.text)
        both = run("-D", self.path("file", "root"), "info", "--json")
        self.assertIsNone(both.json["store"])
        self.assertTrue(both.json["plugins"])
        self.assertEqual(both.error["exit_code"], CONFIG)

    def test_root_of_another_naming(self):
        self.check(self.k("put", "k", stdin=b"x"), DONE)
        self.check(self.k("-s", "naming=nixl", "put", "k", stdin=b"x"), CONFIG, "kvcellar", "nixl")
        self.assertEqual(self.k("get", "k").out, b"x")

    def test_key_that_is_no_file_name_in_nixl_naming(self):
        nixl = ["-s", "naming=nixl"]
        self.check(self.k(*nixl, "put", "a/b", stdin=b"x"), USAGE, "a/b")
        for command in ("put", "get", "exists", "rm", "stat"):
            bad = self.check(self.k(*nixl, command, "n" * 300, stdin=b"x"), USAGE)
            self.assertIn("name", bad.text + bad.errors)
        self.check(self.k(*nixl, "put", "good", stdin=b"x"), DONE)
        self.assertEqual(self.k(*nixl, "get", "good").out, b"x")

    def test_outputs_that_do_not_come(self):
        """metrics_file and trace_file were asked for: that they fail is told without -v."""
        for name, value in (("metrics_file", self.path("no", "x.prom")), ("metrics_file", "/dev/null"),
                            ("trace_file", self.path("no", "trace.jsonl"))):
            with self.subTest(name):
                done = self.check(self.k("-s", f"{name}={value}", "put", name, stdin=b"x"), DONE)
                lines = done.errors.splitlines()
                self.assertRegex(lines[-1] if name == "metrics_file" else lines[0],
                                 f"^kvcellar: error: .*{name}.*{value}")
                self.assertEqual(len(lines), 2, done)

    def test_cause_is_not_prefixed_twice(self):
        bad = self.check(self.k("where", "k", "--tp-rank", "9", "--tp-size", "2"), USAGE, "tp_rank")
        self.assertEqual(bad.errors.count("namespace"), 1, bad)

    def test_configuration_errors_are_the_same_everywhere(self):
        arguments = ["-s", "io_engines=threads", "-s", "use_uring=true"]
        said = {self.check(self.k(command, *arguments), CONFIG, "io_engines").errors
                for command in ("ls", "info", "verify", "selftest")}
        self.assertEqual(len(said), 1, said)

    def test_version_of_another_root(self):
        self.check(self.k("put", "k", stdin=b"x"), DONE)
        path = os.path.join(self.root, ".kvcellar", "root.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        os.chmod(path, 0o600)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace('"major": 1', '"major": 9').replace('"major":1', '"major":9'))
        self.check(self.k("get", "k"), CONFIG, "9", "1")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text[:20])
        self.check(self.k("get", "k"), support.CORRUPT, "root.json")

    # ------------------------------------------------------------ with mounts of our own

    def test_full_disk(self):
        self.need_mounts()
        self.write("big", os.urandom(6 << 20))
        self.write("small", b"small")
        done = in_mounts("""
            mkdir disk; mount -t tmpfs -o size=2m none disk
            "$k" -D /tmp/disk put small "$work/small" -q || exit 90
            "$k" -D /tmp/disk put big "$work/big"; echo "put $?"
            "$k" -D /tmp/disk get small | cmp - "$work/small"; echo "small $?"
            "$k" -D /tmp/disk exists big; echo "big $?"
            "$k" -D /tmp/disk ls -a --json | grep -c '"name"'
            "$k" -D /tmp/disk rm small -q; "$k" -D /tmp/disk put small "$work/small" -q
            echo "again $?"
            """, self.folder)
        self.assertEqual(done.text.replace("miss     big\n", ""),
                         f"put {NO_SPACE}\nsmall 0\nbig {support.MISS}\n1\nagain 0\n", done)
        self.assertIn("kvcellar: put 'big': ", done.errors)

    def test_full_disk_under_the_output(self):
        self.need_mounts()
        self.write("big", os.urandom(4 << 20))
        done = in_mounts("""
            mkdir disk store; mount -t tmpfs -o size=1m none disk
            "$k" -D /tmp/store put big "$work/big" -q || exit 90
            "$k" -D /tmp/store get big -o disk/out; echo "file $?"
            ls disk | wc -l
            "$k" -D /tmp/store get big >disk/out; echo "stdout $?"
            """, self.folder)
        self.assertEqual(done.text, f"file {NO_SPACE}\n0\nstdout {NO_SPACE}\n", done)
        self.assertIn("cannot write 'disk/out': No space left on device", done.errors)
        self.assertIn("standard output: No space left on device", done.errors)

    def test_limit_of_file_size(self):
        self.write("big", os.urandom(1 << 20))
        done = subprocess.run(
            ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", support.KVCELLAR, "-D", "root",
             "put", "k", "big"], cwd=self.folder, env=support.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=support.TIMEOUT, check=False)
        done = support.Result(done.returncode, done.stdout, done.stderr)
        self.assertEqual(done.code, support.IO, done)
        self.assertIn("File too large", done.errors)
        self.check(self.k("exists", "k"), support.MISS)

    def test_read_only_mount(self):
        self.need_mounts()
        self.check(self.k("put", "k", stdin=b"kept"), DONE)
        done = in_mounts("""
            mkdir ro; mount --bind "$work/root" ro; mount -o remount,bind,ro ro
            "$k" -D /tmp/ro get k; echo " get $?"
            "$k" -D /tmp/ro ls --json >/dev/null; echo "ls $?"
            "$k" -D /tmp/ro verify -q >/dev/null; echo "verify $?"
            "$k" -D /tmp/ro info --read-only >/dev/null; echo "info $?"
            echo new | "$k" -D /tmp/ro put other; echo "put $?"
            """, self.folder)
        self.assertEqual(done.text, f"kept get 0\nls 0\nverify 0\ninfo 0\nput {DENIED}\n", done)
        line, = done.errors.splitlines()
        self.assertIn("/tmp/ro", line)

    def test_what_cannot_be_changed_on_a_read_only_mount(self):
        self.need_mounts()
        self.check(self.k("put", "k", stdin=b"kept"), DONE)
        namespace = self.k("ls", "--json").json["namespaces"][0]["namespace"]
        done = in_mounts(f"""
            mkdir ro; mount --bind "$work/root" ro; mount -o remount,bind,ro ro
            "$k" -D /tmp/ro clear {namespace} --yes; echo "clear $?"
            "$k" -D /tmp/ro convert --to-dir /tmp/new --move; echo "convert $?"; ls -d /tmp/new
            "$k" -D /tmp/ro selftest | sed 's/(.*)//'; echo "selftest $?"
            "$k" -D /tmp/ro selftest --json | grep -A1 read_only
            "$k" -D /tmp/ro stat --recount >/dev/null; echo "recount $?"
            """, self.folder)
        self.assertEqual(done.text, f"clear {DENIED}\nconvert {DENIED}\nok \n"
                         "/tmp/ro is read-only: nothing was written there, and nothing tested\n"
                         'selftest 0\n  "read_only": [\n    "/tmp/ro"\nrecount 0\n', done)
        clear, convert, absent, recount = done.errors.splitlines()
        self.assertIn("/tmp/ro: read-only: its file system is mounted so", clear)
        self.assertIn("--move cannot remove anything from /tmp/ro: it is read-only", convert)
        self.assertIn("/tmp/new", absent)
        self.assertIn("nothing was corrected there", recount)

    def test_default_folder_that_is_a_link(self):
        self.need_mounts()
        done = in_mounts("""
            mkdir elsewhere; ln -s elsewhere hicache_storage
            "$k" info >/dev/null; echo "info $?"
            echo x | "$k" put k; echo "put $?"
            ls -A elsewhere | wc -l
            """, self.folder)
        self.assertEqual(done.text, f"info {DENIED}\nput {DENIED}\n0\n", done)
        for line in done.errors.splitlines():
            self.assertIn("/tmp/hicache_storage", line)

    def test_default_folder_of_another_user(self):
        if os.geteuid() != 0:
            self.skip("a folder of another user needs root")
        self.need_mounts()
        done = in_mounts("""
            mkdir -m 777 hicache_storage; chown 12345:12345 hicache_storage
            echo x | "$k" put k; echo "put $?"
            ls -A hicache_storage | wc -l
            """, self.folder)
        self.assertEqual(done.text, f"put {DENIED}\n0\n", done)
        self.assertIn("/tmp/hicache_storage", done.errors)

    def test_default_folder_is_made_private(self):
        self.need_mounts()
        done = in_mounts("""
            umask 0
            echo x | "$k" put k -q; echo "put $?"
            stat -c %a hicache_storage
            """, self.folder)
        self.assertEqual(done.text, "put 0\n700\n", done)


if __name__ == "__main__":
    support.main()
