#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The generators, which follow the document alone, make the files that are kept here.
set -eu
here=$(dirname "$0")
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# A library for its own process only; sanitizers are of no use to it.
"$1" -B "$here/make_golden.py" "$made/v1"
"$1" -B "$here/make_packed.py" "$made/v1"
diff -r "$here/v1" "$made/v1"
