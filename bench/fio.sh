#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fio doing what a batch of set or get does, for comparison: one job, io_uring, O_DIRECT, COUNT I/Os
# of BYTES.
#   bench/fio.sh set FOLDER BYTES COUNT DEPTH [DIRECT]   writes COUNT new files of BYTES
#   bench/fio.sh get FOLDER BYTES COUNT DEPTH [DIRECT [LOOPS]]   reads them in random order, LOOPS
#     (8) times: a single read of so little would mostly measure fio's first touch of its buffers
#   bench/fio.sh rewrite FOLDER BYTES COUNT DEPTH [DIRECT [LOOPS]]   random writes over one file that
#     is written already, from registered buffers: as slots are recycled. LOOPS: so many times COUNT
#     I/Os; default: about 512 MiB, as fio counts whole milliseconds
#   bench/fio.sh reread FOLDER BYTES COUNT DEPTH [DIRECT [LOOPS]]   random reads of that file
# DIRECT 0 goes through the page cache. The file of rewrite and reread is made when it is too small
# for 4 x COUNT I/Os (at least 64 MiB; at most 1 GiB where COUNT fit in that).
# Prints "seconds CPU-microseconds-per-IO", the seconds for COUNT of them.
set -euo pipefail

[ $# -ge 5 ] && [ $# -le 7 ] || {
	echo "usage: bench/fio.sh set|get|rewrite|reread FOLDER BYTES COUNT DEPTH [DIRECT [LOOPS]]" >&2
	exit 2
}
folder=$2 bytes=$3 count=$4 depth=$5 direct=${6:-1}
batch=$((bytes * count))
loops=$((batch < 512 << 20 ? (512 << 20) / batch : 1))
[ "$loops" -le 64 ] || loops=64

# One file that is written from end to end, and on the disk.
make_file() {
	local want=$((4 * batch)) have
	[ "$want" -ge $((64 << 20)) ] || want=$((64 << 20))
	[ "$want" -le $((1 << 30)) ] || want=$((batch > 1 << 30 ? batch : 1 << 30))
	want=$(((want + 1048575) / 1048576 * 1048576))
	have=$(stat -c %s -- "$folder/f" 2>/dev/null || echo 0)
	[ "$have" -lt "$want" ] || return 0
	fio --name=make --filename="$folder/f" --ioengine=io_uring --direct="$direct" --bs=1M \
		--size="$want" --iodepth=8 --rw=write --fallocate=none --end_fsync=1 \
		--output-format=terse --output=/dev/null >&2
}

mkdir -p -- "$folder"
case $1 in
set | get)
	kind=(--directory="$folder" --filename_format='f.$filenum' --filesize="$bytes"
		--size="$batch" --nrfiles="$count" --openfiles="$count" --unlink=0)
	;;
rewrite | reread)
	make_file
	have=$(stat -c %s -- "$folder/f")
	loops=${7:-$loops}
	kind=(--filename="$folder/f" --size=$((have / bytes * bytes)) --io_size=$((batch * loops))
		--fixedbufs=1)
	;;
*)
	echo "bench/fio.sh: '$1' is none of set, get, rewrite, reread" >&2
	exit 2
	;;
esac
case $1 in
set) kind+=(--rw=write --create_on_open=1 --fallocate=none) loops=1 side=write ;;
get) loops=${7:-8} side=read kind+=(--rw=randread --loops="$loops") ;;
rewrite) kind+=(--rw=randwrite --overwrite=1) side=write ;;
reread) kind+=(--rw=randread) side=read ;;
esac
output=$(mktemp)
trap 'rm -f -- "$output"' EXIT
fio --name=peer --ioengine=io_uring --direct="$direct" --bs="$bytes" --iodepth="$depth" \
	"${kind[@]}" --randrepeat=0 --output-format=json --output="$output" >&2
python3 - "$output" "$side" $((count * loops)) "$bytes" "$loops" <<'PY'
import json
import sys

path, side = sys.argv[1:3]
count, size, loops = (int(number) for number in sys.argv[3:6])
job = json.load(open(path))["jobs"][0]
moved = job[side]
if job["error"] or moved["io_bytes"] != count * size:
    sys.exit(f"fio moved {moved['io_bytes']} of {count * size} bytes, error {job['error']}")
seconds = moved["runtime"] / 1000 / loops  # fio counts whole milliseconds
cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1000 / count
print(f"{seconds:.6f} {cpu_us:.1f}")
PY
