#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Speed of set, get and exists at C level beside fio doing the same I/O, interleaved in one run.
#   bench/run.sh [-d FOLDER] [-r REPETITIONS] [-s "SIZES"] [-q DEPTH] [-p PAGES] [-f] [-n] [-k PROGRAM]
#     -d  folder on the disk to measure; default: build/bench
#     -r  repetitions of each case; default: 9
#     -s  part sizes; default: "256K 1M"
#     -q  depth of fio; default: 32
#     -p  pages of a batch, and files of fio; default: 128
#     -f  leave the fast disk out (it needs root, and 8 GiB of memory for a while)
#     -n  do not append to bench/RESULTS.md
#     -k  the program; default: the release build's
# Each repetition is a process of its own for both. Everything is deleted at the end, not between:
# a file system that has just deleted is slow to create.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
	sed -n '3,15s/^# \?//p' bench/run.sh >&2
	exit "$1"
}

given=("$@")
folder=${KVC_BUILD_ROOT:-build}/bench
repetitions=9 sizes='256K 1M' depth=32 pages=128 fast=yes record=yes
program=${KVC_BUILD_ROOT:-build}/release/bin/kvcellar
[ "${1-}" != --help ] || usage 0
while getopts d:r:s:q:p:fnk:h option; do
	case $option in
	d) folder=$OPTARG ;;
	r) repetitions=$OPTARG ;;
	s) sizes=$OPTARG ;;
	q) depth=$OPTARG ;;
	p) pages=$OPTARG ;;
	f) fast=no ;;
	n) record=no ;;
	k) program=$OPTARG ;;
	h) usage 0 ;;
	*) usage 2 ;;
	esac
done
[ -x "$program" ] || {
	echo "bench/run.sh: '$program' is not built (make)" >&2
	exit 2
}
command -v fio >/dev/null || {
	echo "bench/run.sh: fio is not installed (scripts/setup)" >&2
	exit 2
}

mkdir -p -- "$folder"
work=$(mktemp -d -- "$folder/run.XXXXXX")
mounted=''
clean_up() {
	[ -z "$mounted" ] || bench/fastdisk.sh umount "$mounted" || true
	rm -rf -- "$work"
}
trap clean_up EXIT
samples=$work/samples.jsonl
read -r load _ </proc/loadavg

# One repetition of kvcellar: set, exists and get of one batch with fresh keys.
run_ours() {
	local disk=$1 root=$2 size=$3
	"$program" bench -D "$root" -s verify=require -s plugin.posix.active=true --json --keep \
		--warm --reps 1 --pages "$pages" --parts 2 --part-bytes "$size" |
		python3 -c '
import json, sys
for case in json.load(sys.stdin)["cases"]:
    print(json.dumps({"disk": sys.argv[1], "size": sys.argv[2], "who": "kvcellar",
                      "op": case["op"], "seconds": case["seconds"][0],
                      "cpu_us": case["cpu_us_per_object"]}))' "$disk" "$size" >>"$samples"
}

run_fio() {
	local disk=$1 place=$2 size=$3 bytes=$4 op seconds cpu
	for op in set get; do
		read -r seconds cpu < <(bench/fio.sh "$op" "$place" "$bytes" "$pages" "$depth")
		printf '{"disk":"%s","size":"%s","who":"fio","op":"%s","seconds":%s,"cpu_us":%s}\n' \
			"$disk" "$size" "$op" "$seconds" "$cpu" >>"$samples"
	done
}

# "256K" to the bytes of one object: two parts and the trailer.
object_bytes() {
	echo $(($(numfmt --from=iec "$1") * 2 + 4096))
}

run_disk() {
	local disk=$1 place=$2 size rep bytes
	mkdir -m 700 -- "$place/root"
	for ((rep = 1; rep <= repetitions; rep++)); do
		for size in $sizes; do
			bytes=$(object_bytes "$size")
			printf 'bench: %s disk, %s x 2, repetition %d of %d\n' "$disk" "$size" \
				"$rep" "$repetitions" >&2
			if ((rep % 2)); then
				run_ours "$disk" "$place/root" "$size"
				run_fio "$disk" "$place/fio.$size.$rep" "$size" "$bytes"
			else
				run_fio "$disk" "$place/fio.$size.$rep" "$size" "$bytes"
				run_ours "$disk" "$place/root" "$size"
			fi
		done
	done
	printf '{"disk":"%s","fs":"%s"}\n' "$disk" "$(findmnt -n -o FSTYPE -T "$place")" >>"$samples"
}

mkdir -- "$work/real"
run_disk real "$work/real"
if [ "$fast" = yes ] && [ "$(id -u)" = 0 ]; then
	if bench/fastdisk.sh mount "$work/fast"; then
		mounted=$work/fast
		mkdir -- "$work/fast/place"
		run_disk fast "$work/fast/place"
	else
		echo 'bench/run.sh: no fast disk here (loop devices are needed); left out' >&2
	fi
elif [ "$fast" = yes ]; then
	echo 'bench/run.sh: the fast disk needs root; left out' >&2
fi

options=()
skip=no
for argument in ${given[@]+"${given[@]}"}; do
	# Paths of this machine are not recorded.
	if [ "$skip" = yes ]; then
		argument=... skip=no
	elif [ "$argument" = -d ] || [ "$argument" = -k ]; then
		skip=yes
	fi
	options+=("$argument")
done
python3 bench/summary.py "$samples" "bench/run.sh ${options[*]-}" "$("$program" --version)" \
	"$repetitions" "$depth" "$pages" "$load" >"$work/section.md"
cat -- "$work/section.md"
[ "$record" = no ] || {
	[ -s bench/RESULTS.md ] || printf '# Measured speed\n\nWritten by bench/run.sh; see there what is compared.\n' >bench/RESULTS.md
	cat -- "$work/section.md" >>bench/RESULTS.md
}
