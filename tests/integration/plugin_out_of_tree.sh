#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the plugin skeleton against an installed kvcellar, in both ways that its README names,
# checks it with the conformance suite, and lets the installed command load it from plugin_dir.
set -euo pipefail
cmake=$1 cc=$2
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

fail() {
	echo "FAIL: $*"
	exit 1
}

# Runs a command that has to fail; its output has to have the text.
must_refuse() {
	local text=$1 output
	shift
	if output=$("$@" 2>&1); then
		fail "'$*' worked, expected a refusal with '$text'"
	fi
	[[ $output == *"$text"* ]] || fail "'$*' said '$output', expected '$text'"
}

quietly() {
	"$@" >"$scratch/log" 2>&1 || {
		cat "$scratch/log"
		fail "$*"
	}
}

# 1. Install, away from the build.
quietly "$cmake" --install "$KVC_BUILD_DIR" --prefix "$scratch/prefix"
prefix=$scratch/prefix
libdir=$(dirname "$(find "$prefix" -name libkvcellar.so)")
export PKG_CONFIG_PATH=$libdir/pkgconfig

# 2. Build a copy of the skeleton, so that nothing of the tree is in reach.
cp -r "$KVC_SOURCE_DIR/examples/plugin-skeleton" "$scratch/skeleton"
quietly "$cmake" -S "$scratch/skeleton" -B "$scratch/build" -DCMAKE_C_COMPILER="$cc" \
	-DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS=-Werror
quietly "$cmake" --build "$scratch/build"

mkdir -m 755 "$scratch/by-hand"
read -r -a flags < <(pkg-config --cflags kvcellar)
quietly "$cc" -Werror -Wall -Wextra -std=gnu17 -D_GNU_SOURCE -fPIC -fvisibility=hidden -shared \
	"${flags[@]}" "$scratch/skeleton/onedir.c" \
	-o "$scratch/by-hand/kvcellar-plugin-onedir.so"

for plugin in "$scratch/build" "$scratch/by-hand"; do
	symbols=$(nm -D --defined-only "$plugin/kvcellar-plugin-onedir.so" | awk '{ print $3 }')
	[ "$symbols" = kvc_plugin_entry ] || fail "$plugin exports: $symbols"
done

# 3. It keeps the contract.
mkdir "$scratch/conformance"
(cd "$scratch/conformance" &&
	KVCELLAR_PLUGIN_DIR=$scratch/build "$KVC_BUILD_DIR/tests/conformance_plugin" onedir) \
	>"$scratch/log" 2>&1 || {
	cat "$scratch/log"
	fail "the conformance suite"
}

# 4. The command finds it in plugin_dir and works with it, under another plugin too.
mkdir -m 755 "$scratch/plugins"
install -m 644 "$scratch/build/kvcellar-plugin-onedir.so" "$scratch/plugins/"
cat >"$scratch/onedir.json" <<CONFIG
{"plugin_dir": "$scratch/plugins", "storage_dirs": ["$scratch/store"],
 "l3_cleaner_enabled": false,
 "plugin": {"onedir": {"active": true, "sync": true}}}
CONFIG
kvcellar() {
	"$prefix/bin/kvcellar" "$@"
}
config=$scratch/onedir.json

kvcellar -c "$config" info >"$scratch/info" 2>&1 || {
	cat "$scratch/info"
	fail "info"
}
grep -q "onedir.*one file per object in one folder" "$scratch/info" ||
	fail "info does not show the plugin: $(cat "$scratch/info")"
head -c 300001 /dev/urandom >"$scratch/data"
kvcellar -q -c "$config" put greeting "$scratch/data"
kvcellar -q -c "$config" get greeting -o "$scratch/back"
cmp "$scratch/data" "$scratch/back"
[ "$(find "$scratch/store" -maxdepth 1 -type f -name '*greeting*' | wc -l)" = 1 ] ||
	fail "no object of onedir's own form in $(find "$scratch/store")"
must_refuse "" kvcellar -q -c "$config" get absent

# An option that its table does not have, and a value that is none.
sed 's/"sync": true/"snyc": true/' "$config" >"$scratch/key.json"
must_refuse "snyc" kvcellar -q -c "$scratch/key.json" get greeting
sed 's/"sync": true/"sync": "perhaps"/' "$config" >"$scratch/value.json"
must_refuse "sync" kvcellar -q -c "$scratch/value.json" get greeting

# Code that others could change is not run.
chmod g+w "$scratch/plugins/kvcellar-plugin-onedir.so"
must_refuse "may be changed by others" kvcellar -q -c "$config" get greeting
chmod g-w "$scratch/plugins/kvcellar-plugin-onedir.so"
kvcellar -q -c "$config" get greeting -o "$scratch/again"
cmp "$scratch/data" "$scratch/again"
