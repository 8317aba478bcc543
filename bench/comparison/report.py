# SPDX-License-Identifier: Apache-2.0
"""Markdown of a run: its circumstances, the gates, and every cell."""
import platform
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from .gates import (ALONE, BUSY, FIO, FIO_SLOTS, KVCELLAR, PACKED, PACKED_BARE, QUIET, RATIOS,
                    Gate, gates_of)
from .stats import CONFIDENCE, Interval, grouped, median_interval, ratio_interval

OPS = ("set", "exists_hit", "exists_miss", "get")


class Verdict(NamedTuple):
    """One gate in one cell. value: in the gate's own sense; bound: its unfavourable end."""

    place: str
    size: int
    mode: str
    op: str
    gate: Gate
    value: float
    bound: float
    met: bool


class Run:
    """The samples of a run, by cell. record: what compare.py --json writes."""

    def __init__(self, record: dict[str, Any]):
        self.meta = record["meta"]
        samples = record["samples"]

        def key(row: dict[str, Any]) -> tuple:
            return row["place"], row["size"], row["mode"], row["op"], row["case"]

        def alone(row: dict[str, Any]) -> tuple:
            return row["place"], row["size"], row["op"]

        self.seconds = grouped(samples, key, "seconds")
        self.cpu = grouped(samples, key, "cpu_us")
        self.loops = grouped(samples, key, "loops_s")
        self.alone = grouped([row for row in samples if row["case"] == ALONE], alone, "loops_s")
        self.intervals = self.meta["switch_intervals"]
        self.places = list(dict.fromkeys(row["place"] for row in samples))
        self.sizes = sorted({row["size"] for row in samples})
        self.cases = [case for case in self.meta["cases"]
                      if any(row["case"] == case for row in samples)]
        self._ratios: dict[tuple, Interval] = {}

    def ratio(self, cell: tuple, peer: str, case: str = KVCELLAR) -> Interval | None:
        """Peer's median time / that of a case of ours."""
        return self._ratio("time", self.seconds, (*cell, peer), (*cell, case))

    def cpu_ratio(self, cell: tuple, peer: str, case: str = KVCELLAR) -> Interval | None:
        """A case's median CPU time / peer's."""
        return self._ratio("cpu", self.cpu, (*cell, case), (*cell, peer))

    def judged(self, cell: tuple, gate: Gate) -> Interval | None:
        """What a gate is about, in its unit; None when it was not measured."""
        if gate.measure == "time":
            return self.ratio(cell, gate.peer, gate.case)
        if gate.measure == "cpu":
            return self.cpu_ratio(cell, gate.peer, gate.case)
        values, factor = (self.seconds, 1e6) if gate.measure == "us" else (self.cpu, 1.0)
        found = values.get((*cell, gate.case))
        return median_interval([value * factor for value in found.values()]) if found else None

    def _ratio(self, kind: str, values: dict, above: tuple, below: tuple) -> Interval | None:
        if above not in values or below not in values:
            return None
        known = (kind, above, below)
        if known not in self._ratios:
            self._ratios[known] = ratio_interval(values[above], values[below])
        return self._ratios[known]

    def cells(self) -> Iterator[tuple[str, int, str, str]]:
        """Every (place, size, mode, op) that was measured."""
        for place in self.places:
            for size in self.sizes:
                for mode in (QUIET, BUSY):
                    for op in OPS:
                        if any((place, size, mode, op, case) in self.seconds
                               for case in self.cases):
                            yield place, size, mode, op


def verdicts(run: Run) -> list[Verdict]:
    """Every gate in every cell that was measured."""
    found = []
    for cell in run.cells():
        for gate in gates_of(*cell):
            one = run.judged(cell, gate)
            if one:
                found.append(Verdict(*cell, gate, one.value,
                                     one.low if gate.measure == "time" else one.high,
                                     gate.met(one.value)))
    return found


def size_text(size: int) -> str:
    """65536 -> 64K"""
    return f"{size >> 20}M" if size >= 1 << 20 else f"{size >> 10}K"


def section(record: dict[str, Any], plots: list[str]) -> str:
    """A section of RESULTS.md. plots: paths of the pictures, relative to it."""
    run = Run(record)
    found = verdicts(run)
    parts = [_head(run)]
    for kind in (KVCELLAR, PACKED):
        if kind in run.cases:
            cases = (KVCELLAR,) if kind == KVCELLAR else (PACKED, PACKED_BARE)
            parts += [_gates(kind, [one for one in found if one.gate.case in cases]),
                      _times(run, kind)]
    parts += [_cpu(run), _spinner(run)]
    if plots:
        parts.append("Plots of the latest run: "
                     + ", ".join(f"[{path.rsplit('/', 1)[-1]}]({path})" for path in plots) + ".\n")
    return "\n".join(part for part in parts if part)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _head(run: Run) -> str:
    meta = run.meta
    versions = ", ".join(f"{name} {version}" for name, version in meta["versions"].items())
    systems = ", ".join(f"{name}: {system}" for name, system in meta["file_systems"].items())
    return (f"\n## {meta['date']}, storage classes of SGLang\n\n"
            f"`{meta['command']}`, kernel {meta['kernel']}, {meta['cpus']} CPUs "
            f"({meta['processor']}), {meta['memory_gib']} GiB memory, load average "
            f"{meta['load']:.2f} before; Python {meta['python']}, {versions}; {systems}.\n\n"
            f"MHA pool, page_first, {meta['pages']} new pages of 2 parts, {meta['reps']} "
            "interleaved repetitions, every byte compared; kvcellar: verify = \"require\", files; "
            "kvcellar-packed: at its capacity, so that each set recycles slots; "
            f"busy = with one spinning Python thread. Times are medians in ms of a batch; (x) is "
            f"peer / kvcellar with the lower bound of its {CONFIDENCE:.0%} bootstrap interval. "
            "HiCacheFile reads from the page cache. fio: io_uring, as many bytes per I/O as "
            "kvcellar in new files; fio slots: over one written file, registered buffers, depth "
            "64.\n")


MEASURES = {"time": "time, peer / {}", "cpu": "CPU, {} / peer", "us": "time of a call, {}",
            "cpu_us": "CPU per part, {}"}


def _gates(kind: str, found: list[Verdict]) -> str:
    if not found:
        return ""
    rows = []
    for one in found:
        gate = one.gate
        digits = 2 if gate.measure in RATIOS else 1
        unit = "x" if gate.measure in RATIOS else " us"
        inside = gate.met(one.bound)
        rows.append([one.place, size_text(one.size), one.mode, one.op, gate.peer,
                     MEASURES[gate.measure].format(gate.case), gate.text(),
                     f"{one.value:.{digits}f}{unit}", f"{one.bound:.{digits}f}{unit}",
                     ("yes" if inside else "yes, bound not") if one.met else "**no**"])
    missed = sum(not one.met for one in found)
    return (f"{kind}: {len(found) - missed} of {len(found)} gates are met.\n\n"
            + table(["place", "part", "mode", "op", "peer", "measure", "gate", "value", "bound",
                     "met"], rows))


def _times(run: Run, ours: str) -> str:
    """Times of a layout beside everybody's that stores as it does."""
    others = (PACKED, PACKED_BARE, FIO_SLOTS) if ours == KVCELLAR else (FIO,)
    peers = [case for case in run.cases if case != ours and case not in others
             and not (ours == PACKED and case.startswith(f"{KVCELLAR} @"))]
    rows = []
    for cell in run.cells():
        place, size, mode, op = cell
        if (*cell, ours) not in run.seconds:
            continue
        cells = [place, size_text(size), mode, op, _milliseconds(run, cell, ours)]
        for peer in peers:
            ratio = run.ratio(cell, peer, ours)
            text = _milliseconds(run, cell, peer)
            cells.append(f"{text} ({ratio.value:.2f}, {ratio.low:.2f})" if ratio else text)
        rows.append(cells)
    return table(["place", "part", "mode", "op", f"{ours} ms",
                  *(f"{peer} ms (x, bound)" for peer in peers)], rows)


def _milliseconds(run: Run, cell: tuple, case: str) -> str:
    values = run.seconds.get((*cell, case))
    digits = 3 if cell[3].startswith("exists") else 2
    return f"{statistics.median(values.values()) * 1e3:.{digits}f}" if values else ""


def _cpu(run: Run) -> str:
    rows = []
    for cell in run.cells():
        place, size, mode, op = cell
        if op in ("set", "get"):
            values = (run.cpu.get((*cell, case)) for case in run.cases)
            rows.append([place, size_text(size), mode, op,
                         *(f"{statistics.median(one.values()):.1f}" if one else ""
                           for one in values)])
    return ("CPU us per part, all threads but the spinning one:\n\n"
            + table(["place", "part", "mode", "op", *run.cases], rows))


def _spinner(run: Run) -> str:
    """What the calls cost the spinning thread, by case and switch interval."""
    rows = []
    for place, size, mode, op in run.cells():
        if mode != BUSY or op not in ("set", "get"):
            continue
        for case in run.cases:
            key = (place, size, mode, op, case)
            if case in (FIO, FIO_SLOTS) or key not in run.loops:
                continue
            alone = run.alone[place, size, f"{run.intervals.get(case, 0):g}"]
            wall = median_interval(list(run.seconds[key].values()))
            speed = statistics.median(run.loops[key].values())
            rows.append([place, size_text(size), op, case, f"{wall.value * 1e3:.2f}",
                         f"{wall.low * 1e3:.2f} - {wall.high * 1e3:.2f}", f"{speed / 1e6:.2f}",
                         f"{speed / statistics.median(alone.values()):.0%}"])
    if not rows:
        return ""
    return ("The spinning thread while a call runs, in million loops per second and of its own "
            "speed when alone (\"@\": kvcellar under another sys.setswitchinterval):\n\n"
            + table(["place", "part", "op", "case", "ms", f"{CONFIDENCE:.0%} interval",
                     "Mloops/s", "of alone"], rows))


def processor() -> str:
    """The CPU's name."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_gib() -> int:
    """Memory of the machine."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return round(int(next(lines).split()[1]) / (1 << 20))
