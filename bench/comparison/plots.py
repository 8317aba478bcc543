# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: medians of each place, and ratios with their gates."""
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker  # noqa: E402

from .gates import (BUSY, FILE, FIO, FIO_SLOTS, KVCELLAR, NIXL, NIXL_DEFAULT,  # noqa: E402
                    PACKED, PACKED_BARE, QUIET, gates_of)
from .report import OPS, Run, size_text  # noqa: E402
from .stats import median_interval  # noqa: E402

COLOURS = {KVCELLAR: "#1b6ca8", PACKED: "#0b3c5d", PACKED_BARE: "#5f7f95",
           NIXL: "#e07b39", NIXL_DEFAULT: "#f2b98f", FILE: "#6a9a5b", FIO: "#8c8c8c",
           FIO_SLOTS: "#4d4d4d"}
FURTHER = ("#74a9cf", "#a6bddb", "#d0d1e6")  # kvcellar under other switch intervals


def draw(run: Run, folder: Path) -> list[Path]:
    """Write the PNG files of a run into folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [_bars(run, place, folder) for place in run.places]
    for case, name in ((KVCELLAR, "ratio"), (PACKED, "ratio-packed")):
        if case in run.cases and NIXL in run.cases:
            made.append(_ratios(run, case, folder / f"compare-{name}.png"))
    return made


def _colour(run: Run, case: str) -> str:
    others = [one for one in run.cases if one not in COLOURS]
    return COLOURS.get(case) or FURTHER[others.index(case) % len(FURTHER)]


def _bars(run: Run, place: str, folder: Path) -> Path:
    figure, grid = pyplot.subplots(2, len(OPS), figsize=(17, 8), squeeze=False)
    for row, mode in enumerate((QUIET, BUSY)):
        for column, op in enumerate(OPS):
            axes = grid[row][column]
            cases = [case for case in run.cases
                     if any((place, size, mode, op, case) in run.seconds for size in run.sizes)]
            for at, case in enumerate(cases):
                _bars_of(run, axes, (place, mode, op, case), (at, len(cases)))
            axes.set_title(f"{op}, {mode}")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(ticker.NullFormatter())
            heights = [bar.get_height() for bar in axes.patches]
            if heights:  # a logarithmic axis has no zero to start from
                axes.set_ylim(min(heights) / 3, max(heights) * 2)
            axes.set_xticks(range(len(run.sizes)), [size_text(size) for size in run.sizes])
            axes.grid(axis="y", alpha=0.3)
            if not column:
                axes.set_ylabel(f"ms per {run.meta['pages']} pages")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=_colour(run, case)) for case in run.cases]
    figure.legend(handles, run.cases, loc="lower center", ncols=len(run.cases), frameon=False)
    figure.suptitle(f"{place}: medians with 95% intervals, {run.meta['reps']} repetitions")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return _save(figure, folder / f"compare-{place}.png")


def _bars_of(run: Run, axes: pyplot.Axes, what: tuple, where: tuple[int, int]) -> None:
    place, mode, op, case = what
    at, count = where
    width = 0.8 / count
    for spot, size in enumerate(run.sizes):
        values = run.seconds.get((place, size, mode, op, case))
        if values:
            middle = median_interval([value * 1e3 for value in values.values()])
            bars = axes.bar(spot - 0.4 + (at + 0.5) * width, middle.value, width,
                            color=_colour(run, case), capsize=2, ecolor="#333333",
                            yerr=[[middle.value - middle.low], [middle.high - middle.value]])
            axes.bar_label(bars, fmt="%.3g", label_type="center", fontsize=7, rotation=90)


def _ratios(run: Run, case: str, path: Path) -> Path:
    figure, grid = pyplot.subplots(1, len(run.places), figsize=(7 * len(run.places), 9),
                                   squeeze=False)
    for axes, place in zip(grid[0], run.places, strict=True):
        cells = [cell for cell in run.cells() if cell[0] == place and run.ratio(cell, NIXL, case)]
        for line, cell in enumerate(reversed(cells)):
            ratio = run.ratio(cell, NIXL, case)
            colour = COLOURS[KVCELLAR] if cell[2] == QUIET else COLOURS[NIXL]
            axes.errorbar(ratio.value, line, fmt="o", color=colour, capsize=3,
                          xerr=[[ratio.value - ratio.low], [ratio.high - ratio.value]])
            for gate in gates_of(*cell):
                if (gate.case, gate.peer, gate.measure) == (case, NIXL, "time"):
                    axes.plot([gate.limit], [line], marker="|", markersize=16, color="#b22222")
        axes.set_yticks(range(len(cells)), [f"{size_text(size)} {mode} {op}"
                                            for _, size, mode, op in reversed(cells)])
        axes.axvline(1, color="#777777", linewidth=1)
        axes.set_xscale("log")
        axes.grid(axis="x", which="both", alpha=0.25)
        axes.set_title(f"{place}: {NIXL} / {case}")
        axes.set_xlabel("ratio of medians, 95% interval; red: gate")
    figure.tight_layout()
    return _save(figure, path)


def _save(figure: pyplot.Figure, path: Path) -> Path:
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)
    return path
