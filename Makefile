# SPDX-License-Identifier: GPL-2.0-only
# The project's commands. `make test` is what CI does; `make demo` shows an example.

CARGO ?= cargo
# Debian's plain `clang` is too old for BPF; .cargo/config.toml sets the same for a cargo run by
# hand.
export BPF_CLANG ?= clang-19

# Published scx schedulers whose objects the tests use; the newest version of each comes first.
SCX_CRATES ?= $(shell awk '$$1 == "crate" && $$2 ~ /^scx_/ { print $$2 "@" $$3 }' tools/pins.txt)

# Target of `make install`; DESTDIR is prepended, for packages.
PREFIX ?= /usr/local

BUILD := build
SCXLAB = $(CARGO) run --locked --quiet --release --package scxlab-cli --bin scxlab --

FUZZ_TARGETS := object_loader libbpf interpreter engines schedulers rtapp_parser workloads machines lstopo recipes results traces
FUZZ_SECONDS ?= 600
# Number of targets that run at the same time.
FUZZ_JOBS ?= 1
SOAK_SECONDS ?= 60

# With the time of day, so that a log tells what took long.
step = @date "+== $(1) (%T)"

.PHONY: help setup build install deb wheel pgo test thorough demo fmt lint deny pins unit python aarch64 objects kernel-objects scx-objects abi bench figures claims-vm tidy clean fuzz fuzz-short fuzz-grow fuzz-corpus soak conserve

help:
	@echo "make setup           install the Debian packages that are missing"
	@echo "make build           build scxlab (target/release/scxlab)"
	@echo "make install         build, and copy the program, man pages and completions to PREFIX ($(PREFIX))"
	@echo "make deb             build, and make a Debian package in target/deb"
	@echo "make wheel           build the Python wheel, optimised, in target/wheels"
	@echo "make pgo             build a faster scxlab with profile-guided optimisation (target/pgo/scxlab)"
	@echo "make demo            set up, build, compare two schedulers on a busy laptop, write a page and traces"
	@echo "make test            everything CI does"
	@echo "make thorough        all cases of all tests, the long ones too, and make fuzz-short; takes hours"
	@echo "make aarch64         the machine code for aarch64, in an emulator; one of the tests"
	@echo "make python          build the Python wheel and test it; one of the tests"
	@echo "make fmt             format the sources"
	@echo "make deny            check licences, sources and known vulnerabilities of the dependencies, which the tests do after a change of them"
	@echo "make pins            pin the newest kernel and published schedulers (tools/pins.txt)"
	@echo "make fuzz-corpus     every input of the fuzz targets' corpus once, as ordinary tests"
	@echo "make fuzz            run each fuzz target for FUZZ_SECONDS ($(FUZZ_SECONDS)), FUZZ_JOBS ($(FUZZ_JOBS)) at a time"
	@echo "make fuzz-short      run each on a fixed number of inputs, half a minute's, two at a time"
	@echo "make fuzz-grow       add inputs of make fuzz that reach more code to the corpus"
	@echo "make kernel-objects  compile the kernel's own schedulers and selftests into build/kernel/objects"
	@echo "make scx-objects     take the objects of SCX_CRATES into build/scx/objects"
	@echo "make soak            every mode of every shipped scheduler under stress in a VM, SOAK_SECONDS ($(SOAK_SECONDS)) each"
	@echo "make conserve        the default class keeps the CPUs of thirty machines busy, simulated and in a VM"
	@echo "make claims-vm       check the pages' statements about real kernels, in virtual machines; ten minutes"
	@echo "make bench           measure the simulator's own speed; with PGO=1 as built by make pgo"
	@echo "make figures         measure, and write the figures to docs/internals/figures.md"
	@echo "make clean           remove what was built; build/kernel and build/scx stay"

setup:
	$(call step,packages)
	@tools/setup.sh

build: setup
	$(call step,build)
	@$(CARGO) build --locked --release --package scxlab-cli --bin scxlab

install: build
	$(call step,install)
	@tools/install.sh "$(DESTDIR)$(PREFIX)"

deb: build
	$(call step,Debian package)
	@tools/deb.sh target/deb

# With the maturin of the tests.
wheel: setup
	$(call step,Python wheel)
	@tools/python.sh wheel target/wheels

pgo: setup
	$(call step,build with a profile)
	@tools/pgo.sh

demo: build
	$(call step,eevdf against vtime: a video and typing beside a build on a laptop)
	@mkdir -p $(BUILD)
	@$(SCXLAB) run -s eevdf -s vtime -w workloads/desktop-build.toml -m laptop-4c8t -n 5 --trace $(BUILD)/demo.pftrace --report $(BUILD)/demo.html
	@echo "Traces: $(BUILD)/demo.eevdf.pftrace, $(BUILD)/demo.vtime.pftrace; the Perfetto UI opens them."
	@echo "Page for a browser: $(abspath $(BUILD)/demo.html)"

# Inputs that reach new code collect in build/fuzz; only `fuzz-grow` changes those of fuzz/corpus.
fuzz:
	$(call step,fuzzing)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_JOBS=$(FUZZ_JOBS) tools/fuzz.sh run $(FUZZ_TARGETS)

# Enough inputs to find bugs that show at once, and the same each time, so that the verdict depends
# on the commit and not on luck or on the host's speed.
fuzz-short:
	$(call step,fuzzing)
	@FUZZ_JOBS=2 tools/fuzz.sh short $(FUZZ_TARGETS)

fuzz-grow:
	$(call step,corpus of the fuzz targets)
	@tools/fuzz.sh grow $(FUZZ_TARGETS)

# In this order, so that the cheap steps fail first; each step is named.
test:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory lint
	$(call step,licences and sources)
	@tools/deny.sh changed
	@$(MAKE) --no-print-directory kernel-objects scx-objects
	@$(MAKE) --no-print-directory abi
	@$(MAKE) --no-print-directory unit
	@echo "== all passed"

# Before a release, and after a change to what the long tests cover. `ignore = "long"` marks a long
# test; SCXLAB_THOROUGH makes other tests try all of their cases.
thorough: export SCXLAB_THOROUGH := 1
thorough:
	@$(MAKE) --no-print-directory setup deny kernel-objects scx-objects
	$(call step,all tests)
	@$(CARGO) test --locked --quiet --workspace --lib --bins --tests -- --include-ignored
	@$(MAKE) --no-print-directory fuzz-short

fmt:
	@$(CARGO) fmt --all

lint:
	$(call step,format and lints)
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --locked --quiet --workspace --all-targets --features scxlab-fuzz/libfuzzer -- -D warnings
	@tools/wheel-features.sh

deny:
	$(call step,licences and sources)
	@tools/deny.sh

# After this the tests report what else must be changed.
pins:
	$(call step,pins)
	@tools/pins.sh

unit:
	$(call step,tests)
	@$(CARGO) test --locked --quiet --workspace
	$(call step,Python module)
	@tools/python.sh

# The end of `unit`, where the tests of the command have built it. Built alone, it has dependencies
# with fewer features, so all of them are compiled again.
python:
	$(call step,Python module)
	@$(CARGO) build --locked --quiet --package scxlab-cli --bin scxlab
	@tools/python.sh

# Part of `unit`; separate, for debugging an input.
fuzz-corpus:
	$(call step,fuzz corpus)
	@$(CARGO) test --locked --quiet --package scxlab-fuzz --test corpus

# Part of `unit`; separate, for work on the compiler.
aarch64:
	$(call step,machine code for aarch64)
	@$(CARGO) test --locked --quiet --package scxlab-bpf --test aarch64

objects: kernel-objects scx-objects

kernel-objects:
	$(call step,the kernel and its objects)
	@tools/kernel-objects.sh

scx-objects:
	$(call step,published schedulers)
	@tools/scx-objects.sh $(SCX_CRATES)

# Compares our headers with the real kernel, and with every available object that has a recipe.
# scx_cake before its rewrite is another scheduler, which is refused.
abi: kernel-objects
	$(call step,ABI)
	@$(BPF_CLANG) -target bpf -O2 -g -c crates/kernel/abi/abi.bpf.c -o $(BUILD)/abi.bpf.o
	@tools/check-abi.py $(BUILD)/abi.bpf.o $(BUILD)/kernel/vmlinux \
		$(BUILD)/kernel/objects/*.bpf.o $(filter-out %/cake-1.1.3.bpf.o,$(wildcard $(BUILD)/scx/objects/*.bpf.o))

# Prints ratios within one run; nothing is asserted (docs/internals/performance.md).
bench:
	$(call step,benchmarks)
	@$(if $(PGO),tools/pgo.sh bench,$(CARGO) bench --locked --quiet --package scxlab-benches)

figures:
	$(call step,benchmarks)
	@tools/bench.sh

soak: kernel-objects
	$(call step,soak)
	@SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --locked --quiet --package scxlab-cli --test vm -- every_shipped_scheduler_endures --include-ignored --nocapture

# Thirty machines with up to 16 CPUs; takes an hour under emulation.
conserve: kernel-objects
	$(call step,conserve)
	@SCXLAB_THOROUGH=1 $(CARGO) test --locked --quiet --package scxlab-cli --test vm -- enough_hogs_keep_all_cpus_busy --nocapture

# Statements of pages about real kernels; BLESS=1 writes the figures into them.
claims-vm: kernel-objects
	$(call step,claims about virtual machines)
	@CLAIMS_VM=1 $(CARGO) test --locked --quiet --package scxlab-cli --test claims -- claims_hold --nocapture

tidy:
	$(call step,tidy)
	@tools/tidy_test.py
	@tools/tidy.py

clean:
	@$(CARGO) clean
	@rm -rf $(BUILD)/abi.bpf.o $(BUILD)/demo.*.pftrace $(BUILD)/demo.html $(BUILD)/pgo
