# SPDX-License-Identifier: Apache-2.0
"""The cases of a run: storage classes of SGLang with their configuration, and fio."""
import importlib
import importlib.metadata
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig

from . import pools
from .gates import (BUSY, FILE, FIO, FIO_SLOTS, KVCELLAR, NIXL, NIXL_DEFAULT, OURS, PACKED,
                    PACKED_BARE, QUIET)

FIO_SCRIPT = Path(__file__).resolve().parent.parent / "fio.sh"
FIO_DEPTH, FIO_SLOTS_DEPTH = 32, 64  # 64: that of a queue of kvcellar's
MIN_OBJECTS = 512  # of a packed store, so that there is something to choose from
TRAILER = 4096  # of a kvcellar object of two parts; fio moves as many bytes per I/O
CLASSES = {
    **dict.fromkeys(OURS, "kvcellar.sglang:KvCellarStorage"),
    NIXL: "sglang.srt.mem_cache.storage.nixl.hicache_nixl:HiCacheNixl",
    NIXL_DEFAULT: "sglang.srt.mem_cache.storage.nixl.hicache_nixl:HiCacheNixl",
    FILE: "sglang.srt.mem_cache.hicache_storage:HiCacheFile",
}


@dataclass(frozen=True)
class Case:
    """One column of a run. Cases with the same backend share its object."""

    label: str
    backend: str
    modes: tuple[str, ...] = (QUIET, BUSY)
    switch_interval: float | None = None
    busy_every: int = 1

    def takes(self, mode: str, rep: int) -> bool:
        """Whether it is measured in this mode in this repetition."""
        return mode in self.modes and (mode == QUIET or rep % self.busy_every == 0)


@dataclass
class Backend:
    """A constructed storage object with the calls that SGLang's controller would make."""

    label: str
    storage: Any
    set: Callable[[list[str], Any], bool]
    get: Callable[[list[str], Any], bool]
    folder: Path
    buffered: bool = field(default=False)
    recycles: bool = field(default=False)

    def clear(self) -> None:
        """Delete all it stored. HiCacheNixl's own clear() goes by its file manager."""
        self.storage.clear()

    def close(self) -> None:
        close = getattr(self.storage, "close", None)
        if close:
            close()


def cases_of(labels: list[str], intervals: list[float]) -> list[Case]:
    """The cases named, and kvcellar's under each further switch interval (seconds)."""
    cases = []
    for label in labels:
        once = label in (FIO, FIO_SLOTS, NIXL_DEFAULT, PACKED_BARE)
        modes = (QUIET,) if once else (QUIET, BUSY)
        # A busy thread makes HiCacheFile take seconds: it gives up the GIL for every page.
        cases.append(Case(label, label, modes, busy_every=5 if label == FILE else 1))
    if KVCELLAR in labels:
        cases += [Case(f"{KVCELLAR} @{interval * 1e3:g}ms", KVCELLAR, (BUSY,), interval)
                  for interval in intervals]
    return cases


def packed_capacity(part_bytes: int, pages: int) -> int:
    """What a packed store may hold: a few calls' pages, so that slots are recycled all the time."""
    calls = 8 if part_bytes < 1 << 20 else 4
    return max(calls * pages, MIN_OBJECTS) * part_bytes * pools.PARTS


def extra_config(label: str, folder: Path, direct: bool, capacity: int) -> dict[str, Any]:
    """hicache_storage_backend_extra_config of a backend. capacity: bytes, of a packed store."""
    if label in OURS:
        config = {"storage_dirs": [str(folder)], "storage_layout": "files", "verify": "require",
                  "durability": "none", "identity": "bench", "use_direct_io": direct,
                  "l3_cleaner_enabled": False}
        if label != KVCELLAR:
            config |= {"storage_layout": "packed", "capacity": capacity,
                       "checksum": "none" if label == PACKED_BARE else "full"}
        return config
    if label == FILE:
        return {}
    config = {"use_direct_io": direct, "l3_cleaner_enabled": False}
    return config | ({"use_uring": "true"} if label == NIXL else {})


def build(label: str, folder: Path, direct: bool, pool: Any, capacity: int) -> Backend:
    """Construct a backend as SGLang does and register the pool with it."""
    module, name = CLASSES[label].split(":")
    storage_class = getattr(importlib.import_module(module), name)
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=True,
        model_name="bench/model", extra_config=extra_config(label, folder, direct, capacity))
    storage = storage_class(config, {} if label in OURS else str(folder))
    storage.register_mem_pool_host(pool)
    return Backend(label, storage, *_calls(storage, pool), folder, buffered=label == FILE,
                   recycles=label in (PACKED, PACKED_BARE))


def _calls(storage: Any, pool: Any) -> tuple[Callable, Callable]:
    """(set, get) of (keys, host_indices) -> bool, as HiCacheController would make them."""
    if type(storage).batch_set_v1 is not HiCacheStorage.batch_set_v1:
        return (lambda keys, indices: all(storage.batch_set_v1(keys, indices)),
                lambda keys, indices: all(storage.batch_get_v1(keys, indices)))

    def generic_set(keys: list[str], indices: Any) -> bool:
        pages = [pool.get_data_page(indices[at * pools.PAGE_TOKENS]) for at in range(len(keys))]
        return storage.batch_set(keys, pages)

    def generic_get(keys: list[str], indices: Any) -> bool:
        targets = [pool.get_dummy_flat_data_page() for _ in keys]
        for at, page in enumerate(storage.batch_get(keys, targets)):
            if page is None:
                return False
            pool.set_from_flat_data_page(indices[at * pools.PAGE_TOKENS], page)
        return True

    return generic_set, generic_get


def fio_bytes(part_bytes: int) -> int:
    """Bytes of one I/O of fio: those of a kvcellar object."""
    return part_bytes * pools.PARTS + TRAILER


def fio_files(part_bytes: int, pages: int) -> int:
    """fio counts whole milliseconds: small files need to be more than a batch has."""
    return pages * (4 if part_bytes < 256 << 10 else 1)


def fio_slots_reserve(part_bytes: int, pages: int) -> int:
    """Most bytes of the file that run_fio_slots() works on."""
    batch = part_bytes * pools.PARTS * pages
    return max(min(4 * batch, 1 << 30), batch, 64 << 20) + (1 << 20)


def run_fio(folder: Path, part_bytes: int, pages: int,
            direct: bool) -> dict[str, tuple[float, float]]:
    """{op: (seconds, CPU seconds)} of a batch of `pages` objects, each a new file."""
    files = fio_files(part_bytes, pages)
    loops = "8" if part_bytes < 1 << 20 else "2"
    out = {}
    for op in ("set", "get"):
        seconds, cpu_us = _fio(op, folder, fio_bytes(part_bytes), files, FIO_DEPTH, direct, loops)
        out[op] = seconds * pages / files, cpu_us * pages / 1e6
    return out


def run_fio_slots(folder: Path, part_bytes: int, pages: int,
                  direct: bool) -> dict[str, tuple[float, float]]:
    """The same over one file that is written already, as a packed store recycles slots: as many
    bytes per I/O as an object has, from registered buffers."""
    out = {}
    for op, verb in (("set", "rewrite"), ("get", "reread")):
        seconds, cpu_us = _fio(verb, folder, part_bytes * pools.PARTS, pages, FIO_SLOTS_DEPTH,
                               direct)
        out[op] = seconds, cpu_us * pages / 1e6
    return out


def _fio(verb: str, folder: Path, size: int, count: int, depth: int, direct: bool,
         *loops: str) -> tuple[float, float]:
    """What bench/fio.sh prints: seconds of `count` I/Os, CPU microseconds of one."""
    done = subprocess.run([FIO_SCRIPT, verb, folder, str(size), str(count), str(depth),
                           "1" if direct else "0", *loops],
                          check=True, stdout=subprocess.PIPE, text=True)
    seconds, cpu_us = (float(word) for word in done.stdout.split())
    return seconds, cpu_us


FIO_RUNS = {FIO: run_fio, FIO_SLOTS: run_fio_slots}


def versions(labels: list[str]) -> dict[str, str]:
    """Versions of what a run uses."""
    found = {}
    packages = ["sglang", "nixl", "torch"] + (["kvcellar"] if set(labels) & set(OURS) else [])
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            module = importlib.import_module(package)
            found[package] = str(getattr(module, "__version__", "unknown"))
    if set(labels) & set(FIO_RUNS):
        done = subprocess.run(["fio", "--version"], check=True, stdout=subprocess.PIPE, text=True)
        found["fio"] = done.stdout.strip().removeprefix("fio-")
    return found


def check(labels: list[str]) -> None:
    """Leave at once when something that a run needs is not there."""
    unknown = [label for label in labels if label not in (*CLASSES, *FIO_RUNS)]
    if unknown:
        raise SystemExit(f"compare: unknown case '{unknown[0]}'; known: "
                         + ", ".join((*CLASSES, *FIO_RUNS)))
    os.environ.pop("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", None)
    os.environ.pop("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", None)
    for label in labels:
        if label in CLASSES:
            module, name = CLASSES[label].split(":")
            try:
                getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise SystemExit(f"compare: {label} cannot be imported: {error}") from error
