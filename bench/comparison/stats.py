# SPDX-License-Identifier: Apache-2.0
"""Order of a run, and what its samples say. Nothing here needs more than Python."""
import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")
RESAMPLES = 4000
SEED = 20260729
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A value and the ends of its bootstrap interval, in the unit of the samples."""

    value: float
    low: float
    high: float


def rotation(items: Sequence[T], turn: int) -> list[T]:
    """The order of turn `turn`: each item comes to each place, and has its neighbours before and
    after it in turns (every second round of turns runs backwards)."""
    if not items:
        return []
    at = turn % len(items)
    order = [*items[at:], *items[:at]]
    return order[::-1] if (turn // len(items)) % 2 else order


def median_interval(values: Sequence[float], resamples: int = RESAMPLES,
                    seed: int = SEED) -> Interval:
    """Median with its percentile bootstrap interval; values must not be empty."""
    source = random.Random(seed)
    made = [statistics.median(source.choices(values, k=len(values))) for _ in range(resamples)]
    return Interval(statistics.median(values), *_ends(made))


def ratio_interval(above: Mapping[Hashable, float], below: Mapping[Hashable, float],
                   resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """median(above) / median(below) with its percentile bootstrap interval.

    Keys name repetitions. Those that both have are resampled as pairs, so that what slowed both
    down does not widen the interval; when the keys differ, each side is resampled by itself.
    """
    source = random.Random(seed)
    if above.keys() == below.keys():
        pairs = [(above[key], below[key]) for key in above]

        def draw() -> tuple[list[float], list[float]]:
            drawn = source.choices(pairs, k=len(pairs))
            return [pair[0] for pair in drawn], [pair[1] for pair in drawn]
    else:
        tops, bottoms = list(above.values()), list(below.values())

        def draw() -> tuple[list[float], list[float]]:
            return (source.choices(tops, k=len(tops)), source.choices(bottoms, k=len(bottoms)))

    made = [_ratio(*draw()) for _ in range(resamples)]
    return Interval(_ratio(list(above.values()), list(below.values())), *_ends(made))


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    bottom = statistics.median(below)
    return statistics.median(above) / bottom if bottom > 0 else float("inf")


def _ends(made: Sequence[float]) -> tuple[float, float]:
    ranked = sorted(made)
    cut = int(len(ranked) * (1 - CONFIDENCE) / 2)
    return ranked[cut], ranked[len(ranked) - 1 - cut]


def grouped(rows: Sequence[Mapping], key: Callable[[Mapping], Hashable],
            value: str) -> dict[Hashable, dict[int, float]]:
    """{key(row): {rep: row[value]}} of the samples."""
    groups: dict[Hashable, dict[int, float]] = {}
    for row in rows:
        if value in row:
            groups.setdefault(key(row), {})[row["rep"]] = row[value]
    return groups
