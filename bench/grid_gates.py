#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Markdown of bench_grid's JSON lines: what has to be reached at C level, then every cell.

usage: bench/grid_gates.py FILE.jsonl...   (bench/grid.sh -o FOLDER gates writes them)
"""
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from comparison.gates import BARE_CPU_US, cpu_us_limit
from comparison.report import size_text, table
from comparison.stats import Interval, median_interval, ratio_interval

EXISTS_PAGES, EXISTS_US = 128, 20
FIO_LEAST = 0.8
ALIKE = ("part_bytes", "batch", "threads", "direct", "op")


def load(path: Path) -> tuple[dict, list[dict]]:
    """(the line about the run, the cells) of one file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return (next(row for row in rows if row["kind"] == "run"),
            [row for row in rows if row["kind"] == "cell"])


def each(cell: dict, name: str) -> dict[int, float]:
    """Samples by repetition."""
    return dict(enumerate(cell[name]))


def row_of(disk: str, cell: dict, what: str, gate: str, found: Interval, met: bool) -> list[str]:
    return [disk, size_text(cell["part_bytes"]), cell["checksum"], cell["op"], what, gate,
            f"{found.value:.2f}", f"{found.low:.2f} - {found.high:.2f}",
            "yes" if met else "**no**"]


def judge(disk: str, cells: list[dict]) -> Iterator[list[str]]:
    """A row for each gate of the packed, recycled, warm cells of one thread."""
    for cell in cells:
        if (cell["layout"], cell["slots"], cell["state"], cell["threads"]) != (
                "packed", "recycled", "warm", 1) or cell["batch"] != EXISTS_PAGES:
            continue
        if cell["op"] == "exists_hit":
            found = median_interval([value * 1e6 for value in cell["call_s"]])
            yield row_of(disk, cell, "us per call", f"<= {EXISTS_US}", found,
                         found.value <= EXISTS_US)
        if cell["op"] not in ("set", "get") or not cell["direct"]:
            continue
        for peer in cells:
            if peer["layout"] == "fio/page" and all(peer[key] == cell[key] for key in ALIKE):
                found = ratio_interval(each(peer, "wall_s"), each(cell, "wall_s"))
                yield row_of(disk, cell, f"time, fio (depth {peer['depth']}) / kvcellar",
                             f">= {FIO_LEAST}", found, found.value >= FIO_LEAST)
        if cell["part_bytes"] in BARE_CPU_US and cell["checksum"] != "sector":
            limit = cpu_us_limit(cell["part_bytes"], cell["checksum"] == "full")
            found = median_interval(cell["cpu_us_each"])
            yield row_of(disk, cell, "CPU us per part", f"<= {limit:.3g}", found,
                         found.value <= limit)


def line_of(disk: str, cell: dict) -> list[str]:
    moves = cell["op"] in ("set", "get", "mixed")
    median, p95 = (cell[name] * (1e3 if moves else 1e6) for name in ("median_s", "p95_s"))
    unit = "ms" if moves else "us"
    return [disk, size_text(cell["part_bytes"]), str(cell["batch"]), str(cell["threads"]),
            cell["layout"], cell["slots"], cell["engine"], "direct" if cell["direct"] else "cached",
            cell["checksum"], cell["state"], cell["op"], f"{median:.3f} {unit}",
            f"{p95:.3f} {unit}", f"{cell['bytes_per_s'] / 1e9:.2f}" if moves else "",
            f"{cell['cpu_us']:.2f}"]


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    gates, lines, heads = [], [], []
    for name in sys.argv[1:]:
        path = Path(name)
        run, cells = load(path)
        heads.append(f"{path.stem}: kvcellar {run['version']}, kernel {run['kernel']}, "
                     f"{run['cpus']} CPUs, load average {run['load']:.2f}, {run['reps']} "
                     "repetitions")
        gates += judge(path.stem, cells)
        lines += [line_of(path.stem, cell) for cell in cells]
    print("; ".join(heads) + ".\n")
    if gates:
        missed = sum(row[-1] != "yes" for row in gates)
        print(f"{len(gates) - missed} of {len(gates)} gates are met.\n")
        print(table(["disk", "part", "checksum", "op", "measure", "gate", "value",
                     "95% interval", "met"], gates))
    print(table(["disk", "part", "batch", "threads", "layout", "slots", "engine", "io", "checksum",
                 "state", "op", "median", "p95", "GB/s", "CPU us/part"], lines))


if __name__ == "__main__":
    main()
