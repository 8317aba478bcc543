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
endif
# What to build; "runtime" is what `make install` installs, without tests and benchmarks.
TARGET ?= all
# On a terminal ninja rewrites one line; into a file or pipe only what fails is of use.
ninja = if [ -n "$(V)" ]; then set -- --verbose; elif [ -t 1 ]; then set --; else set -- --quiet; fi; \
	cmake --build $(BUILD) --parallel $(JOBS) --target
export KVC_BUILD_ROOT := $(BUILD_ROOT)

.PHONY: build demo check check-fast check-long soak bench bench-compare format format-check \
	abi-update coverage install uninstall python wheel clean setup help

build:
	$(Q)cmake --preset $(PRESET) -B $(BUILD) -DCMAKE_INSTALL_PREFIX="$(PREFIX)" $(quiet)
	$(Q)$(ninja) $(TARGET) -- "$$@"

setup:
	$(Q)scripts/setup

demo:
	$(Q)scripts/setup --minimal
	$(Q)echo "Building $(BUILD_ROOT)/release ..."
	$(Q)$(MAKE) --no-print-directory build PRESET=release TARGET=runtime
	$(Q)scripts/demo

check:
	$(Q)scripts/setup
	$(Q)scripts/check

check-fast:
	$(Q)scripts/check --fast

check-long:
	$(Q)scripts/setup
	$(Q)scripts/check --long

soak:
	$(Q)scripts/soak

python:
	$(Q)python=$$(scripts/python-env --interpreter) && \
	cmake --preset $(PRESET) -B $(BUILD) -DKVC_PYTHON=ON -DPython_EXECUTABLE="$$python" $(quiet)
	$(Q)$(ninja) python-package -- "$$@"
	$(Q)echo "PYTHONPATH=$(abspath $(BUILD))/python"

wheel:
	$(Q)scripts/wheel

bench: PRESET := release
bench: build
	$(Q)scripts/bench

bench-compare: PRESET := release
bench-compare: python
	$(Q)scripts/bench-compare

format:
	$(Q)scripts/format

format-check:
	$(Q)scripts/format --check

abi-update: build
	$(Q)cmake --build $(BUILD) --target abi-update

coverage:
	$(Q)scripts/coverage

install: TARGET := runtime
install: build
	$(Q)DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)" $(quiet)
	$(Q)cp -- $(BUILD)/install_manifest.txt $(BUILD)/make_install_manifest.txt

uninstall:
	$(Q)scripts/uninstall $(BUILD)/make_install_manifest.txt "$(PREFIX)" "$(DESTDIR)"

clean:
	$(Q)rm -rf -- "$(BUILD_ROOT)"

help:
	@echo 'make             release build in build/release (PRESET=debug|asan|tsan|clang-release|...)'
	@echo 'make demo        set up, build what it needs, and replay a request trace (KVC_DEMO_KEEP=1)'
	@echo 'make check       set up, then every test suite'
	@echo 'make check-fast  core and CLI only: no root, no network, no set-up'
	@echo 'make check-long  SGLang with several ranks, servers and failures: half an hour and more'
	@echo 'make soak        long randomised runs (MINUTES=30)'
	@echo 'make bench       benchmarks on this machine'
	@echo 'make bench-compare  beside SGLang'"'"'s own storage classes and fio (7 GB of packages once)'
	@echo 'make python      the Python package in build/release/python, for PYTHONPATH'
	@echo 'make wheel       a wheel and a source distribution in build/wheel'
	@echo 'make format      lay out the sources; format-check only looks'
	@echo 'make abi-update  rewrite tests/abi from the present headers'
	@echo 'make coverage    line coverage by gcovr'
	@echo 'make install     PREFIX=/usr/local DESTDIR='
	@echo 'make uninstall   with the same PREFIX and DESTDIR'
