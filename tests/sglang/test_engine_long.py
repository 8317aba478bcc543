# SPDX-License-Identifier: Apache-2.0
"""Level 4, long: two ranks, the HTTP server with its endpoints, injected failures, the redirect.

Every case starts SGLang at least once, which takes half a minute. Left out of `make check`; run by
`make check-long`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import engine_run
import processes
import pytest
from mk_model import make_model
from processes import Server
from subjects import NIXL_DIRECTORIES, stored_objects

pytestmark = pytest.mark.long

STORED = engine_run.STORED
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "/nonexistent"}
"""What two ranks on the CPU need: a core each, and no search for NCCL."""


EXACT = {"dtype": "float32"}
"""In bfloat16 two ranks add up to other last bits than one, and then to other words."""


def run(folder: Path, model: Path, arguments: dict[str, Any], **how: Any) -> Any:
    return processes.run_engine(folder, model, EXACT | arguments, **how)


def up(folder: Path, model: Path, arguments: dict[str, Any], **how: Any) -> Any:
    return processes.serve(folder, model, EXACT | arguments, **how)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """What the model answers without any storage."""
    answer, _ = run(tmp_path_factory.mktemp("plain"), model, {})
    assert answer["cached"] == 0
    return answer["out"]


@pytest.fixture
def store(scratch: Path) -> Path:
    folder = scratch / "store"
    folder.mkdir(mode=0o700)
    return folder


def with_store(store: Path, **options: Any) -> dict[str, Any]:
    """Engine arguments: kvcellar by its name, configured by a JSON text."""
    return {
        "hicache_storage_backend": "kvcellar",
        "hicache_storage_backend_extra_config": extra_of(store, **options),
    }


def extra_of(store: Path, **options: Any) -> str:
    return json.dumps({"storage_dirs": [str(store)], "capacity": "256MiB",
                       "prefetch_threshold": 64} | options)


def from_storage(answer: dict[str, Any]) -> int:
    return (answer["details"] or {}).get("storage", 0)


def temporary_files(store: Path) -> list[Path]:
    """Objects that were begun and neither published nor removed."""
    return [path for path in store.rglob("*") if path.name.startswith(".kvctmp.")]


def value_of(lines: list[str], name: str) -> float:
    """The sum of a metric over its labels; its label storage_backend has to say kvcellar."""
    found = [line for line in lines if re.match(re.escape(name) + r"(_total)?\{", line)]
    assert found, f"no metric {name}"
    assert all('storage_backend="kvcellar"' in line for line in found), found
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def test_two_ranks(model: Path, scratch: Path, store: Path, expected: list[int]) -> None:
    """Each rank stores and reads its own half of the heads."""
    arguments = with_store(store) | {"tp_size": 2}
    first, _ = run(scratch, model, arguments, variables=TWO_RANKS, until_stored=120)
    assert first["cached"] == 0 and first["out"] == first["again"]["out"] == expected
    second, log = run(scratch, model, arguments, variables=TWO_RANKS)
    assert from_storage(second) == second["cached"] == STORED
    assert second["out"] == expected
    assert "Traceback" not in log
    # One rank finds nothing of two: the heads are split otherwise.
    alone, _ = run(scratch, model, with_store(store))
    assert alone["cached"] == 0 and alone["out"] == expected


def test_two_ranks_then_one_with_split_heads(
    model: Path, scratch: Path, store: Path, expected: list[int]
) -> None:
    """tp_lcm_size: pages of two ranks are read by one, each head in its place."""
    arguments = with_store(store, tp_lcm_size=4) | {
        "hicache_mem_layout": "page_head", "hicache_io_backend": "kernel"}
    two, _ = run(scratch, model, arguments | {"tp_size": 2}, variables=TWO_RANKS,
                        until_stored=120)
    assert two["cached"] == 0
    one, log = run(scratch, model, arguments)
    assert from_storage(one) == STORED
    assert one["out"] == expected == two["out"]
    assert "Traceback" not in log


def test_replicas_share_what_they_store(
    model: Path, scratch: Path, store: Path, expected: list[int]
) -> None:
    """Data parallel: no name has a replica's rank, and the plugin is in its processes too."""
    arguments = with_store(store)
    first, _ = run(scratch, model, arguments, until_stored=120)
    second, log = run(scratch, model, arguments | {"dp_size": 2}, variables=TWO_RANKS)
    assert first["cached"] == 0 and from_storage(second) == STORED
    assert first["out"] == second["out"] == expected
    assert log.count("Creating dynamic storage backend 'kvcellar'") == 2


@pytest.mark.parametrize("layout, io_backend", [
    ("page_first", "kernel"), ("layer_first", "kernel"), ("layer_first", "direct")])
def test_layouts(
    layout: str, io_backend: str, model: Path, scratch: Path, store: Path, expected: list[int]
) -> None:
    arguments = with_store(store) | {"hicache_mem_layout": layout,
                                     "hicache_io_backend": io_backend}
    first, _ = run(scratch, model, arguments, until_stored=120)
    second, log = run(scratch, model, arguments)
    assert first["cached"] == 0 and from_storage(second) == STORED
    assert first["out"] == second["out"] == expected
    assert "Traceback" not in log


def test_server(model: Path, scratch: Path, store: Path, expected: list[int]) -> None:
    """The life of a server: store, flush, hit, status, metrics, clear, detach, attach, SIGTERM."""
    with up(scratch, model, with_store(store)) as server:
        answer = server.ask()
        assert answer["cached"] == 0 and answer["out"] == expected
        hit = server.ask_until_stored()
        assert hit["out"] == expected
        assert hit["details"]["storage_backend"] == "KvCellarStorage"
        assert stored_objects(store)

        assert server.status()["hicache_storage_backend"] == "kvcellar"
        lines = server.metrics()
        assert value_of(lines, "sglang:prefetched_tokens") >= STORED
        assert value_of(lines, "sglang:backuped_tokens") >= STORED

        check_clear(server, store, expected)
        check_detach_and_attach(server, store, expected)

        # SIGTERM while the backup of a new prompt may be under way.
        server.ask([7 + number % 900 for number in range(2000)])
        code = server.terminate()
        log = server.log_text()
    assert code == 0, processes.tail_of(server.log)
    assert temporary_files(store) == []
    assert "Traceback" not in log

    with up(scratch, model, with_store(store), entry=processes.SERVE) as server:
        again = server.ask()
        assert from_storage(again) == STORED and again["out"] == expected


def check_clear(server: Server, store: Path, expected: list[int]) -> None:
    """After clear nothing comes from storage, and what is stored afterwards does."""
    def clear() -> tuple[int, list[dict[str, Any]]]:
        return server.clear()[0], stored_objects(store)

    # What a backup under way stores afterwards stays: the last page of the answer before.
    server.until(clear, lambda found: found == (200, []))
    server.flush()
    missed = server.ask()
    assert missed["cached"] == 0 and missed["out"] == expected
    assert server.ask_until_stored()["out"] == expected


def check_detach_and_attach(server: Server, store: Path, expected: list[int]) -> None:
    """Attached again by name, what was stored before is found; twice changes nothing."""
    extra = extra_of(store)
    assert server.detach()[0] == 200
    assert server.status()["hicache_storage_backend"] is None
    server.flush()
    assert server.ask()["cached"] == 0

    status, text = server.attach("kvcellar", extra)
    assert status == 200, text
    assert server.status()["hicache_storage_backend"] == "kvcellar"
    assert server.ask_until_stored()["out"] == expected
    status, text = server.attach("kvcellar", extra)
    assert status == 200 and "same backend" in text, text
    status, text = server.attach("dynamic", extra)
    assert status == 400 and "'kvcellar'" in text, text
    assert value_of(server.metrics(), "sglang:prefetched_tokens") >= STORED


def test_failed_attach_can_be_repeated(
    model: Path, scratch: Path, store: Path, expected: list[int]
) -> None:
    """A server without storage; attaches that fail say why and leave it as it was."""
    toml = scratch / "kvcellar.toml"
    toml.write_text(f'storage_dirs = "{store}"\ncapacity = "256MiB"\n'
                    '[plugin.posix]\nactive = true\n', encoding="utf-8")
    a_file = scratch / "file"
    a_file.write_text("no folder", encoding="utf-8")
    with up(scratch, model, {}) as server:
        assert server.ask()["out"] == expected
        for extra, cause in (
            (extra_of(store, use_direct_oi=True), "use_direct_oi"),
            (extra_of(store, plugin={"posix": {"use_uring": "maybe"}}), "use_uring"),
            (extra_of(a_file), str(a_file)),
            (f"@{scratch}/missing.toml", "missing.toml"),
        ):
            status, text = server.attach("kvcellar", extra)
            assert status == 400 and cause in text, text
            assert server.status()["hicache_storage_backend"] is None
            server.flush()
            answer = server.ask()
            assert answer["cached"] == 0 and answer["out"] == expected
        status, text = server.attach("kvcellar", f"@{toml}")
        assert status == 200, text
        assert server.ask_until_stored()["out"] == expected
        assert server.terminate() == 0


def test_injected_failures(model: Path, scratch: Path, store: Path, expected: list[int]) -> None:
    """SGLang's own injector over kvcellar: late and failing calls never make a wrong answer."""
    variables = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.3",
                 "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.2"}
    hits = 0
    with up(scratch, model, with_store(store), variables=variables) as server:
        assert "test injector enabled" in server.log_text()
        for _ in range(12):
            answer = server.ask()
            assert answer["out"] == expected
            hits += from_storage(answer) > 0
            server.flush()
        assert hits, "nothing ever came from storage"
        assert server.terminate() == 0
    assert temporary_files(store) == []


@pytest.mark.parametrize("asked", [True, False])
def test_nixl_is_redirected_when_asked(
    asked: bool, model: Path, scratch: Path, store: Path, expected: list[int]
) -> None:
    """The launch command for NIXL as it is; without the variable it is SGLang's HiCacheNixl."""
    variables = {NIXL_DIRECTORIES: str(store), "SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "POSIX"}
    if asked:
        variables["KVCELLAR_SGLANG_REDIRECT_NIXL"] = "1"
    arguments = {
        "hicache_storage_backend": "nixl",
        "hicache_storage_backend_extra_config":
            '{"use_uring": "true", "prefetch_threshold": 64, "l3_cleaner_enabled": false}',
    }
    storage_class = "KvCellarStorage" if asked else "HiCacheNixl"
    with up(scratch, model, arguments, variables=variables) as server:
        assert server.ask()["out"] == expected
        hit = server.ask_until_stored()
        assert hit["out"] == expected
        assert hit["details"]["storage_backend"] == storage_class
        assert server.status()["hicache_storage_backend"] == "nixl"
        if asked:
            assert "'nixl' is redirected to kvcellar" in server.log_text()
        assert server.terminate() == 0


def test_other_backend_beside_the_plugin(model: Path, scratch: Path, expected: list[int]) -> None:
    """SGLang's own file backend works as ever in a process where kvcellar is installed."""
    variables = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(scratch / "files")}
    arguments = {"hicache_storage_backend": "file",
                 "hicache_storage_backend_extra_config": '{"prefetch_threshold": 64}'}
    first, _ = run(scratch, model, arguments, variables=variables, until_stored=120)
    second, _ = run(scratch, model, arguments, variables=variables)
    assert first["out"] == second["out"] == expected
    assert second["details"]["storage_backend"] == "HiCacheFile"
