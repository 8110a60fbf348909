# The verbs of this project; CI runs the same ones. `make run` and `make test` need nothing but Python and a network.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)
SOURCES := engine server text clients conformance eval voice tests deploy bench examples hatch_build.py

.PHONY: run install lint types quick test test-clients test-compiled test-kernels test-native wheels test-long test-programs test-image test-quality test-gpu bench-gpu soak soak-native soak-sockets soak-chats attack conformance fuzz audit bench voice docs clean
# The tables of results in the pages, from the files of results.
tables: $(VENV)/.dev
	$(BIN)/python -m vivavoce_bench.cards.tables README.md bench/README.md docs/cpu.md deploy/OPERATIONS.md

.PHONY: tables test-pins refresh-pins refresh-advisories

run: $(VENV)/.server
	$(BIN)/vivavoce serve --host $(HOST) --port $(PORT)

install: $(VENV)/.dev

lint: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/.dev
	$(BIN)/mypy

test: lint types $(VENV)-deploy/.done node
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile
TEST_WORKERS ?= 2

# Format, lint, and tests that run no model: the engine's own logic, and the server over a fake engine.
QUICK_ENGINE := admission blends pace pages pipe queue_wait ramp scheduler sequence slots steps_ahead voice_store worker
QUICK_SERVER := access batch context deferred golden_errors jobs lists metrics openapi settings speech sse \
  websocket websocket_states
QUICK := $(QUICK_ENGINE:%=tests/engine/test_%.py) $(QUICK_SERVER:%=tests/server/test_%.py) tests/clients/test_client.py \
  tests/bench/listener/test_player.py tests/test_imports.py tests/test_programs.py tests/test_style.py
quick: lint
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile $(QUICK)

# The tests that need a program which nothing here installs (tests/support/programs.py). `make test` runs them too, and
# skips those whose program is missing; with REQUIRE_PROGRAMS=1 they fail instead.
test-programs: $(VENV)/.dev $(VENV)-deploy/.done node
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "needs and not quality"

# Tests that `make test` has no time for: those that are marked long, random inputs from the schemas, the judge of the
# attack, the recipe of the voice.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "long and not quality"
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile tests/fuzz tests/attack tests/recipe

# The CPU's kernels: under sanitizers, on an emulated ARM processor, and in the wheels of all platforms; minutes.
test-native: $(VENV)/.dev $(VENV)-native/.done
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -o faulthandler_timeout=3600 tests/native

# The wheels and the sdist, for every platform, into dist.
wheels: $(VENV)-native/.done
	@for platform in $(PLATFORMS); do \
	  VIVAVOCE_KERNELS=$$platform $(VENV)-native/bin/python -m hatchling build -t wheel -d dist || exit 1; \
	done
	$(VENV)-native/bin/python -m hatchling build -t sdist -d dist
	cd voice && ../$(VENV)-native/bin/python -m hatchling build -t wheel -d ../dist
PLATFORMS := linux-x86_64 linux-aarch64 macos-arm64 windows-x86_64

# The GPU engine's kernels beside their PyTorch twins, in Triton's interpreter; minutes.
test-kernels: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile tests/gpu

# Published clients against the server, each in an environment of its own and for minutes, all at once: five minutes.
test-clients: $(VENV)/.dev client-environments
	$(BIN)/python -m pytest -o faulthandler_timeout=900 tests/clients/real

# Every kernel launch of the released models, compiled for cards that are not here; minutes of a core.
test-compiled: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_WORKERS) tests/compiled

# The Dockerfile, built and run by podman, as root. Its base is PYTHON_IMAGE, or one that debootstrap makes and keeps.
test-image: $(VENV)/.dev
	REQUIRE_PROGRAMS=1 PYTHON_IMAGE=$(PYTHON_IMAGE) $(BIN)/python -m pytest -s -o faulthandler_timeout=1500 tests/image
PYTHON_IMAGE ?=

# Planted faults and the shipped voice before judges of speech; their weights come inside packages (see pyproject.toml).
test-quality: $(VENV)/.eval
	$(BIN)/python -m pytest -m quality -o faulthandler_timeout=600 tests/quality

# On a machine with an NVIDIA card, whose PyTorch and Triton are used: the kernels, and the engine with the shipped voice. Of
# other packages it needs the engine's and the clients', and pytest alone: the project's own configuration asks for plugins.
GPU_PATH := PYTHONPATH=engine:voice:server:text:clients/python:bench:.
test-gpu:
	$(GPU_PATH) $(PYTHON) -m pytest -c /dev/null --rootdir=. --import-mode=importlib -p no:cacheprovider -s \
	    tests/gpu

# Times of the frame, of Code2Wav, of Qwen3-Omni's speech side and of the whole engine, on random weights of the released
# shapes; needs 8 GB of disk. They end in bench/results/engine-CARD.json, with those of faster-qwen3-tts if PEER_PYTHON names
# a Python that has it; those of Qwen3-Omni stay in RESULTS/omni.json.
bench-gpu:
	mkdir -p $(RESULTS)
	$(GPU_PATH) $(PYTHON) -m vivavoce_bench.cards.codec $(RESULTS)/codec.json --only table
	$(GPU_PATH) $(PYTHON) -m vivavoce_bench.cards.frame --dependent-launch 1 --out $(RESULTS)/frame.json
	$(GPU_PATH) $(PYTHON) -m vivavoce_bench.cards.omni --out $(RESULTS)/omni.json
	test -d $(RESULTS)/1.7b || $(GPU_PATH) $(PYTHON) -m vivavoce_bench.cards.random_checkpoint --size 1.7b --out $(RESULTS)/1.7b
	$(GPU_PATH) $(PYTHON) -m vivavoce_bench.cards.engine --model $(RESULTS)/1.7b --out $(RESULTS)/engine.json
	$(GPU_PATH) $(PYTHON) -m vivavoce_bench.engine.speed --model $(RESULTS)/1.7b --streams 1 64 --profile
	$(if $(PEER_PYTHON),$(GPU_PATH) $(PEER_PYTHON) -m vivavoce_bench.cards.peer_faster_qwen3_tts --out $(RESULTS)/peer.json)
	$(GPU_PATH) $(PYTHON) -m vivavoce_bench.cards.report $(RESULTS) --out bench/results $(if $(PEER_PYTHON),--peer $(RESULTS)/peer.json)
RESULTS ?= bench/work
PEER_PYTHON ?=

# Mixed traffic past the capacity of the machine, then requests that are given up: nothing may be lost or left behind.
MINUTES ?= 30
ABORTS ?= 2000
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --aborts $(ABORTS)

# The same traffic, with the CPU's kernels under the sanitizers of addresses and undefined behaviour, which may report nothing.
soak-native: $(VENV)/.dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --aborts 0 --sanitized

# Live sockets that stay open for MINUTES, on the fake engine: none may be cut off, and SIGTERM is told to all at once.
soak-sockets: $(VENV)/.dev
	$(BIN)/python -m tests.soak.sockets --minutes $(MINUTES)

# Conversations with a small Qwen3-Omni checkpoint for MINUTES, cancelled at every phase: whole answers come again as they were.
soak-chats: $(VENV)/.dev
	$(BIN)/python -m tests.soak.chats --minutes $(MINUTES)

# Hostile inputs beside three good listeners, for MINUTES altogether; MODEL=fake needs no voice. Bounds: tests/attack/judge.py.
MODEL ?= shipped
attack: $(VENV)/.dev
	$(BIN)/python -m tests.attack --minutes $(MINUTES) --model $(MODEL)

# The docs site, from the repository's own Markdown and the API's documents, into dist/site.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# The conformance suite: one planted fault a check, then a server of its own on the shipped voice, where all musts and shoulds
# have to hold.
conformance: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist load tests/conformance/planted
	$(BIN)/python -m tests.conformance

FUZZ_INPUTS ?= 100000
fuzz: $(VENV)/.dev
	FUZZ_INPUTS=$(FUZZ_INPUTS) $(BIN)/python -m pytest -s -o faulthandler_timeout=1500 tests/fuzz

# Known faults of pinned dependencies. It fails if it finds one, and tells which services did not answer.
audit: $(VENV)/.dev
	@$(PYTHON) -m venv $(VENV)-audit && $(VENV)-audit/bin/python -m pip install -q --retries 1 pip-audit || true
	@$(BIN)/python -m deploy.advisories.audit $$(ls $(VENV)-audit/bin/pip-audit 2> /dev/null)

# Asks osv.dev for the faults of all pinned packages, for audits where no service can be asked.
refresh-advisories: $(VENV)/.dev
	$(BIN)/python -m deploy.advisories.refresh

# Asks the index whether pip and uv could install the server with CUDA's torch and constraints.txt, for each Python.
test-pins:
	@if $(PINS_TOOLS); then $(VENV)-pins/bin/python -m deploy.pins.resolve; else echo "no registry: the pins are not resolved"; fi

# After a change of torch in constraints.txt or pyproject.toml: writes the table that tests compare them with.
refresh-pins:
	$(PINS_TOOLS)
	$(VENV)-pins/bin/python -m deploy.pins.refresh
PINS_TOOLS = $(PYTHON) -m venv $(VENV)-pins && \
  $(VENV)-pins/bin/python -m pip install --disable-pip-version-check -q --retries 1 -r deploy/pins/requirements.txt

bench: $(VENV)/.server
	$(BIN)/vivavoce bench engine

# The sentences that are held out of the training text, and the stages of written text, lie in the repository.
RECIPE_PATH := PYTHONPATH="$(abspath voice):$(abspath text)"

# Trains the shipped voice anew, on a machine with NVIDIA cards; voice/recipe/README.md says what it needs.
voice:
	@test -n "$(TEACHER)" || { echo "make voice TEACHER=folder, with kokoro_int8.npz and voices_en_fp16.npz in it"; exit 2; }
	cd voice/recipe && mkdir -p work && { test -f work/corpus.xz || $(RECIPE_PATH) $(PYTHON) -m voice_recipe.make_corpus --out work/corpus.xz; }
	cd voice/recipe && $(RECIPE_PATH) $(PYTHON) -m voice_recipe.run --teacher "$(abspath $(TEACHER))" --corpus work/corpus.xz --work work/run --minutes 25

clean:
	rm -rf $(VENV) $(VENV)-* dist .mypy_cache .ruff_cache .pytest_cache

# Clients that people use, each in an environment of its own: those of Python here, those of npm in their folder.
CLIENTS := tests/clients/real
PYTHON_CLIENTS := $(patsubst $(CLIENTS)/%/requirements.txt,%,$(wildcard $(CLIENTS)/*/requirements.txt))
NPM_CLIENTS := $(wildcard $(CLIENTS)/*/package-lock.json)
# wyoming-openai asks for Python 3.12; without one, it is left out.
PYTHON312 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12) $(shell command -v python3.12))
ifeq ($(strip $(PYTHON312)),)
PYTHON_CLIENTS := $(filter-out wyoming_openai,$(PYTHON_CLIENTS))
endif
.PHONY: client-environments
client-environments: $(PYTHON_CLIENTS:%=$(VENV)-clients/%/.done)
	@if command -v npm > /dev/null; then \
	  for folder in $(NPM_CLIENTS:/package-lock.json=); do \
	    test $$folder/node_modules/.package-lock.json -nt $$folder/package-lock.json || \
	      npm ci --silent --no-audit --no-fund --prefix $$folder || exit 1; \
	  done; \
	else echo "no npm (apt-get install npm): the clients in JavaScript are skipped"; fi

$(VENV)-clients/wyoming_openai/.done: PYTHON = $(PYTHON312)

$(VENV)-clients/%/.done: $(CLIENTS)/%/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check -q -r $<
	@touch $@

# Tools that check deploy/, in an environment of their own.
$(VENV)-deploy/.done: tests/deploy/requirements.txt
	$(PYTHON) -m venv $(VENV)-deploy
	$(VENV)-deploy/bin/python -m pip install --disable-pip-version-check -q -r $<
	@touch $@

# What builds the wheels: Zig's C++ compiler for all platforms.
$(VENV)-native/.done: engine/vivavoce_engine/cpu/build.py constraints.txt
	$(PYTHON) -m venv $(VENV)-native
	$(VENV)-native/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt hatchling \
	  "$$(sed -n 's/^ZIGLANG = "\(.*\)"/\1/p' $<)"
	@touch $@

# The Ray Serve application on two CPU replicas, in an environment of its own.
.PHONY: test-ray
test-ray: $(VENV)-ray/.done
	RAY_USAGE_STATS_ENABLED=0 PATH="$(abspath $(VENV)-ray/bin):$$PATH" PYTHONPATH=deploy/ray:. \
	  $(VENV)-ray/bin/python -m pytest -W default tests/ray

$(VENV)-ray/.done: deploy/ray/requirements.txt constraints.txt pyproject.toml voice/pyproject.toml
	$(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --disable-pip-version-check -q --retries 1 -c constraints.txt $(TORCH) \
	  --extra-index-url https://download.pytorch.org/whl/cpu
	$(VENV)-ray/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt \
	  -e ./voice -e '.[server]' -r $< pytest pytest-asyncio
	@touch $@

.PHONY: node
node:
	@if command -v npm > /dev/null; then \
	  for folder in tests/web $(CLIENTS)/openai_npm; do \
	    test $$folder/node_modules/.package-lock.json -nt $$folder/package-lock.json || \
	      npm ci --silent --no-audit --no-fund --prefix $$folder || exit 1; \
	  done; \
	else echo "no npm (apt-get install npm): tests of the JavaScript client and of the playground are skipped"; fi

# The types of the npm package (clients/web/types), from the JSDoc of its scripts.
.PHONY: client-types
client-types: node
	node tests/web/node_modules/typescript/bin/tsc -p clients/web

LEAST_DRIVER = $(shell sed -n '/"$(subst ==,": ",$(TORCH))"/,/least_driver/s/.*"least_driver": "\(.*\)".*/\1/p' \
  deploy/pins/cuda_wheels.json)

$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Vivavoce needs Python 3.11 or newer; try: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv $(VENV)
# Without an NVIDIA card the CPU build saves gigabytes; where its index cannot be reached, PyPI's build is taken. A card
# counts if its driver answers: nvidia-smi alone may come with a package.
	@if driver=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | grep -m 1 '^[0-9]'); then \
	  echo "NVIDIA card found: installing $(TORCH) for CUDA"; \
	  test "$$(printf '%s\n' "$$driver" $(LEAST_DRIVER) | sort -V | head -n 1)" = $(LEAST_DRIVER) || \
	    echo "the card's driver $$driver is too old for it: the CPU speaks until the driver is $(LEAST_DRIVER) or newer"; \
	  $(PIP) $(TORCH); \
	else \
	  echo "no NVIDIA card: installing $(TORCH) for the CPU"; \
	  $(PIP) --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu $(TORCH); \
	fi
	@touch $@

# The voice is a distribution of its own, and named beside: pip would look for it in the index otherwise.
VOICE := -e ./voice

# An installation compiles the CPU's kernels, and an older one does it again after a change of theirs. Without a compiler pip
# fetches ziglang for that; where the index has none, PyTorch speaks.
KERNELS := hatch_build.py engine/vivavoce_engine/cpu/build.py $(wildcard engine/vivavoce_engine/cpu/native/*.cpp) \
  $(wildcard engine/vivavoce_engine/cpu/native/*.h)
WITHOUT_KERNELS := echo "trying again without the CPU's kernels" && VIVAVOCE_KERNELS=none

$(VENV)/.server: $(VENV)/.torch pyproject.toml voice/pyproject.toml $(KERNELS)
	$(PIP) $(VOICE) -e '.[server]' || { $(WITHOUT_KERNELS) $(PIP) $(VOICE) -e '.[server]'; }
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml voice/pyproject.toml $(KERNELS)
	$(PIP) $(VOICE) -e '.[dev]' || { $(WITHOUT_KERNELS) $(PIP) $(VOICE) -e '.[dev]'; }
	@touch $@

$(VENV)/.eval: $(VENV)/.dev
	$(PIP) $(VOICE) -e '.[dev,eval]'
	$(PIP) --no-deps Resemblyzer
	@touch $@
