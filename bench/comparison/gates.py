# SPDX-License-Identifier: Apache-2.0
"""What kvcellar has to reach, in one table."""
from collections.abc import Iterator
from typing import NamedTuple

KVCELLAR, NIXL, NIXL_DEFAULT, FILE, FIO = (
    "kvcellar", "HiCacheNixl", "HiCacheNixl default", "HiCacheFile", "fio")
K, M = 1 << 10, 1 << 20
QUIET, BUSY = "quiet", "busy"
ALONE = "spinner alone"  # samples of a busy thread that nobody disturbs, by switch interval


class Gate(NamedTuple):
    """A demand on every cell of places x sizes x modes x ops.

    measure "time": peer's median time / kvcellar's is at least `limit`;
    measure "cpu": kvcellar's median CPU time / peer's is at most `limit`.
    """

    places: tuple[str, ...]
    sizes: tuple[int, ...]
    modes: tuple[str, ...]
    ops: tuple[str, ...]
    peer: str
    measure: str
    limit: float

    def text(self) -> str:
        """The demand as a table shows it."""
        return f">= {self.limit:g}x" if self.measure == "time" else f"<= {self.limit:g}x"

    def met(self, ratio: float) -> bool:
        """Whether a ratio in the sense of `measure` satisfies the gate."""
        return ratio >= self.limit if self.measure == "time" else ratio <= self.limit


ALL_SIZES, BOTH, SET_GET = (64 * K, 256 * K, M), (QUIET, BUSY), ("set", "get")
GATES = (
    Gate(("fast",), (64 * K,), (QUIET,), ("set",), NIXL, "time", 1.05),
    Gate(("fast",), (256 * K,), (QUIET,), ("set",), NIXL, "time", 1.05),
    Gate(("fast",), (M,), BOTH, ("set",), NIXL, "time", 0.95),
    Gate(("fast",), (64 * K,), (BUSY,), ("set",), NIXL, "time", 3.5),
    Gate(("fast",), (256 * K,), (BUSY,), ("set",), NIXL, "time", 2),
    Gate(("fast",), (64 * K,), (QUIET,), ("get",), NIXL, "time", 1.05),
    Gate(("fast",), (256 * K,), (QUIET,), ("get",), NIXL, "time", 1.1),
    Gate(("fast",), (M,), BOTH, ("get",), NIXL, "time", 0.95),
    Gate(("fast",), (64 * K,), (BUSY,), ("get",), NIXL, "time", 4),
    Gate(("fast",), (256 * K,), (BUSY,), ("get",), NIXL, "time", 2),
    Gate(("real",), ALL_SIZES, (QUIET,), SET_GET, NIXL, "time", 0.95),
    Gate(("real",), (256 * K, M), (QUIET,), SET_GET, FIO, "time", 0.85),
    Gate(("tmpfs",), (64 * K,), BOTH, SET_GET, NIXL, "time", 1.5),
    Gate(("tmpfs",), (256 * K, M), BOTH, SET_GET, NIXL, "time", 1.3),
    Gate(("real", "fast", "tmpfs"), ALL_SIZES, (QUIET,), ("exists_hit", "exists_miss"), NIXL,
         "time", 10),
    Gate(("fast",), (64 * K,), (QUIET,), ("set",), NIXL, "cpu", 0.7),
    Gate(("fast",), (64 * K,), (QUIET,), ("get",), NIXL, "cpu", 1.0),
)


def gates_of(place: str, size: int, mode: str, op: str) -> Iterator[Gate]:
    """The gates of one cell."""
    for gate in GATES:
        if place in gate.places and size in gate.sizes and mode in gate.modes and op in gate.ops:
            yield gate
