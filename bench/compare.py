#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure kvcellar beside SGLang's own HiCacheNixl and HiCacheFile, and fio, in one run.

All work on the same real MHA page_first host pool. Each repetition writes new pages with
batch_set_v1, asks batch_exists about them and about unknown ones, reads them with batch_get_v1
into other pages and compares every byte; the cases take turns in an order that changes.
Only the fast disk needs root. Run it with a Python that has sglang, nixl and kvcellar
(scripts/bench-compare does).
"""
import argparse
import datetime
import json
import logging
import os
import platform
import shlex
import sys
import tempfile
from pathlib import Path

from comparison.gates import (FILE, FIO, FIO_SLOTS, KVCELLAR, NIXL, NIXL_DEFAULT, PACKED,
                              PACKED_BARE)

BENCH = Path(__file__).resolve().parent
PLACES = ("real", "fast", "tmpfs")
CASES = (KVCELLAR, PACKED, PACKED_BARE, NIXL, NIXL_DEFAULT, FILE, FIO, FIO_SLOTS)


def parse_size(text: str) -> int:
    """64K -> 65536"""
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    number = text[:-1] if unit > 1 else text
    if not number.isdigit() or not int(number):
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 64K")
    return int(number) * unit


def listed(kind):
    """An argparse type: kind of each part between commas."""
    def parse(text: str) -> list:
        return [kind(part.strip()) for part in text.split(",") if part.strip()]
    return parse


def interval(text: str) -> float:
    """Seconds above 0 and up to 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds in (0, 1]")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--real", type=Path, metavar="DIR", default=Path(tempfile.gettempdir()),
        help="folder on the disk to measure (default: the folder for temporary files)")
    add("--tmpfs", type=Path, metavar="DIR", default=Path("/dev/shm"), help="a tmpfs (/dev/shm)")
    add("--places", type=listed(str), default=list(PLACES), help="default: " + ",".join(PLACES))
    add("--cases", type=listed(str), default=list(CASES), help="default: " + ",".join(CASES))
    add("--sizes", type=listed(parse_size), default=[64 << 10, 256 << 10, 1 << 20],
        help="bytes of a part, that is of a page's K or V half (64K,256K,1M)")
    add("--pages", type=int, default=128, help="pages per call, at most 128 (128)")
    add("--reps", type=int, default=9, help="repetitions of each case (9)")
    add("--switch-interval", type=listed(interval), default=[], metavar="SECONDS",
        help="measure kvcellar's busy rows under these sys.setswitchinterval values too, and "
             "how fast the spinning thread is meanwhile; 0.005 is Python's own")
    add("--json", type=Path, metavar="FILE", help="write all samples here")
    add("--load", type=Path, metavar="FILE", help="measure nothing, report what --json wrote")
    add("--plots", type=Path, metavar="DIR", help="draw PNG files here (--results: bench/plots)")
    add("--results", action="store_true", help="append a section to bench/RESULTS.md")
    arguments = parser.parse_args()
    unknown = [place for place in arguments.places if place not in PLACES]
    if unknown:
        parser.error(f"--places: '{unknown[0]}' is none of {', '.join(PLACES)}")
    if not 1 <= arguments.pages <= 128 or arguments.reps < 1:
        parser.error("--pages must be 1 to 128 and --reps at least 1")
    return arguments


def command_line() -> str:
    """This command without the paths of the machine."""
    words, hide = [], False
    for word in sys.argv[1:]:
        name, equals, _ = word.partition("=")
        words.append("..." if hide else f"{name}=..." if equals and "/" in word else word)
        hide = word in ("--real", "--tmpfs", "--json", "--load", "--plots")
    return " ".join(["bench/compare.py", *(shlex.quote(word) for word in words)])


def measure(arguments: argparse.Namespace) -> dict:
    """Run everything. Returns what --json writes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    # With it SGLang wants a kernel package that host pools do without.
    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    load = os.getloadavg()[0]
    import torch
    from comparison import measure as measuring
    from comparison import peers, places, report

    logging.getLogger().setLevel(logging.WARNING)
    torch.set_num_threads(1)
    peers.check(arguments.cases)
    cases = peers.cases_of(arguments.cases, arguments.switch_interval)
    need = max(measuring.rep_bytes(cases, size, arguments.pages)
               + measuring.fixed_bytes(cases, size, arguments.pages) for size in arguments.sizes)
    now = datetime.datetime.now(datetime.timezone.utc)
    meta = {"date": f"{now:%Y-%m-%d %H:%M} UTC", "command": command_line(),
            "kernel": platform.release(), "cpus": os.cpu_count(),
            "processor": report.processor(), "memory_gib": report.memory_gib(), "load": load,
            "python": platform.python_version(), "versions": peers.versions(arguments.cases),
            "pages": arguments.pages, "reps": arguments.reps,
            "cases": [case.label for case in cases], "file_systems": {},
            "switch_intervals": {case.label: case.switch_interval for case in cases
                                 if case.switch_interval}}
    samples: list[dict] = []
    parents = {"real": arguments.real, "fast": Path(tempfile.gettempdir()),
               "tmpfs": arguments.tmpfs}
    for name in arguments.places:
        with places.open_place(name, parents[name], need) as place:
            if place:
                meta["file_systems"][name] = place.file_system()
                measuring.run_place(place, cases, arguments.sizes, arguments.pages,
                                    arguments.reps, samples)
    return {"meta": meta, "samples": samples}


def main() -> None:
    """Measure or load, then report."""
    arguments = parse_arguments()
    if arguments.load:
        record = json.loads(arguments.load.read_text())
    else:
        record = measure(arguments)
        if arguments.json:
            arguments.json.write_text(json.dumps(record))
    if not record["samples"]:
        raise SystemExit("compare: nothing was measured")
    from comparison import report

    paths: list[str] = []
    folder = arguments.plots or (BENCH / "plots" if arguments.results else None)
    if folder:
        from comparison import plots
        drawn = [path.resolve() for path in plots.draw(report.Run(record), folder)]
        paths = [str(path.relative_to(BENCH) if path.is_relative_to(BENCH) else path)
                 for path in drawn]
    text = report.section(record, paths)
    print(text)
    if arguments.results:
        with open(BENCH / "RESULTS.md", "a", encoding="utf-8") as results:
            results.write(text)


if __name__ == "__main__":
    main()
