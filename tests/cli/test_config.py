#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcellar config: check, show, options, sample; the three ways to give a configuration."""
import json
import os
import re

import support
from support import CONFIG, DONE, environment, run

OTHERS = dict(support.FULL_DISK)
support.FULL_DISK.clear()  # this is about where values come from; what is stored gets OTHERS


class Config(support.Case):
    def value(self, name, *arguments, env=None):
        shown = self.check(run("config", "show", "--json", *arguments, env=env), DONE)
        return shown.json["options"][name]["value"]

    def test_check(self):
        off = ["-s", "l3_cleaner_enabled=false"]
        self.assertEqual(self.check(run(*off, "config", "check"), DONE).text, "ok\n")
        self.assertEqual(run(*off, "config", "check", "--json").json, {"ok": True, "warnings": []})
        env = environment(KVCELLAR_STORAGE_DIR="/x", KVCELLAR_L3_CLEANER_ENABLED="false")
        warned = self.check(run("config", "check", env=env), DONE)
        self.assertRegex(warned.text, r"^warning: .*KVCELLAR_STORAGE_DIR\b.*KVCELLAR_STORAGE_DIRS\?\nok\n$")
        self.assertEqual(len(run("config", "check", "--json", env=env).json["warnings"]), 1)
        self.assertEqual(self.k("ls", env=env).err, b"")
        self.assertEqual(run(*off, "config", "check", "-q").out, b"")
        path = self.write("c.toml", b"l3_cleaner_low_watermark = 90.0\n")
        self.check(run("config", "check", path), CONFIG, "l3_cleaner_low_watermark")

    def test_check_gives_the_warnings_of_open(self):
        env = environment(KVCELLAR_STORAGE_DIR="/x")
        watermarks = ["-s", "l3_cleaner_high_watermark=0.8", "-s", "l3_cleaner_low_watermark=0.7"]
        checked = run(*watermarks, "config", "check", "--json", env=env).json["warnings"]
        opened = self.k("-v", *watermarks, "ls", env=env).errors
        told = [line.split("warning: ", 1)[1] for line in opened.splitlines() if "warning: " in line]
        self.assertEqual(len(checked), 3)
        self.assertEqual(checked, told)

    def test_shares_of_more_than_everything(self):
        for shares, warned in (("a=60%,b=40%", False), ("a=60%,b=41%", True),
                               ("a=99%,b=100GiB", False)):
            done = self.check(run("-s", "tenant_shares=" + shares, "config", "check"), DONE)
            self.assertEqual("warning: tenant_shares: the percentages are 101 in sum" in done.text,
                             warned, done)
            self.assertTrue(done.text.endswith("ok\n"), done)

    def test_cleaner(self):
        files = ["-s", "storage_layout=files"]
        off = ["-s", "l3_cleaner_enabled=false"]
        self.assertEqual(run("config", "check").text, "ok\n")
        self.assertEqual(run(*files, "config", "check").text, "ok\n")
        self.check(self.k(*files, "put", "a", stdin=b"x", env=environment(**OTHERS)), DONE)
        self.assertIn("cleaner        enabled; roots of files are cleaned\n", self.k("info").text)
        self.assertIn("cleaner        off; nothing is removed from roots of files\n",
                      self.k(*off, "info").text)

    def test_cleaner_of_a_packed_root(self):
        packed = ["-D", self.path("packed"), "-s", "storage_layout=packed", "-s", "capacity=64MiB"]
        self.assertNotIn("l3_cleaner", run("-v", *packed, "put", "a", stdin=b"x").errors)
        shown = run("-D", self.path("packed"), "-s", "capacity=64MiB", "info").text
        self.assertIn("cleaner        enabled; packed roots evict by capacity\n", shown)
        self.assertEqual(shown.count("storage_layout"), 1)

    def test_keys_of_sglang(self):
        text = '{"prefetch_threshold": 64, "switch_interval_us": 500}'
        self.assertEqual(self.value("prefetch_threshold", "-c", text), 64)
        self.assertEqual(self.value("switch_interval_us", "-c", text), 500)
        self.check(run("-c", '{"prefetch_threshold": "64"}', "config", "check"), CONFIG,
                   "prefetch_threshold", "SGLang needs the type integer")
        self.assertEqual(self.value("prefetch_threshold", "-s", "prefetch_threshold=32"), 32)
        warned = self.check(run("-c", '{"hicache_foo": 1}', "config", "check"), DONE)
        self.assertIn('"hicache_foo"', warned.text)

    def test_forms(self):
        forms = {
            "toml": self.write("c.toml", b"naming = 'nixl'\n"),
            "json": self.write("c.json", b'{"naming": "nixl"}'),
            "yaml": self.write("c.yaml", b"naming: nixl\n"),
        }
        for name, path in forms.items():
            with self.subTest(name):
                self.assertEqual(self.value("naming", "-c", path), "nixl")
                self.assertEqual(self.value("naming", "-c", "@" + path), "nixl")
                self.assertEqual(self.check(run("config", "show", path, "--json"), DONE)
                                 .json["options"]["naming"]["value"], "nixl")
        for text in ("naming = 'nixl'", '{"naming": "nixl"}', "naming: nixl\n"):
            self.assertEqual(self.value("naming", "-c", text), "nixl", text)

    def test_precedence(self):
        env = environment(KVCELLAR_GET_TIMEOUT_MS="77")
        self.assertEqual(self.value("get_timeout_ms"), 5000)
        self.assertEqual(self.value("get_timeout_ms", env=env), 77)
        path = self.write("c.toml", b"get_timeout_ms = 88\n")
        self.assertEqual(self.value("get_timeout_ms", "-c", path, env=env), 88)
        for order in (["-c", path, "-s", "get_timeout_ms=99"],
                      ["-s", "get_timeout_ms=99", "-c", path]):
            self.assertEqual(self.value("get_timeout_ms", *order, env=env), 99)
        self.assertEqual(self.value("get_timeout_ms", "-c", path, "-c", "get_timeout_ms = 66"), 66)
        self.assertEqual(self.value("storage_dirs", "-D", "/a,/b"), ["/a", "/b"])

    def test_the_sample_loads_and_changes_nothing(self):
        sample = self.check(run("config", "sample"), DONE)
        self.assertEqual(run("config", "sample", "--json").json["sample"], sample.text)
        path = self.write("sample.toml", sample.out)
        self.check(run("config", "check", path), DONE)
        with_sample = run("config", "show", path, "--json").json
        without = run("config", "show", "--json").json
        self.assertEqual({name: one["value"] for name, one in with_sample["options"].items()},
                         {name: one["value"] for name, one in without["options"].items()})

    def test_the_defaults_written_out_are_valid(self):
        sample, optional = [], False
        for line in run("config", "sample").text.splitlines():
            setting = re.match(r"# (\w+ = .*)", line)
            sample.append(setting.group(1) if setting and not optional else line)
            if setting or not line:
                optional = False
            optional = optional or line == "# Not set by default."
        path = self.write("sample.toml", "\n".join(sample).encode())
        checked = self.check(run("config", "check", path), DONE)
        self.assertEqual(checked.text, "ok\n")
        env = environment()
        env.pop("KVCELLAR_PLUGIN_DIR", None)  # the default is written out, too
        given, without = (run("config", "show", "--json", *extra, env=env).json["options"]
                          for extra in ((path,), ()))
        self.assertEqual({name: one["value"] for name, one in given.items()},
                         {name: one["value"] for name, one in without.items()})
        self.assertNotEqual(given["io_engines"]["origin"], "default")
        others = ["-s", "l3_cleaner_high_watermark=99.9"]
        self.check(self.k("-c", path, *others, "put", "key", stdin=b"x"), DONE)

    def test_lists_as_texts(self):
        folders = [self.path("s"), self.path("h")]
        for env, arguments in ((environment(KVCELLAR_STORAGE_DIRS=json.dumps(folders)), []),
                               (None, ["-s", "storage_dirs=" + json.dumps(folders)]),
                               (None, ["-D", json.dumps(folders)])):
            self.assertEqual(self.value("storage_dirs", *arguments, env=env), folders)
        self.check(run("-s", "storage_dirs=[]", "put", "k", stdin=b"x", cwd=self.folder), CONFIG,
                   "storage_dirs", "empty")
        self.check(run("-D", "[a,b]", "put", "k", stdin=b"x", cwd=self.folder), CONFIG,
                   "storage_dirs", "begins as a list")
        self.assertEqual(sorted(os.listdir(self.folder)), ["root"])

    def test_options_in_three_forms(self):
        options = self.check(run("config", "options", "--json"), DONE).json
        text = self.check(run("config", "options"), DONE).text
        table = self.check(run("config", "options", "--markdown"), DONE).text
        sample = run("config", "sample").text
        self.assertGreater(len(options), 30)
        for option in options:
            name = option["path"].split(".")[-1]
            self.assertRegex(text, rf"(?m)^\s+{re.escape(name)}\b", option)
            self.assertIn(f"`{name}`", table.replace(option["path"], name), option)
            self.assertRegex(sample, rf"(?m)^#?\s*{re.escape(name)}\s*=", option)
            self.assertTrue(option["help"], option)

    def test_show_says_where_a_value_came_from(self):
        env = environment(KVCELLAR_SET_TIMEOUT_MS="11")
        shown = run("config", "show", "--json", "-s", "get_timeout_ms=9", env=env).json["options"]
        self.assertEqual(shown["exists_timeout_ms"]["origin"], "default")
        self.assertIn("KVCELLAR_SET_TIMEOUT_MS", shown["set_timeout_ms"]["origin"])
        self.assertNotEqual(shown["get_timeout_ms"]["origin"], "default")
        text = run("config", "show", "-s", "get_timeout_ms=9", env=env).text
        self.assertRegex(text, r"(?m)^get_timeout_ms = 9\b")
        json.dumps(shown)


if __name__ == "__main__":
    support.main()
