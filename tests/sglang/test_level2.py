# SPDX-License-Identifier: Apache-2.0
"""Level 2: the real HiCacheController with its backup and prefetch threads.

300 pages are more than two of its batches of 128. What happens when the store fails is caused by
the fault plugin and by what is done to the storage directory; SGLang's classes stay as they are.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_roots
from pools import HEAD_GROUPS, HEADS, PoolPair, fill_heads, make_mha, make_mla
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.hicache_storage import STORAGE_BATCH_SIZE
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel
from subjects import damage_object, remove_object, stored_objects

pytestmark = pytest.mark.usefixtures("one_rank")

PAGE = 16
PAGES = 300
WAIT_S = 60
"""How long a thread of the controller may take before the test fails; nothing is timed by it."""


@dataclass
class Controller:
    """A HiCacheController over pools of its own, driven the way the scheduler drives it."""

    pool: PoolPair
    allocator: TokenToKVPoolAllocator
    inner: HiCacheController
    prefetches: int = 0

    def backup(self, page_count: int, first_token: int = 0) -> Backup:
        """Device -> host -> store. Waits for the backup thread's acknowledgement."""
        tokens = list(range(first_token, first_token + page_count * PAGE))
        device = self.allocator.alloc(len(tokens))
        host = self.inner.write(device)
        keys = get_storage_hash_str(tokens, None, page_size=PAGE)
        self.inner.write_storage(host, tokens, keys, None)
        acknowledged = self.inner.ack_backup_queue.get(timeout=WAIT_S)
        return Backup(tokens, keys, self.pool.host_pages(host), acknowledged.completed_tokens, host)

    def query(self, tokens: list[int]) -> Any:
        """Asks the store for a prefix; the operation with its storage_hit_count."""
        self.prefetches += 1
        self.inner.prefetch(f"request-{self.prefetches}", tokens, None, None)
        return self.inner.prefetch_hit_queue.get(timeout=WAIT_S)

    def fetch(self, operation: Any) -> tuple[torch.Tensor, int]:
        """Store -> host of what a query has found: host indices, and the tokens that arrived."""
        host = self.pool.host
        operation.host_indices = host.alloc(operation.storage_hit_count)
        self.inner.prefetch_buffer.put(operation)
        completed = 0
        while True:
            ack = self.inner.ack_prefetch_queue.get(timeout=WAIT_S)
            if ack.completed_req:
                return operation.host_indices, completed
            completed = ack.completed_tokens

    def threads_alive(self) -> bool:
        names = ("prefetch_thread", "backup_thread", "prefetch_io_aux_thread",
                 "prefetch_sync_thread")
        return all(getattr(self.inner, name).is_alive() for name in names)

    def assert_works(self, first_token: int = 1_000_000) -> None:
        """All threads live, and pages that were never seen before go in and come out."""
        assert self.threads_alive()
        backup = self.backup(3, first_token)
        assert backup.completed_tokens == 3 * PAGE
        operation = self.query(backup.tokens)
        assert operation.storage_hit_count == 3 * PAGE
        indices, completed = self.fetch(operation)
        assert completed == 3 * PAGE
        assert self.pool.host_pages(indices) == backup.pages


@dataclass
class Backup:
    """What one backup has put into the store."""

    tokens: list[int]
    keys: list[str]
    pages: list[bytes]
    completed_tokens: int
    host: torch.Tensor


@contextlib.contextmanager
def controller(subject: Any, roots: list[Path], *, kind: str = "mha", layout: str = "page_first",
               io: str = "kernel", geometry: dict[str, Any] | None = None,
               **options: Any) -> Iterator[Controller]:
    make_pool = make_mha if kind == "mha" else make_mla
    pool = make_pool(layout, page=PAGE, tokens=8192, **(geometry or {}))
    pool.fill_device(seed=21)
    allocator = TokenToKVPoolAllocator(8192, torch.bfloat16, "cpu", pool.device, False)
    with subject.environ(roots):
        inner = HiCacheController(
            allocator,
            pool.host,
            PAGE,
            None,
            threading.Event(),
            write_policy="write_through",
            io_backend=io,
            storage_backend=subject.backend,
            prefetch_threshold=PAGE,
            model_name="org/model",
            storage_backend_extra_config=subject.options(roots, **options),
        )
    try:
        yield Controller(pool, allocator, inner)
    finally:
        inner.detach_storage_backend()
    assert inner.storage_backend is None


@pytest.mark.layouts("packed", "files")
@pytest.mark.parametrize("interface_v1", (1, 0), ids=("v1", "legacy"))
@pytest.mark.parametrize("kind, layout, io", [
    pytest.param(*case, id="-".join(case)) for case in (
        ("mha", "page_first", "kernel"),
        ("mha", "page_first_direct", "direct"),
        ("mha", "layer_first", "kernel"),
        ("mha", "page_head", "kernel"),
        ("mla", "page_first", "kernel"),
        ("mla", "layer_first", "direct"),
    )
])
def test_300_pages(subject: Any, roots: list[Path], kind: str, layout: str, io: str,
                   interface_v1: int) -> None:
    """Backup and prefetch in three batches; a second controller finds what the first has stored."""
    options = {"interface_v1": interface_v1} if subject.name == "kvcellar" else {}
    geometry = {"kind": kind, "layout": layout, "io": io}
    with controller(subject, roots, **geometry, **options) as first:
        backup = first.backup(PAGES)
        assert backup.completed_tokens == PAGES * PAGE
        assert len(set(backup.pages)) == PAGES
        assert first.query(list(range(500_000, 500_000 + PAGE))).storage_hit_count == 0
    with controller(subject, roots, **geometry, **options) as second:
        second.pool.poison_host()
        operation = second.query([*backup.tokens, *range(700_000, 700_000 + 2 * PAGE)])
        assert operation.storage_hit_count == PAGES * PAGE
        indices, completed = second.fetch(operation)
        assert completed == PAGES * PAGE
        assert second.pool.host_pages(indices) == backup.pages
        assert second.threads_alive()


@contextlib.contextmanager
def rank_of(kvcellar: Any, roots: list[Path], tp_rank: int, tp_size: int) -> Iterator[Controller]:
    """A controller of one rank, told the least common multiple of all tp sizes."""
    sizes = {"tp_size": tp_size, "attn_tp_size": tp_size, "moe_tp_size": tp_size}
    with get_parallel().override(tp_rank=tp_rank, attn_tp_rank=tp_rank, **sizes), \
            controller(kvcellar, roots, layout="page_head", geometry={"heads": HEADS // tp_size},
                       tp_lcm_size=HEAD_GROUPS) as it:
        config = it.inner.storage_config
        assert (config.tp_lcm_size, config.should_split_heads) == (
            HEAD_GROUPS, tp_size < HEAD_GROUPS)
        fill_heads(it.pool, tp_rank, tp_size)
        yield it


@pytest.mark.parametrize("reader_size", (1, 4))
def test_other_tp_size(kvcellar: Any, roots: list[Path], reader_size: int) -> None:
    """What two ranks have stored is found by one and by four, each with its own heads."""
    count, writer_size = 20, 2
    for tp_rank in range(writer_size):
        with rank_of(kvcellar, roots, tp_rank, writer_size) as writer:
            backup = writer.backup(count)
            assert backup.completed_tokens == count * PAGE
    for tp_rank in range(reader_size):
        with rank_of(kvcellar, roots, tp_rank, reader_size) as reader:
            device = reader.allocator.alloc(count * PAGE)  # the same rows as the writers'
            want = reader.pool.rows(device)
            reader.pool.poison_host()
            indices, completed = reader.fetch(reader.query(backup.tokens))
            assert completed == count * PAGE
            elsewhere = reader.allocator.alloc(count * PAGE)
            reader.pool.load(indices, elsewhere, "kernel")
            for got_rows, want_rows in zip(reader.pool.rows(elsewhere), want, strict=True):
                assert torch.equal(got_rows, want_rows)


@pytest.mark.layouts("packed", "files")
@pytest.mark.parametrize("interface_v1", (1, 0), ids=("v1", "legacy"))
def test_page_lost_after_exists(kvcellar: Any, roots: list[Path], interface_v1: int) -> None:
    """An object goes between query and fetch: the pages before it are used, the rest are not."""
    with controller(kvcellar, roots, interface_v1=interface_v1) as it:
        backup = it.backup(40)
        operation = it.query(backup.tokens)
        remove_object(roots[0], backup.keys[20])
        it.pool.poison_host()
        indices, completed = it.fetch(operation)
        assert completed == 20 * PAGE
        assert it.pool.host_pages(indices)[:20] == backup.pages[:20]
        assert it.query(backup.tokens).storage_hit_count == 20 * PAGE
        it.assert_works()


@pytest.mark.layouts("packed", "files")
def test_page_corrupt(kvcellar: Any, roots: list[Path]) -> None:
    """One flipped bit: that page and what follows is not used; a later set makes it good again."""
    with controller(kvcellar, roots) as it:
        backup = it.backup(150)
        damage_object(roots[0], backup.keys[130])
        it.pool.poison_host()
        operation = it.query(backup.tokens)
        assert operation.storage_hit_count == 150 * PAGE
        indices, completed = it.fetch(operation)
        assert completed == 130 * PAGE
        assert it.pool.host_pages(indices)[:130] == backup.pages[:130]
        assert it.query(backup.tokens).storage_hit_count == 130 * PAGE
        it.assert_works()


@pytest.mark.layouts("packed", "files")
def test_root_removed(kvcellar: Any, roots: list[Path]) -> None:
    """The storage directory goes while the server runs: the next backup makes it anew. Until then
    pages are misses; packed, whose files are open, may go on to find the right ones."""
    with controller(kvcellar, roots) as it:
        backup = it.backup(40)
        operation = it.query(backup.tokens)
        shutil.rmtree(roots[0])
        it.pool.poison_host()
        indices, completed = it.fetch(operation)
        if kvcellar.layout == "packed":
            assert it.pool.host_pages(indices)[: completed // PAGE] == (
                backup.pages[: completed // PAGE])
        else:
            assert completed == 0
            it.pool.assert_untouched_but(torch.tensor([], dtype=torch.int64))
            assert it.query(backup.tokens).storage_hit_count == 0
        it.pool.fill_device(seed=22)
        it.assert_works()


@contextlib.contextmanager
def read_only(folder: Path, mount_point: Path) -> Iterator[None]:
    """Mounts a folder at another place, read-only there. Skips the test where that is refused."""
    bind = subprocess.run(["mount", "--bind", folder, mount_point], capture_output=True, text=True)
    if bind.returncode != 0:
        pytest.skip(f"mounting is refused: {bind.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", mount_point], check=True)
        yield
    finally:
        subprocess.run(["umount", mount_point], check=True)


def told_of_refused_writes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records
            if record.levelno >= logging.WARNING and "read-only" in record.getMessage().lower()]


@pytest.mark.layouts("packed", "files")
def test_read_only_mount(kvcellar: Any, scratch: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cache that others fill: hits hit, backups fail, and one line says why."""
    folder, mount_point = make_roots(scratch, 2)
    with controller(kvcellar, [folder]) as writer:
        stored = writer.backup(40)
    objects = stored_objects(folder)
    with read_only(folder, mount_point), caplog.at_level(logging.WARNING), \
            controller(kvcellar, [mount_point]) as it:
        for first_token in (300_000, 400_000):
            assert it.backup(10, first_token).completed_tokens == 0
        it.pool.poison_host()
        operation = it.query(stored.tokens)
        assert operation.storage_hit_count == 40 * PAGE
        indices, completed = it.fetch(operation)
        assert completed == 40 * PAGE
        assert it.pool.host_pages(indices) == stored.pages
        assert it.threads_alive()
    assert stored_objects(folder) == objects
    assert len(told_of_refused_writes(caplog)) == 1, told_of_refused_writes(caplog)


def faults(rules: str, **options: Any) -> dict[str, Any]:
    """Options of a store over the fault plugin. The names in the rules have to leave the library's
    own objects alone."""
    return {
        "plugin": {"fault": {"active": True, "lower": "posix", "seed": 7, "rules": rules}},
        **options,
    }


@pytest.mark.layouts("packed", "files")
@pytest.mark.parametrize("interface_v1", (1, 0), ids=("v1", "legacy"))
def test_every_write_fails(kvcellar: Any, roots: list[Path], interface_v1: int) -> None:
    """EIO on every page: nothing counts as backed up, nothing is found, the threads live."""
    options = faults(f"write error=EIO name={kvcellar.page_names}; "
                     "write error=EIO name=*.object.*", interface_v1=interface_v1)
    with controller(kvcellar, roots, **options) as it:
        backup = it.backup(40)
        assert backup.completed_tokens == 0
        assert it.query(backup.tokens).storage_hit_count == 0
        assert it.threads_alive()


@pytest.mark.layouts("packed", "files")
def test_one_write_fails(kvcellar: Any, roots: list[Path]) -> None:
    """One page of the second batch: that batch does not count, and the page alone is missing."""
    failing = STORAGE_BATCH_SIZE + 20
    rules = f"write error=EIO name={kvcellar.page_names} nth={failing}"
    with controller(kvcellar, roots, **faults(rules)) as it:
        backup = it.backup(PAGES)
        assert backup.completed_tokens < PAGES * PAGE
        missing = [key for key in backup.keys if not it.inner.storage_backend.exists(key)]
        assert len(missing) in (1, PAGES - 2 * STORAGE_BATCH_SIZE + 1)
        assert missing[0] in backup.keys[STORAGE_BATCH_SIZE: 2 * STORAGE_BATCH_SIZE]
        found = backup.keys.index(missing[0])
        operation = it.query(backup.tokens)
        assert operation.storage_hit_count == found * PAGE
        it.pool.poison_host()
        indices, completed = it.fetch(operation)
        assert completed == found * PAGE
        assert it.pool.host_pages(indices) == backup.pages[:found]
        it.assert_works()


@pytest.mark.layouts("packed", "files")
def test_writes_refused_from_some_time_on(kvcellar: Any, roots: list[Path],
                                          caplog: pytest.LogCaptureFixture) -> None:
    """EROFS while the server runs: what is stored hits, backups fail, and one line says why."""
    options = faults(f"write error=EROFS name={kvcellar.page_names} after=40")
    with caplog.at_level(logging.WARNING), controller(kvcellar, roots, **options) as it:
        stored = it.backup(40)
        for first_token in (300_000, 400_000):
            assert it.backup(10, first_token).completed_tokens == 0
        operation = it.query(stored.tokens)
        indices, completed = it.fetch(operation)
        assert completed == 40 * PAGE
        assert it.pool.host_pages(indices) == stored.pages
        assert it.threads_alive()
    assert len(told_of_refused_writes(caplog)) == 1, told_of_refused_writes(caplog)


@pytest.mark.layouts("files")  # whose objects have names that a rule can choose one by
@pytest.mark.parametrize("effect", ("error=EIO", "short=4096", "corrupt"))
def test_one_page_cannot_be_read(kvcellar: Any, roots: list[Path], effect: str) -> None:
    """A page that fails, stops short or has a wrong bit whenever it is read ends the prefix."""
    bad = 20
    key = get_storage_hash_str(list(range(40 * PAGE)), None, page_size=PAGE)[bad]
    with controller(kvcellar, roots, **faults(f"read {effect} name=*{key}*")) as it:
        backup = it.backup(40)
        it.pool.poison_host()
        operation = it.query(backup.tokens)
        assert operation.storage_hit_count == 40 * PAGE
        indices, completed = it.fetch(operation)
        assert completed == bad * PAGE
        assert it.pool.host_pages(indices)[:bad] == backup.pages[:bad]
        it.assert_works()


@pytest.mark.layouts("packed", "files")
def test_wrong_bit_that_is_not_stored(kvcellar: Any, roots: list[Path]) -> None:
    """A bit that is wrong in one read alone: the page is read again and right."""
    rules = f"read corrupt name={kvcellar.page_names} nth=21"
    with controller(kvcellar, roots, **faults(rules)) as it:
        backup = it.backup(40)
        it.pool.poison_host()
        indices, completed = it.fetch(it.query(backup.tokens))
        assert completed == 40 * PAGE
        assert it.pool.host_pages(indices) == backup.pages


@pytest.mark.layouts("files")  # packed asks nobody
def test_every_stat_fails(kvcellar: Any, roots: list[Path]) -> None:
    """exists that cannot find out says no; the scheduler goes on."""
    with controller(kvcellar, roots, **faults("stat error=EIO name=*.kv.* after=0")) as it:
        backup = it.backup(40)
        assert it.query(backup.tokens).storage_hit_count == 0
        assert it.threads_alive()


@pytest.mark.layouts("files")  # packed is for local disks
@pytest.mark.parametrize("operation", ("write", "read", "stat"))
def test_stalled_root(kvcellar: Any, roots: list[Path], operation: str) -> None:
    """I/O that never comes back: the calls do, by their deadline, and the controller detaches."""
    rules = f"{operation} stall name={kvcellar.page_names}"
    deadlines = {f"{call}_timeout_ms": 300 for call in ("set", "get", "exists")}
    options = faults(rules, **deadlines)
    options["plugin"]["fault"]["local"] = "false"
    with controller(kvcellar, roots, **options) as it:
        backup = it.backup(4)
        if operation == "write":
            assert backup.completed_tokens == 0
        query = it.query(backup.tokens)
        if operation in ("write", "stat"):
            assert query.storage_hit_count == 0
        else:
            it.pool.poison_host()
            indices, completed = it.fetch(query)
            assert completed == 0
            it.pool.assert_untouched_but(indices[:0])
        assert it.threads_alive()
        it.inner.reset()
        assert it.threads_alive()


@pytest.mark.parametrize("options, told", [
    pytest.param({"storage_dir": "x"}, "storage_dir", id="unknown-key"),
    pytest.param({"use_direct_io": "flase"}, "use_direct_io", id="boolean"),
    pytest.param({"plugin": {"nonsense": {"active": True}}}, "nonsense", id="plugin"),
    pytest.param({"storage_dirs": ["/proc/none"]}, "/proc/none", id="directory"),
    pytest.param({"storage_layout": "packed", "naming": "nixl"}, "packed", id="contradiction"),
])
def test_configuration_refused(kvcellar: Any, roots: list[Path], options: dict[str, Any],
                               told: str) -> None:
    """A bad configuration fails the constructor, with a text that names what is wrong."""
    threads = threading.active_count()
    with pytest.raises(Exception, match=told) as refused:
        with controller(kvcellar, roots, **options):
            pass
    assert isinstance(refused.value, (ValueError, OSError)), refused.type
    assert threading.active_count() == threads


def test_detach_twice_and_attach(subject: Any, roots: list[Path]) -> None:
    """Detached, attached again by the same controller, and what was stored is still there."""
    with controller(subject, roots) as it:
        backup = it.backup(5)
        it.inner.detach_storage_backend()
        it.inner.detach_storage_backend()
        with subject.environ(roots):
            it.inner.attach_storage_backend(
                storage_backend=subject.backend,
                prefetch_threshold=PAGE,
                model_name="org/model",
                storage_backend_extra_config=subject.options(roots),
            )
        assert it.query(backup.tokens).storage_hit_count == 5 * PAGE
        it.assert_works()
        with pytest.raises(queue.Empty):
            it.inner.ack_backup_queue.get_nowait()
