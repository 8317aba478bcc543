# SPDX-License-Identifier: Apache-2.0
"""Replays through the class that SGLang loads: situations that users of KV-cache stores ran into.

The numbers are those of tests/README.md; the C tests have the same situations below the C API.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_roots
from pools import (
    HostCache,
    PoolPair,
    make_keys,
    make_mamba,
    make_mha,
    make_mla,
    randomise,
    side_transfer,
    storage_config,
)
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from subjects import SUBJECTS, stored_objects

pytestmark = pytest.mark.usefixtures("one_rank")

PAGES = 5


def make_pool(kind: str, layout: str = "page_first", **geometry: Any) -> PoolPair:
    return (make_mha if kind == "mha" else make_mla)(layout, **geometry)


def write_pages(pool: PoolPair, indices: torch.Tensor, seed: int) -> list[bytes]:
    """Random bytes that follow from the seed, in all of the host pool; what the pages then hold."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in pool.host_tensors():
        randomise(tensor, generator)
    return pool.host_pages(indices)


def read_pages(storage: Any, pool: PoolPair, keys: list[str]) -> list[bytes | None]:
    """The bytes of each page, None for a miss; no other page of the pool is touched."""
    pool.poison_host()
    target = pool.pages(len(keys), seed=5)
    ok = storage.batch_get_v1(keys, target)
    assert len(ok) == len(keys)
    pool.assert_untouched_but(target)
    return [page if good else None for page, good in zip(pool.host_pages(target), ok)]


def whole_prefix(pages: list[bytes | None]) -> bool:
    return all(page is not None for page in pages)


# ---------------------------------------------------------------- R12, R13: ranks


RANKS = [
    pytest.param("mha", {"tp_size": 4}, "tp_rank", id="mha-tp4"),
    pytest.param("mha", {"pp_size": 2}, "pp_rank", id="mha-pp2"),
    pytest.param("mla", {"pp_size": 2}, "pp_rank", id="mla-pp2"),
    pytest.param("mha", {"attn_cp_size": 2}, "attn_cp_rank", id="mha-cp2"),
    pytest.param("mla", {"attn_cp_size": 2}, "attn_cp_rank", id="mla-cp2"),
]


@pytest.mark.parametrize("naming", ("kvcellar", "nixl"))
@pytest.mark.parametrize("kind, sizes, rank_name", RANKS)
def test_r12_ranks_of_one_key(kvcellar: Any, roots: list[Path], kind: str, sizes: dict[str, int],
                              rank_name: str, naming: str) -> None:
    """Each rank stores its own bytes under the same keys, and reads its own."""
    pool = make_pool(kind)
    keys = make_keys("r12", PAGES)
    indices = pool.pages(PAGES, seed=2)
    [count] = sizes.values()
    expected = []
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(kvcellar.open(
                storage_config(is_mla_model=kind == "mla", **sizes, **{rank_name: rank}),
                HostCache(pool), roots, naming=naming))
            for rank in range(count)
        ]
        for rank, storage in enumerate(ranks):
            assert storage.batch_exists(keys) == 0
            expected.append(write_pages(pool, indices, seed=100 + rank))
            assert storage.batch_set_v1(keys, indices) == [True] * PAGES
        for rank, storage in enumerate(ranks):
            assert read_pages(storage, pool, keys) == expected[rank]
    assert len({tuple(pages) for pages in expected}) == count


def test_r13_mla_is_written_by_one_rank(kvcellar: Any, roots: list[Path]) -> None:
    """Rank 1 of an MLA model writes nothing and says yes; it reads what rank 0 has written."""
    pool = make_pool("mla")
    keys = make_keys("r13", PAGES)
    indices = pool.pages(PAGES, seed=2)
    options = {"is_mla_model": True, "tp_size": 2}
    with kvcellar.open(storage_config(tp_rank=1, **options), HostCache(pool), roots) as one:
        assert one.backup_skip
        write_pages(pool, indices, seed=1)
        assert one.batch_set_v1(keys, indices) == [True] * PAGES
        assert one.set(keys[0], pool.host.get_data_page(int(indices[0]), flat=True)) is True
        assert not stored_objects(roots[0])
        assert one.batch_exists(keys) == 0
        assert read_pages(one, pool, keys) == [None] * PAGES
        with kvcellar.open(storage_config(tp_rank=0, **options), HostCache(pool), roots) as zero:
            assert not zero.backup_skip
            expected = write_pages(pool, indices, seed=0)
            assert zero.batch_set_v1(keys, indices) == [True] * PAGES
        assert one.batch_exists(keys) == PAGES
        assert read_pages(one, pool, keys) == expected


def test_r13_mamba_states_are_written_by_every_rank(kvcellar: Any, roots: list[Path]) -> None:
    """Beside MLA too: each rank of a hybrid model has its own state."""
    anchor, mamba = make_pool("mla"), make_mamba("page_first")
    cache = HostCache(anchor, (mamba,))
    keys = make_keys("r13 mamba", PAGES)
    indices, target = mamba.pages(PAGES, seed=2), mamba.pages(PAGES, seed=5)
    expected = []
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(kvcellar.open(
                storage_config(is_mla_model=True, tp_size=2, tp_rank=rank), cache, roots))
            for rank in (0, 1)
        ]
        for rank, storage in enumerate(ranks):
            expected.append(write_pages(mamba, indices, seed=rank))
            transfer = side_transfer(mamba, keys, indices)
            assert storage.batch_set_v2([transfer]) == {mamba.name: [True] * PAGES}
        for rank, storage in enumerate(ranks):
            mamba.poison_host()
            transfer = side_transfer(mamba, keys, target)
            assert storage.batch_get_v2([transfer]) == {mamba.name: [True] * PAGES}
            assert mamba.host_pages(target) == expected[rank]
    assert expected[0] != expected[1]


# ---------------------------------------------------------------- R14, R15: identity


def serve(model: Path | str, **changes: Any) -> None:
    """Publishes server arguments of this model, as a scheduler process does."""
    arguments = ServerArgs(model_path="dummy", page_size=16, device="cpu", **changes)
    arguments.model_path = str(model)
    set_global_server_args_for_scheduler(arguments)


def assert_apart(kvcellar: Any, roots: list[Path],
                 variants: list[tuple[PoolPair, dict[str, Any], dict[str, Any]]]) -> None:
    """Every variant (pool, config fields, options) stores under the same keys and reads its own.

    "kv_cache_dtype" among the options is a server argument of SGLang.
    """
    keys = make_keys("apart", PAGES)
    expected = []

    def opened(variant: PoolPair, fields: dict[str, Any], options: dict[str, Any]) -> Any:
        options = dict(options)
        serve("dummy", kv_cache_dtype=options.pop("kv_cache_dtype", "auto"))
        return kvcellar.open(storage_config(**fields), HostCache(variant), roots, **options)

    for number, (variant, fields, options) in enumerate(variants):
        indices = variant.pages(PAGES, seed=2)
        with opened(variant, fields, options) as storage:
            assert storage.batch_exists(keys) == 0, f"variant {number} sees another's pages"
            assert read_pages(storage, variant, keys) == [None] * PAGES
            expected.append(write_pages(variant, indices, seed=number))
            assert storage.batch_set_v1(keys, indices) == [True] * PAGES
    for number, (variant, fields, options) in enumerate(variants):
        with opened(variant, fields, options) as storage:
            assert storage.batch_exists(keys) == PAGES
            assert read_pages(storage, variant, keys) == expected[number]


def test_r14_other_weights_types_and_orders(kvcellar: Any, roots: list[Path]) -> None:
    """One served name: another identity, a dtype of half the size, another byte order: no hits."""
    pool = make_mha("page_first")
    assert_apart(kvcellar, roots, [
        (pool, {}, {"identity": "revision 1"}),
        (pool, {}, {"identity": "revision 2"}),
        (make_mha("page_first", dtype=torch.float8_e4m3fn), {},
         {"identity": "revision 1", "kv_cache_dtype": "fp8_e4m3"}),
        (make_mha("page_first", dtype=torch.float8_e5m2), {},
         {"identity": "revision 1", "kv_cache_dtype": "fp8_e5m2"}),
        (make_mha("page_first", dtype=torch.float16), {}, {"identity": "revision 1"}),
        (make_mha("page_first_direct"), {}, {"identity": "revision 1"}),
        (make_mha("page_head"), {}, {"identity": "revision 1"}),
    ])


def make_model(folder: Path, weights: bytes) -> Path:
    """What tells weights apart: a model folder with a configuration and a weight file."""
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_r14_weights_updated_under_the_same_name(kvcellar: Any, scratch: Path) -> None:
    """The identity follows from the weights that SGLang serves; a copy of them is the same model
    only when its path is."""
    roots = make_roots(scratch, 1)
    pool = make_mha("page_first")
    keys = make_keys("weights", PAGES)
    indices = pool.pages(PAGES, seed=2)
    options = kvcellar.options(roots)
    del options["identity"]
    model = make_model(scratch / "model", b"\0" * 70_000)

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        serve(model)
        storage = kvcellar.construct(storage_config(extra_config=dict(options)))
        try:
            HostCache(pool).register(storage)
            yield storage
        finally:
            storage.close()

    expected = write_pages(pool, indices, seed=1)
    with opened() as storage:
        assert all(storage.batch_set_v1(keys, indices))
    with opened() as storage:
        assert read_pages(storage, pool, keys) == expected
    (model / "model.safetensors").write_bytes(b"\1" * 70_000)
    with opened() as storage:
        assert storage.batch_exists(keys) == 0
        assert read_pages(storage, pool, keys) == [None] * PAGES


def test_r14_no_identity_is_said(kvcellar: Any, roots: list[Path],
                                 caplog: pytest.LogCaptureFixture) -> None:
    """When nothing tells the weights: exactly one warning, and the description says "unset"."""
    pool = make_mha("page_first")
    options = kvcellar.options(roots)
    del options["identity"]
    with caplog.at_level(logging.INFO):
        storage = kvcellar.construct(storage_config(extra_config=options))
        try:
            HostCache(pool).register(storage)
            described = storage.store.describe()
        finally:
            storage.close()
    told = [r.getMessage() for r in caplog.records
            if r.levelno >= logging.WARNING and "identity" in r.getMessage()]
    assert len(told) == 1, told
    assert "unset" in described


def test_r15_tenants(kvcellar: Any, roots: list[Path]) -> None:
    """Tenant and model name are fields of their own: what joins to the same text stays apart."""
    pool = make_mha("page_first")
    assert_apart(kvcellar, roots, [
        (pool, {"model_name": "bc"}, {"tenant": "a"}),
        (pool, {"model_name": "c"}, {"tenant": "ab"}),
        (pool, {"model_name": "abc"}, {}),
        (pool, {"model_name": "abc"}, {"tenant": ""}),
        (pool, {"model_name": "a/b"}, {}),
        (pool, {"model_name": "a-b"}, {}),
    ])
    folders = [path for path in roots[0].iterdir() if path.name != ".kvcellar"]
    assert len(folders) == 6


# ---------------------------------------------------------------- R23: negative marks


def causes_of(storage: Any, operation: str) -> dict[str, int]:
    return dict(storage.store.stats()["operations"][operation]["causes"])


@pytest.mark.layouts("packed", "files")
def test_r23_what_always_fails_is_not_paid_for_again(kvcellar: Any, roots: list[Path]) -> None:
    """A page that exists and cannot be read: two tries, then misses without I/O, until the next set
    of it. The other pages of the same calls are read each time."""
    pool = make_mha("page_first")
    keys = make_keys("r23", PAGES)
    bad = 2
    indices = pool.pages(PAGES, seed=2)
    if kvcellar.layout == "packed":  # pages have no names there, but are read in their order
        rules = "; ".join(f"read error=EIO name={kvcellar.page_names} nth={bad + 1 + PAGES * turn}"
                          for turn in range(2))
    else:
        rules = f"read error=EIO name=*{keys[bad]}* count=2"
    plugin = {"fault": {"active": True, "lower": "posix", "seed": 1, "rules": rules}}
    others = [number != bad for number in range(PAGES)]
    with kvcellar.open(storage_config(), HostCache(pool), roots, plugin=plugin) as storage:
        expected = write_pages(pool, indices, seed=3)
        assert all(storage.batch_set_v1(keys, indices))
        target = pool.pages(PAGES, seed=5)
        for _ in range(2):
            assert storage.batch_exists(keys) == PAGES
            assert storage.batch_get_v1(keys, target) == others
        before = causes_of(storage, "get")
        assert before.get("marked", 0) == 0
        # The plugin's rule is used up: a read would succeed. The mark alone makes it a miss.
        assert storage.batch_get_v1(keys, target) == others
        assert causes_of(storage, "get")["marked"] == 1
        assert storage.batch_exists(keys) == bad
        pool.poison_host()
        expected = write_pages(pool, indices, seed=3)
        assert storage.batch_set_v1(keys, indices) == [True] * PAGES
        assert storage.batch_exists(keys) == PAGES
        assert read_pages(storage, pool, keys) == expected


# ---------------------------------------------------------------- R24: hit policies


TRIAL_PAGES = 12
SEED_OF_TRIALS = 20_260


def trial_cache() -> HostCache:
    """Small pools: KV, a sliding window, Mamba states, and one whose pages are all needed."""
    geometry = {"page": 2, "heads": 1, "layers": 1, "tokens": 128, "aligned": False}
    side = [make_mha("page_first", name=name, **geometry)
            for name in (PoolName.SWA, PoolName.INDEXER)]
    for pool in side:
        pool.host.index_k_with_scale_buffer = pool.host.kv_buffer  # where host_tensors() looks
    return HostCache(make_mha("page_first", **geometry),
                     (side[0], make_mamba("page_first", aligned=False), side[1]))


def trial_query(draw: random.Random, cache: HostCache, keys: list[str]) -> list[PoolTransfer]:
    """Some of the side pools in some order, each with a policy and a window."""
    sides = draw.sample(cache.sides, draw.randint(1, len(cache.sides)))
    query = []
    for pool in sides:
        policy = draw.choice([PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES])
        window = draw.choice([0, 1, 1, 2, 3, 5])
        query.append(PoolTransfer(pool.name, keys=keys[len(keys) - window:] if window else None,
                                  hit_policy=policy))
    return query


def test_r24_hit_policies_as_hicachefile_has_them(kvcellar: Any, scratch: Path) -> None:
    """Random holes in KV and three side pools: the same answers as SGLang's own file backend."""
    draw = random.Random(SEED_OF_TRIALS)
    roots, file_roots = make_roots(scratch / "kvcellar", 1), make_roots(scratch / "file", 1)
    cache = trial_cache()
    indices = {pool.name: pool.pages(TRIAL_PAGES, seed=2) for pool in cache.pools}
    seen: set[int] = set()
    with kvcellar.open(storage_config(), cache, roots) as ours, \
            SUBJECTS["file"].open(storage_config(), cache, file_roots) as theirs:
        for trial in range(80):
            keys = make_keys(f"trial {trial}", TRIAL_PAGES)
            for pool in cache.pools:
                chance = draw.choice([0.0, 0.5, 0.8, 0.95, 1.0])
                present = [n for n in range(TRIAL_PAGES)
                           if draw.random() < (0.9 if pool is cache.anchor else chance)]
                if not present:
                    continue
                stored = [keys[n] for n in present]
                rows = indices[pool.name].view(TRIAL_PAGES, -1)[present].reshape(-1)
                if pool is cache.anchor:
                    assert all(ours.batch_set_v1(stored, rows))
                else:
                    assert all(ours.batch_set_v2([side_transfer(pool, stored, rows)])[pool.name])
                file_pool = {PoolName.KV: cache.anchor.host}
                theirs.registered_pools.update(file_pool)
                assert all(theirs.batch_set_v2([side_transfer(pool, stored, rows)])[pool.name])
            query = trial_query(draw, cache, keys)
            want = theirs.batch_exists_v2(keys, query)
            got = ours.batch_exists_v2(keys, query)
            assert (got.kv_hit_pages, got.restorable_prefix_pages) == (
                want.kv_hit_pages, want.restorable_prefix_pages), f"trial {trial}"
            assert got.extra_pool_hit_pages == want.extra_pool_hit_pages, f"trial {trial}"
            assert ours.batch_exists(keys) == want.extra_pool_hit_pages.get(PoolName.KV, 0)
            seen.add(got.kv_hit_pages)
    assert len(seen) > TRIAL_PAGES // 2, "the trials were all alike"


# ---------------------------------------------------------------- R32: threads


class Traffic:
    """Setters, getters and a caller of exists on one storage, each in pages of its own.

    The bytes of a page follow from its key, so that each get can be checked.
    """

    PER_CALL = 8
    KEYS = 200

    def __init__(self, storage: Any, pool: PoolPair) -> None:
        self.storage, self.pool = storage, pool
        self.keys = make_keys("r32", self.KEYS)
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.pages_read = 0
        self.calls = dict.fromkeys(("set", "get", "exists"), 0)
        self.page_bytes = len(pool.host_pages(pool.pages(1))[0])

    def contents(self, key: str) -> torch.Tensor:
        block = hashlib.sha256(key.encode()).digest()
        repeated = block * (self.page_bytes // len(block) + 1)
        return torch.frombuffer(bytearray(repeated[: self.page_bytes]), dtype=torch.uint8)

    def region(self, worker: int) -> torch.Tensor:
        """Pages that only this worker uses."""
        tokens = self.pool.page_tokens
        first = (1 + worker * self.PER_CALL) * tokens
        return torch.arange(first, first + self.PER_CALL * tokens)

    def set(self, draw: random.Random, region: torch.Tensor) -> None:
        chosen = draw.sample(self.keys, self.PER_CALL)
        for key, first in zip(chosen, region[:: self.pool.page_tokens]):
            page = self.contents(key).view(self.pool.host.dtype)
            self.pool.host.set_from_flat_data_page(int(first), page)
        if self.storage.batch_set_v1(chosen, region) != [True] * self.PER_CALL:
            self.failures.append("a set failed")

    def get(self, draw: random.Random, region: torch.Tensor) -> None:
        chosen = draw.sample(self.keys, self.PER_CALL)
        ok = self.storage.batch_get_v1(chosen, region)
        for key, good, page in zip(chosen, ok, self.pool.host_pages(region), strict=True):
            if good:
                self.pages_read += 1
                if page != self.contents(key).numpy().tobytes():
                    self.failures.append(f"{key}: wrong bytes")

    def exists(self, draw: random.Random, region: torch.Tensor) -> None:
        chosen = draw.sample(self.keys, self.PER_CALL)
        count = self.storage.batch_exists(chosen)
        if not 0 <= count <= self.PER_CALL:
            self.failures.append(f"exists: {count}")

    def work(self, operation: str, worker: int) -> None:
        draw, region = random.Random(worker), self.region(worker)
        try:
            while not self.stop.is_set() and not self.failures:
                getattr(self, operation)(draw, region)
                self.calls[operation] += 1
        except Exception as error:
            self.failures.append(f"{operation}: {type(error).__name__}: {error}")

    def run(self, seconds: float) -> None:
        workers = [
            threading.Thread(target=self.work, args=(operation, number))
            for number, operation in enumerate(("set", "set", "get", "get", "exists"))
        ]
        for worker in workers:
            worker.start()
        self.stop.wait(seconds)
        self.stop.set()
        for worker in workers:
            worker.join()
        assert not self.failures, self.failures[:5]
        assert self.pages_read > 0 and all(self.calls.values()), self.calls


@pytest.mark.parametrize("layout, seconds", [
    pytest.param("page_first", 1.5, id="short-page_first"),
    pytest.param("layer_first", 1.5, id="short-layer_first"),
    pytest.param("page_first", 60, id="long-page_first", marks=pytest.mark.long),
])
def test_r32_threads(kvcellar: Any, roots: list[Path], layout: str, seconds: float) -> None:
    """2 setters, 2 getters and exists on one storage: no failure, no wrong byte."""
    pool = make_mha(layout)
    with kvcellar.open(storage_config(), HostCache(pool), roots) as storage:
        Traffic(storage, pool).run(seconds)


def test_r32_close_beside_calls(kvcellar: Any, roots: list[Path]) -> None:
    """close() while five threads are at work: their calls end as misses, without exceptions."""
    pool = make_mha("page_first")
    for _ in range(5):
        with kvcellar.open(storage_config(), HostCache(pool), roots) as storage:
            traffic = Traffic(storage, pool)
            closer = threading.Timer(0.1, storage.close)
            closer.start()
            with contextlib.suppress(AssertionError):
                traffic.run(0.3)
            closer.join()
            wrong = [text for text in traffic.failures if text != "a set failed"]
            assert not wrong, wrong[:5]
            assert storage.batch_exists(traffic.keys) == 0
            assert storage.batch_set_v1(traffic.keys[:1], pool.pages(1)) == [False]


# ---------------------------------------------------------------- R34: a busy Python thread


class Spinner:
    """A Python thread that never stops computing, as SGLang's scheduler does.

    INTERVAL_S: who wants the interpreter back from it has to wait for so long. Nobody else is made
    to give it up within a call, so that the thread runs only while a call has released it.
    """

    INTERVAL_S = 0.25

    def __init__(self) -> None:
        self.turns = 0
        self.stop = False
        self.thread = threading.Thread(target=self.spin)

    def spin(self) -> None:
        while not self.stop:
            self.turns += 1

    def __enter__(self) -> Spinner:
        self.interval = sys.getswitchinterval()
        sys.setswitchinterval(self.INTERVAL_S)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop = True
        self.thread.join()
        sys.setswitchinterval(self.interval)

    def hand_overs(self, calls: list[Callable[[], Any]]) -> int:
        """How often a call gives the interpreter away: the times that it has to wait for it.

        A busy machine can only make a call look longer: the least of several equal calls counts.
        """

        def once(call: Callable[[], Any]) -> int:
            started = time.monotonic()
            call()
            return int((time.monotonic() - started) / self.INTERVAL_S)

        return min(once(call) for call in calls)


def busy_turns(kvcellar: Any, roots: list[Path], operation: str) -> int:
    """How far a busy Python thread comes beside I/O that takes a third of a second."""
    pool = make_mha("page_first")
    keys = make_keys("r34", PAGES)
    indices = pool.pages(PAGES, seed=2)
    rules = f"{operation} stall_ms=300 name={kvcellar.page_names} count={PAGES}"
    plugin = {"fault": {"active": True, "lower": "posix", "seed": 1, "rules": rules}}
    with kvcellar.open(storage_config(), HostCache(pool), roots, plugin=plugin) as storage:
        calls = {
            "write": lambda: storage.batch_set_v1(keys, indices),
            "stat": lambda: storage.batch_exists(keys),
            "read": lambda: storage.batch_get_v1(keys, indices),
        }
        if operation == "read":
            assert all(calls["write"]())
        with Spinner() as spinner:
            before = spinner.turns
            calls[operation]()
            return spinner.turns - before


@pytest.mark.layouts("packed", "files")
@pytest.mark.parametrize("operation", ("read", "write"))
def test_r34_the_interpreter_runs_during_io(kvcellar: Any, roots: list[Path],
                                            operation: str) -> None:
    assert busy_turns(kvcellar, roots, operation) > 10_000


@pytest.mark.layouts("files")
def test_r34_the_interpreter_runs_during_exists(kvcellar: Any, roots: list[Path]) -> None:
    assert busy_turns(kvcellar, roots, "stat") > 10_000


@pytest.mark.layouts("packed", "files")
@pytest.mark.parametrize("layout", ("page_first", "layer_first"))
def test_r34_one_hand_over_per_call(kvcellar: Any, roots: list[Path], layout: str) -> None:
    """The interpreter is given away once in a call, whether it is of 1 page or of 128; and not at
    all where the index of a packed root tells what exists.

    Each operation takes some ms, so that the busy thread is awake before the interpreter is wanted
    back: every release shows.
    """
    many, runs = 128, 2
    pool = make_mha(layout, page=2, tokens=1024, layers=2)
    indices = pool.pages(many, seed=2)
    write_pages(pool, indices, seed=1)
    rules = f"any delay_ms=5 name={kvcellar.page_names}"
    plugin = {"fault": {"active": True, "lower": "mem", "seed": 1, "rules": rules}}
    counts: dict[tuple[str, int], int] = {}
    with kvcellar.open(storage_config(), HostCache(pool), roots, plugin=plugin) as storage, \
            Spinner() as spinner:
        for count in (1, many):
            rows = indices[: count * pool.page_tokens]
            keys = [make_keys(f"hand-over {count} {run}", count) for run in range(runs)]
            for operation, call in (
                ("set", lambda some: storage.batch_set_v1(some, rows)),
                ("exists", storage.batch_exists),
                ("get", lambda some: storage.batch_get_v1(some, rows)),
            ):
                calls = [functools.partial(call, some) for some in keys]
                counts[operation, count] = spinner.hand_overs(calls)
            assert all(storage.batch_exists(some) == count for some in keys)
    # Fewer where the machine was too busy for the other thread.
    assert max(counts.values()) <= 1, counts
    if kvcellar.layout == "packed":
        assert counts["exists", 1] == counts["exists", many] == 0, counts
