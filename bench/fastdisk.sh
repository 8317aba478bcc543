#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A disk at memory speed that takes real O_DIRECT: ext4 on a loop device over a file in /dev/shm, so
# that the software is measured and not a disk. Root only.
#   bench/fastdisk.sh mount FOLDER [GIB]   default: 8
#   bench/fastdisk.sh umount FOLDER        also gives the memory back
set -euo pipefail

usage() {
	echo "usage: bench/fastdisk.sh mount FOLDER [GIB] | umount FOLDER" >&2
	exit 2
}

[ $# -ge 2 ] || usage
folder=$2
case $1 in
mount)
	mkdir -p -- "$folder"
	image=$(mktemp /dev/shm/kvcellar-fastdisk.XXXXXX)
	if ! { head -c "${3:-8}G" /dev/zero >"$image" &&
		mkfs.ext4 -q -F -m 0 -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$image" &&
		mount -o loop "$image" "$folder"; }; then
		rm -f -- "$image"
		exit 1
	fi
	printf '%s\n' "$image" >"$folder/.image"
	;;
umount)
	image=$(cat -- "$folder/.image")
	umount -- "$folder"
	case $image in
	/dev/shm/kvcellar-fastdisk.*) rm -f -- "$image" ;;
	esac
	;;
*) usage ;;
esac
