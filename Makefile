# SPDX-License-Identifier: Apache-2.0
# The front door: everything here calls CMake presets or a script. V=1 shows commands.
.DEFAULT_GOAL := build
PRESET ?= release
PREFIX ?= /usr/local
DESTDIR ?=
BUILD_ROOT ?= build
BUILD := $(BUILD_ROOT)/$(PRESET)
JOBS ?= $(shell nproc)
V ?=
ifeq ($(V),)
Q := @
quiet := >/dev/null
else
Q :=
quiet :=
ninja_verbose := --verbose
endif
export KVC_BUILD_ROOT := $(BUILD_ROOT)

.PHONY: build demo check check-fast soak bench format format-check abi-update coverage install \
	clean setup help

build:
	$(Q)cmake --preset $(PRESET) -B $(BUILD) -DCMAKE_INSTALL_PREFIX="$(PREFIX)" $(quiet)
	$(Q)cmake --build $(BUILD) --parallel $(JOBS) $(ninja_verbose)

setup:
	$(Q)scripts/setup

demo:
	$(Q)scripts/setup --minimal
	$(Q)$(MAKE) --no-print-directory build PRESET=release
	$(Q)scripts/demo

check:
	$(Q)scripts/setup
	$(Q)scripts/check

check-fast:
	$(Q)scripts/check --fast

soak:
	$(Q)scripts/soak

bench: PRESET := release
bench: build
	$(Q)scripts/bench

format:
	$(Q)scripts/format

format-check:
	$(Q)scripts/format --check

abi-update: build
	$(Q)cmake --build $(BUILD) --target abi-update

coverage:
	$(Q)scripts/coverage

install: build
	$(Q)DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)" $(quiet)

clean:
	$(Q)rm -rf -- "$(BUILD_ROOT)"

help:
	@echo 'make             release build in build/release (PRESET=debug|asan|tsan|clang-release|...)'
	@echo 'make demo        set up, build, and replay a request trace'
	@echo 'make check       set up, then every test suite'
	@echo 'make check-fast  core and CLI only: no root, no network, no set-up'
	@echo 'make soak        long randomised runs (MINUTES=30)'
	@echo 'make bench       benchmarks on this machine'
	@echo 'make format      lay out the sources; format-check only looks'
	@echo 'make abi-update  rewrite tests/abi from the present headers'
	@echo 'make coverage    line coverage by gcovr'
	@echo 'make install     PREFIX=/usr/local DESTDIR='
