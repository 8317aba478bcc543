# SPDX-License-Identifier: Apache-2.0
"""One directory, two programs: SGLang's own HiCacheNixl over the real NIXL, and kvcellar with
naming = "nixl". What either writes, the other reads; both make the same files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_roots
from pools import (
    LAYOUT_AND_IO,
    HostCache,
    make_dsa,
    make_keys,
    make_mamba,
    make_mha,
    make_mla,
    randomise,
    side_transfer,
    storage_config,
)
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName
from subjects import KVCELLAR, SUBJECTS, stored_files

pytest.importorskip("nixl", reason="NIXL is not installed")

pytestmark = pytest.mark.usefixtures("one_rank", "kvcellar")

PAGES = 7
SIDE_PAGES = 3
TRAILER_BYTES = 4096


def make_cache(kind: str, layout: str) -> HostCache:
    """Pools of one kind. "odd": K and V are no multiples of 4096, so that O_DIRECT needs copies."""
    if kind == "dsa":
        anchor, indexer = make_dsa(layout)
        return HostCache(anchor, (indexer,))
    if kind.startswith("mla"):
        return HostCache(make_mla(layout, aligned=kind == "mla"))
    anchor = make_mha(layout, aligned="odd" not in kind)
    if kind == "swa":
        return HostCache(anchor, (make_mha(layout, layers=2, name=PoolName.SWA),))
    if kind == "mamba":
        return HostCache(anchor, (make_mamba(layout),))
    return HostCache(anchor)


def config_of(kind: str, **changes: Any) -> Any:
    return storage_config(is_mla_model=kind.startswith("mla") or kind == "dsa", **changes)


@contextmanager
def opened(program: str, kind: str, cache: HostCache, roots: list[Path], *, direct_io: bool = True,
           **options: Any) -> Iterator[Any]:
    """One of the two programs over the same directories, named by HiCacheNixl's variable."""
    nixl, kvcellar = SUBJECTS["nixl"], KVCELLAR["files"]
    config = config_of(kind)
    if program == "nixl":
        with nixl.open(config, cache, roots, use_direct_io=direct_io) as storage:
            yield storage
        return
    options = {"naming": "nixl", "verify": "if-present", **options}
    options = kvcellar.options(roots, use_direct_io=direct_io, **options)
    del options["storage_dirs"]
    config.extra_config = options
    with nixl.environ(roots):
        storage = kvcellar.construct(config)
    try:
        cache.register(storage)
        yield storage
    finally:
        storage.close()


class Pages:
    """Random pages in all pools of a cache, and what they hold."""

    def __init__(self, cache: HostCache, seed: int = 31) -> None:
        self.cache = cache
        self.keys = make_keys("interop", PAGES)
        self.side_keys = self.keys[PAGES - SIDE_PAGES:]
        self.sources = []
        for number, pool in enumerate(cache.pools):
            count = PAGES if number == 0 else SIDE_PAGES
            indices = pool.pages(count, seed=2)
            generator = torch.Generator().manual_seed(seed + number)
            for tensor in pool.host_tensors():
                randomise(tensor, generator)
            self.sources.append(indices)
        self.expected = [
            pool.host_pages(indices) for pool, indices in zip(cache.pools, self.sources)
        ]

    def transfers(self, indices: list[torch.Tensor] | None) -> list[Any]:
        return [
            side_transfer(pool, self.side_keys, indices[number] if indices else None,
                          PoolHitPolicy.TRAILING_PAGES)
            for number, pool in enumerate(self.cache.sides, 1)
        ]

    def store(self, storage: Any) -> None:
        """Side pools first, as SGLang does it."""
        if self.cache.sides:
            stored = storage.batch_set_v2(self.transfers(self.sources))
            assert stored == {pool.name: [True] * SIDE_PAGES for pool in self.cache.sides}
        assert storage.batch_set_v1(self.keys, self.sources[0]) == [True] * PAGES

    def assert_found(self, storage: Any) -> None:
        """Everything is there, and comes back byte for byte into other pages."""
        assert storage.batch_exists([*self.keys, *make_keys("none", 1)]) == PAGES
        if self.cache.sides:
            found = storage.batch_exists_v2(self.keys, self.transfers(None))
            assert found.kv_hit_pages == PAGES
        targets = []
        for pool, source in zip(self.cache.pools, self.sources):
            pool.poison_host()
            targets.append(pool.pages(len(source) // pool.page_tokens, seed=5))
        assert storage.batch_get_v1(self.keys, targets[0]) == [True] * PAGES
        if self.cache.sides:
            got = storage.batch_get_v2(self.transfers(targets))
            assert got == {pool.name: [True] * SIDE_PAGES for pool in self.cache.sides}
        for pool, target, expected in zip(self.cache.pools, targets, self.expected):
            assert pool.host_pages(target) == expected
            pool.assert_untouched_but(target)


CASES = [
    pytest.param(kind, layout, direct_io, count, id="-".join((
        kind, layout, "odirect" if direct_io else "buffered", f"{count}roots")))
    for kind, (layout, _), direct_io, count in product(
        ("mha", "mha-odd", "mla", "mla-odd", "swa", "mamba", "dsa"),
        [case for case in LAYOUT_AND_IO if case != ("layer_first", "direct")],
        (True, False),
        (1, 3),
    )
    if not (layout == "page_head" and kind in ("mla", "mla-odd", "mamba", "dsa"))
    and not (layout == "layer_first" and kind == "mamba")
    # HiCacheNixl stores these side pools under names that its own exists does not ask for (swa), or
    # raises (dsa): there is nothing to agree with.
    and not (layout == "layer_first" and kind in ("swa", "dsa") and not direct_io)
    and (kind == "mha" or count == (3 if layout in ("page_first_direct", "page_head") else 1))
]


@pytest.mark.parametrize("kind, layout, direct_io, count", CASES)
def test_both_ways(scratch: Path, kind: str, layout: str, direct_io: bool, count: int) -> None:
    """HiCacheNixl writes and kvcellar reads; kvcellar writes and HiCacheNixl reads."""
    cache = make_cache(kind, layout)
    pages = Pages(cache)
    theirs, ours = make_roots(scratch / "theirs", count), make_roots(scratch / "ours", count)
    for writer, reader, roots in (("nixl", "kvcellar", theirs), ("kvcellar", "nixl", ours)):
        with opened(writer, kind, cache, roots, direct_io=direct_io) as storage:
            pages.store(storage)
        with opened(reader, kind, cache, roots, direct_io=direct_io) as storage:
            pages.assert_found(storage)
        pages = Pages(cache)
    assert names_of(theirs) == names_of(ours)
    if count > 1:
        assert len({path.split("/")[0] for path in names_of(ours)}) > 1


def names_of(roots: list[Path]) -> list[str]:
    """Root, hash folder and name of each object."""
    return sorted(
        f"{number}/{path.relative_to(root)}"
        for number, root in enumerate(roots)
        for path in stored_files(root)
    )


@pytest.mark.parametrize("kind", ("mha", "mla"))
def test_ranks_have_the_same_names(scratch: Path, kind: str) -> None:
    """Rank and size are in the names as HiCacheNixl has them."""
    cache = make_cache(kind, "page_first")
    names = []
    for program in ("nixl", "kvcellar"):
        pages = Pages(cache)
        [root] = make_roots(scratch / program, 1)
        for tp_rank in (0, 1):
            config = config_of(kind, tp_rank=tp_rank, tp_size=2, model_name="a/b/c")
            subject = KVCELLAR["files"] if program == "kvcellar" else SUBJECTS[program]
            naming = {"naming": "nixl"} if program == "kvcellar" else {}
            with subject.open(config, cache, [root], **naming) as storage:
                pages.store(storage)
        names.append(names_of([root]))
    assert names[0] == names[1]
    assert len(names[0]) == PAGES * (4 if kind == "mha" else 1)


def test_without_permission_to_trust(scratch: Path) -> None:
    """With verify = "require" a file of HiCacheNixl is a miss and stays; a set replaces it."""
    cache = make_cache("mha", "page_first")
    pages = Pages(cache)
    roots = make_roots(scratch, 1)
    with opened("nixl", "mha", cache, roots) as storage:
        pages.store(storage)
    bare = {path: path.stat().st_size for path in stored_files(roots[0])}
    with opened("kvcellar", "mha", cache, roots, verify="require") as storage:
        assert storage.batch_exists(pages.keys) == 0
        target = cache.anchor.pages(PAGES, seed=5)
        assert storage.batch_get_v1(pages.keys, target) == [False] * PAGES
        assert {path: path.stat().st_size for path in stored_files(roots[0])} == bare
        pages = Pages(cache)
        pages.store(storage)
    grown = {path: path.stat().st_size for path in stored_files(roots[0])}
    assert grown == {path: size + TRAILER_BYTES for path, size in bare.items()}
    with opened("kvcellar", "mha", cache, roots, verify="require") as storage:
        pages.assert_found(storage)
    pages = Pages(cache)
    with opened("nixl", "mha", cache, roots) as storage:
        pages.assert_found(storage)


def test_half_and_half(scratch: Path) -> None:
    """Two servers fill one directory together, and each finds all of it."""
    cache = make_cache("mha", "page_first_direct")
    pages = Pages(cache)
    roots = make_roots(scratch, 3)
    tokens = cache.anchor.page_tokens
    with opened("nixl", "mha", cache, roots) as theirs, \
            opened("kvcellar", "mha", cache, roots) as ours:
        for number, storage in enumerate((theirs, ours)):
            mine = list(range(number, PAGES, 2))
            indices = pages.sources[0].view(PAGES, tokens)[mine].reshape(-1)
            keys = [pages.keys[n] for n in mine]
            assert storage.batch_set_v1(keys, indices) == [True] * len(mine)
        pages.assert_found(ours)
        pages.assert_found(theirs)


@pytest.mark.parametrize("damage", ("empty", "half", "longer"))
def test_files_of_another_size(scratch: Path, damage: str) -> None:
    """Files that HiCacheNixl left empty, cut off or too long are misses, also without a trailer."""
    cache = make_cache("mha", "page_first")
    pages = Pages(cache)
    roots = make_roots(scratch, 1)
    with opened("nixl", "mha", cache, roots) as storage:
        pages.store(storage)
    [victim] = [p for p in stored_files(roots[0]) if re.match(pages.keys[2] + ".*_v$", p.name)]
    whole = victim.read_bytes()
    damaged = {"empty": b"", "half": whole[: len(whole) // 2], "longer": whole * 2}
    victim.write_bytes(damaged[damage])
    with opened("kvcellar", "mha", cache, roots) as storage:
        assert storage.batch_exists(pages.keys) == 2
        target = cache.anchor.pages(PAGES, seed=5)
        assert storage.batch_get_v1(pages.keys, target) == [n != 2 for n in range(PAGES)]
        assert victim.exists()
        pages = Pages(cache)
        pages.store(storage)
        pages.assert_found(storage)
    pages = Pages(cache)
    with opened("nixl", "mha", cache, roots) as storage:
        pages.assert_found(storage)


def test_clear_leaves_what_is_not_ours(scratch: Path) -> None:
    """clear() of one model in a shared directory: its pages go, files of others stay."""
    cache = make_cache("mha", "page_first")
    pages = Pages(cache)
    roots = make_roots(scratch, 1)
    foreign = roots[0] / "notes.txt"
    foreign.write_text("not a page")
    with opened("kvcellar", "mha", cache, roots) as storage:
        pages.store(storage)
        config = config_of("mha", model_name="org/other")
        kvcellar = KVCELLAR["files"]
        with kvcellar.open(config, cache, roots, naming="nixl") as other:
            assert all(other.batch_set_v1(pages.keys, pages.sources[0]))
            assert storage.clear() is not False
            assert storage.batch_exists(pages.keys) == 0
            assert other.batch_exists(pages.keys) == PAGES
    assert foreign.read_text() == "not a page"
