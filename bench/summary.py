#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One section of bench/RESULTS.md from the samples of bench/run.sh.

usage: bench/summary.py SAMPLES COMMAND VERSION REPETITIONS DEPTH PAGES LOAD
"""
import datetime
import json
import os
import platform
import statistics
import sys


def memory_gib():
    with open("/proc/meminfo") as lines:
        return int(next(lines).split()[1]) / (1 << 20)


def processor():
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def deviation(values):
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def main():
    path, command, version, repetitions, depth, pages, load = sys.argv[1:8]
    seconds, cpu, systems, sizes, disks = {}, {}, {}, [], []
    with open(path) as lines:
        for line in lines:
            row = json.loads(line)
            if "fs" in row:
                systems[row["disk"]] = row["fs"]
                continue
            key = (row["disk"], row["size"], row["op"], row["who"])
            seconds.setdefault(key, []).append(row["seconds"])
            cpu.setdefault(key, []).append(row["cpu_us"])
            sizes += [row["size"]] if row["size"] not in sizes else []
            disks += [row["disk"]] if row["disk"] not in disks else []

    now = datetime.datetime.now(datetime.timezone.utc)
    print(f"\n## {now:%Y-%m-%d %H:%M} UTC, {version}\n")
    print(f"`{command.strip()}`, kernel {platform.release()}, {os.cpu_count()} CPUs "
          f"({processor()}), {memory_gib():.0f} GiB memory, load average {load} before; "
          + "; ".join(f"{disk} disk: {systems.get(disk, '?')}" for disk in disks) + ".")
    print(f"{pages} pages of 2 parts, O_DIRECT, verify = \"require\"; fio: io_uring, depth "
          f"{depth}, one I/O of an object's bytes per file. Medians of {repetitions} interleaved "
          "repetitions with their median absolute deviation; ratio = fio's time / kvcellar's.\n")
    print("| disk | parts | operation | kvcellar ms | MAD | fio ms | MAD | ratio "
          "| CPU us/object | fio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for disk in disks:
        for size in sizes:
            for op in ("set", "get", "exists_first", "exists"):
                ours, peer = (disk, size, op, "kvcellar"), (disk, size, op, "fio")
                if ours not in seconds:
                    continue
                middle = statistics.median(seconds[ours])
                cells = [disk, f"{size} x 2", op, f"{middle * 1e3:.2f}",
                         f"{deviation(seconds[ours]) * 1e3:.2f}", "", "", "",
                         f"{statistics.median(cpu[ours]):.1f}", ""]
                if peer in seconds:
                    other = statistics.median(seconds[peer])
                    cells[5:8] = [f"{other * 1e3:.2f}", f"{deviation(seconds[peer]) * 1e3:.2f}",
                                  f"{other / middle:.2f}"]
                    cells[9] = f"{statistics.median(cpu[peer]):.1f}"
                print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
