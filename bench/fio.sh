#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fio doing what a batch of set or get does, for comparison: one job, io_uring, O_DIRECT, one I/O of
# BYTES for each of COUNT files.
#   bench/fio.sh set FOLDER BYTES COUNT DEPTH [DIRECT]   writes COUNT new files
#   bench/fio.sh get FOLDER BYTES COUNT DEPTH [DIRECT [LOOPS]]   reads them in random order, LOOPS
#     (8) times: a single read of so little would mostly measure fio's first touch of its buffers
# DIRECT 0 goes through the page cache.
# Prints "seconds CPU-microseconds-per-file".
set -euo pipefail

[ $# -ge 5 ] && [ $# -le 7 ] || {
	echo "usage: bench/fio.sh set|get FOLDER BYTES COUNT DEPTH [DIRECT [LOOPS]]" >&2
	exit 2
}
folder=$2 bytes=$3 count=$4 depth=$5 direct=${6:-1}
case $1 in
set) kind=(--rw=write --create_on_open=1 --fallocate=none) loops=1 ;;
get) kind=(--rw=randread) loops=${7:-8} ;;
*)
	echo "bench/fio.sh: '$1' is neither set nor get" >&2
	exit 2
	;;
esac
mkdir -p -- "$folder"
output=$(mktemp)
trap 'rm -f -- "$output"' EXIT
fio --name=peer --directory="$folder" --filename_format='f.$filenum' --ioengine=io_uring \
	--direct="$direct" --bs="$bytes" --filesize="$bytes" --size=$((bytes * count)) \
	--nrfiles="$count" --openfiles="$count" --iodepth="$depth" --loops="$loops" \
	"${kind[@]}" --randrepeat=0 --unlink=0 \
	--output-format=json --output="$output" >&2
python3 - "$output" "$1" $((count * loops)) "$bytes" "$loops" <<'PY'
import json
import sys

path, verb = sys.argv[1:3]
count, size, loops = (int(number) for number in sys.argv[3:6])
job = json.load(open(path))["jobs"][0]
side = job["write" if verb == "set" else "read"]
if job["error"] or side["io_bytes"] != count * size:
    sys.exit(f"fio moved {side['io_bytes']} of {count * size} bytes, error {job['error']}")
seconds = side["runtime"] / 1000 / loops  # fio counts whole milliseconds
cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1000 / count
print(f"{seconds:.6f} {cpu_us:.1f}")
PY
