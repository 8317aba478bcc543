# SPDX-License-Identifier: Apache-2.0
"""bench/compare.py: its statistics, its order, its gates, and a tiny run where the peers are."""
import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from comparison import gates, report, stats  # noqa: E402


def test_rotation_gives_each_item_each_place_and_both_neighbours():
    items = ["a", "b", "c", "d"]
    turns = [stats.rotation(items, turn) for turn in range(8)]
    for turn in turns:
        assert sorted(turn) == items
    for half in (turns[:4], turns[4:]):
        assert [{turn[place] for turn in half} for place in range(4)] == [set(items)] * 4
    followers = {pair for turn in turns for pair in zip(turn, turn[1:])}
    assert {("a", "b"), ("b", "a"), ("d", "a"), ("a", "d")} <= followers
    assert stats.rotation([], 3) == []
    assert items == ["a", "b", "c", "d"]


def test_median_interval_of_known_data():
    assert stats.median_interval([5.0] * 9) == (5.0, 5.0, 5.0)
    values = [float(value) for value in range(1, 10)]
    found = stats.median_interval(values)
    assert found.value == 5.0
    # A resample's median is <= 2 when 5 or more of 9 draws are: probability 0.0303. It is <= 1
    # with probability 0.0015. So the 2.5% point of the bootstrap distribution is 2.
    assert (found.low, found.high) == (2.0, 8.0)
    assert stats.median_interval(values) == found, "the same seed gives the same interval"


def test_ratio_interval_keeps_pairs_together():
    drift = random.Random(3)
    below = {rep: drift.uniform(1, 10) for rep in range(9)}
    above = {rep: 2 * value for rep, value in below.items()}
    assert stats.ratio_interval(above, below) == pytest.approx((2.0, 2.0, 2.0))
    shifted = {rep + 1: value for rep, value in above.items()}
    loose = stats.ratio_interval(shifted, below)
    assert loose.value == pytest.approx(2.0)
    assert loose.low < 1.5 and loose.high > 2.5


def test_ratio_interval_covers_the_truth_about_as_often_as_it_says():
    source = random.Random(11)
    hits = 0
    for _ in range(100):
        above = {rep: source.gauss(30, 3) for rep in range(15)}
        below = {rep: source.gauss(10, 1) for rep in range(15)}
        found = stats.ratio_interval(above, below, resamples=400)
        hits += found.low <= 3.0 <= found.high
    assert hits >= 85


def test_ratio_with_a_zero_below():
    assert stats.ratio_interval({0: 1.0}, {0: 0.0}).value == float("inf")


def test_every_gate_has_cells_and_a_direction():
    assert len(set(gates.GATES)) == len(gates.GATES)
    for gate in gates.GATES:
        assert gate.places and gate.sizes and gate.modes and gate.ops
        assert gate.met(gate.limit)
        assert gate.case in gates.OURS and bool(gate.peer) == (gate.measure in gates.RATIOS)
        assert not gate.aim or gate.met(gate.aim), "who reaches the aim has met the gate"
        better = gate.limit * (1.1 if gate.measure == "time" else 0.9)
        worse = gate.limit * (0.9 if gate.measure == "time" else 1.1)
        assert gate.met(better) and not gate.met(worse)
    for place, mode in (("fast", "quiet"), ("fast", "busy"), ("real", "quiet"), ("tmpfs", "quiet")):
        for size in (64 << 10, 256 << 10, 1 << 20):
            for op in ("set", "get"):
                for case in (gates.KVCELLAR, gates.PACKED):
                    timed = [gate for gate in gates.gates_of(place, size, mode, op)
                             if (gate.case, gate.peer, gate.measure) == (case, gates.NIXL, "time")]
                    assert len(timed) == 1, (place, size, mode, op, case)


def record(ours: float, peer: float, name: str = gates.KVCELLAR, op: str = "set") -> dict:
    """A run of one cell: our case `name` needs `ours` seconds, HiCacheNixl `peer`."""
    samples = [{"place": "fast", "size": 65536, "mode": "quiet", "case": case, "op": op,
                "rep": rep, "seconds": seconds, "cpu_us": seconds * 1e6, "loops_s": 0.0}
               for rep in range(9)
               for case, seconds in ((name, ours), (gates.NIXL, peer))]
    meta = {"date": "2026-01-01 00:00 UTC", "command": "bench/compare.py", "kernel": "6.1",
            "cpus": 2, "processor": "CPU", "memory_gib": 8, "load": 0.0, "python": "3.11",
            "versions": {}, "file_systems": {"fast": "ext4"}, "pages": 128, "reps": 9,
            "cases": [name, gates.NIXL], "switch_intervals": {}}
    return {"meta": meta, "samples": samples}


def test_report_judges_by_the_ratio_of_medians():
    good = {(one.gate.measure, one.met) for one in report.verdicts(report.Run(record(1.0, 2.0)))}
    assert good == {("time", True), ("cpu", True)}
    bad = {(one.gate.measure, one.met) for one in report.verdicts(report.Run(record(2.0, 2.0)))}
    assert bad == {("time", False), ("cpu", False)}
    text = report.section(record(2.0, 2.0), [])
    assert "0 of 2 gates are met" in text and text.count("**no**") == 2
    ratio = report.Run(record(1.0, 2.0)).ratio(("fast", 65536, "quiet", "set"), gates.NIXL)
    assert ratio == (2.0, 2.0, 2.0)


def test_report_judges_times_and_cpu_that_have_no_peer():
    fast = record(5e-5, 5e-3, gates.PACKED, "exists_hit")
    found = {one.gate.measure: one for one in report.verdicts(report.Run(fast))}
    assert found["us"].met and found["us"].value == pytest.approx(50.0)
    assert found["time"].met and found["time"].value == pytest.approx(100.0)
    slow = report.section(record(7e-5, 2e-3, gates.PACKED, "exists_hit"), [])
    assert "kvcellar-packed: 0 of 2 gates are met" in slow and "<= 60 us" in slow
    cpu = {one.gate.measure: one for one in
           report.verdicts(report.Run(record(7e-6, 1e-3, gates.PACKED_BARE)))}
    assert cpu["cpu_us"].met and cpu["cpu_us"].value == pytest.approx(7.0)


def test_grid_gates_judge_recycled_packed_cells(tmp_path: Path):
    def cell(layout: str, op: str, seconds: float, cpu_us: float, checksum: str = "none") -> dict:
        return {"kind": "cell", "layout": layout, "slots": "recycled", "state": "warm", "op": op,
                "threads": 1, "batch": 128, "direct": True, "part_bytes": 65536, "depth": 64,
                "engine": "io_uring", "checksum": checksum, "median_s": seconds, "p95_s": seconds,
                "bytes_per_s": 1.0, "cpu_us": cpu_us, "call_s": [seconds] * 5,
                "wall_s": [seconds] * 5, "cpu_us_each": [cpu_us] * 5}

    def judged(ours: float, cpu_us: float, exists: float) -> str:
        rows = [{"kind": "run", "version": "0", "kernel": "6", "cpus": 2, "load": 0.0, "reps": 5},
                cell("packed", "set", ours, cpu_us), cell("packed", "exists_hit", exists, 0.1),
                cell("packed", "get", ours, cpu_us + 9, "full"), cell("files", "set", 9.0, 99.0),
                cell("fio/page", "set", 0.005, 3), cell("fio/page", "get", 0.005, 3)]
        (tmp_path / "fast.jsonl").write_text("\n".join(map(json.dumps, rows)))
        done = subprocess.run([sys.executable, BENCH / "grid_gates.py", tmp_path / "fast.jsonl"],
                              check=True, capture_output=True, text=True)
        return done.stdout

    assert "5 of 5 gates are met" in judged(0.006, 7.5, 19e-6)
    text = judged(0.0063, 8.5, 21e-6)
    assert "0 of 5 gates are met" in text and text.count("**no**") == 5


def python_with_peers() -> Path | None:
    """This Python when it has SGLang and NIXL, else that of scripts/python-env when it is made."""
    if all(map(importlib.util.find_spec, ("sglang", "nixl", "matplotlib"))):
        return Path(sys.executable)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvcellar"
    made = Path(os.environ.get("KVC_CACHE") or cache).glob("sglang-*/stamp")
    newest = max(made, key=lambda stamp: stamp.stat().st_mtime, default=None)
    return newest.parent / "bin" / "python" if newest else None


def test_tiny_run(tmp_path: Path):
    """Every class there is, once, over 4 pages; compare.py itself compares each byte."""
    python = python_with_peers()
    if not python:
        pytest.skip("needs SGLang and NIXL (scripts/python-env sglang)")
    cases = ["HiCacheNixl", "HiCacheFile"]
    environment = dict(os.environ)
    package = importlib.util.find_spec("kvcellar")
    if package and package.submodule_search_locations:
        cases.insert(0, "kvcellar")
        environment["PYTHONPATH"] = str(Path(package.submodule_search_locations[0]).parent)
    done = subprocess.run(
        [python, "-W", "ignore", BENCH / "compare.py", "--places", "real", "--real",
         tmp_path, "--cases", ",".join(cases), "--sizes", "64K", "--pages", "4", "--reps", "1",
         "--switch-interval", "0.0005", "--json", tmp_path / "run.json", "--plots",
         tmp_path / "plots"],
        check=False, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    samples = json.loads((tmp_path / "run.json").read_text())["samples"]
    for case in cases:
        found = {(row["mode"], row["op"]) for row in samples if row["case"] == case}
        assert found == {(mode, op) for mode in ("quiet", "busy") for op in report.OPS}
    assert all(row["seconds"] > 0 for row in samples if "seconds" in row)
    assert any(row["case"] == gates.ALONE and row["loops_s"] > 0 for row in samples)
    command = next(line for line in done.stdout.splitlines() if line.startswith("`bench/"))
    assert str(tmp_path) not in command and "--places real" in command
    assert (tmp_path / "plots" / "compare-real.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("compare-*")), "everything it stored is gone"
