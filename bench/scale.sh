#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench_scale on a sparse disk: ext4 on a loop device over a file that takes only what is written,
# so that slots of 10 million objects, which nobody writes, need no room. Root only.
#   bench/scale.sh [-d FOLDER] [-b PROGRAM] [-g GIB] [OPTIONS OF bench_scale]
#     -d  folder for the sparse file; default: /dev/shm, where 10 million objects take about 7 GiB of
#         memory (the index, once more in the page cache)
#     -b  the program; default: the release build's
#     -g  size of the disk as it looks; default: 64
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
	sed -n '3,10s/^# \?//p' bench/scale.sh >&2
	exit "$1"
}

folder=/dev/shm size=64
program=${KVC_BUILD_ROOT:-build}/release/bin/bench_scale
[ "${1-}" != --help ] || usage 0
further=()
while [ $# -gt 0 ]; do
	case $1 in
	-d | -b | -g)
		[ $# -ge 2 ] || usage 2
		case $1 in
		-d) folder=$2 ;;
		-b) program=$2 ;;
		-g) size=$2 ;;
		esac
		shift 2
		;;
	*)
		further+=("$1")
		shift
		;;
	esac
done
[ "$(id -u)" = 0 ] || {
	echo 'bench/scale.sh: a loop device needs root' >&2
	exit 2
}
[ -x "$program" ] || {
	echo "bench/scale.sh: '$program' is not built (make)" >&2
	exit 2
}
work=$(mktemp -d)
image=$(mktemp -- "$folder/kvcellar-scale.XXXXXX")
mounted=no
clean_up() {
	[ "$mounted" = no ] || umount -- "$work" || true
	rm -f -- "$image"
	rmdir -- "$work" || true
}
trap clean_up EXIT
truncate -s "${size}G" -- "$image"
mkfs.ext4 -q -F -m 0 -J size=64 -E nodiscard,lazy_itable_init=1 -- "$image"
mount -o loop -- "$image" "$work"
mounted=yes
"$program" "$work" ${further[@]+"${further[@]}"}
echo "bench/scale.sh: the sparse disk takes $(du -m -- "$image" | cut -f1) MiB" >&2
