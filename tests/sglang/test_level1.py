# SPDX-License-Identifier: Apache-2.0
"""Level 1: SGLang's host pools over one storage instance.

Every round trip goes from device rows to host pages by SGLang's own copy, into the store, out of it
again by another instance into other host pages, and back to other device rows.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pools import (
    HEAD_GROUPS,
    HEADS,
    LAYOUT_AND_IO,
    POISON,
    HostCache,
    PoolPair,
    fill_heads,
    make_dsa,
    make_keys,
    make_logical,
    make_mamba,
    make_mha,
    make_mla,
    side_transfer,
    storage_config,
)
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName
from subjects import stored_objects

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.layouts("packed", "files")]

PAGES = 9

KV_CASES = [
    pytest.param(kind, aligned, layout, io, direct_io, id="-".join((
        kind, "aligned" if aligned else "odd", layout, io, "odirect" if direct_io else "buffered")))
    for kind, aligned, (layout, io), direct_io in product(
        ("mha", "mla"), (True, False), LAYOUT_AND_IO, (True, False))
    if not (kind == "mla" and layout == "page_head")
]

LAYOUTS = [
    pytest.param(kind, layout, id=f"{kind}-{layout}")
    for kind, layout in product(
        ("mha", "mla"), ("layer_first", "page_first", "page_first_direct", "page_head"))
    if not (kind == "mla" and layout == "page_head")
]


def make_kv(kind: str, layout: str, *, aligned: bool = True, **geometry: Any) -> PoolPair:
    return (make_mha if kind == "mha" else make_mla)(layout, aligned=aligned, **geometry)


def config_for(kind: str, **changes: Any) -> Any:
    return storage_config(is_mla_model=kind != "mha", **changes)


def backed_up(pool: PoolPair, io: str, count: int = PAGES) -> tuple[torch.Tensor, torch.Tensor]:
    """Random device rows, copied to random host pages: the token indices (device, host)."""
    device, host = pool.pages(count, seed=2), pool.pages(count, seed=4)
    pool.fill_device(seed=11)
    pool.backup(host, device, io)
    return device, host


def assert_pages_arrive(pool: PoolPair, io: str, device: torch.Tensor, expected: list[bytes],
                        host_target: torch.Tensor) -> None:
    """What lies in the host pages is what was backed up, there and after the load to the device."""
    assert pool.host_pages(host_target) == expected
    pool.assert_untouched_but(host_target)
    device_target = pool.pages(len(expected), seed=7)
    want = pool.rows(device)
    pool.load(host_target, device_target, io)
    for got_rows, want_rows in zip(pool.rows(device_target), want):
        assert torch.equal(got_rows.view(torch.uint8), want_rows.view(torch.uint8))


@pytest.mark.parametrize("kind, aligned, layout, io, direct_io", KV_CASES)
def test_round_trip(subject: Any, roots: list[Path], kind: str, aligned: bool, layout: str, io: str,
                    direct_io: bool) -> None:
    """set, exists and get of the interface v1, byte for byte."""
    pool = make_kv(kind, layout, aligned=aligned)
    cache = HostCache(pool)
    keys = make_keys("round trip", PAGES)
    device, host = backed_up(pool, io)
    expected = pool.host_pages(host)
    assert len(set(expected)) == PAGES
    with subject.open(config_for(kind), cache, roots, use_direct_io=direct_io) as storage:
        assert storage.batch_exists(keys) == 0
        assert storage.batch_set_v1(keys, host) == [True] * PAGES
        assert storage.batch_exists([*keys, *make_keys("another", 1)]) == PAGES
        assert storage.exists(keys[3])
        assert pool.host_pages(host) == expected
    host_target = pool.pages(PAGES, seed=5)
    with subject.open(config_for(kind), cache, roots, use_direct_io=direct_io) as storage:
        pool.poison_host()
        assert storage.batch_exists(keys) == PAGES
        assert storage.batch_get_v1(keys, host_target) == [True] * PAGES
        assert_pages_arrive(pool, io, device, expected, host_target)


@pytest.mark.parametrize("kind, layout", LAYOUTS)
@pytest.mark.parametrize("direct_io", (True, False), ids=("odirect", "buffered"))
def test_miss(kvcellar: Any, roots: list[Path], kind: str, layout: str, direct_io: bool) -> None:
    """A page that is not there is False for itself alone, and its memory stays as it was."""
    pool = make_kv(kind, layout)
    cache = HostCache(pool)
    keys = make_keys("miss", PAGES)
    io = dict(LAYOUT_AND_IO)[layout]
    _, host = backed_up(pool, io)
    expected = pool.host_pages(host)
    tokens = pool.page_tokens
    with kvcellar.open(config_for(kind), cache, roots, use_direct_io=direct_io) as storage:
        stored = [number for number in range(PAGES) if number not in (0, 5)]
        host_stored = host.view(PAGES, tokens)[stored].reshape(-1)
        assert storage.batch_set_v1([keys[n] for n in stored], host_stored) == [True] * len(stored)
        assert storage.batch_exists(keys) == 0
        assert storage.batch_exists(keys[1:]) == 4
        assert not storage.exists(keys[5])
        pool.poison_host()
        target = pool.pages(PAGES, seed=5)
        assert storage.batch_get_v1(keys, target) == [n in stored for n in range(PAGES)]
        target_stored = target.view(PAGES, tokens)[stored].reshape(-1)
        assert pool.host_pages(target_stored) == [expected[n] for n in stored]
        pool.assert_untouched_but(target_stored)
        assert storage.batch_get_v1(make_keys("nothing", 2), target[: 2 * tokens]) == [False] * 2


@pytest.mark.parametrize("direct_io", (True, False), ids=("odirect", "buffered"))
@pytest.mark.parametrize("kind, layout", LAYOUTS)
def test_legacy_tensors(kvcellar: Any, roots: list[Path], kind: str, layout: str,
                        direct_io: bool) -> None:
    """get, set, batch_get and batch_set with flat pages, as the controller has them without v1."""
    pool = make_kv(kind, layout, aligned=False)
    cache = HostCache(pool)
    keys = make_keys("legacy", PAGES)
    io = dict(LAYOUT_AND_IO)[layout]
    device, host = backed_up(pool, io)
    expected = pool.host_pages(host)
    firsts = [int(first) for first in host[:: pool.page_tokens]]
    pages = [pool.host.get_data_page(first, flat=True) for first in firsts]
    options = {"use_direct_io": direct_io, "interface_v1": 0}
    with kvcellar.open(config_for(kind), cache, roots, **options) as storage:
        assert storage.batch_exists(keys) == 0
        assert storage.batch_set(keys[1:], pages[1:]) is True
        assert storage.set(keys[0], pages[0]) is True
        assert storage.batch_exists([*keys, *make_keys("another", 1)]) == PAGES
        assert storage.exists(keys[0]) and not storage.exists(make_keys("another", 1)[0])
    with kvcellar.open(config_for(kind), cache, roots, **options) as storage:
        pool.poison_host()
        target = pool.pages(PAGES, seed=5)
        dummies = [pool.host.get_dummy_flat_data_page() for _ in range(PAGES + 1)]
        got = storage.batch_get([*keys, *make_keys("another", 1)], dummies)
        assert len(got) == PAGES + 1 and got[PAGES] is None
        one = storage.get(keys[2], pool.host.get_dummy_flat_data_page())
        assert one.view(torch.uint8).numpy().tobytes() == expected[2]
        assert storage.get(make_keys("another", 1)[0], dummies[PAGES]) is None
        for number in range(PAGES):
            first = int(target[number * pool.page_tokens])
            pool.host.set_from_flat_data_page(first, got[number])
        assert_pages_arrive(pool, io, device, expected, target)


@pytest.mark.parametrize("dtype", (torch.float16, torch.float8_e4m3fn), ids=str)
def test_other_types(subject: Any, roots: list[Path], dtype: torch.dtype) -> None:
    """Pools whose elements are not bfloat16."""
    pool = make_mha("page_first", dtype=dtype)
    cache = HostCache(pool)
    keys = make_keys("types", PAGES)
    _, host = backed_up(pool, "kernel")
    expected = pool.host_pages(host)
    with subject.open(config_for("mha"), cache, roots) as storage:
        assert all(storage.batch_set_v1(keys, host))
        pool.poison_host()
        target = pool.pages(PAGES, seed=5)
        assert all(storage.batch_get_v1(keys, target))
        assert pool.host_pages(target) == expected


SHARING = [
    pytest.param(kind, writer, reader, shared, id=f"{kind}-{writer}-{reader}")
    for kind in ("mha", "mla")
    for writer, reader, shared in (
        ("layer_first", "page_first_direct", True),
        ("page_first_direct", "layer_first", True),
        ("page_first", "layer_first", False),
        ("page_first_direct", "page_first", False),
    )
]


@pytest.mark.parametrize("kind, writer_layout, reader_layout, shared", SHARING)
def test_layouts_that_share(kvcellar: Any, roots: list[Path], kind: str, writer_layout: str,
                            reader_layout: str, shared: bool) -> None:
    """layer_first and page_first_direct store the same bytes; page_first has another order."""
    writer, reader = make_kv(kind, writer_layout), make_kv(kind, reader_layout)
    writer_io, reader_io = dict(LAYOUT_AND_IO)[writer_layout], dict(LAYOUT_AND_IO)[reader_layout]
    keys = make_keys("sharing", PAGES)
    device, host = backed_up(writer, writer_io)
    with kvcellar.open(config_for(kind), HostCache(writer), roots) as storage:
        assert all(storage.batch_set_v1(keys, host))
    objects = len(stored_objects(roots[0]))
    with kvcellar.open(config_for(kind), HostCache(reader), roots) as storage:
        reader.poison_host()
        target = reader.pages(PAGES, seed=5)
        assert storage.batch_exists(keys) == (PAGES if shared else 0)
        assert storage.batch_get_v1(keys, target) == [shared] * PAGES
        if not shared:
            reader.assert_untouched_but(target[:0])
            return
        device_target = reader.pages(PAGES, seed=7)
        reader.load(target, device_target, reader_io)
        for got_rows, want_rows in zip(reader.rows(device_target), writer.rows(device)):
            assert torch.equal(got_rows.view(torch.uint8), want_rows.view(torch.uint8))
        assert storage.batch_set_v1(keys, target) == [True] * PAGES
    assert len(stored_objects(roots[0])) == objects


def make_hybrid(kind: str, layout: str, aligned: bool = True) -> HostCache:
    if kind == "dsa":
        anchor, indexer = make_dsa(layout)
        return HostCache(anchor, (indexer,))
    side = (
        make_mamba(layout, aligned=aligned)
        if kind == "mamba"
        else make_mha(layout, aligned=aligned, layers=2, name=PoolName.SWA)
    )
    return HostCache(make_mha(layout, aligned=aligned), (side,))


HYBRID_CASES = [
    pytest.param(kind, aligned, layout, io, direct_io, id="-".join((
        kind, "aligned" if aligned else "odd", layout, io, "odirect" if direct_io else "buffered")))
    for kind, aligned, (layout, io), direct_io in product(
        ("swa", "mamba", "dsa"), (True, False), LAYOUT_AND_IO, (True, False))
    if not (kind == "mamba" and layout not in ("page_first", "page_first_direct"))
    and not (kind == "dsa" and (layout == "page_head" or not aligned))
]


@pytest.mark.parametrize("kind, aligned, layout, io, direct_io", HYBRID_CASES)
def test_hybrid_round_trip(subject: Any, roots: list[Path], kind: str, aligned: bool, layout: str,
                           io: str, direct_io: bool) -> None:
    """Sliding window, Mamba states and DSA's indexer by the interface v2."""
    cache = make_hybrid(kind, layout, aligned)
    anchor, side = cache.anchor, cache.sides[0]
    config = config_for("mla" if kind == "dsa" else "mha")
    keys = make_keys("hybrid", PAGES)
    whole = kind == "dsa"
    side_count = PAGES if whole else 1 if kind == "mamba" else 2
    side_keys = keys[PAGES - side_count:]
    policy = PoolHitPolicy.ALL_PAGES if whole else PoolHitPolicy.TRAILING_PAGES
    device, host = backed_up(anchor, io)
    side_device, side_host = backed_up(side, io, side_count)
    expected, side_expected = anchor.host_pages(host), side.host_pages(side_host)
    with subject.open(config, cache, roots, use_direct_io=direct_io) as storage:
        transfer = side_transfer(side, side_keys, side_host, policy)
        assert storage.batch_set_v2([transfer]) == {side.name: [True] * side_count}
        assert storage.batch_set_v1(keys, host) == [True] * PAGES
    with subject.open(config, cache, roots, use_direct_io=direct_io) as storage:
        anchor.poison_host()
        side.poison_host()
        query = side_transfer(side, side_keys, policy=policy)
        found = storage.batch_exists_v2(keys, [query])
        assert found.kv_hit_pages == PAGES
        assert found.extra_pool_hit_pages == {PoolName.KV: PAGES, side.name: PAGES}
        target, side_target = anchor.pages(PAGES, seed=5), side.pages(side_count, seed=5)
        assert storage.batch_get_v1(keys, target) == [True] * PAGES
        transfer = side_transfer(side, side_keys, side_target, policy)
        assert storage.batch_get_v2([transfer]) == {side.name: [True] * side_count}
        assert_pages_arrive(anchor, io, device, expected, target)
        assert_pages_arrive(side, io, side_device, side_expected, side_target)
        missing = side_transfer(side, make_keys("none", 1), side_target[: side.page_tokens])
        assert storage.batch_get_v2([missing]) == {side.name: [False]}
        shorter = storage.batch_exists_v2(keys[: PAGES - 1], [query])
        assert shorter.kv_hit_pages == (PAGES - 1 if whole else 0)


def test_logical_anchor(subject: Any, roots: list[Path]) -> None:
    """An anchor without bytes: its keys are stored and exist, and side pools go by them."""
    anchor, side = make_logical(), make_mha("page_first_direct", name=PoolName.SWA)
    cache = HostCache(anchor, (side,))
    keys = make_keys("logical", PAGES)
    _, side_host = backed_up(side, "direct")
    expected = side.host_pages(side_host)
    indices = torch.arange(PAGES * anchor.page_tokens)
    with subject.open(config_for("mla"), cache, roots) as storage:
        assert storage.batch_exists(keys) == 0
        stored = storage.batch_set_v2([side_transfer(side, keys, side_host)])
        assert stored == {side.name: [True] * PAGES}
        query = [side_transfer(side, keys)]
        assert storage.batch_exists_v2(keys, query).kv_hit_pages == 0
        assert storage.batch_set_v1(keys, indices) == [True] * PAGES
    with subject.open(config_for("mla"), cache, roots) as storage:
        assert storage.batch_exists(keys) == PAGES
        assert storage.batch_exists_v2(keys, query).kv_hit_pages == PAGES
        assert storage.batch_get_v1(keys, indices) == [True] * PAGES
        side.poison_host()
        target = side.pages(PAGES, seed=5)
        assert storage.batch_get_v2([side_transfer(side, keys, target)]) == {
            side.name: [True] * PAGES}
        assert side.host_pages(target) == expected


def test_side_pool_registered_late(kvcellar: Any, roots: list[Path]) -> None:
    """A side pool that comes after on_host_pools_registered() works like the others."""
    cache = make_hybrid("swa", "page_first_direct")
    late = make_mamba("page_first_direct")
    keys = make_keys("late", 3)
    host = backed_up(late, "direct", 3)[1]
    expected = late.host_pages(host)
    with kvcellar.open(config_for("mha"), cache, roots) as storage:
        storage.register_mem_host_pool_v2(late.host, late.name)
        assert storage.batch_set_v2([side_transfer(late, keys, host)]) == {late.name: [True] * 3}
        late.poison_host()
        target = late.pages(3, seed=5)
        assert storage.batch_get_v2([side_transfer(late, keys, target)]) == {
            late.name: [True] * 3}
        assert late.host_pages(target) == expected


def test_unregistered_side_pool(kvcellar: Any, roots: list[Path]) -> None:
    """A transfer of a pool that nobody registered: False for its pages, no exception."""
    cache, unknown = make_hybrid("swa", "page_first"), make_mamba("page_first")
    keys = make_keys("unknown", 2)
    indices = unknown.pages(2)
    host = backed_up(cache.anchor, "kernel", 2)[1]
    with kvcellar.open(config_for("mha"), cache, roots) as storage:
        assert all(storage.batch_set_v1(keys, host))
        transfer = side_transfer(unknown, keys, indices)
        assert storage.batch_set_v2([transfer]) == {unknown.name: [False] * 2}
        assert storage.batch_get_v2([transfer]) == {unknown.name: [False] * 2}
        assert storage.batch_exists_v2(keys, [transfer]).kv_hit_pages == 0


def test_statistics(kvcellar: Any, roots: list[Path]) -> None:
    """get_stats(): pages and rate of each batch since the last call; nothing unless asked for."""
    pool = make_mha("page_first")
    keys = make_keys("statistics", PAGES)
    host = backed_up(pool, "kernel")[1]
    with kvcellar.open(storage_config(), HostCache(pool), roots) as storage:
        assert storage.get_stats() is None
    config = storage_config(enable_storage_metrics=True)
    with kvcellar.open(config, HostCache(pool), roots) as storage:
        assert all(storage.batch_set_v1(keys, host))
        assert storage.batch_get_v1([*keys[:4], "missing"], host[: 5 * pool.page_tokens])[:4]
        assert not any(storage.batch_get_v1(make_keys("none", 2), host[: 2 * pool.page_tokens]))
        stats = storage.get_stats()
        assert (stats.backup_pgs, stats.prefetch_pgs) == ([PAGES], [4])
        assert [len(stats.backup_bandwidth), len(stats.prefetch_bandwidth)] == [1, 1]
        assert stats.backup_bandwidth[0] > 0 and stats.prefetch_bandwidth[0] > 0
        stats = storage.get_stats()
        assert not any((stats.backup_pgs, stats.prefetch_pgs, stats.backup_bandwidth,
                        stats.prefetch_bandwidth))


def open_rank(kvcellar: Any, roots: list[Path], pool: PoolPair, tp_rank: int, tp_size: int) -> Any:
    config = storage_config(
        tp_rank=tp_rank,
        tp_size=tp_size,
        is_page_first_layout=False,
        tp_lcm_size=HEAD_GROUPS,
        should_split_heads=HEAD_GROUPS > tp_size,
    )
    return kvcellar.open(config, HostCache(pool), roots)


@pytest.mark.parametrize("writer_size", (1, 2, 4))
@pytest.mark.parametrize("reader_size", (1, 2, 4))
def test_tp_lcm_size(kvcellar: Any, roots: list[Path], writer_size: int, reader_size: int) -> None:
    """Pages written at one tp size are read at another, each rank getting its own heads."""
    keys = make_keys("heads", PAGES)
    for tp_rank in range(writer_size):
        pool = make_mha("page_head", heads=HEADS // writer_size)
        fill_heads(pool, tp_rank, writer_size)
        device, host = pool.pages(PAGES, seed=2), pool.pages(PAGES, seed=4)
        pool.backup(host, device, "kernel")
        with open_rank(kvcellar, roots, pool, tp_rank, writer_size) as storage:
            assert storage.batch_exists(keys) == 0
            assert storage.batch_set_v1(keys, host) == [True] * PAGES
            assert storage.batch_exists(keys) == PAGES
    for tp_rank in range(reader_size):
        pool = make_mha("page_head", heads=HEADS // reader_size)
        fill_heads(pool, tp_rank, reader_size)
        want = pool.rows(pool.pages(PAGES, seed=2))
        pool.poison_host()
        target, device_target = pool.pages(PAGES, seed=5), pool.pages(PAGES, seed=7)
        with open_rank(kvcellar, roots, pool, tp_rank, reader_size) as storage:
            assert storage.batch_exists(keys) == PAGES
            assert storage.batch_get_v1(keys, target) == [True] * PAGES
        pool.load(target, device_target, "kernel")
        for got_rows, want_rows in zip(pool.rows(device_target), want):
            assert torch.equal(got_rows, want_rows)


def test_head_groups_that_are_missing(kvcellar: Any, roots: list[Path]) -> None:
    """At tp 1 a page exists only when the head groups of both writers at tp 2 do."""
    keys = make_keys("half", PAGES)
    pool = make_mha("page_head", heads=HEADS // 2)
    fill_heads(pool, 0, 2)
    host = pool.pages(PAGES, seed=4)
    pool.backup(host, pool.pages(PAGES, seed=2), "kernel")
    with open_rank(kvcellar, roots, pool, 0, 2) as storage:
        assert all(storage.batch_set_v1(keys, host))
    whole = make_mha("page_head", heads=HEADS)
    with open_rank(kvcellar, roots, whole, 0, 1) as storage:
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, whole.pages(PAGES, seed=5)) == [False] * PAGES


def test_poison_is_no_page() -> None:
    """The check that memory was left alone can fail."""
    pool = make_mha("page_first")
    pool.poison_host()
    pool.assert_untouched_but(pool.pages(1)[:0])
    page = pool.pages(1)
    pool.host_tensors()[0][0, int(page[0])] = 0
    assert set(pool.host_pages(page)[0]) == {0, POISON}
    with pytest.raises(AssertionError, match="bytes of other pages"):
        pool.assert_untouched_but(page[:0])
