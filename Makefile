# The commands a person types; each does the set-up it needs (scripts/setup) and is quick when nothing is to do.
# CMake does the work: the configurations are in CMakePresets.json, everything lands in build/.
PRESET ?= release
PREFIX ?= /usr/local
BUILD  := build/$(PRESET)
DEMO   ?= --compare --sp 4 --out build/demo
JOBS   ?= $(shell nproc)

.DEFAULT_GOAL := build
.PHONY: build build-tests demo check check-full check-long bench wheel deb install install-debug uninstall format lint
.PHONY: interface site site-check clean help

build: ## Build the libraries and tools into build/release
	@scripts/setup build
	@cmake --preset $(PRESET) -DLASP_BUILD_TESTS=$(if $(wildcard $(BUILD)/tests),ON,OFF)
	@cmake --build $(BUILD) --target product -j $(JOBS)

demo: ## Train a small language model with its sequence on one rank and on four, and compare
	@scripts/setup build
	@PRESET=$(PRESET) scripts/demo $(JOBS) $(DEMO)

build-tests:
	@scripts/setup build check
	@cmake --preset $(PRESET) -DLASP_BUILD_TESTS=ON
	@cmake --build $(BUILD) -j $(JOBS)

check: build-tests ## Build everything and run the tests that find most; ends with CTest's summary
	@scripts/check usual $(BUILD) $(JOBS)

check-full: build-tests ## Run also sanitizer builds, a soak, fuzzing and memcheck
	@scripts/check full $(BUILD) $(JOBS)

check-long: build-tests ## Run the long tests (hours): many seeds of faults, fuzzing, soak; ends with a table
	@scripts/check-long $(BUILD) $(JOBS)

bench: build ## Measure correctness and speed with lasp-bench
	@test -x $(BUILD)/bench/lasp-bench || { echo "$(BUILD)/bench/lasp-bench was not built"; exit 1; }
	@$(BUILD)/bench/lasp-bench $(BENCH)

into = $(DESTDIR)$(abspath $(PREFIX))
# What root builds or lists in another user's folder, that user cannot replace. So `sudo make install` takes the build
# as it is, and CMake's own list of files does not stay there (the installed tree has one: cmake/InstalledFiles.cmake).
others_build := $(shell [ -e $(BUILD) ] && [ ! -O $(BUILD) ] && echo yes)
define put
@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(abspath $(PREFIX)) $(1)
@rm -f $(BUILD)/install_manifest*.txt
endef

install: $(if $(others_build),,build) ## Install libraries, tools and documents; PREFIX=/usr/local, DESTDIR=
	$(call put)
	@echo "liblasp is in $(into); docs/guide/install.md says how programs find it"

wheel: ## Make the wheel that pip installs without a compiler into build/wheels; WHEEL='--cpu' for one without CUDA
	@packaging/wheel/build $(WHEEL)

deb: ## Make Debian packages into build/debs, for the Debian or Ubuntu that this is; DEB='--cpu' for ones without CUDA
	@packaging/debian/build $(DEB)

install-debug: ## Install the libraries' debug information beside them; PREFIX= and DESTDIR= as with install
	$(call put,--component debug)

uninstall: ## Remove what install and install-debug put into PREFIX=; DESTDIR= too
	@scripts/uninstall $(into)

format: ## Format all sources with clang-format
	@scripts/setup lint
	@scripts/format

lint: ## Check formatting, then look for defects with clang-tidy
	@scripts/setup build lint
	@scripts/format --check
	@cmake --preset $(PRESET) -DLASP_BUILD_TESTS=$(if $(wildcard $(BUILD)/tests),ON,OFF) > /dev/null
	@scripts/tidy $(BUILD) $(JOBS)

interface: ## Make anew what follows from lasp.h: raw bindings and baselines, after a change on purpose
	@scripts/setup build check
	@cmake --preset $(PRESET) -DLASP_BUILD_TESTS=ON
	@JOBS=$(JOBS) scripts/interface $(BUILD)

site: ## Build the documents as a site, with search and the references of C, Python and Rust, into build/site
	@docs/site/setup
	@docs/site/build

site-check: site ## Open the site in a browser (chromium) and look for what is broken
	@docs/site/setup --check
	@build/site-venv/bin/python tests/site/browser.py build/site

clean: ## Remove build/
	rm -rf build

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|'
