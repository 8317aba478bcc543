#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# header_alone.sh HEADER gcc|clang c|c++
set -euo pipefail
header=$1 compiler=$2 language=$3

if ! command -v "$compiler" >/dev/null; then
	echo "SKIP: $compiler is not installed"
	exit 77
fi
standard=c17
[ "$language" = c ] || standard=c++17
printf '#include <kvcellar/%s>\n#include <kvcellar/%s>\n' "$header" "$header" |
	"$compiler" -x "$language" -std="$standard" -fsyntax-only -I "$KVC_SOURCE_DIR/include" \
		-Wall -Wextra -Wpedantic -Werror -
