# Every target sets itself up; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MCP1 := .venv/mcp1/bin
MCP2 := .venv/mcp2/bin
PACKAGE := bindings-python/python/tailrope
# Every store, and the one for the tests of hosts.
STORES := --features tailrope-core/postgres,tailrope-core/redis,tailrope-core/sqlite,tailrope-core/testing
# Real servers while a command runs: all kinds for the engine, one of each for the packages.
EVERY_SERVER := tests/services/with redis redis-cluster redis-sentinel redis-tls postgres postgres-tls pgbouncer --
SERVERS := tests/services/with redis postgres --
# Only the checks of the binding crate look at an interpreter; linking against one is left to the wheel.
export PYO3_PYTHON := $(CURDIR)/$(MCP2)/python
# Extra arguments: make test-python PYTEST_ARGS="-k resume", make bench BENCH_ARGS="--quick", make demo DEMO_ARGS=...,
# make torture-faults TORTURE_ARGS="--test takeover --server node-v2"
PYTEST_ARGS ?=
MUTANTS_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
TORTURE_ARGS ?=
FUZZ_TARGETS ?=

.PHONY: help setup lock clean format lint lint-rust lint-python lint-node lint-docs
.PHONY: asan demo demo-python demo-node demo-client bench bench-stores fuzz leaks matrix mutants shuttle simulate torture
.PHONY: test test-rust test-python test-python-mcp1 test-python-mcp2 test-node test-interop test-client test-conformance
.PHONY: test-torture torture-faults torture-marathon torture-stalled torture-soak

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## make .venv/mcp1 and .venv/mcp2, build the wheel, install it in both (fast when nothing changed)
	@scripts/setup

# More at a time than there are cores: most tests wait for something most of their time.
TOGETHER := $(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target

test: setup ## run every test
	@$(TOGETHER) test-rust test-python-mcp1 test-python-mcp2 test-node test-client test-interop test-conformance \
		test-torture mutants

test-rust: ## run the tests of the engine and of its stores, with real Redis and PostgreSQL servers
	$(EVERY_SERVER) cargo test --workspace --exclude tailrope-python --exclude tailrope-node $(STORES)

shuttle: ## run what threads share in the engine under many orders of their steps
	TAILROPE_SCHEDULES=$${TAILROPE_SCHEDULES:-20000} cargo test -p tailrope-shuttle

mutants: ## put known faults of SDKs into copies of the engine, and show which test catches each
	tests/mutants/run $(MUTANTS_ARGS)

simulate: ## run a million random schedules of several engines over a simulated store (TAILROPE_SCHEDULES=N)
	TAILROPE_SCHEDULES=$${TAILROPE_SCHEDULES:-1000000} cargo test --release -p tailrope-simulation --test schedules

test-python: setup ## run tests/python against mcp 1.x + fastmcp 3 and against mcp 2.x + fastmcp 4
	@$(TOGETHER) test-python-mcp1 test-python-mcp2

test-python-mcp1 test-python-mcp2: test-python-%:
	$(SERVERS) .venv/$*/bin/python -m pytest tests/python --numprocesses 2 --dist loadgroup $(PYTEST_ARGS)

test-node: setup ## run tests/node against the TypeScript SDK 1.x and 2.x
	$(SERVERS) npm test --silent

test-interop: setup ## run every official client against every server
	tests/interop/build >/dev/null
	$(MCP2)/python -m pytest tests/interop $(PYTEST_ARGS)

test-client: setup ## run stock clients with the one line and without it, against raw, stock and our servers
	tests/conformance/setup
	$(MCP2)/python -m pytest tests/client $(PYTEST_ARGS)
	tests/conformance/run-clients

# By file, so that one worker has all the cells: each that runs one of them runs all that it has collected.
test-torture: setup ## run a slice of the torture: each test in each language, a few seconds each
	tests/interop/build >/dev/null
	tests/services/with nginx redis postgres -- $(MCP2)/python -m pytest tests/torture --numprocesses 2 --dist loadfile \
		$(PYTEST_ARGS)

# Each part goes on behind what is broken, and so does the whole, which names that again at its end.
TORTURE_PARTS := torture-faults torture-marathon torture-stalled torture-soak
torture: export TAILROPE_TORTURE_BROKEN := $(CURDIR)/target/torture-broken
torture: setup ## all of the torture, about an hour on two cores: its four parts
	@rm -f "$$TAILROPE_TORTURE_BROKEN"
	@$(MAKE) --no-print-directory --jobs=1 --keep-going $(TORTURE_PARTS) || { \
		cat "$$TAILROPE_TORTURE_BROKEN" 2>/dev/null || true; exit 1; }

torture-faults: setup ## break connections, processes and stores under every server, and print a table: half an hour
	@cd tests && services/with redis postgres -- ../$(MCP2)/python -m torture $(TORTURE_ARGS)

torture-marathon: setup ## a call with 500 closes through every client and server, also behind nginx: 15 minutes
	@tests/interop/build >/dev/null
	@cd tests && services/with nginx -- ../$(MCP2)/python -m torture.marathon

torture-stalled: setup ## 1 GB for a reader that takes nothing, beside nine that do: three minutes
	@cd tests && ../$(MCP2)/python -m torture.stalled

torture-soak: setup ## a day of rude clients, compressed, on each store: a quarter of an hour
	@cd tests && services/with redis postgres -- ../$(MCP2)/python -m torture.soak

test-conformance: setup ## run the official conformance suite against the Python and the Node server
	tests/conformance/setup
	tests/conformance/run

fuzz: ## fuzz the core with coverage and AddressSanitizer, FUZZ_SECONDS for each target (600), two at a time
	tests/fuzz/run $(FUZZ_TARGETS)

matrix: setup ## run the core of the tests with the oldest and the newest SDK of each line (installs them under target/matrix)
	tests/matrix/run

lint: lint-rust lint-python lint-node lint-docs ## format checks, clippy, layering, ruff, mypy, stubtest, tsc

lint-rust: setup
	cargo fmt --all --check
	cargo fmt --manifest-path tests/interop/rmcp-client/Cargo.toml --check
	cargo fmt --manifest-path tests/torture/rmcp-server/Cargo.toml --check
	cargo fmt --manifest-path tests/fuzz/libfuzzer/Cargo.toml --check
	scripts/check-layers
	cargo check --quiet -p tailrope-core --no-default-features
	cargo clippy --quiet -p tailrope-core --all-targets -- -D warnings
	cargo clippy --quiet --workspace --all-targets $(STORES) -- -D warnings

lint-python: setup
	$(MCP2)/ruff format --check .
	$(MCP2)/ruff check .
	$(MCP2)/mypy --strict $(PACKAGE)
	$(MCP2)/python -m mypy.stubtest tailrope._native

lint-node: setup
	npm run --silent typecheck

lint-docs:
	scripts/check-guarantees

format: setup ## format Rust and Python
	cargo fmt --all
	$(MCP2)/ruff format .
	$(MCP2)/ruff check --fix .

demo: setup ## watch long calls survive their connections, in Python and in Node, for servers and for clients
	@$(MCP2)/python demo $(DEMO_ARGS)

demo-python: setup ## the demo in Python alone
	@$(MCP2)/python demo --language python $(DEMO_ARGS)

demo-node: setup ## the demo in Node alone
	@$(MCP2)/python demo --language node $(DEMO_ARGS)

demo-client: setup ## the demo's part for clients alone: a hostile server, without our line and with it
	@$(MCP2)/python demo --part client $(DEMO_ARGS)

leaks: setup ## look for memory that the native halves lose: Python under valgrind, Node by whether it grows
	$(MCP2)/python tests/leaks/run
	node --expose-gc tests/leaks/scenario.mjs

asan: setup ## make calls of every kind of the native halves under AddressSanitizer, ASAN_SECONDS for each (10)
	$(MCP2)/python tests/asan/run $${ASAN_SECONDS:-10}

bench: setup ## measure Tailrope against the stock transport, side by side
	benches/run $(BENCH_ARGS)

bench-stores: setup ## measure the event stores, beside what their servers do for anybody
	$(SERVERS) benches/stores $(BENCH_ARGS)

lock: ## resolve requirements/*.in again and pin the result
	scripts/lock

clean: ## remove everything that was built or installed here
	rm -rf .venv target node_modules tests/conformance/node_modules \
		bindings-node/*.node bindings-node/cjs dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
