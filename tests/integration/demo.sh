#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `make demo` runs after the build: the store goes at the end, unless it is to be kept; the
# report stays.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
export KVC_DEMO_DIR=$scratch/demo KVC_DEMO_PROGRAM=$KVC_BUILD_DIR/bin/kvcellar KVC_DEMO_REQUESTS=20

fail() {
	cat "$scratch/out"
	echo "$1"
	exit 1
}

stores() {
	find "$KVC_DEMO_DIR" -mindepth 1 -maxdepth 1 -name 'store.*' | wc -l
}

demo() {
	"$KVC_SOURCE_DIR/scripts/demo" "$@" >"$scratch/out" 2>&1
}

demo || fail "the demo failed"
grep -q '^wrong bytes  0 in 0 of' "$scratch/out" || fail "no bytes were compared"
grep -q 'The store is removed again' "$scratch/out" || fail "it does not say that the store goes"
grep -qF "PATH=$(cd "$KVC_BUILD_DIR/bin" && pwd):" "$scratch/out" || fail "it does not name PATH"
[ "$(stores)" = 0 ] || fail "the store is still there"
[ -s "$KVC_DEMO_DIR/report.html" ] || fail "there is no report"
KVC_DEMO_KEEP=0 demo || fail "the demo failed"
[ "$(stores)" = 0 ] || fail "KVC_DEMO_KEEP=0 kept the store"
KVC_DEMO_KEEP=1 demo || fail "the demo failed"
demo --keep || fail "the demo failed"
[ "$(stores)" = 2 ] || fail "KVC_DEMO_KEEP=1 or --keep did not keep the store"
kept=$(sed -n 's/^Store: \(.*\) (look at it: .*/\1/p' "$scratch/out")
"$KVC_DEMO_PROGRAM" -D "$kept" verify >"$scratch/out" || fail "the kept store is not right"
if demo --kep; then
	fail "a misspelt argument was taken"
fi
