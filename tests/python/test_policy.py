# SPDX-License-Identifier: Apache-2.0
"""Hit policies: which prefix every pool can restore."""

import random
from typing import Any

import pytest

import kvcellar

Pools = list[tuple[bytes, str, int]]


def can_restore(pool: tuple[bytes, str, int], pages: int) -> bool:
    """The definition, page by page."""
    present, policy, group = pool
    group = group or 1
    if policy == "all_pages":
        return all(present[:pages])
    if policy == "trailing_pages":
        return all(present[max(0, pages - group):pages])
    return all(present[:pages]) and pages % group == 0


def restorable(pools: Pools, page_count: int) -> list[int]:
    return [n for n in range(1, page_count + 1) if all(can_restore(pool, n) for pool in pools)]


@pytest.mark.parametrize(("pools", "expected"), [
    ([(b"\1\1\0\1", "all_pages", 0)], [1, 2]),
    ([(b"\0\0\0\1", "trailing_pages", 1)], [4]),
    ([(b"\1\1\1\1", "block_groups", 2)], [2, 4]),
    ([(b"\1\1\1\0", "all_pages", 0), (b"\0\1\0\1", "trailing_pages", 1)], [2]),
    ([(b"\0\1\1\1", "all_pages", 0)], []),
])
def test_examples(pools: Pools, expected: list[int]) -> None:
    assert kvcellar.policy_restorable(pools, 4) == expected
    assert kvcellar.policy_prefix(pools, 4) == max(expected, default=0)


def test_random_pools_against_the_definition() -> None:
    for seed in range(400):
        chance = random.Random(seed)
        page_count = chance.randrange(0, 20)
        density = chance.choice((0.5, 0.8, 0.97))
        pools = [(bytes(chance.random() < density for _ in range(page_count)),
                  chance.choice(("all_pages", "trailing_pages", "block_groups")),
                  chance.randrange(0, 6)) for _ in range(chance.randrange(1, 4))]
        expected = restorable(pools, page_count)
        assert kvcellar.policy_restorable(pools, page_count) == expected, seed
        assert kvcellar.policy_prefix(pools, page_count) == max(expected, default=0), seed


def test_no_pool_asks_for_nothing() -> None:
    assert kvcellar.policy_prefix([], 3) == 3
    assert kvcellar.policy_prefix([(b"", "all_pages", 1)], 0) == 0
    assert kvcellar.policy_restorable([], 0) == []


def test_many_pages() -> None:
    """So many that other threads run meanwhile."""
    pages = 3 << 16
    pools = [(b"\1" * pages, "block_groups", 4)]
    assert kvcellar.policy_prefix(pools, pages) == pages
    assert kvcellar.policy_restorable(pools, pages) == list(range(4, pages + 1, 4))


@pytest.mark.parametrize(("pools", "page_count", "error", "text"), [
    ([(b"\1", "all_pages", 1)], 2, kvcellar.ConfigError,
     r"pools\[0\] has 1 pages, page_count is 2"),
    ([(b"\1", "some_pages", 1)], 1, kvcellar.ConfigError, r"pools\[0\] = 'some_pages': one of"),
    ([(b"\1", "all_pages", -1)], 1, kvcellar.ConfigError, r"pools\[0\] = -1"),
    ([(b"\1", "all_pages")], 1, kvcellar.ConfigError, r"pools\[0\]: \(present, policy, pages\)"),
    ([([True], "all_pages", 1)], 1, TypeError, r"pools\[0\]: bytes, one per page, expected"),
    ([(b"\1", 1, 1)], 1, TypeError, r"pools\[0\]: a str expected"),
    (["pool"], 1, kvcellar.ConfigError, r"pools\[0\]"),
    (5, 1, TypeError, "pools: a sequence expected"),
    ([], -1, kvcellar.ConfigError, "page_count = -1"),
    ([], 2**24 + 1, kvcellar.ConfigError, "page_count = 16777217: at most 16777216"),
    ([], 10**8, kvcellar.ConfigError, "page_count = 100000000: at most"),
    ([], 2**63, kvcellar.ConfigError, "page_count = 9223372036854775808: at most"),
    ([], "1", TypeError, "page_count: an int expected"),
])
def test_wrong_pools(pools: Any, page_count: Any, error: type[Exception], text: str) -> None:
    for call in (kvcellar.policy_prefix, kvcellar.policy_restorable):
        with pytest.raises(error, match=text):
            call(pools, page_count)
