#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into a scratch folder, moves it, and builds and runs a program against it in two ways:
# by pkg-config and by the CMake package.
set -euo pipefail
cmake=$1 cc=$2
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

"$cmake" --install "$KVC_BUILD_DIR" --prefix "$scratch/first" >"$scratch/log" ||
	{ cat "$scratch/log"; exit 1; }
manifest=$scratch/manifest
cp -- "$KVC_BUILD_DIR/install_manifest.txt" "$manifest"

# make uninstall: everything goes, and what others have beside it stays. A prefix that was not
# installed to is refused.
cp -a "$scratch/first" "$scratch/copy"
if "$KVC_SOURCE_DIR/scripts/uninstall" "$manifest" "$scratch/elsewhere" 2>"$scratch/log"; then
	echo "uninstall took a prefix that nothing was installed to"
	exit 1
fi
grep -q "is not under '$scratch/elsewhere'" "$scratch/log"
: >"$scratch/first/share/man/man1/other.1"
cp "$manifest" "$scratch/used"
"$KVC_SOURCE_DIR/scripts/uninstall" "$scratch/used" "$scratch/first"
left=$(find "$scratch/first" -type f -o -type l -o -name 'kvcellar*')
[ "$left" = "$scratch/first/share/man/man1/other.1" ] || { echo "uninstall left: $left"; exit 1; }
# With DESTDIR the manifest has the names without it.
mkdir -p "$scratch/stage$scratch"
mv "$scratch/copy" "$scratch/stage$scratch/first"
cp -a "$scratch/stage$scratch/first" "$scratch/moved"
"$KVC_SOURCE_DIR/scripts/uninstall" "$manifest" "$scratch/first" "$scratch/stage"
[ -z "$(find "$scratch/stage" -type f -o -type l)" ] || { echo "uninstall ignores DESTDIR"; exit 1; }
prefix=$scratch/moved
libdir=$(dirname "$(find "$prefix" -name libkvcellar.so)")
wanted=$(cat "$KVC_SOURCE_DIR/VERSION")

mkdir "$scratch/program"
cat >"$scratch/program/main.c" <<'PROGRAM'
#include <kvcellar/kvcellar.h>

#include <stdio.h>

int main(void)
{
	return puts(kvc_version()) < 0;
}
PROGRAM
cat >"$scratch/program/CMakeLists.txt" <<'PROGRAM'
cmake_minimum_required(VERSION 3.22)
project(program C)
find_package(kvcellar 0.1 REQUIRED)
add_executable(program main.c)
target_link_libraries(program PRIVATE kvcellar::kvcellar)
PROGRAM

expect_version() {
	local printed
	printed=$(LD_LIBRARY_PATH=$libdir "$1")
	case $printed in
	"$wanted"*) ;;
	*)
		echo "$1 printed '$printed', expected $wanted..."
		exit 1
		;;
	esac
}

export PKG_CONFIG_PATH=$libdir/pkgconfig
read -r -a flags < <(pkg-config --cflags --libs kvcellar)
"$cc" -Wall -Werror "$scratch/program/main.c" -o "$scratch/by-pkg-config" "${flags[@]}"
expect_version "$scratch/by-pkg-config"
[ "$(pkg-config --modversion kvcellar)" = "$wanted" ]

"$cmake" -S "$scratch/program" -B "$scratch/build" -DCMAKE_C_COMPILER="$cc" \
	-DCMAKE_PREFIX_PATH="$prefix" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
"$cmake" --build "$scratch/build" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
expect_version "$scratch/build/program"

if [ -x "$KVC_BUILD_DIR/bin/kvcellar" ]; then
	# The installed command finds the installed library without a search path.
	"$prefix/bin/kvcellar" --version >/dev/null
	for page in "$KVC_SOURCE_DIR"/man/*.[135]; do
		[ -e "$page" ] || continue
		[ -e "$prefix/share/man/man${page##*.}/${page##*/}" ] ||
			{ echo "$page is not installed"; exit 1; }
	done
fi

# Links of the installed documents lead to files, or to a header beside which it is installed.
documents=$(dirname "$(find "$prefix/share/doc" -name README.md -path '*/kvcellar/README.md')")
while IFS=: read -r page link; do
	target=${link#*](} target=${target%)} target=${target%%#*}
	[ -e "$(dirname "$page")/$target" ] || [ -e "$prefix/$target" ] ||
		{ echo "$page: nothing at $target"; exit 1; }
done < <(grep -roE --include='*.md' '\]\([^):#]+(#[^)]*)?\)' "$documents")
[ -e "$documents/examples/hello/hello.c" ]
