# SPDX-License-Identifier: MIT
# The front door. Each target is a few lines: CMake builds (CMakePresets.json), scripts/ does the rest.

PREFIX ?= /usr/local
DESTDIR ?=
export DESTDIR

.PHONY: help run test test-all build install clean format

help:
	@echo 'make run       install what is missing, build, verify the operators, run a model, replay traffic'
	@echo 'make test      install what is missing, build, run the tests (under 5 minutes)'
	@echo 'make test-all  other compilers, sanitizers, other processors, oracles (under 35 minutes)'
	@echo 'make build     build the library, the tool and the tests into build/release'
	@echo 'make install   build the library and the tool, and install them to PREFIX ($(PREFIX)); DESTDIR is honoured'
	@echo 'make format    lay out all C files with clang-format'
	@echo 'make clean     remove build/'

run:
	@scripts/install-deps.sh base
	@scripts/build.sh release
	@scripts/run.sh

test:
	@scripts/install-deps.sh base
	@scripts/build.sh release
	@scripts/ctest.sh release

test-all:
	@scripts/install-deps.sh all
	@scripts/test-all.sh

build:
	@scripts/build.sh release

install:
	@scripts/build.sh install
	cmake --install build/install --prefix '$(PREFIX)'

clean:
	rm -rf build

format:
	find include src tools examples tests -name '*.[ch]' -exec clang-format -i {} +
