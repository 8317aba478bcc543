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
mv "$scratch/first" "$scratch/moved"
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
