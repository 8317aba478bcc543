#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_abi.sh symbols|update-symbols LIBRARY LIST   exported symbols against the list
# check_abi.sh sizes|update-sizes PROGRAM LIST       what the size program prints against the list
# check_abi.sh declared LIBRARY HEADER_FOLDER        every KVC_API function is exported, and no other
#                                                    (plugin.h declares what a plugin exports)
# check_abi.sh plugin PLUGIN                         kvc_plugin_entry is the only exported symbol
set -euo pipefail
export LC_ALL=C
action=$1 file=$2

# Names without the version node; the sanitizers' own symbols are not ours.
exported() {
	nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' |
		grep -vE '^(__asan_|__odr_asan|__tsan_|__ubsan_|__gcov_|__llvm_)' | sort -u
}

compare() {
	if ! diff -u --label recorded --label present "$1" -; then
		echo "The ABI changed. Symbols and fields are only added, at the end;"
		echo "if this is meant, run: make abi-update"
		return 1
	fi
}

case $action in
symbols) exported "$file" | compare "$3" ;;
sizes) "$file" | compare "$3" ;;
update-symbols) exported "$file" >"$3" ;;
update-sizes) "$file" >"$3" ;;
declared)
	declared=$(find "$3" -name '*.h' ! -name plugin.h -exec \
		sed -n 's/^KVC_API .*\b\(kvc_[a-z0-9_]*\)(.*/\1/p' {} + | sort -u)
	diff -u --label 'declared in the headers' --label 'exported by the library' \
		<(printf '%s\n' "$declared") <(exported "$file")
	;;
plugin)
	diff -u --label expected --label exported <(echo kvc_plugin_entry) <(exported "$file")
	;;
*)
	echo "check_abi.sh: unknown action '$action'" >&2
	exit 2
	;;
esac
