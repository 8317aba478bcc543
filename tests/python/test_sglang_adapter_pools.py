# SPDX-License-Identifier: Apache-2.0
"""KvCellarStorage over SGLang's real host pools: every layout and kind, head groups, side pools,
hit policies against SGLang's own file backend, tensors. Needs sglang and torch."""

import os
import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("sglang")

import sglang_pools as P
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheFile,
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang_fakes import keys_of

from kvcellar.sglang import KvCellarStorage, pools


@pytest.fixture
def make(tmp_path):
    """make(pool, extra={}, **fields of the storage config): a registered storage."""
    (tmp_path / "root").mkdir()
    options = {"storage_dirs": [str(tmp_path / "root")], "storage_layout": "packed",
               "capacity": "64MiB", "identity": "test"}
    made = []

    def build(pool=None, extra=None, **fields):
        storage = KvCellarStorage(P.config(extra_config=options | (extra or {}), **fields), {})
        made.append(storage)
        if pool is not None:
            storage.register_mem_pool_host(pool)
        return storage

    yield build
    for storage in made:
        storage.close()


# name of the pool under test, its builder, config of the storage
ANCHORS = (
    [(f"mha-{layout}", lambda layout=layout: P.mha(layout), {}) for layout in P.MHA_LAYOUTS]
    + [(f"mha-odd-{layout}", lambda layout=layout: P.mha(layout, dim=20), {})
       for layout in P.MHA_LAYOUTS if layout != "page_unified"]
    + [(f"mha-v-{layout}", lambda layout=layout: P.mha(layout, v_dim=32), {})
       for layout in ("page_first", "page_first_direct")]
    + [(f"mla-{layout}", lambda layout=layout: P.mla(layout), {"is_mla_model": True})
       for layout in (*P.MLA_LAYOUTS, "page_unified")]
    + [(f"mla-dcp-{layout}",
        lambda layout=layout: P.mla(layout, page=32, dcp_size=2, dcp_rank=1),
        {"is_mla_model": True, "tp_size": 2, "tp_rank": 1, "dcp_size": 2, "dcp_rank": 1,
         "logical_page_size": 32})
       for layout in P.MLA_LAYOUTS]
    + [("mha-page-1", lambda: P.mha("page_first", page=1), {})]
)
SIDES = (
    [(f"swa-{layout}", PoolName.SWA, lambda layout=layout: P.mha(layout))
     for layout in P.MHA_LAYOUTS if layout != "page_unified"]
    + [(f"mamba-{layout}-{side}", PoolName.MAMBA,
        lambda layout=layout, side=side: P.mamba(layout, side=side == "side"))
       for layout in ("page_first", "page_first_direct") for side in ("plain", "side")]
    + [("mamba-two-convs", PoolName.MAMBA, lambda: P.mamba(conv=((48, 3), (16, 2))))]
    + [("mamba-conv-only", PoolName.MAMBA, lambda: P.mamba(temporal=(0,)))]
    + [(f"dsa-{layout}", PoolName.INDEXER, lambda layout=layout: P.dsa(layout)[1])
       for layout in P.MLA_LAYOUTS]
    + [(f"paged-{layout}", PoolName.DEEPSEEK_V4_C4, lambda layout=layout: P.paged(layout))
       for layout in P.MLA_LAYOUTS]
)


def ids(rows):
    return [row[0] for row in rows]


def in_pages(pool):
    """What is in the pages, leaving out memory that belongs to none of them."""
    count = pools.page_count_of(pool)
    try:
        return [P.page_bytes(pool, page) for page in range(count)]
    except (NotImplementedError, ValueError):  # no flat pages in this layout or class
        return [tensor.view(torch.uint8).numpy().tobytes() for tensor in P.tensors_of(pool)]


def check_round_trip(pool, set_, get):
    """All pages out and in again; then some to other places."""
    count = pools.page_count_of(pool)
    P.randomise(pool)
    want = in_pages(pool)
    keys = keys_of(count)
    assert set_(keys, P.indices(pool, list(range(count)))) == [True] * count
    P.zero(pool)
    assert get(keys, P.indices(pool, list(range(count)))) == [True] * count
    assert in_pages(pool) == want
    if len(want) != count:
        return
    P.zero(pool)
    some = [3, 7, count - 1, 0]
    to = [5, 2, 0, 9]
    assert get([keys[i] for i in some], P.indices(pool, to)) == [True] * 4
    got = in_pages(pool)
    assert [got[i] for i in to] == [want[i] for i in some]
    assert not any(any(got[i]) for i in range(count) if i not in to)


# ---------------------------------------------------------------- SGLang's expectations


def test_sglang_loads_the_class(tmp_path):
    """The `dynamic` backend of SGLang: by module path and class name."""
    (tmp_path / "root").mkdir()
    config = P.config(extra_config={
        "backend_name": "kvcellar", "module_path": "kvcellar.sglang",
        "class_name": "KvCellarStorage", "interface_v1": 1,
        "storage_dirs": [str(tmp_path / "root")]})
    storage = StorageBackendFactory.create_backend("dynamic", config, None)
    assert isinstance(storage, HiCacheStorage) and type(storage) is KvCellarStorage
    storage.close()


def test_signatures_are_those_of_the_base_class():
    import inspect

    for name in ("get", "set", "batch_get", "batch_set", "exists", "batch_exists", "batch_get_v1",
                 "batch_set_v1", "batch_exists_v2", "batch_get_v2", "batch_set_v2", "clear",
                 "get_stats", "register_mem_pool_host", "register_mem_host_pool_v2"):
        ours = inspect.signature(getattr(KvCellarStorage, name)).parameters
        theirs = inspect.signature(getattr(HiCacheStorage, name)).parameters
        assert list(ours) == list(theirs), name


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize("_, build, fields", ANCHORS, ids=ids(ANCHORS))
def test_kv_pages_come_back(make, _, build, fields):
    pool = build()
    storage = make(pool, **fields)
    assert storage._kv().plan.kind == pools.MEMORY
    check_round_trip(pool, storage.batch_set_v1, storage.batch_get_v1)
    count = pools.page_count_of(pool)
    assert storage.batch_exists(keys_of(count)) == count


@pytest.mark.parametrize("_, name, build", SIDES, ids=ids(SIDES))
@pytest.mark.parametrize("kind", ["memory", "copy"])
def test_side_pages_come_back(make, monkeypatch, _, name, build, kind):
    """kind copy: the last resort, which no pool of SGLang 0.5.23 needs, on all of them."""
    if kind == "copy":
        monkeypatch.setattr(pools, "_plan_from_meta", refuse)
        monkeypatch.setattr(pools, "_plan_from_view", refuse)
        monkeypatch.setattr(pools, "_plan_from_rows", refuse)
        monkeypatch.setattr(pools, "_plan_translated", refuse)
    pool = build()
    storage = make(P.mha())
    storage.register_mem_host_pool_v2(pool, name)
    assert storage._pool_of(name).plan.kind == kind
    check_round_trip(
        pool,
        lambda keys, at: storage.batch_set_v2([PoolTransfer(name, at, keys=keys)])[name],
        lambda keys, at: storage.batch_get_v2([PoolTransfer(name, at, keys=keys)])[name],
    )


def refuse(pool, base):
    raise pools.NoPlan("as the test wants it")


def test_copied_pages_are_the_same_objects(make, monkeypatch):
    """One part in one run: what one way stores, the other finds."""
    pool = P.dsa("page_first")[1]
    first = make(P.mha())
    first.register_mem_host_pool_v2(pool, PoolName.INDEXER)
    P.randomise(pool)
    want = P.page_bytes(pool, 3)
    transfer = PoolTransfer(PoolName.INDEXER, P.indices(pool, [3]), keys=["k"])
    assert first.batch_set_v2([transfer])[PoolName.INDEXER] == [True]
    for way in ("_plan_from_meta", "_plan_from_view", "_plan_from_rows", "_plan_translated"):
        monkeypatch.setattr(pools, way, refuse)
    second = make(P.mha())
    second.register_mem_host_pool_v2(pool, PoolName.INDEXER)
    transfer = PoolTransfer(PoolName.INDEXER, P.indices(pool, [8]), keys=["k"])
    assert second.batch_get_v2([transfer])[PoolName.INDEXER] == [True]
    assert P.page_bytes(pool, 8) == want


SHARED = (
    ("mha", lambda layout: P.mha(layout), {}, None),
    ("mla", lambda layout: P.mla(layout), {"is_mla_model": True}, None),
    ("dsa", lambda layout: P.dsa(layout)[1], {}, PoolName.INDEXER),
    ("paged", lambda layout: P.paged(layout), {}, PoolName.DEEPSEEK_V4_C4),
)


@pytest.mark.parametrize("_, build, fields, side", SHARED, ids=ids(SHARED))
def test_layer_first_and_page_first_direct_share(make, _, build, fields, side):
    """The same bytes, so the same objects, both ways; other orders are no hits."""
    def storage_of(pool):
        storage = make(P.mha() if side else pool, **fields)
        if not side:
            return storage.batch_set_v1, storage.batch_get_v1
        storage.register_mem_host_pool_v2(pool, side)
        return (lambda keys, at: storage.batch_set_v2([PoolTransfer(side, at, keys=keys)])[side],
                lambda keys, at: storage.batch_get_v2([PoolTransfer(side, at, keys=keys)])[side])

    both = {layout: build(layout) for layout in ("layer_first", "page_first_direct", "page_first")}
    calls = {layout: storage_of(pool) for layout, pool in both.items()}
    for one, other in (("layer_first", "page_first_direct"), ("page_first_direct", "layer_first")):
        P.randomise(both[one], seed=len(one))
        P.zero(both[other])
        assert calls[one][0]([one], P.indices(both[one], [4])) == [True]
        assert calls[other][1]([one], P.indices(both[other], [6])) == [True]
        assert P.page_bytes(both[other], 6) == P.page_bytes(both[one], 4)
        assert calls["page_first"][1]([one], P.indices(both["page_first"], [6])) == [False]


def test_more_pages_than_sglangs_batches(make):
    """300 pages of KV and 300 of a side pool in one call each."""
    pool, side = P.mha(tokens=4800, dim=16, layers=2), P.mha(tokens=4800, dim=16, layers=1)
    storage = make(pool)
    storage.register_mem_host_pool_v2(side, PoolName.SWA)
    P.randomise(pool)
    P.randomise(side, seed=2)
    keys, pages = keys_of(300), random.Random(1).sample(range(301), 300)
    want = [P.page_bytes(pool, p) for p in pages], [P.page_bytes(side, p) for p in pages]
    both = [PoolTransfer(PoolName.SWA, P.indices(side, pages), keys=keys),
            PoolTransfer(PoolName.KV, P.indices(pool, pages), keys=keys)]
    assert storage.batch_set_v2(both) == {PoolName.SWA: [True] * 300, PoolName.KV: [True] * 300}
    P.zero(pool)
    P.zero(side)
    assert storage.batch_get_v2(both) == {PoolName.SWA: [True] * 300, PoolName.KV: [True] * 300}
    assert [P.page_bytes(pool, p) for p in pages] == want[0]
    assert [P.page_bytes(side, p) for p in pages] == want[1]
    found = storage.batch_exists_v2(keys, [PoolTransfer(PoolName.SWA)])
    assert found.kv_hit_pages == 300


def test_indices_of_other_kinds(make):
    """int32 and strided index tensors are made right; SGLang passes contiguous int64."""
    pool = P.mha()
    storage = make(pool)
    at = P.indices(pool, [1, 2])
    assert storage.batch_set_v1(keys_of(2), at.to(torch.int32)) == [True] * 2
    strided = torch.stack([at, at], dim=1)[:, 0]
    assert not strided.is_contiguous()
    assert storage.batch_get_v1(keys_of(2), strided) == [True] * 2


# ---------------------------------------------------------------- head groups


def heads_of(pool, page, first, count):
    """[K and V][heads][token][layer][dim] of some heads of a page_head pool."""
    return pool.kv_buffer[:, page, first : first + count].clone()


def test_tp_lcm_pages_are_found_by_other_tp_sizes(make):
    """Written at tp 2, read at tp 4 and tp 1, with tp_lcm_size 4 and 4 heads in all."""
    def at(tp_size, rank):
        heads = 4 // tp_size
        pool = P.mha("page_head", heads=heads, dtype=torch.float16)
        storage = make(pool, tp_rank=rank, tp_size=tp_size, tp_lcm_size=4,
                       should_split_heads=tp_size < 4)
        return storage, pool

    whole = torch.randn(2, 4, 16, 3, 64).to(torch.float16)
    for rank in range(2):
        storage, pool = at(2, rank)
        pool.kv_buffer[:, 5] = whole[:, rank * 2 : rank * 2 + 2]
        assert storage.batch_exists(["k"]) == 0
        assert storage.batch_set_v1(["k"], P.indices(pool, [5])) == [True]
        # A page is there when all head groups of the asking rank are.
        assert at(1, 0)[0].batch_exists(["k"]) == (1 if rank == 1 else 0)
    for tp_size in (4, 1, 2):
        for rank in range(tp_size):
            storage, pool = at(tp_size, rank)
            assert storage.batch_get_v1(["k"], P.indices(pool, [8])) == [True]
            heads = 4 // tp_size
            want = whole[:, rank * heads : (rank + 1) * heads]
            assert torch.equal(heads_of(pool, 8, 0, heads), want)
            flat = pool.get_dummy_flat_data_page()
            got = storage.get("k", flat)
            assert got is flat and bytes(flat.numpy().tobytes()) == P.page_bytes(pool, 8)


def test_side_pools_beside_head_groups(make):
    """SWA in the same layout is split as well; a pool without heads is stored per rank."""
    for rank in range(2):
        kv, swa = P.mha("page_head", heads=2), P.mha("page_head", heads=2, layers=1)
        state = P.mamba()
        storage = make(kv, tp_rank=rank, tp_size=2, tp_lcm_size=4, should_split_heads=True)
        storage.register_mem_host_pool_v2(swa, PoolName.SWA)
        storage.register_mem_host_pool_v2(state, PoolName.MAMBA)
        assert storage._pool_of("swa").plan.groups == 2
        for side in (swa, state):
            P.randomise(side, seed=rank)
        transfers = [PoolTransfer(PoolName.SWA, P.indices(swa, [1]), keys=["k"]),
                     PoolTransfer(PoolName.MAMBA, P.indices(state, [1]), keys=["k"])]
        want = P.page_bytes(swa, 1), P.page_bytes(state, 1)
        assert storage.batch_set_v2(transfers) == {PoolName.SWA: [True], PoolName.MAMBA: [True]}
        P.zero(swa)
        P.zero(state)
        assert storage.batch_get_v2(transfers) == {PoolName.SWA: [True], PoolName.MAMBA: [True]}
        assert (P.page_bytes(swa, 1), P.page_bytes(state, 1)) == want


def test_tp_lcm_without_head_groups_is_ordinary_tp(make):
    """tp_lcm_size given, another layout than page_head: SGLang does not split, nor do we."""
    pool = P.mha("page_first")
    plain = make(pool, tp_size=2)
    with_lcm = make(pool, tp_size=2, tp_lcm_size=4, should_split_heads=False)
    assert with_lcm.batch_set_v1(["k"], P.indices(pool, [0])) == [True]
    assert plain.batch_exists(["k"]) == 1


def test_mha_side_pools_under_mla_are_per_rank(make, caplog):
    """A draft model with heads beside an MLA model: rank 1 must not read rank 0's heads."""
    draft = P.mha()
    for rank, want in ((0, True), (1, False)):
        storage = make(P.mla(), is_mla_model=True, tp_size=2, tp_rank=rank)
        storage.register_mem_host_pool_v2(draft, PoolName.DRAFT)
        transfer = PoolTransfer(PoolName.DRAFT, P.indices(draft, [0]), keys=["k"])
        if rank == 0:
            assert storage.batch_set_v2([transfer])[PoolName.DRAFT] == [True]
        assert storage.batch_get_v2([transfer])[PoolName.DRAFT] == [want]
    assert "draft" in caplog.text


@pytest.mark.parametrize("plan", [pools.COPY, pools.MEMORY])
def test_indices_of_pages_that_are_copied(make, monkeypatch, plan):
    """Whole pages of the pool only, whichever way its pages are reached; any integer dtype."""
    if plan == pools.COPY:
        for way in ("_plan_from_meta", "_plan_from_view", "_plan_from_rows", "_plan_translated"):
            monkeypatch.setattr(pools, way, pools._plan_copy)
    pool = P.mha()
    storage = make(pool)
    assert storage._kv().plan.kind == plan
    P.randomise(pool)
    size, page = pools.page_count_of(pool) * 16, torch.arange(16)
    for first in (-16, 1, 8, size, 1 << 40):
        assert storage.batch_set_v1(["k"], page + first) == [False], first
        assert storage.batch_get_v1(["k"], page + first) == [False], first
    for dtype in (torch.bool, torch.float32, torch.float64, torch.complex64):
        assert storage.batch_set_v1(["k"], page.to(dtype)) == [False], dtype
    assert storage.batch_exists(["k"]) == 0
    for dtype in (torch.int32, torch.int16, torch.int64):
        key = str(dtype)
        assert storage.batch_set_v1([key], (page + 32).to(dtype)) == [True]
        assert storage.batch_get_v1([key], (page + 48).to(dtype)) == [True]
        assert P.page_bytes(pool, 3) == P.page_bytes(pool, 2)
        P.randomise(pool)


# ---------------------------------------------------------------- hit policies


def touch(backend, keys, name=None):
    for key in keys:
        with open(os.path.join(backend.file_path, backend._get_component_key(key, name) + ".bin"),
                  "wb"):
            pass


@pytest.mark.parametrize("mla", [False, True])
def test_r24_same_answers_as_sglangs_file_backend(make, tmp_path, monkeypatch, mla):
    """Random holes in KV and up to three side pools with random policies: hits, each pool's own
    boundary and the restorable prefixes are those of HiCacheFile."""
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path / "file"))
    config = P.config(is_mla_model=mla, model_name="m", tp_size=2)
    oracle = HiCacheFile(config)
    kv = P.mla() if mla else P.mha(layers=1, dim=16)
    sides = {PoolName.MAMBA: P.mamba(slots=40), PoolName.SWA: P.mha(layers=1, dim=16),
             PoolName.INDEXER: P.dsa()[1]}
    storage = make(kv, is_mla_model=mla, model_name="m", tp_size=2)
    for name, side in sides.items():
        storage.register_mem_host_pool_v2(side, name)
    rng = random.Random(f"r24 {mla}")
    seen = set()
    for example in range(150):
        count = rng.randint(1, 9)
        keys = keys_of(count, seed=1000 + example)
        holes = rng.choice((0.0, 0.1, 0.4))
        stored = [k for k in keys if rng.random() >= holes]
        assert all(storage.batch_set_v1(stored, P.indices(kv, list(range(len(stored))))))
        touch(oracle, stored)
        transfers = []
        for name in rng.sample(list(sides), rng.randint(0, 3)):
            side = sides[name]
            have = [k for k in keys if rng.random() >= rng.choice((0.0, 0.2, 0.6))]
            at = P.indices(side, list(range(len(have))))
            assert all(storage.batch_set_v2([PoolTransfer(name, at, keys=have)])[name])
            touch(oracle, have, name)
            policy = rng.choice((PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES))
            window = rng.choice((None, [], ["?"], ["?"] * 2, ["?"] * 4))
            transfers.append(PoolTransfer(name, keys=window, hit_policy=policy))
        want = oracle.batch_exists_v2(keys, transfers)
        got = storage.batch_exists_v2(keys, transfers)
        assert got == want, (example, keys, transfers)
        seen.add((want.kv_hit_pages > 0, len(want.extra_pool_hit_pages)))
    assert len(seen) >= 4  # the examples differ


# ---------------------------------------------------------------- tensors


DTYPES = (torch.int32, torch.int64, torch.float32, torch.float64, torch.float16, torch.bfloat16,
          torch.uint8, torch.bool)
SHAPES = ((), (1,), (7,), (10, 10), (3, 4, 5), (2, 3, 4, 5), (0,), (513, 33))


def tensor_of(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back(make, dtype):
    for registered in (False, True):
        storage = make(P.mha() if registered else None)
        keys = [f"{dtype}-{registered}-{i}" for i in range(len(SHAPES))]
        values = [tensor_of(shape, dtype, i) for i, shape in enumerate(SHAPES)]
        assert storage.batch_set(keys, values) is True
        targets = [torch.zeros_like(value) for value in values]
        got = storage.batch_get(keys, targets)
        assert all(g is t for g, t in zip(got, targets))
        assert all(torch.equal(v, t) for v, t in zip(values, targets))
        one = torch.zeros_like(values[3])
        assert storage.get(keys[3], one) is one and torch.equal(one, values[3])
        assert storage.get("absent", one) is None


def test_tensors_that_are_not_contiguous(make):
    storage = make(P.mha())
    value = tensor_of((20, 30), torch.float32).t()
    assert not value.is_contiguous()
    assert storage.set("k", value) is True
    target = torch.zeros(60, 40)[::2, ::2]
    assert target.shape == value.shape and not target.is_contiguous()
    assert storage.get("k", target) is target
    assert torch.equal(target, value)
    missed = torch.ones(60, 40)[::2, ::2]
    assert storage.get("absent", missed) is None and bool((missed == 1).all())


@pytest.mark.parametrize("_, build, fields", ANCHORS, ids=ids(ANCHORS))
def test_sglangs_generic_path(make, _, build, fields):
    """interface_v1 off: flat pages by batch_set and batch_get; one and the same pages as v1's."""
    pool = build()
    try:
        pool.get_data_page(0)
    except (NotImplementedError, ValueError):
        pytest.skip("SGLang has no flat pages for it")
    storage = make(pool, **fields)
    P.randomise(pool)
    keys, n = keys_of(5), pools.page_tokens_of(pool)
    want = [P.page_bytes(pool, page) for page in range(5)]
    assert storage.batch_set(keys, [pool.get_data_page(i * n) for i in range(5)]) is True
    assert storage.batch_exists([*keys, "absent"]) == 5
    assert storage.exists(keys[0]) and not storage.exists("absent")
    P.zero(pool)
    dummies = [pool.get_dummy_flat_data_page() for _ in range(6)]
    got = storage.batch_get([*keys, "absent"], dummies)
    assert [page is None for page in got] == [False] * 5 + [True]
    for i, page in enumerate(got[:5]):
        pool.set_from_flat_data_page(i * n, page)
    assert [P.page_bytes(pool, page) for page in range(5)] == want
    P.zero(pool)
    assert storage.batch_get_v1(keys, P.indices(pool, [6, 7, 8, 9, 10])) == [True] * 5
    assert [P.page_bytes(pool, page) for page in range(6, 11)] == want


def test_lazy_views_are_stored_by_value(make):
    storage = make(P.mha())
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert storage.set("conj", value.conj())
    assert storage.set("neg", torch._neg_view(torch.tensor([1.0, 3.0])))
    found = torch.zeros_like(value)
    assert storage.get("conj", found) is found
    assert torch.equal(found, value.conj().resolve_conj())
    plain = torch.zeros(2)
    assert storage.get("neg", torch._neg_view(plain)) is not None
    assert torch.equal(plain, torch.tensor([1.0, 3.0]))  # read through the view: -1, -3
