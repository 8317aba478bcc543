#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""R52: credentials are in no output, log line, error or process title."""
import os
import subprocess
import time

import support
from support import CONFIG, DONE, KVCELLAR, environment, run

KEYS = {
    "obj": ("access_key", "secrete_key", "session_token"),
    "azure_blob": ("account_key", "sas_token", "connection_string"),
}
MARK = "hunter2"


def secret(section, name):
    return f"{MARK}-{section}-{name}"


def settings(section):
    for name in KEYS[section]:
        yield "-s"
        yield f"plugin.{section}.{name}={secret(section, name)}"


class Secrets(support.Case):
    def silent(self, result):
        self.assertNotIn(MARK, result.text, result)
        self.assertNotIn(MARK, result.errors, result)
        return result

    def test_every_command_at_debug(self):
        for section in KEYS:
            secrets = list(settings(section))
            for command, arguments in support.COMMANDS.items():
                for more in ([], ["--json"]):
                    with self.subTest((section, command, more)):
                        self.silent(self.k("-vv", *secrets, *more, command, *arguments,
                                           stdin=b"x"))

    def test_a_store_that_does_not_open(self):
        for section in KEYS:
            secrets = list(settings(section))
            active = ["-s", f"plugin.{section}.active=true"]
            failed = self.silent(self.k("-vv", *secrets, *active, "put", "k", stdin=b"x"))
            self.assertEqual(failed.code, CONFIG, failed)
            self.silent(self.k("-vv", "--json", *secrets, *active, "info"))

    def test_show_is_redacted(self):
        shown = self.silent(run("config", "show", "-s", "plugin.obj.active=true", "-s",
                                "plugin.obj.bucket=b", *settings("obj")))
        self.assertEqual(shown.code, DONE, shown)
        self.assertIn("***", shown.text)
        document = self.silent(run("config", "show", "--json", "-s", "plugin.obj.active=true",
                                   "-s", "plugin.obj.bucket=b", *settings("obj"))).json
        self.assertEqual(document["plugins"]["obj"]["secrete_key"]["value"], "***")

    def test_errors_beside_a_secret(self):
        text = '{"plugin": {"obj": {"secrete_key": "%s", "regoin": "x"}}}' % MARK
        self.assertEqual(self.silent(run("-c", text, "config", "check")).code, CONFIG)
        self.silent(run("-c", '{"plugin": {"obj": {"secrete_key": "%s"' % MARK, "ls"))
        self.silent(run("-c", "secrete_key = %s" % MARK, "ls"))
        self.silent(run("-c", '{"plugin": {"obj": {"access_key": {"%s": 1}}}}' % MARK, "ls"))
        self.silent(run("-s", MARK, "ls"))
        self.silent(run("-s", "plugin.obj.acess_key=" + MARK, "ls"))
        self.silent(run("--set=plugin.obj.access_key=" + MARK, "lss"))
        self.silent(run("-splugin.obj.access_key=" + MARK, "--bogus"))
        config = self.write("c.toml", f"[plugin.obj]\nsecrete_key = {MARK}\n".encode())
        self.silent(run("-c", config, "config", "check"))

    def test_endpoint_with_a_login(self):
        shown = run("config", "show", "-s", "plugin.obj.active=true", "-s", "plugin.obj.bucket=b",
                    "-s", f"plugin.obj.endpoint_override=http://user:{MARK}@host:1")
        self.silent(shown)

    def test_environment(self):
        env = environment(KVCELLAR_PLUGIN_OBJ_SECRETE_KEY=MARK)
        self.silent(run("-vv", "config", "show", env=env))
        self.silent(self.k("-vv", "info", env=env))

    def test_process_title(self):
        text = '{"plugin": {"obj": {"secrete_key": "%s"}}}' % MARK
        arguments = ["-D", self.root, "-s", f"plugin.obj.access_key={MARK}",
                     f"--set=plugin.obj.session_token={MARK}", "put", "k", "-c", text]
        process = subprocess.Popen([KVCELLAR, *arguments], stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   env=environment())
        # It waits for standard input after its arguments are parsed.
        title, end = "", time.monotonic() + support.TIMEOUT
        while (not title or MARK in title) and time.monotonic() < end:
            with open(f"/proc/{process.pid}/cmdline", "rb") as file:
                title = file.read().decode()
            time.sleep(0.01)
        self.assertNotIn(MARK, title)
        self.assertIn("plugin.obj.access_key=", title)
        _, err = process.communicate(b"x", support.TIMEOUT)
        self.assertEqual(process.returncode, DONE, err)

    def test_files_of_the_store(self):
        self.check(self.k(*settings("obj"), "put", "k", "--model", "m", stdin=b"x"), DONE)
        for folder, _, files in os.walk(self.root):
            for name in files:
                with open(os.path.join(folder, name), "rb") as file:
                    self.assertNotIn(MARK.encode(), file.read(), name)


if __name__ == "__main__":
    support.main()
