# Every target sets itself up; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MCP1 := .venv/mcp1/bin
MCP2 := .venv/mcp2/bin
PACKAGE := bindings-python/python/tailrope
# Every store, and the one for the tests of hosts.
STORES := --features tailrope-stores/postgres,tailrope-stores/redis,tailrope-stores/sqlite,tailrope-stores/testing
# Real servers while a command runs: one of each kind, or all kinds for the engine.
SERVERS := tests/services/with redis postgres --
EVERY_SERVER := tests/services/with redis redis-cluster redis-sentinel redis-tls postgres postgres-tls pgbouncer --
# Only the checks of the binding crate look at an interpreter; linking against one is left to the wheel.
export PYO3_PYTHON := $(CURDIR)/$(MCP2)/python
# Extra arguments: make test-python PYTEST_ARGS="-k resume", make bench BENCH_ARGS="--quick", make demo DEMO_ARGS=...,
# make torture-faults TORTURE_ARGS="--test takeover --server node-v2"
PYTEST_ARGS ?=
MUTANTS_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
TORTURE_ARGS ?=
MATRIX_ARGS ?=
TRY ?=
CROSS_TARGETS ?=
FUZZ_TARGETS ?=

# Where each suite leaves how long its tests took; `scripts/slowest` reads it.
TIMES := $(CURDIR)/target/times
# What `scripts/second-chance` has run again: names of Rust's tests, files of Node's; pytest knows what failed last.
AGAIN ?=
pytest = $(1)/python -m pytest $(2) --junitxml=$(TIMES)/$(3).xml -o cache_dir=$(TIMES)/$(3).cache \
	$(if $(AGAIN),--last-failed --last-failed-no-failures none) $(PYTEST_ARGS)
# What has passed leaves word of it.
PASSED = @mkdir -p $(TIMES) && touch $(TIMES)/$@.passed

.PHONY: help setup check lock clean format lint lint-rust lint-python lint-node lint-docs lint-workflows
.PHONY: asan demo demo-python demo-node demo-rust demo-client demo-cluster recording bench bench-events bench-fleet bench-relay bench-stores fuzz leaks matrix mutants shuttle simulate torture
.PHONY: audit cross dist try-dist
.PHONY: test test-rust test-wire test-python test-python-mcp1 test-python-mcp2 test-node test-clients
.PHONY: test-full test-rust-full test-wire-full test-python-full test-node-full test-clients-full test-torture test-conformance
.PHONY: torture-faults torture-marathon torture-stalled torture-soak torture-tasks torture-crowd

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

setup: ## make .venv/mcp1 and .venv/mcp2, build the wheel, install it in both (fast when nothing changed)
	@scripts/setup

# Each of these runs several tests at a time, and most of them wait most of their time. More would only starve each other.
TOGETHER := $(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target
# The longest come first, so that none of them is left alone at the end.
SUITES := test-rust test-wire test-python test-node test-clients

test: setup ## what every change runs: all that is deterministic and quick
	@rm -rf $(TIMES)
	@$(TOGETHER) $(SUITES)

check: setup ## lint and test, both together: what CI runs
	@rm -rf $(TIMES)
	@$(TOGETHER) lint $(SUITES)

test-full: setup ## all there is: every SDK line times every store, mutants, deep simulation, load
	@rm -rf $(TIMES)
	@$(MAKE) --no-print-directory --jobs=1 --keep-going test-rust-full test-wire-full test-python-full test-node-full \
		test-clients-full test-conformance test-torture mutants shuttle simulate

# Dependencies are built once for each set of features that is asked of them, so there are two sets.
# That of the wheel and the addon: they have no tests here, and name what they ask of their dependencies.
RUST := --workspace --exclude tailrope-client --exclude tailrope-shuttle --exclude tailrope-server --exclude tailrope-test-server \
	--exclude tailrope-bench-server $(STORES)
# That of rmcp, with all that has further dependencies: the same in `rust_build` of tests/kit/servers.py.
RUST_RMCP := -p tailrope-client -p tailrope-server -p tailrope-shuttle -p tailrope-test-server
# Test programs leave their tests' times where `scripts/slowest` finds them.
TIMED := --config 'target."cfg(all())".runner = "$(CURDIR)/scripts/timed-test"'

# Most of these tests wait, so more of them at a time than there are cores.
test-rust: ## run the tests of the engine, of its stores, of the Rust crates and of the probe, with a real Redis and PostgreSQL
	export RUST_TEST_THREADS=4; passed=true; \
	$(SERVERS) cargo test --no-fail-fast $(TIMED) --tests $(RUST) $(if $(AGAIN),-- --exact $(AGAIN)) || passed=false; \
	cargo test --no-fail-fast $(TIMED) --tests $(RUST_RMCP) $(if $(AGAIN),-- --exact $(AGAIN)) || passed=false; $$passed
	$(PASSED)

test-rust-full: ## run them at depth, on every kind of server, and a few thousand sessions on each store; check all that compiles
	TAILROPE_DEPTH=20 TAILROPE_SCHEDULES=20000 cargo test --profile deep $(RUST) --test rules --test replay --test schedules
	RUST_TEST_THREADS=8 $(EVERY_SERVER) cargo test -p tailrope-stores $(STORES) --test every_server --test many_sessions
	cargo test --doc -p tailrope-client -p tailrope-core -p tailrope-stores $(STORES) --features tailrope-client/rmcp
	cargo test --doc -p tailrope-server -p tailrope-test-server
	@# What no test compiles: examples, benchmarks, and the programs of the tests above.
	cargo clippy --quiet -p tailrope-core --all-targets -- -D warnings
	cargo clippy --quiet --workspace --all-targets $(STORES) --features tailrope-test-server/conformance -- -D warnings
	cargo clippy --quiet -p tailrope-stores $(STORES) --test every_server --test many_sessions -- -D warnings
	@# With every feature, as docs.rs builds it, and as it is by default.
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --all-features -p tailrope-cli -p tailrope-client -p tailrope-core -p tailrope-probe -p tailrope-server -p tailrope-stores
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps -p tailrope-cli -p tailrope-client -p tailrope-core -p tailrope-probe -p tailrope-server -p tailrope-stores

shuttle: ## run what threads share in the engine under many orders of their steps
	TAILROPE_SCHEDULES=$${TAILROPE_SCHEDULES:-20000} cargo test --profile deep -p tailrope-shuttle

mutants: ## put known faults of SDKs into copies of the engine, and show which test catches each
	tests/mutants/run $(MUTANTS_ARGS)

simulate: ## run a million random schedules of several engines over a simulated store (TAILROPE_SCHEDULES=N)
	TAILROPE_SCHEDULES=$${TAILROPE_SCHEDULES:-1000000} cargo test --release -p tailrope-simulation --test schedules

test-wire: setup ## ask every server what it has to do on the wire: tests/wire
	$(SERVERS) $(call pytest,$(MCP2),tests/wire -m "not full" --numprocesses 3,wire)
	$(PASSED)

test-wire-full: setup ## ask every server on every store, every fleet, and both under load; have a real Prometheus read them
	tests/services/with redis postgres prometheus -- $(call pytest,$(MCP2),tests/wire --numprocesses 3,wire-full)

# On mcp 1.x what the SDK line or its HTTP library can change; what says nothing about them carries the mark `one_line`.
test-python: test-python-mcp2 test-python-mcp1 ## run tests/python: installing, event loops, forks, stores of a host, the client's half

test-python-mcp2: setup
	$(SERVERS) $(call pytest,$(MCP2),tests/python -m "not full" --numprocesses 2 --dist loadgroup,python-mcp2)
	$(PASSED)

test-python-mcp1: setup
	$(SERVERS) $(call pytest,$(MCP1),tests/python -m "not full and not one_line" --numprocesses 2 --dist loadgroup,python-mcp1)
	$(PASSED)

test-python-full: setup ## run all of it on both SDK lines, and the official client 1.x against every server
	TAILROPE_FUZZ_SECONDS=2 $(SERVERS) $(call pytest,$(MCP2),tests/python --numprocesses 2 --dist loadgroup,python-mcp2-full)
	TAILROPE_FUZZ_SECONDS=2 $(SERVERS) $(call pytest,$(MCP1),tests/python --numprocesses 2 --dist loadgroup,python-mcp1-full)
	$(call pytest,$(MCP1),tests/wire -k stock_client --numprocesses 2,wire-mcp1-full)

test-node: setup ## run tests/node: classes and handlers, the client's half, stores of a host, packages
	@mkdir -p $(TIMES)
	$(SERVERS) npm run --silent $(if $(AGAIN),test:files -- $(AGAIN),test) | tee $(TIMES)/node.txt
	$(PASSED)

test-node-full: setup ## run all of it
	TAILROPE_TEST_FULL=1 TAILROPE_FUZZ_SECONDS=2 $(SERVERS) npm test --silent

test-clients: setup ## run official clients against servers of both languages, and the clients' scenarios: tests/interop, tests/client
	$(call pytest,$(MCP2),tests/interop tests/client tests/torture -m "not full",clients)
	$(PASSED)

test-clients-full: setup ## run every official client against every server and every fleet
	tests/interop/build >/dev/null
	$(SERVERS) $(call pytest,$(MCP2),tests/interop tests/client,clients-full)

test-torture: setup ## run a slice of the torture: each test in each language, a few seconds each
	@# A first build is no part of the time that a test may take.
	@cd tests && TAILROPE_TEST_RUST_STORES=every ../$(MCP2)/python -c 'from kit.servers import built_rust; built_rust()'
	tests/services/with nginx redis postgres -- $(call pytest,$(MCP2),tests/torture --numprocesses 2 --dist loadfile,torture)

test-conformance: setup ## run the official conformance suite against our servers and clients
	tests/conformance/setup
	tests/conformance/run
	tests/conformance/run-clients

# Each part goes on behind what is broken, and so does the whole, which names that again at its end.
TORTURE_PARTS := torture-faults torture-marathon torture-stalled torture-soak torture-tasks torture-crowd
torture: export TAILROPE_TORTURE_BROKEN := $(CURDIR)/target/torture-broken
torture: setup ## all of the torture, about two and a half hours on two cores: its six parts
	@rm -f "$$TAILROPE_TORTURE_BROKEN"
	@$(MAKE) --no-print-directory --jobs=1 --keep-going $(TORTURE_PARTS) || { \
		cat "$$TAILROPE_TORTURE_BROKEN" 2>/dev/null || true; exit 1; }

torture-faults: setup ## break connections, processes and stores under every server, and print a table: 45 minutes
	@cd tests && services/with redis postgres -- ../$(MCP2)/python -m torture $(TORTURE_ARGS)

torture-marathon: setup ## a call with 500 closes through every client and server, also behind nginx: 15 minutes
	@tests/interop/build >/dev/null
	@cd tests && services/with nginx -- ../$(MCP2)/python -m torture.marathon

torture-stalled: setup ## 1 GB for a reader that takes nothing, beside nine that do: eight minutes
	@cd tests && ../$(MCP2)/python -m torture.stalled

torture-soak: setup ## a day of rude clients, compressed, on each store: 25 minutes
	@cd tests && services/with redis postgres -- ../$(MCP2)/python -m torture.soak

torture-tasks: setup ## kill, pause, restart and cut off the processes of tasks, 200 kills on each store, and race: 75 minutes
	@cd tests && services/with redis postgres -- ../$(MCP2)/python -m torture.tasks $(TASKS_ARGS)

torture-crowd: setup ## 10,000 streams at the front: idle, resumed all at once, at its end; rude clients; CROWD_ARGS="--clients 2000": 20 minutes
	@cd tests && ../$(MCP2)/python -m torture.crowd $(CROWD_ARGS)

fuzz: ## fuzz the core with coverage and AddressSanitizer, FUZZ_SECONDS for each target (600), two at a time
	tests/fuzz/run $(FUZZ_TARGETS)

matrix: setup ## run the core of the tests with the oldest and the newest SDK of each line, or MATRIX_ARGS=pre-release
	tests/matrix/run $(MATRIX_ARGS)

lint: lint-rust lint-python lint-node lint-docs lint-workflows ## format checks, clippy, layering, ruff, mypy, stubtest, tsc, biome, links and words of the documents, actionlint, zizmor
	$(PASSED)

# It compiles what tests run, on the dependencies that they have: `cargo clippy` would have all of these built a second time.
CLIPPY := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings cargo build --quiet --bins --tests

lint-rust: setup
	cargo fmt --all --check
	@# Programs with a lock file of their own, which has to follow the crates of the workspace.
	for program in interop/rmcp-client fuzz/libfuzzer; do \
		cargo fmt --manifest-path tests/$$program/Cargo.toml --check; \
		cargo update --workspace --locked --quiet --manifest-path tests/$$program/Cargo.toml; \
	done
	scripts/check-layers
	tests/mutants/run --check
	@# A core whose features are off: no warning counts there.
	RUSTC_WORKSPACE_WRAPPER= cargo build --quiet -p tailrope-core --no-default-features
	$(CLIPPY) $(RUST)
	$(CLIPPY) $(RUST_RMCP)
	@# `.ci/run` has had Clippy compile these two when they were set up.
	test -n "$${RUSTC_WORKSPACE_WRAPPER:-}" || cargo clippy --quiet -p tailrope-python -p tailrope-node -- -D warnings

lint-python: setup
	$(MCP2)/ruff format --check .
	$(MCP2)/ruff check .
	$(MCP2)/mypy --strict $(PACKAGE)
	@# What only Unix has is behind a check of the platform.
	$(MCP2)/mypy --strict --platform win32 $(PACKAGE)
	$(MCP2)/python -m mypy.stubtest tailrope._native

lint-node: setup
	npm run --silent lint

lint-workflows: setup
	scripts/version --check
	scripts/check-workflows

lint-docs:
	scripts/check-guarantees
	scripts/check-docs
	scripts/reference --check

format: setup ## format Rust, Python and JavaScript
	cargo fmt --all
	$(MCP2)/ruff format .
	$(MCP2)/ruff check --fix .
	npm run --silent format

demo: setup ## watch long calls survive their connections, as streams and as tasks, in Python and in Node, for servers and for clients
	@$(MCP2)/python demo $(DEMO_ARGS)

demo-python: setup ## the demo in Python alone
	@$(MCP2)/python demo --language python $(DEMO_ARGS)

demo-node: setup ## the demo in Node alone
	@$(MCP2)/python demo --language node $(DEMO_ARGS)

# It needs no package of another language, and any Python.
demo-rust: ## the demo in Rust alone: rmcp behind Tailrope's service, and rmcp's client
	@cargo build --quiet -p tailrope-server --features rmcp --example demo_server --example demo_client
	@python3 demo --language rust $(DEMO_ARGS)

demo-client: setup ## the demo's part for clients alone: a hostile server, without our line and with it
	@$(MCP2)/python demo --part client $(DEMO_ARGS)

recording: setup ## record a run of the demo as the picture in the README
	@$(MCP2)/python demo/recording.py docs/demo.svg

demo-cluster: setup ## three nodes behind nginx: a rolling restart and a kill -9 under the calls of a client that resumes and one that takes tasks
	@tests/services/with --install nginx
	@$(MCP2)/python demo --part cluster

# It needs Chromium: apt-get install chromium.
pictures: setup ## take the pictures of the live page during the cluster's demo
	@tests/services/with --install nginx
	@$(MCP2)/python demo/picturing.py docs/operate

leaks: setup ## look for memory that the native halves lose: Python under valgrind, Node by whether it grows
	$(MCP2)/python tests/leaks/run
	node --expose-gc tests/leaks/scenario.mjs

asan: setup ## make calls of every kind of the native halves under AddressSanitizer, ASAN_SECONDS for each (10)
	$(MCP2)/python tests/asan/run $${ASAN_SECONDS:-10}

# What is measured is built as a release is.
bench bench-events bench-relay bench-stores: export TAILROPE_PROFILE := release
bench: setup ## measure Tailrope against the stock transport, side by side, and write benches/results/latest.md
	benches/run $(BENCH_ARGS)

bench-stores: setup ## measure the event stores, beside what their servers do for anybody
	$(SERVERS) benches/stores $(BENCH_ARGS)

bench-events: setup ## measure one call's 10,000 events through each store, beside the memory store
	$(SERVERS) benches/run --only stores $(BENCH_ARGS)

bench-relay: setup ## measure calls that come to another process than their session's, beside those that come to it
	$(SERVERS) benches/run --only relay $(BENCH_ARGS)

bench-fleet: ## measure what 10, 30 and 100 processes with 1,000 sessions each ask of one Redis and one PostgreSQL
	$(SERVERS) cargo run --release -p tailrope-stores $(STORES) --example fleet_bench -- $(BENCH_ARGS)

lock: ## resolve requirements/*.in and the npm packages again and pin the result
	scripts/lock

# What builds, checks and publishes the packages.
RELEASE := .venv/release/bin
$(RELEASE)/maturin: requirements/release.txt
	source scripts/common.sh; "$$(find_python)" -m venv --clear .venv/release
	$(RELEASE)/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

DIST_PLATFORMS ?= linux-x64-gnu linux-x64-musl
dist: setup $(RELEASE)/maturin ## build all packages for DIST_PLATFORMS from the committed files into dist/, and check them
	rm -rf dist
	$(RELEASE)/python release source
	$(RELEASE)/python release native $(DIST_PLATFORMS)
	$(RELEASE)/python release check $(DIST_PLATFORMS)

try-dist: $(RELEASE)/maturin ## install the packages of dist/ in empty folders, and make a call, a resume and a task with each
	$(RELEASE)/python release try $(TRY)

cross: $(RELEASE)/maturin ## check what is published with the compiler for Windows, macOS, Linux on arm64 and musl (CROSS_TARGETS)
	scripts/check-targets $(CROSS_TARGETS)

audit: $(RELEASE)/maturin ## ask what became known about the dependencies since they were locked: cargo-deny, npm audit, pip-audit
	scripts/audit

clean: ## remove everything that was built or installed here
	rm -rf .venv target node_modules tests/conformance/node_modules \
		bindings-node/*.node bindings-node/lib bindings-node/cjs dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
