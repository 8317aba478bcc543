# SPDX-License-Identifier: Apache-2.0
"""What kvcellar has to reach, in one table for each storage layout."""
from collections.abc import Iterator
from typing import NamedTuple

KVCELLAR, PACKED, PACKED_BARE = "kvcellar", "kvcellar-packed", "kvcellar-packed no checksum"
NIXL, NIXL_DEFAULT, FILE = "HiCacheNixl", "HiCacheNixl default", "HiCacheFile"
FIO, FIO_SLOTS = "fio", "fio slots"  # new files; one written file, from registered buffers
OURS = (KVCELLAR, PACKED, PACKED_BARE)
K, M = 1 << 10, 1 << 20
QUIET, BUSY = "quiet", "busy"
ALONE = "spinner alone"  # samples of a busy thread that nobody disturbs, by switch interval
RATIOS = ("time", "cpu")


class Gate(NamedTuple):
    """A demand on every cell of places x sizes x modes x ops.

    measure "time": peer's median time / the case's is at least `limit`;
    measure "cpu": the case's median CPU time / peer's is at most `limit`;
    measure "us": the case's median time is at most `limit` microseconds; no peer;
    measure "cpu_us": its CPU time per part is at most `limit` microseconds; no peer.
    """

    places: tuple[str, ...]
    sizes: tuple[int, ...]
    modes: tuple[str, ...]
    ops: tuple[str, ...]
    peer: str
    measure: str
    limit: float
    aim: float = 0  # what is hoped for beyond the limit; 0 = nothing
    case: str = KVCELLAR

    def text(self) -> str:
        """The demand as a table shows it."""
        sign = ">=" if self.measure == "time" else "<="
        aim = f" (aim {self.number(self.aim)})" if self.aim else ""
        return f"{sign} {self.number(self.limit)}{aim}"

    def number(self, value: float) -> str:
        """A value of the gate's measure with its unit."""
        return f"{value:.3g}x" if self.measure in RATIOS else f"{value:.3g} us"

    def met(self, value: float) -> bool:
        """Whether a value in the sense of `measure` satisfies the gate."""
        return value >= self.limit if self.measure == "time" else value <= self.limit


ALL_SIZES, BOTH, SET_GET = (64 * K, 256 * K, M), (QUIET, BUSY), ("set", "get")
EVERYWHERE, DISKS, EXISTS = ("real", "fast", "tmpfs"), ("real", "fast"), ("exists_hit",
                                                                          "exists_miss")
FILE_GATES = (
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
    Gate(EVERYWHERE, ALL_SIZES, (QUIET,), EXISTS, NIXL, "time", 10),
    Gate(("fast",), (64 * K,), (QUIET,), ("set",), NIXL, "cpu", 0.7),
    Gate(("fast",), (64 * K,), (QUIET,), ("get",), NIXL, "cpu", 1.0),
)

CHECKSUM_US_PER_KIB = 0.14
BARE_CPU_US = {64 * K: 8, 256 * K: 12, M: 30}  # per part, without the checksum


def cpu_us_limit(size: int, checksum: bool) -> float:
    """CPU time of a part of one of the sizes of BARE_CPU_US."""
    return BARE_CPU_US[size] + (size / K * CHECKSUM_US_PER_KIB if checksum else 0)


def _packed(places: tuple[str, ...], size: int, modes: tuple[str, ...], op: str, limit: float,
            aim: float = 0) -> Gate:
    return Gate(places, (size,), modes, (op,), NIXL, "time", limit, aim, PACKED)


def _cpu(size: int) -> tuple[Gate, Gate]:
    return (Gate(DISKS, (size,), (QUIET,), SET_GET, "", "cpu_us", cpu_us_limit(size, False),
                 case=PACKED_BARE),
            Gate(DISKS, (size,), (QUIET,), SET_GET, "", "cpu_us", cpu_us_limit(size, True),
                 case=PACKED))


PACKED_GATES = (
    _packed(("fast",), 64 * K, (QUIET,), "set", 1.9, 2.4),
    _packed(("fast",), 64 * K, (BUSY,), "set", 5, 6.5),
    _packed(("fast",), 256 * K, (QUIET,), "set", 1.4, 1.9),
    _packed(("fast",), 256 * K, (BUSY,), "set", 2.5),
    _packed(("fast",), M, BOTH, "set", 1.2),
    _packed(("fast",), 64 * K, (QUIET,), "get", 1.4, 1.7),
    _packed(("fast",), 64 * K, (BUSY,), "get", 5, 6.5),
    _packed(("fast",), 256 * K, (QUIET,), "get", 1.2, 1.5),
    _packed(("fast",), 256 * K, (BUSY,), "get", 2.5),
    _packed(("fast",), M, BOTH, "get", 0.95),
    _packed(("real",), 64 * K, (QUIET,), "set", 1.6, 2.4),
    _packed(("real",), 256 * K, (QUIET,), "set", 1.1),
    _packed(("real",), M, (QUIET,), "set", 1.05),
    Gate(("real",), ALL_SIZES, (QUIET,), ("get",), NIXL, "time", 0.95, case=PACKED),
    Gate(DISKS, ALL_SIZES, (QUIET,), SET_GET, FIO_SLOTS, "time", 0.8, 0.95, PACKED),
    Gate(("tmpfs",), (64 * K,), BOTH, SET_GET, NIXL, "time", 2.5, case=PACKED),
    Gate(("tmpfs",), (256 * K,), BOTH, SET_GET, NIXL, "time", 1.7, case=PACKED),
    Gate(("tmpfs",), (M,), BOTH, SET_GET, NIXL, "time", 1.5, case=PACKED),
    Gate(EVERYWHERE, ALL_SIZES, BOTH, EXISTS, NIXL, "time", 50, case=PACKED),
    Gate(EVERYWHERE, ALL_SIZES, BOTH, EXISTS, "", "us", 60, case=PACKED),
    *_cpu(64 * K), *_cpu(256 * K), *_cpu(M),
)
GATES = FILE_GATES + PACKED_GATES


def gates_of(place: str, size: int, mode: str, op: str) -> Iterator[Gate]:
    """The gates of one cell."""
    for gate in GATES:
        if place in gate.places and size in gate.sizes and mode in gate.modes and op in gate.ops:
            yield gate
