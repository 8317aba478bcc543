#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/hello against an installed kvcellar that was moved, built by CMake and by the one line of
# the README: it stores pages, and a second run finds them.
#   examples.sh CMAKE C_COMPILER
set -euo pipefail
cmake=$1 cc=$2
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

log() {
	"$@" >"$scratch/log" 2>&1 || {
		cat "$scratch/log"
		exit 1
	}
}

log "$cmake" --install "$KVC_BUILD_DIR" --prefix "$scratch/first"
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved
libdir=$(dirname "$(find "$prefix" -name libkvcellar.so)")
export LD_LIBRARY_PATH=$libdir
source=$KVC_SOURCE_DIR/examples/hello

log "$cmake" -S "$source" -B "$scratch/build" -DCMAKE_C_COMPILER="$cc" \
	-DCMAKE_PREFIX_PATH="$prefix"
log "$cmake" --build "$scratch/build"

# The compiler and the flags as the README has them.
PKG_CONFIG_PATH=$libdir/pkgconfig
export PKG_CONFIG_PATH
read -r -a flags < <(pkg-config --cflags --libs kvcellar)
log "$cc" -std=c17 -Wall -Wextra -Werror "$source/hello.c" -o "$scratch/hello" "${flags[@]}"

# What both runs print; only the first one writes.
expected() {
	cat <<END
page: 65536 bytes, zero copy
set: ok/$1 ok/$1 ok/$1 ok/$1; usable prefix 4
exists: ok/none ok/none ok/none ok/none miss/absent miss/absent; usable prefix 4
get: ok/none ok/none ok/none ok/none miss/absent miss/absent; usable prefix 4
bytes: right
END
}

mkdir "$scratch/cache"
"$scratch/hello" "$scratch/cache" >"$scratch/one"
diff <(expected none) "$scratch/one"
"$scratch/build/hello" "$scratch/cache" >"$scratch/two"
diff <(expected existed) "$scratch/two"

# Its errors are clear, and its exit code says so.
: >"$scratch/file"
if "$scratch/hello" "$scratch/file" 2>"$scratch/errors"; then
	echo "hello succeeded with a file instead of a folder"
	exit 1
fi
grep -q "hello: store: .*$scratch/file is not a directory" "$scratch/errors" ||
	{ cat "$scratch/errors"; exit 1; }

# Each piece of C in the README is a piece of it.
python3 - "$KVC_SOURCE_DIR/README.md" "$source/hello.c" <<'END'
import re, sys
readme, program = (open(path, encoding="utf-8").read() for path in sys.argv[1:])
blocks = re.findall(r"^```c\n(.*?)^```$", readme, re.M | re.S)
missing = [block for block in blocks if block not in program]
for block in missing:
    print("README.md has C that is not in examples/hello/hello.c:\n" + block)
sys.exit(bool(missing) or not blocks)
END
