# SPDX-License-Identifier: GPL-2.0-only
# The commands of the project. `make test` is all that CI does; `make demo` shows what it is.

CARGO ?= cargo
# Debian's plain `clang` is too old for BPF; .cargo/config.toml says the same to a cargo run by hand.
export BPF_CLANG ?= clang-19

# The published scx schedulers whose objects the tests use.
SCX_CRATES ?= scx_bpfland

BUILD := build
SCXLAB = $(CARGO) run --quiet --release --package scxlab-cli --bin scxlab --
RT_APP_EXAMPLE := /usr/share/doc/rt-app/examples/browser-short.json

step = @echo "== $(1)"

.PHONY: help setup build test demo fmt lint unit objects kernel-objects scx-objects abi bench tidy clean

help:
	@echo "make setup           install the Debian packages that are missing"
	@echo "make build           build scxlab (target/release/scxlab)"
	@echo "make demo            set up, build, compare two schedulers on a two-node machine, write a trace"
	@echo "make test            everything CI does"
	@echo "make fmt             format the sources"
	@echo "make kernel-objects  compile the kernel's own schedulers and selftests into build/kernel/objects"
	@echo "make scx-objects     take the objects of SCX_CRATES ($(SCX_CRATES)) into build/scx/objects"
	@echo "make bench           measure the simulator's own speed"
	@echo "make clean           remove what was built; build/kernel and build/scx stay"

setup:
	$(call step,packages)
	@tools/setup.sh

build: setup
	$(call step,build)
	@$(CARGO) build --release --workspace

demo: build
	$(call step,eevdf against vtime: rt-app's browser on two nodes)
	@mkdir -p $(BUILD)
	@$(SCXLAB) run -s eevdf -s vtime -w $(RT_APP_EXAMPLE) -m 2n4c2t -n 5 --duration 5s \
		--trace $(BUILD)/demo.pftrace
	@echo "Traces: $(BUILD)/demo.eevdf.pftrace, $(BUILD)/demo.vtime.pftrace; the Perfetto UI opens them."

# In order, so that the cheap ones fail first, and each is named when it does.
test:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory kernel-objects scx-objects
	@$(MAKE) --no-print-directory abi
	@$(MAKE) --no-print-directory unit
	@echo "== all passed"

fmt:
	@$(CARGO) fmt --all

lint:
	$(call step,format and lints)
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings

unit:
	$(call step,tests)
	@$(CARGO) test --quiet --workspace

objects: kernel-objects scx-objects

kernel-objects:
	$(call step,the kernel and its objects)
	@tools/kernel-objects.sh

scx-objects:
	$(call step,published schedulers)
	@tools/scx-objects.sh $(SCX_CRATES)

# Our headers against the real kernel, and against every object that we have.
abi: kernel-objects
	$(call step,ABI)
	@$(BPF_CLANG) -target bpf -O2 -g -c crates/kernel/abi/abi.bpf.c -o $(BUILD)/abi.bpf.o
	@tools/check-abi.py $(BUILD)/abi.bpf.o $(BUILD)/kernel/vmlinux \
		$(BUILD)/kernel/objects/*.bpf.o $(wildcard $(BUILD)/scx/objects/*.bpf.o)

# Ratios within one run; nothing is asserted (docs/internals/performance.md).
bench:
	$(call step,benchmarks)
	@$(CARGO) bench --quiet --package scxlab-benches

tidy:
	$(call step,tidy)
	@tools/tidy.sh

clean:
	@$(CARGO) clean
	@rm -f $(BUILD)/abi.bpf.o $(BUILD)/demo.*.pftrace
