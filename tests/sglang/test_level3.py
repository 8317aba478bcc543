# SPDX-License-Identifier: Apache-2.0
"""Level 3: the real UnifiedRadixCache with its hybrid controller, from insert to load back.

A first tree: insert, backup to the host, write to the store. A second tree with other pools over
the same store: prefetch, match, load back to the device, compare; then a miss, detach, attach,
clear. The trees and pools are built by the fixtures that SGLang ships for its own tests.
"""

from __future__ import annotations

import gc
import sys
import types
import unittest
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

# The kit imports it for one base class; the real one imports packages that nothing here needs.
_test_utils = types.ModuleType("sglang.test.test_utils")
_test_utils.CustomTestCase = unittest.TestCase
sys.modules.setdefault("sglang.test.test_utils", _test_utils)

from sglang.srt.mem_cache import memory_pool  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType  # noqa: E402
from sglang.srt.server_args import (  # noqa: E402
    ServerArgs,
    set_global_server_args_for_scheduler,
)
from sglang.test.kits.unified_radix_cache import fixtures  # noqa: E402
from sglang.test.kits.unified_radix_cache.config import CacheConfig  # noqa: E402
from sglang.test.kits.unified_radix_cache.storage import (  # noqa: E402
    UnifiedRadixCacheStorageFixtures,
)
from pools import randomise  # noqa: E402
from subjects import Subject  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_rank")

IO_AND_LAYOUT = (
    ("kernel", "page_first"),
    ("direct", "page_first_direct"),
    ("kernel", "layer_first"),
    ("kernel", "page_head"),
)

MISSING_TOKENS = 9000
"""Added to each token of a sequence: one that nobody has stored."""


def mla_pool(*, layer_num: int, **given: Any) -> Any:
    return memory_pool.MLATokenToKVPool(
        given["size"], given["page_size"], given["dtype"], 128, 64, layer_num, given["device"],
        given["enable_memory_saver"],
    )


def dsa_pool(*, layer_num: int, **given: Any) -> Any:
    return memory_pool.DSATokenToKVPool(
        size=given["size"],
        page_size=given["page_size"],
        dtype=given["dtype"],
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        layer_num=layer_num,
        device=given["device"],
        index_head_dim=128,
        enable_memory_saver=given["enable_memory_saver"],
        kv_cache_dim=576,
    )


@dataclass(frozen=True)
class Model:
    """What a tree is built for. make_pool: replaces the MHA device pool of SGLang's fixture."""

    config: CacheConfig
    pages: int = 4
    make_pool: Callable[..., Any] | None = None
    pools: tuple[str, ...] = ("kv",)
    layouts: tuple[str, ...] = tuple(layout for _, layout in IO_AND_LAYOUT)


FULL = (ComponentType.FULL,)
LARGE_PAGES = {"page_size": 64, "kv_size": 1024, "max_context_len": 1024, "num_layers": 4}
NO_HEADS = ("page_first", "page_first_direct", "layer_first")

MODELS = {
    "full": Model(CacheConfig(page_size=16, components=FULL)),
    "swa": Model(
        CacheConfig(page_size=16, components=(ComponentType.FULL, ComponentType.SWA),
                    sliding_window_size=32, kv_size=512),
        pools=("kv", "swa"),
    ),
    "mamba": Model(
        CacheConfig(page_size=64, components=(ComponentType.FULL, ComponentType.MAMBA),
                    enable_mamba_extra_buffer=True, mamba_cache_size=60, kv_size=1024,
                    max_context_len=1024),
        pools=("kv", "mamba"),
        layouts=("page_first", "page_first_direct"),
    ),
    "mla": Model(CacheConfig(components=FULL, **LARGE_PAGES), make_pool=mla_pool,
                 layouts=NO_HEADS),
    "dsa": Model(CacheConfig(components=FULL, **LARGE_PAGES), make_pool=dsa_pool,
                 pools=("kv", "indexer"), layouts=NO_HEADS),
    # More pages in one node than the controller handles in one batch.
    "full200": Model(
        CacheConfig(page_size=16, components=FULL, kv_size=4096, max_context_len=4096,
                    num_layers=2),
        pages=200,
    ),
    "dsa200": Model(
        CacheConfig(page_size=64, components=FULL, kv_size=16384, max_context_len=16384,
                    num_layers=2),
        pages=200, make_pool=dsa_pool, pools=("kv", "indexer"), layouts=NO_HEADS,
    ),
}


class Trees(UnifiedRadixCacheStorageFixtures, unittest.TestCase):
    """SGLang's steps for its radix tree, over one storage class. Not collected: see `trees`."""

    __test__ = False

    def __init__(self, model: Model, io: str, layout: str, subject: Subject, roots: list[Path],
                 options: dict[str, Any]) -> None:
        super().__init__()
        self.cfg = model.config
        self.model, self.io, self.layout = model, io, layout
        self.subject, self.roots, self.options = subject, roots, options

    def runTest(self) -> None:
        """unittest wants one; pytest's functions call the steps."""

    def build(self, seed: int, *, metrics: bool = False) -> tuple[Any, Any, Any]:
        """A tree with pools of random bytes, attached to the store: tree, allocator, requests."""
        patch = mock.patch.object(
            fixtures, "MHATokenToKVPool", self.model.make_pool or fixtures.MHATokenToKVPool
        )
        with patch:
            tree, allocator, requests = fixtures.build_fixture(self.cfg)
        args = ServerArgs(
            model_path="dummy",
            served_model_name="dummy",
            page_size=self.cfg.page_size,
            hicache_io_backend=self.io,
            hicache_mem_layout=self.layout,
            hicache_ratio=2.0,
            hicache_write_policy="write_through",
            hicache_storage_backend=self.subject.backend,
            hicache_storage_backend_extra_config=self.extra(),
            hicache_storage_prefetch_policy="wait_complete",
        )
        args._mamba_cache_chunk_size = max(64, self.cfg.page_size)
        set_global_server_args_for_scheduler(args)
        tree._enable_metrics_flag = metrics
        with self.subject.environ(self.roots):
            tree.init_hicache(args, tree.cache_init_params)
        self.addCleanup(fixtures.drop_hicache_atexit_pin, tree)
        self.addCleanup(tree.release_host_resources)
        self.addCleanup(self.release, tree)
        tree.write_through_threshold = 1 << 30  # no backup that the test did not ask for
        tree.load_back_threshold = 0
        self.randomise(allocator, requests, seed)
        return tree, allocator, requests

    @staticmethod
    def release(tree: Any) -> None:
        if tree.cache_controller.storage_backend is not None:
            tree.cache_controller.detach_storage_backend()

    def extra(self, **options: Any) -> str:
        return self.subject.extra_json(
            self.roots, prefetch_threshold=1, **{**self.options, **options}
        )

    def attach(self, tree: Any, **options: Any) -> tuple[bool, str]:
        with self.subject.environ(self.roots):
            return tree.attach_storage_backend(
                self.subject.backend, self.extra(**options), served_model_name="dummy"
            )

    def device_tensors(self, allocator: Any, requests: Any) -> dict[str, list[torch.Tensor]]:
        """All device memory by pool; rows are tokens, slots (mamba) or pages (indexer)."""
        pool = allocator.get_kvcache()
        full = getattr(pool, "full_kv_pool", pool)
        tensors = {"kv": kv_tensors(full)}
        if getattr(pool, "swa_kv_pool", None) is not None:
            tensors["swa"] = kv_tensors(pool.swa_kv_pool)
        if getattr(full, "index_k_with_scale_buffer", None) is not None:
            tensors["indexer"] = list(full.index_k_with_scale_buffer)
        if self.cfg.has_mamba:
            state = requests.mamba_pool.mamba_cache
            tensors["mamba"] = [state.temporal, *state.conv]
        return tensors

    def randomise(self, allocator: Any, requests: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for tensors in self.device_tensors(allocator, requests).values():
            for tensor in tensors:
                randomise(tensor, generator)

    def device_bytes(self, tree: Any, allocator: Any, requests: Any,
                     tokens: list[int]) -> dict[str, list[torch.Tensor]]:
        """The device rows that the tree holds for a sequence, by pool."""
        leaf = fixtures.match_prefix(tree, tokens).last_device_node
        indices = tree.path_device_indices(leaf)
        tensors = self.device_tensors(allocator, requests)
        rows = {"kv": indices}
        if "swa" in tensors:
            window = self.component_rows(tree, leaf, ComponentType.SWA)
            assert len(window) >= self.cfg.sliding_window_size
            rows["swa"] = window[-self.cfg.sliding_window_size:]
        if "mamba" in tensors:
            rows["mamba"] = self.component_rows(tree, leaf, ComponentType.MAMBA)
        if "indexer" in tensors:
            rows["indexer"] = indices[:: self.cfg.page_size] // self.cfg.page_size
        return {
            pool: [
                tensor.index_select(1 if pool == "mamba" else 0, rows[pool]).view(torch.uint8)
                for tensor in tensors[pool]
            ]
            for pool in tensors
        }

    def component_rows(self, tree: Any, leaf: int, component: ComponentType) -> torch.Tensor:
        """The rows that a side component holds on the path to a leaf."""
        values = [
            fixtures.node_device_value(tree, node, component)
            for node in self._path_chain(tree, leaf)
        ]
        values = [value.reshape(-1) for value in values if value is not None]
        assert values, f"the tree holds no {component} for this sequence"
        return torch.cat(values).to(torch.int64)

    def sequence(self) -> list[int]:
        """Tokens of `pages` pages; with a sliding window, of the window and two pages more."""
        pages = self.model.pages
        if self.cfg.has_swa:
            pages = -(-self.cfg.sliding_window_size // self.cfg.page_size) + 2
        return self._make_seq(1, pages)

    def store(self, tree: Any, allocator: Any, requests: Any, tokens: list[int]) -> list[str]:
        """Insert, backup to the host, write to the store; the keys of the sequence's pages."""
        self._insert(tree, allocator, requests, tokens)
        leaf = fixtures.match_prefix(tree, tokens).last_device_node
        self._backup_node(tree, leaf)
        self._write_path_to_l3(tree, leaf)
        self._flush_l3_backups(tree, timeout=60.0)
        return self._all_page_hashes(tree, leaf)

    def prefetch(self, tree: Any, name: str, tokens: list[int]) -> CacheRequestHandle:
        request = CacheRequestHandle(name, 0)
        tree.prefetch_from_storage(
            request, tree.root_node_handle(), array("q", tokens), None, []
        )
        self._run_prefetch_to_completion(tree, request, timeout=60.0)
        return request

    def load_back(self, tree: Any, requests: Any, tokens: list[int]) -> None:
        self._load_back_through_admission(tree, requests, tokens)
        self._finish_pending_loads(tree)


def kv_tensors(pool: Any) -> list[torch.Tensor]:
    if getattr(pool, "kv_buffer", None) is not None:
        return list(pool.kv_buffer)
    return [*pool.k_buffer, *pool.v_buffer]


@contextmanager
def trees(model: Model, io: str, layout: str, subject: Subject, roots: list[Path],
          **options: Any) -> Iterator[Trees]:
    """Builds trees over one store, and takes them apart at the end."""
    it = Trees(model, io, layout, subject, roots, options)
    try:
        yield it
    finally:
        it.doCleanups()
        gc.collect()


CASES = [
    pytest.param(name, io, layout, id=f"{name}-{io}-{layout}")
    for io, layout in IO_AND_LAYOUT
    for name, model in MODELS.items()
    if layout in model.layouts
]


@pytest.mark.parametrize("name, io, layout", CASES)
def test_stored_by_one_tree_loaded_by_another(subject: Any, roots: list[Path], name: str, io: str,
                                              layout: str) -> None:
    """Every pool of a sequence comes back byte for byte; a miss, detach, attach and clear work."""
    model = MODELS[name]
    with trees(model, io, layout, subject, roots) as it:
        tokens = it.sequence()
        first, allocator, requests = it.build(seed=7)
        keys = it.store(first, allocator, requests, tokens)
        assert len(keys) == len(tokens) // model.config.page_size
        want = it.device_bytes(first, allocator, requests, tokens)
        assert tuple(want) == model.pools
        first.cache_controller._stop_storage_threads()

        second, allocator, requests = it.build(seed=8)
        entries = second.cache_controller.mem_pool_host.entries
        assert tuple(str(entry.name) for entry in entries) == model.pools
        assert type(second.cache_controller.storage_backend) is subject.load()
        request = it.prefetch(second, "hit", tokens)
        assert second.pop_prefetch_loaded_tokens(request) == len(tokens)
        match = fixtures.match_prefix(second, tokens)
        assert (match.device_prefix_len, match.host_hit_length) == (0, len(tokens))
        it.load_back(second, requests, tokens)
        assert fixtures.match_prefix(second, tokens).device_prefix_len == len(tokens)
        got = it.device_bytes(second, allocator, requests, tokens)
        for pool in model.pools:
            for index, (got_rows, want_rows) in enumerate(zip(got[pool], want[pool], strict=True)):
                assert torch.equal(got_rows, want_rows), f"{pool}, device buffer {index}"

        others = [token + MISSING_TOKENS for token in tokens]
        it.prefetch(second, "miss", others)
        assert fixtures.match_prefix(second, others).host_hit_length == 0

        assert second.detach_storage_backend()[0]
        assert second.cache_controller.storage_backend is None
        attached, told = it.attach(second)
        assert attached, told
        backend = second.cache_controller.storage_backend
        assert backend.batch_exists(keys) == len(keys)
        assert second.clear_storage_backend()
        assert backend.batch_exists(keys) == 0


@pytest.mark.layouts("packed", "files")
def test_shorter_prefix(subject: Any, roots: list[Path]) -> None:
    """A sequence that shares its first pages with a stored one gets those."""
    with trees(MODELS["full"], "kernel", "page_first", subject, roots) as it:
        first, allocator, requests = it.build(seed=7)
        tokens = it.sequence()
        it.store(first, allocator, requests, tokens)
        second, _, _ = it.build(seed=8)
        page = it.cfg.page_size
        branch = tokens[: 2 * page] + [token + MISSING_TOKENS for token in tokens[2 * page:]]
        it.prefetch(second, "branch", branch)
        assert fixtures.match_prefix(second, branch).host_hit_length == 2 * page


BAD_CONFIGURATIONS = [
    pytest.param({"no_such_key": 1}, "no_such_key", id="unknown-key"),
    pytest.param({"storage_dirs": ["/proc/none"]}, "/proc/none", id="directory"),
    pytest.param({"plugin": {"posix": {"use_uring": "perhaps"}}}, "use_uring", id="plugin-option"),
]


@pytest.mark.parametrize("options, told", BAD_CONFIGURATIONS)
def test_failing_attach(kvcellar: Any, roots: list[Path], options: dict[str, Any],
                        told: str) -> None:
    """An attach that is refused leaves nothing half attached; the next good one works."""
    with trees(MODELS["swa"], "kernel", "page_first", kvcellar, roots) as it:
        tree, allocator, requests = it.build(seed=7)
        tokens = it.sequence()
        keys = it.store(tree, allocator, requests, tokens)
        assert tree.detach_storage_backend()[0]
        attached, text = it.attach(tree, **options)
        assert not attached
        assert told in text
        assert not tree.enable_storage
        assert not tree.cache_controller.enable_storage
        assert tree.cache_controller.storage_backend is None
        attached, text = it.attach(tree)
        assert attached, text
        assert tree.cache_controller.storage_backend.batch_exists(keys) == len(keys)


@pytest.mark.layouts("files")  # packed is for local disks
def test_reset_beside_a_stalled_write(kvcellar: Any, roots: list[Path]) -> None:
    """A write that never comes back does not keep the tree from being reset."""
    options = {
        "set_timeout_ms": 500,
        "plugin": {"fault": {"active": True, "lower": "posix", "local": "false",
                             "rules": "write stall name=*.kv.*"}},
    }
    with trees(MODELS["full"], "kernel", "page_first", kvcellar, roots, **options) as it:
        tree, allocator, requests = it.build(seed=7)
        tokens = it.sequence()
        it._insert(tree, allocator, requests, tokens)
        leaf = fixtures.match_prefix(tree, tokens).last_device_node
        it._backup_node(tree, leaf)
        it._write_path_to_l3(tree, leaf)
        tree.reset()
        assert tree.cache_controller.backup_thread.is_alive()
        assert tree.detach_storage_backend()[0]


def test_statistics(kvcellar: Any, roots: list[Path]) -> None:
    """What the scheduler collects: StorageMetrics, whose lists are drained by each call."""
    from sglang.srt.observability.metrics_collector import StorageMetrics

    with trees(MODELS["full"], "kernel", "page_first", kvcellar, roots) as it:
        tree, allocator, requests = it.build(seed=7, metrics=True)
        tokens = it.sequence()
        keys = it.store(tree, allocator, requests, tokens)
        backend = tree.cache_controller.storage_backend
        stats = backend.get_stats()
        assert type(stats) is StorageMetrics
        # The tree itself may have written the node too, as soon as it was on the host.
        assert set(stats.backup_pgs) == {len(keys)}
        assert len(stats.backup_bandwidth) == len(stats.backup_pgs)
        assert all(rate > 0 for rate in stats.backup_bandwidth)
        pool = tree.cache_controller.mem_pool_host
        indices = pool.alloc(len(tokens))
        assert all(backend.batch_get_v1(keys, indices))
        pool.free(indices)
        tree.check_hicache_events()  # collects what the get has counted
        stats = backend.get_stats()
        assert not any((stats.prefetch_pgs, stats.backup_pgs, stats.prefetch_bandwidth))
        assert all(backend.batch_get_v1(keys, indices))
        assert sum(backend.get_stats().prefetch_pgs) == len(keys)
