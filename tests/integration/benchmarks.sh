#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks of the packed layout on a few objects: they end by themselves when what they stored
# is not found, or other bytes come back.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
bin=$KVC_BUILD_DIR/bin

run() {
	"$@" >"$scratch/out" 2>"$scratch/err" || {
		cat "$scratch/out" "$scratch/err"
		echo "failed: $*"
		exit 1
	}
}

run "$bin/bench_scale" "$scratch" -n 1024,2048 -r 5 -j
[ "$(grep -c '"kind":"scale"' "$scratch/out")" = 2 ] || {
	cat "$scratch/out"
	echo "bench_scale did not measure two roots"
	exit 1
}
run "$bin/bench_grid" --folder "$scratch" --part-bytes 8K --batch 16 --reps 2 --engines threads \
	--direct no --json
python3 - "$scratch/out" <<'PY'
import json
import sys

cells = [row for row in map(json.loads, open(sys.argv[1])) if row["kind"] == "cell"]
seen = {(cell["layout"], cell["op"]) for cell in cells}
ops = ("set", "exists_hit", "exists_miss", "exists_stop", "get", "mixed")
missing = {(layout, op) for layout in ("files", "packed") for op in ops} - seen
wrong = [cell for cell in cells if cell["not_ok"] or len(cell["call_s"]) < 2]
if missing or wrong:
    sys.exit(f"bench_grid: not measured: {sorted(missing)}; wrong: {wrong}")
PY
