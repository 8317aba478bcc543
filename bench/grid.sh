#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The grid of bench_grid on a disk and on the fast disk, with fio in the same repetitions.
#   bench/grid.sh [-d FOLDER] [-b PROGRAM] [-o FOLDER] [-f] PRESET [OPTIONS OF bench_grid]
#     -d  folder on the disk to measure; default: build/bench
#     -b  the program; default: the release build's
#     -o  write <disk>.jsonl files there instead of tables to the terminal
#     -f  leave the fast disk out (it needs root, and 8 GiB of memory for a while)
# Presets; every one of them takes further options, which win over its own:
#   quick     what the layouts differ in: 64K and 1M, 128 pages, fio (about a minute a disk)
#   gates     64K, 256K, 1M with and without checksum, recycled slots, registered memory, fio
#   sizes     4K to 8M, 32 pages
#   batches   1, 8, 32, 128 pages
#   engines   all I/O engines, O_DIRECT and page cache
#   threads   1, 2 and 4 threads, warm and cold
#   sums      every kind of checksum
#   slots     recycled and fresh slots
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
	sed -n '3,19s/^# \?//p' bench/grid.sh >&2
	exit "$1"
}

folder=${KVC_BUILD_ROOT:-build}/bench
program=${KVC_BUILD_ROOT:-build}/release/bin/bench_grid
output='' fast=yes
[ "${1-}" != --help ] || usage 0
while getopts d:b:o:fh option; do
	case $option in
	d) folder=$OPTARG ;;
	b) program=$OPTARG ;;
	o) output=$OPTARG ;;
	f) fast=no ;;
	h) usage 0 ;;
	*) usage 2 ;;
	esac
done
shift $((OPTIND - 1))
[ -x "$program" ] || {
	echo "bench/grid.sh: '$program' is not built (make)" >&2
	exit 2
}
moves=set,exists_hit,get
fio=(--fio bench/fio.sh)
case ${1-} in
quick) options=(--part-bytes 64K,1M --reps 5 --ops "$moves" "${fio[@]}") ;;
gates) options=(--checksums full,none --register "${fio[@]}") ;;
sizes) options=(--part-bytes 4K,16K,64K,256K,1M,4M,8M --batch 32 --ops "$moves" "${fio[@]}") ;;
batches) options=(--part-bytes 64K,1M --batch 1,8,32,128 "${fio[@]}") ;;
engines) options=(--part-bytes 64K,1M --ops "$moves" --direct yes,no
	--engines io_uring,linux_aio,threads,posix_aio) ;;
threads) options=(--part-bytes 64K --threads 1,2,4 --states warm,cold) ;;
sums) options=(--checksums full,sector,none --ops "$moves") ;;
slots) options=(--layouts packed --slots recycled,fresh --ops "$moves") ;;
*) usage 2 ;;
esac
shift

mkdir -p -- "$folder"
work=$(mktemp -d -- "$folder/grid.XXXXXX")
mounted=''
clean_up() {
	[ -z "$mounted" ] || bench/fastdisk.sh umount "$mounted" || true
	rm -rf -- "$work"
}
trap clean_up EXIT

run_disk() {
	local disk=$1 place=$2
	shift 2
	if [ -n "$output" ]; then
		mkdir -p -- "$output"
		"$program" --folder "$place" "${options[@]}" --json "$@" >"$output/$disk.jsonl"
		echo "bench/grid.sh: $disk disk: $output/$disk.jsonl" >&2
	else
		printf '\n%s disk (%s)\n' "$disk" "$(findmnt -n -o FSTYPE -T "$place")"
		"$program" --folder "$place" "${options[@]}" "$@"
	fi
}

mkdir -- "$work/real"
run_disk real "$work/real" "$@"
if [ "$fast" = no ]; then
	exit 0
elif [ "$(id -u)" != 0 ]; then
	echo 'bench/grid.sh: the fast disk needs root; left out' >&2
elif bench/fastdisk.sh mount "$work/fast"; then
	mounted=$work/fast
	mkdir -- "$work/fast/place"
	run_disk fast "$work/fast/place" "$@"
else
	echo 'bench/grid.sh: no fast disk here (loop devices are needed); left out' >&2
fi
