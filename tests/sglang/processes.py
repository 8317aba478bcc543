# SPDX-License-Identifier: Apache-2.0
"""Processes of the level 4 tests: an Engine run (engine_run.py) and the HTTP server.

Each is started in a session of its own with a log in the test's folder, on the loopback address and
a free port, and is ended by its own process group. The log is shown only when something failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import engine_run

HERE = Path(__file__).resolve().parent
GROUP = "sglang.srt.plugins"
ADMIN_KEY = "tests"
START_SECONDS = 600
STOP_SECONDS = 180
SERVE = ("-c", "from sglang.cli.main import main; main()", "serve")
LOG_LINES = 60
LINE_CHARACTERS = 300


def require_entry_point() -> None:
    """SGLang finds kvcellar by its entry point, which an installation and a build tree have."""
    assert any(point.name == "kvcellar" for point in entry_points(group=GROUP)), (
        f"the package kvcellar that is imported here has no entry point in the group {GROUP}: "
        "install it, or put the folder `python` of a build into PYTHONPATH")


def environment(folder: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of an SGLang process: CPU, no model hub, the shim, kvcellar.

    What this process has set for kvcellar or SGLang's storage backends is left out, `variables` are
    put in. TMPDIR is a folder in `folder`, so that nothing of a run is left anywhere else.
    """
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("KVCELLAR_STORAGE", "SGLANG_", "KVCELLAR_SGLANG"))}
    require_entry_point()
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    package = find_spec("kvcellar")
    paths = [HERE / "shim"]
    if package and package.submodule_search_locations:
        paths.append(Path(package.submodule_search_locations[0]).parent)
    before = [path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    return kept | {
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *before]),
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(temporary),
        **(variables or {}),
    }


def tail_of(log: Path) -> str:
    """For the message of a failed test: what a log says of kvcellar, and its last lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    ours = [line for line in lines[:-LOG_LINES] if "kvcellar" in line]
    ours = [line[:LINE_CHARACTERS] for line in ours if "server_args=" not in line]
    return "\n".join([f"--- {log.name}: lines with kvcellar", *ours[-LOG_LINES:],
                      f"--- {log.name}: the last lines", *lines[-LOG_LINES:]])


def end_group(process: subprocess.Popen) -> None:
    """Kill what is left of a process's own group and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_engine(
    folder: Path,
    model: Path,
    arguments: Mapping[str, Any],
    *,
    variables: Mapping[str, str] | None = None,
    until_stored: float | None = None,
) -> tuple[dict[str, Any], str]:
    """What engine_run.py reports, and the whole log. A run that fails fails the test."""
    number = len(list(folder.glob("engine-*.log")))
    log, result = folder / f"engine-{number}.log", folder / f"engine-{number}.json"
    command = [sys.executable, str(HERE / "engine_run.py"), str(result)]
    if until_stored:
        command += ["--until-stored", str(until_stored)]
    command += [f"{name}={value if isinstance(value, str) else json.dumps(value)}"
                for name, value in {"model_path": str(model), **arguments}.items()]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder, variables),
                                   stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            code = process.poll()
            end_group(process)
    assert code == 0 and result.exists(), f"exit code {code}\n{tail_of(log)}"
    return json.loads(result.read_text(encoding="utf-8")), log.read_text(errors="replace")


class Server:
    """The HTTP server of SGLang. Use `with serve(...) as server`."""

    def __init__(self, folder: Path, process: subprocess.Popen, port: int, log: Path) -> None:
        self.folder = folder
        self.process = process
        self.port = port
        self.log = log

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of one request, with the key of the administrator."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.call("GET", "/health")[0] == 200:
                    return
            time.sleep(0.3)
        raise AssertionError(f"the server does not come up\n{tail_of(self.log)}")

    def ask(self, prompt: list[int] = engine_run.PROMPT) -> dict[str, Any]:
        """Generate 16 tokens greedily: out, prompt, cached, details as in engine_run.py."""
        status, text = self.call("POST", "/generate", {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True},
        })
        assert status == 200, f"{text}\n{tail_of(self.log)}"
        answer = json.loads(text)
        meta = answer["meta_info"]
        return {"out": answer["output_ids"], "prompt": meta["prompt_tokens"],
                "cached": meta["cached_tokens"], "details": meta.get("cached_tokens_details")}

    def flush(self) -> None:
        """Drop the caches above storage. Refused while something runs: tried for some seconds."""
        self.until(lambda: self.call("POST", "/flush_cache"), lambda reply: reply[0] == 200)

    def ask_until_stored(self) -> dict[str, Any]:
        """Drop the caches and ask again until all whole pages come from storage."""
        def ask() -> dict[str, Any]:
            self.flush()
            return self.ask()

        return self.until(
            ask, lambda answer: (answer["details"] or {}).get("storage") == engine_run.STORED)

    def status(self) -> dict[str, Any]:
        status, text = self.call("GET", "/hicache/storage-backend")
        assert status == 200, text
        return json.loads(text)

    def attach(self, backend: str, extra: str | None = None) -> tuple[int, str]:
        body = {"hicache_storage_backend": backend,
                "hicache_storage_prefetch_policy": "wait_complete"}
        if extra is not None:
            body["hicache_storage_backend_extra_config_json"] = extra
        return self.call_when_idle("PUT", "/hicache/storage-backend", body)

    def detach(self) -> tuple[int, str]:
        return self.call_when_idle("DELETE", "/hicache/storage-backend")

    def call_when_idle(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """call(), again for as long as SGLang refuses because a backup is under way."""
        return self.until(lambda: self.call(method, path, body),
                          lambda reply: "scheduler is not idle" not in reply[1])

    def clear(self) -> tuple[int, str]:
        return self.call("POST", "/hicache/storage-backend/clear")

    def metrics(self) -> list[str]:
        """The lines of /metrics with a value."""
        status, text = self.call("GET", "/metrics")
        assert status == 200, text
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    def terminate(self) -> int:
        """Send SIGTERM to the server as its supervisor does; its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the server does not end on SIGTERM\n{tail_of(self.log)}") from None

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def until(self, action: Any, good: Any, seconds: float = 120) -> Any:
        """The first result of action() that is good."""
        deadline = time.monotonic() + seconds
        while True:
            result = action()
            if good(result):
                return result
            assert time.monotonic() < deadline, f"still {result}\n{tail_of(self.log)}"
            time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def options_of(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as options of the command line."""
    options = []
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            options.append(option)
        elif value is not None and value is not False:
            options += [option, str(value)]
    return options


@contextlib.contextmanager
def serve(
    folder: Path,
    model: Path,
    arguments: Mapping[str, Any],
    *,
    variables: Mapping[str, str] | None = None,
    entry: tuple[str, ...] = ("-m", "sglang.launch_server"),
) -> Iterator[Server]:
    """A server that is up; killed at the end when the test has not ended it.

    entry: what follows the interpreter; SERVE is `sglang serve`.
    """
    port = free_port()
    log = folder / f"server-{len(list(folder.glob('server-*.log')))}.log"
    options = options_of({
        **engine_run.ARGUMENTS, "model_path": model, "host": "127.0.0.1", "port": port,
        "enable_metrics": True, "enable_cache_report": True, "admin_api_key": ADMIN_KEY,
        "skip_server_warmup": True, **arguments,
    })
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *entry, *options], cwd=folder,
                                   env=environment(folder, variables), stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    server = Server(folder, process, port, log)
    try:
        server.wait_until_up()
        yield server
    finally:
        end_group(process)
