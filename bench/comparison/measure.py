# SPDX-License-Identifier: Apache-2.0
"""One place and one part size: every case in turn, again and again."""
import gc
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import peers, pools
from .gates import ALONE, BUSY, FIO, FIO_SLOTS, PACKED, PACKED_BARE, QUIET
from .peers import Backend, Case
from .places import Place, forget_pages
from .stats import rotation

OPS = ("set", "exists_hit", "exists_miss", "get")
EXISTS_CALLS = 5  # their median counts: the first one finds nothing in the CPU's caches
OVERFILL = 1.3  # of its capacity is written to a packed store before anything is measured


class Spinner:
    """A thread of pure Python work, as SGLang's scheduler loop is. Knows its CPU time and work."""

    def __init__(self, on: bool):
        self.on, self.stop, self.loops = on, False, 0

    def _run(self) -> None:
        while not self.stop:
            self.loops += 1

    def __enter__(self) -> "Spinner":
        if self.on:
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
            self.clock = time.pthread_getcpuclockid(self.thread.ident)
            time.sleep(0.02)
        return self

    def cpu(self) -> float:
        """CPU seconds so far."""
        return time.clock_gettime(self.clock) if self.on else 0.0

    def __exit__(self, *_: object) -> None:
        self.stop = True
        if self.on:
            self.thread.join()


def process_cpu(spinner: Spinner) -> float:
    """CPU seconds of all threads but the spinner. Its clock is read first: that brings the
    kernel's account of it up to date, which getrusage does not."""
    own = spinner.cpu()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime - own


def timed(spinner: Spinner, call: Callable[[], Any]) -> tuple[Any, float, float, float]:
    """(result, seconds, CPU seconds, loops of the spinner)"""
    cpu, loops = process_cpu(spinner), spinner.loops
    begin = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - begin
    loops = spinner.loops - loops
    return result, seconds, max(process_cpu(spinner) - cpu, 0.0), loops


def spinner_alone(interval: float | None, seconds: float = 0.05) -> float:
    """Loops per second of a spinner that nobody disturbs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval or before)
    try:
        with Spinner(True) as spinner:
            _, taken, _, loops = timed(spinner, lambda: time.sleep(seconds))
    finally:
        sys.setswitchinterval(before)
    return loops / taken


class SizeRun:
    """All repetitions of one part size in one place."""

    def __init__(self, place: Place, cases: list[Case], part_bytes: int, pages: int,
                 source: torch.Generator):
        self.place, self.cases, self.part_bytes, self.pages = place, cases, part_bytes, pages
        self.folder = place.folder / f"{part_bytes >> 10}K"
        self.pool = pools.build_pool(part_bytes, 2 * pages)
        pools.fill(self.pool, source)
        order = torch.randperm(2 * pages, generator=source)
        self.source, self.target = order[:pages], order[pages:]
        self.indices = tuple(pools.token_indices(half) for half in (self.source, self.target))
        self.backends: dict[str, Backend] = {}
        for label in dict.fromkeys(case.backend for case in cases
                                   if case.backend not in peers.FIO_RUNS):
            folder = self.folder / label.replace(" ", "-")
            folder.mkdir(parents=True)
            capacity = peers.packed_capacity(part_bytes, pages)
            backend = peers.build(label, folder, place.direct, self.pool, capacity)
            self.backends[label] = backend
            if backend.recycles:
                self.overfill(backend, capacity)
        self.turn = 0
        self.stored = 0

    def overfill(self, backend: Backend, capacity: int) -> None:
        """Store more than there is room for: from now on each set takes another page's slot."""
        batches = int(capacity * OVERFILL) // (self.part_bytes * pools.PARTS * self.pages) + 1
        for batch in range(batches):
            keys = pools.page_keys(f"{self.place.name}/{backend.label}/fill/{batch}", self.pages)
            if not backend.set(keys, self.indices[0]):
                raise SystemExit(f"compare: {backend.label}: filling the store failed")
        self.place.sync()

    def repetition(self, rep: int, samples: list[dict]) -> None:
        """Each case once in each of its modes; rep -1 warms up and is not recorded."""
        if rep >= 0:
            for interval in dict.fromkeys(case.switch_interval for case in self.cases):
                samples.append(self._row(QUIET, ALONE, f"{interval or 0:g}", rep,
                                         loops_s=spinner_alone(interval)))
        for mode in (QUIET, BUSY):
            chosen = [case for case in self.cases if case.takes(mode, rep)]
            for case in rotation(chosen, self.turn):
                measured = self.run(case, mode, rep)
                self.place.sync()
                if rep < 0:
                    continue
                for op, (seconds, cpu, loops) in measured.items():
                    samples.append(self._row(
                        mode, case.label, op, rep, seconds=seconds,
                        cpu_us=cpu * 1e6 / (self.pages * pools.PARTS), loops_s=loops / seconds))
        self.turn += 1
        self.stored += rep_bytes(self.cases, self.part_bytes, self.pages, rep)

    def _row(self, mode: str, case: str, op: str, rep: int, **numbers: float) -> dict:
        return {"place": self.place.name, "size": self.part_bytes, "mode": mode, "case": case,
                "op": op, "rep": rep, **numbers}

    def run(self, case: Case, mode: str, rep: int) -> dict[str, tuple[float, float, float]]:
        """{op: (seconds, CPU seconds, loops)}; SystemExit when anything returned is wrong."""
        run_fio = peers.FIO_RUNS.get(case.backend)
        if run_fio:
            name = "fio_slots" if run_fio is peers.run_fio_slots else f"fio-{self.turn}"
            out = run_fio(self.folder / name, self.part_bytes, self.pages, self.place.direct)
            return {op: (*numbers, 0.0) for op, numbers in out.items()}
        backend = self.backends[case.backend]
        before = sys.getswitchinterval()
        if case.switch_interval:
            sys.setswitchinterval(case.switch_interval)
        try:
            out = self._calls(case, backend, mode, rep)
        finally:
            sys.setswitchinterval(before)
        if not pools.same_bytes(self.pool, self.source, self.target):
            raise SystemExit(f"compare: {case.label}: bytes read differ from bytes written")
        if backend.buffered and self.place.direct:
            self.place.sync()
            forget_pages(backend.folder)
        return out

    def _calls(self, case: Case, backend: Backend, mode: str, rep: int) -> dict:
        tag = f"{self.place.name}/{self.part_bytes}/{case.label}/{mode}/{rep}/{self.turn}"
        keys, missing = (pools.page_keys(f"{tag}/{kind}", self.pages) for kind in ("", "miss"))
        pools.refresh(self.pool, self.target)
        exists = backend.storage.batch_exists
        plan = (("set", lambda: backend.set(keys, self.indices[0]), True, 1),
                ("exists_hit", lambda: exists(keys), self.pages, EXISTS_CALLS),
                ("exists_miss", lambda: exists(missing), 0, EXISTS_CALLS),
                ("get", lambda: backend.get(keys, self.indices[1]), True, 1))
        out = {}
        with Spinner(mode == BUSY) as spinner:
            for op, call, wanted, calls in plan:
                measured = []
                for _ in range(calls):
                    result, *numbers = timed(spinner, call)
                    measured.append(tuple(numbers))
                    if result != wanted:
                        raise SystemExit(f"compare: {case.label}: {op} of {self.pages} pages in "
                                         f"'{self.place.name}' returned {result}, not {wanted}")
                out[op] = sorted(measured)[calls // 2]
        return out

    def make_room(self) -> None:
        """Delete everything stored so far; the backends stay, and stores of a fixed size do."""
        for backend in self.backends.values():
            if backend.recycles:
                continue
            backend.clear()
            # Whatever a backend's clear() leaves would take the room of the others.
            for entry in backend.folder.rglob("*"):
                if entry.is_file() and entry.stat().st_size >= self.part_bytes:
                    raise SystemExit(f"compare: clear() of {backend.label} left {entry.name}")
        for folder in self.folder.glob("fio-*"):
            shutil.rmtree(folder)
        self.place.sync()
        self.stored = 0

    def close(self) -> None:
        """Close the backends; their files stay."""
        for backend in self.backends.values():
            backend.close()
        self.backends.clear()
        self.pool.destroy()


def rep_bytes(cases: list[Case], part_bytes: int, pages: int, rep: int = 0) -> int:
    """What a repetition of all cases adds; none adds more than repetition 0."""
    total = 0
    for case in cases:
        if case.backend in (FIO_SLOTS, PACKED, PACKED_BARE):
            continue
        files = peers.fio_files(part_bytes, pages) if case.backend == FIO else pages
        times = sum(case.takes(mode, rep) for mode in (QUIET, BUSY))
        total += files * peers.fio_bytes(part_bytes) * times
    return total


def fixed_bytes(cases: list[Case], part_bytes: int, pages: int) -> int:
    """What the cases take whose stores have a fixed size."""
    packed = peers.packed_capacity(part_bytes, pages) * 11 // 10 + (64 << 20)
    labels = {case.backend for case in cases}
    return (packed * len(labels & {PACKED, PACKED_BARE})
            + peers.fio_slots_reserve(part_bytes, pages) * (FIO_SLOTS in labels))


def run_size(place: Place, cases: list[Case], part_bytes: int, pages: int, reps: int,
             source: torch.Generator, room: int, samples: list[dict]) -> int:
    """Measure one size; room: bytes still free of the place's budget. Returns what is left.

    Nothing is deleted while there is room: on a journal-less ext4, creating is slow for a while
    after many deletes. When there is none, all is deleted between two repetitions.
    """
    run = SizeRun(place, cases, part_bytes, pages, source)
    room -= fixed_bytes(cases, part_bytes, pages)
    gc.collect()
    gc.freeze()
    try:
        run.repetition(-1, samples)
        for rep in range(reps):
            if run.stored + rep_bytes(cases, part_bytes, pages, rep) > room:
                run.make_room()
            run.repetition(rep, samples)
            print(f"compare: {place.name}, {part_bytes >> 10}K, repetition {rep + 1} of {reps}",
                  file=sys.stderr, flush=True)
    finally:
        run.close()
        gc.unfreeze()
    return room - run.stored


def run_place(place: Place, cases: list[Case], sizes: list[int], pages: int, reps: int,
              samples: list[dict]) -> None:
    """Measure every size; the files of one go when the next one needs their room."""
    source = torch.Generator().manual_seed(1)
    room = place.budget
    done: list[Path] = []
    for part_bytes in sizes:
        # A size that would have to delete in the middle starts with all the room there is.
        need = fixed_bytes(cases, part_bytes, pages)
        need += sum(rep_bytes(cases, part_bytes, pages, rep) for rep in range(-1, reps))
        if need > room:
            for folder in done:
                shutil.rmtree(folder)
            done, room = [], place.budget
            place.sync()
        room = run_size(place, cases, part_bytes, pages, reps, source, room, samples)
        done.append(place.folder / f"{part_bytes >> 10}K")
