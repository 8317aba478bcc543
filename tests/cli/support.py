# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: running it, folders, terminals, mounts."""
import functools
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ.get("KVC_BUILD_DIR", "build/release")
SOURCE = os.environ.get("KVC_SOURCE_DIR",
                        os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
KVCELLAR = os.path.join(BUILD, "bin", "kvcellar")

# A disk that others have filled is no defect; tests of watermarks give their own.
FULL_DISK = {"KVCELLAR_L3_CLEANER_HIGH_WATERMARK": "99.9"}
TIMEOUT = 60

DONE, WRONG, USAGE, MISS, CORRUPT, NO_SPACE, DENIED, TIMED_OUT, IO, CONFIG = range(10)
INTERRUPTED = 130

# Commands and the arguments that make each of them parse.
COMMANDS = {
    "info": [], "doctor": [], "selftest": [], "put": ["key"], "get": ["key"], "exists": ["key"], "rm": ["key"],
    "ls": [], "stat": ["key"], "where": ["key"], "verify": [], "clear": ["namespace"],
    "convert": ["--to-dir", "/nonexistent/to", "--dry-run"], "config": ["check"], "stats": [],
    "usage": [], "pin": ["namespace"], "unpin": ["namespace"],
    "clean": ["--to", "100%", "--dry-run"],
    "top": ["--once", "--interval", "0.1"],
}


def environment(**extra):
    """Without settings of the machine; KVCELLAR_PLUGIN_DIR stays, it belongs to the build."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("KVCELLAR_", "SGLANG_", "AWS_")) or
           name == "KVCELLAR_PLUGIN_DIR"}
    env.update(FULL_DISK)
    env["LC_ALL"] = "C.UTF-8"
    env["TERM"] = "xterm"
    env.pop("NO_COLOR", None)
    env.update(extra)
    return env


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def text(self):
        return self.out.decode(errors="replace")

    @property
    def errors(self):
        return self.err.decode(errors="replace")

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error(self):
        """The object of the one error document on stderr."""
        return json.loads(self.err)["error"]

    def __repr__(self):
        return f"exit code {self.code}\n--- stdout\n{self.text}\n--- stderr\n{self.errors}"


def run(*arguments, stdin=b"", env=None, cwd=None, stdout=subprocess.PIPE, program=None):
    done = subprocess.run([program or KVCELLAR, *arguments], input=stdin, stdout=stdout,
                          stderr=subprocess.PIPE, env=env or environment(), cwd=cwd,
                          timeout=TIMEOUT, check=False)
    return Result(done.returncode, done.stdout or b"", done.stderr)


def on_terminal(arguments, descriptors=(1, 2), env=None, columns=None):
    """Runs with a terminal as these descriptors: (exit code, bytes of the terminal, the rest)."""
    master, slave = pty.openpty()
    if columns:
        import fcntl
        import struct
        import termios
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    streams = {number: slave if number in descriptors else subprocess.PIPE for number in (1, 2)}
    process = subprocess.Popen([KVCELLAR, *arguments], stdin=subprocess.DEVNULL,
                               stdout=streams[1], stderr=streams[2], env=env or environment())
    os.close(slave)
    shown = b""
    while select.select([master], [], [], TIMEOUT)[0]:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    rest = b"".join(stream.read() for stream in (process.stdout, process.stderr) if stream)
    code = process.wait(TIMEOUT)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()
    os.close(master)
    return code, shown, rest


@functools.lru_cache(maxsize=None)
def mount_prefix():
    """The command that gives a script a mount namespace of its own, or None."""
    for prefix in (["unshare", "-m"], ["unshare", "-Urm"]):
        if prefix[1] == "-m" and os.geteuid() != 0:
            continue
        try:
            probe = subprocess.run([*prefix, "sh", "-c", "mount -t tmpfs none /mnt"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   timeout=TIMEOUT, check=False)
        except OSError:
            return None
        if probe.returncode == 0:
            return prefix
    return None


def in_mounts(script, folder, env=None):
    """Runs a shell script in its own mount namespace. /tmp is a new folder there; $k runs the
    program, $work is `folder`, seen at /tmp/work."""
    head = f"""set -e
        new='{folder}/new-tmp'; mkdir -p "$new"
        mount -t tmpfs -o size=512m,mode=1777 none "$new"
        mkdir -p "$new/build/bin" "$new/build/lib" "$new/work"
        # Copied, so that they belong to the user of the namespace: a plugin of another is refused.
        cp '{os.path.abspath(KVCELLAR)}' "$new/build/bin/"
        cp -P '{os.path.abspath(BUILD)}'/lib/libkvcellar.so* "$new/build/lib/"
        cp -R '{os.path.abspath(BUILD)}/lib/kvcellar' "$new/build/lib/"
        mount --bind '{folder}' "$new/work"
        mount --rbind "$new" /tmp
        export LD_LIBRARY_PATH=/tmp/build/lib KVCELLAR_PLUGIN_DIR=/tmp/build/lib/kvcellar/plugins
        work=/tmp/work k=/tmp/build/bin/kvcellar
        cd /tmp
        set +e
        """
    done = subprocess.run([*mount_prefix(), "bash", "-c", head + script], capture_output=True,
                          env=env or environment(), timeout=TIMEOUT, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvcellar-cli-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.root = os.path.join(self.folder, "root")
        os.mkdir(self.root, 0o700)

    def k(self, *arguments, **options):
        """kvcellar on this test's root."""
        return run("-D", self.root, *arguments, **options)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def write(self, name, data):
        path = self.path(name)
        with open(path, "wb") as out:
            out.write(data)
        return path

    def objects(self):
        """Paths of the stored files of this test's root."""
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if name != ".kvcellar"]
            found += [os.path.join(folder, name) for name in files if name != "namespace.json"]
        return sorted(found)

    def check(self, result, code, *fragments):
        """The exit code, and for failures one clear line that has the fragments."""
        self.assertEqual(result.code, code, result)
        if code != DONE and fragments:
            lines = [line for line in result.errors.splitlines() if not line.startswith("Try '")]
            self.assertEqual(len(lines), 1, result)
            if lines[0].startswith("{"):
                lines[0] = "kvcellar: " + json.loads(lines[0])["error"]["message"]
            self.assertTrue(lines[0].startswith("kvcellar: "), result)
            for fragment in fragments:
                self.assertIn(fragment, lines[0])
        return result

    def skip(self, reason):
        print(f"SKIP: {reason}", flush=True)
        self.skipTest(reason)

    def need_mounts(self):
        if not mount_prefix():
            self.skip("mounts need root or user namespaces")


def interrupt(arguments, ready, env=None):
    """Starts, calls ready(process), sends SIGINT; the Result."""
    process = subprocess.Popen([KVCELLAR, *arguments], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=env or environment())
    ready(process)
    process.send_signal(signal.SIGINT)
    code = process.wait(TIMEOUT)
    out, err = process.stdout.read(), process.stderr.read()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    return Result(code, out, err)


def wait_until_reading(pid):
    """Until the process has taken what was written and sleeps in read()."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
                if file.read().startswith("0 0x"):
                    return
            with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
                if "pipe_read" in file.read():
                    return
        except OSError:
            # Not readable for us: long enough for a program that does nothing else.
            time.sleep(1)
            return
        time.sleep(0.01)


def main():
    if not os.access(KVCELLAR, os.X_OK):
        sys.exit(f"{KVCELLAR} is not built")
    unittest.main(verbosity=2)
