# SPDX-License-Identifier: Apache-2.0
"""Where a run stores: the machine's disk, a disk in memory, and tmpfs."""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FASTDISK_SCRIPT = Path(__file__).resolve().parent.parent / "fastdisk.sh"
GIB = 1 << 30
FAST_GIB, SPARE_GIB = 7, 3  # the fast disk is memory; that much is left for the rest of the run


@dataclass(frozen=True)
class Place:
    """A folder to measure in. budget: bytes that a run may have there at once."""

    name: str
    folder: Path
    direct: bool
    budget: int

    def sync(self) -> None:
        """Let nothing that one case wrote be written back while the next one is measured."""
        if self.name != "tmpfs":
            subprocess.run(["sync", "-f", self.folder], check=True)

    def file_system(self) -> str:
        done = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", self.folder],
                              check=False, stdout=subprocess.PIPE, text=True)
        return (done.stdout.split() or ["?"])[-1]


def forget_pages(folder: Path) -> None:
    """Give the page cache of a buffered backend back, so that no run has to reclaim it."""
    for entry in folder.rglob("*"):
        if entry.is_file():
            handle = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


@contextlib.contextmanager
def open_place(name: str, parent: Path, need: int) -> Iterator[Place | None]:
    """A place below parent (real: on that disk; tmpfs: must be one; fast: mounted below it, root
    only), gone again afterwards; None when the machine does not have it. need: bytes of the
    largest repetition."""
    work = Path(tempfile.mkdtemp(prefix=f"compare-{name}.", dir=parent))
    mounted = False
    try:
        if name == "fast":
            reason = _mount_fast(work, need)
            mounted = not reason
            if reason:
                print(f"compare: no fast disk here: {reason}; left out", file=sys.stderr)
                yield None
                return
        space = os.statvfs(work)
        free = space.f_bavail * space.f_frsize
        # A disk that fills up becomes slow; tmpfs takes memory that others want too.
        budget = {"real": free * 6 // 10, "fast": free * 9 // 10,
                  "tmpfs": min(free, _memory_available()) // 3}[name]
        if budget < need:
            raise SystemExit(f"compare: '{name}' has room for {budget / GIB:.1f} GiB, a repetition "
                             f"takes {need / GIB:.1f} GiB; use fewer pages or smaller parts")
        place = Place(name, work / "data" if mounted else work, name != "tmpfs", budget)
        place.folder.mkdir(mode=0o700, exist_ok=True)
        if name == "tmpfs":
            _touch(place, min(budget, 4 * need))
        yield place
    finally:
        if mounted:
            subprocess.run([FASTDISK_SCRIPT, "umount", work], check=False)
        shutil.rmtree(work, ignore_errors=True)


def _mount_fast(folder: Path, need: int) -> str:
    """Mount the fast disk, smaller where memory is scarce. Returns why it cannot be, or ""."""
    if os.geteuid():
        return "it needs root"
    size = min(FAST_GIB, _memory_available() // GIB - SPARE_GIB)
    if size * GIB * 8 // 10 < need:
        return f"{max(size, 0)} GiB of memory can be spared, and a repetition takes " \
               f"{need / GIB:.1f} GiB"
    done = subprocess.run([FASTDISK_SCRIPT, "mount", folder, str(size)], check=False)
    return "bench/fastdisk.sh failed" if done.returncode else ""


def _touch(place: Place, amount: int) -> None:
    """The first touch of a virtual machine's memory is slow: do it before."""
    block = bytes(1 << 20)
    with open(place.folder / "touch", "wb", buffering=0) as file:
        for _ in range(amount >> 20):
            file.write(block)
    os.unlink(place.folder / "touch")


def _memory_available() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0
