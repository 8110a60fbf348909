# The verbs of this project; CI runs the same ones. `make run` and `make test` need nothing but Python and a network.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)
SOURCES := engine server clients voice tests

.PHONY: run install lint types test bench voice clean

run: $(VENV)/.server
	$(BIN)/vivavoce serve --host $(HOST) --port $(PORT)

install: $(VENV)/.dev

lint: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/.dev
	$(BIN)/mypy

test: lint types $(VENV)-clients/.done node
	$(BIN)/python -m pytest

bench: $(VENV)/.server
	$(BIN)/vivavoce bench engine

# Trains the shipped voice anew, on a machine with NVIDIA cards; voice/recipe/README.md says what it needs.
voice:
	@test -n "$(TEACHER)" || { echo "make voice TEACHER=folder, with kokoro_int8.npz and voices_en_fp16.npz in it"; exit 2; }
	cd voice/recipe && mkdir -p work && { test -f work/corpus.xz || $(PYTHON) -m voice_recipe.make_corpus --out work/corpus.xz; }
	cd voice/recipe && $(PYTHON) -m voice_recipe.run --teacher "$(abspath $(TEACHER))" --corpus work/corpus.xz --work work/run --minutes 25

clean:
	rm -rf $(VENV) $(VENV)-clients dist .mypy_cache .ruff_cache .pytest_cache

# Clients that people use, in an environment of their own; what cannot be had here is skipped by the tests, visibly.
$(VENV)-clients/.done: tests/clients/real/requirements.txt
	$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python -m pip install --disable-pip-version-check -q -r $<
	@touch $@

.PHONY: node
node:
	@if command -v npm > /dev/null; then \
	  for folder in tests/clients/real tests/web; do \
	    test -d $$folder/node_modules || npm ci --silent --no-audit --no-fund --prefix $$folder || exit 1; \
	  done; \
	else echo "no npm: tests of the JavaScript clients and of the playground are skipped"; fi

$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Vivavoce needs Python 3.11 or newer; try: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv $(VENV)
# Without an NVIDIA card the CPU build saves gigabytes; where its index cannot be reached, PyPI's build is taken.
	@if command -v nvidia-smi > /dev/null; then \
	  echo "NVIDIA card found: installing $(TORCH) for CUDA"; $(PIP) $(TORCH); \
	else \
	  echo "no NVIDIA card: installing $(TORCH) for the CPU"; \
	  $(PIP) --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu $(TORCH); \
	fi
	@touch $@

$(VENV)/.server: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[server]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[dev]'
	@touch $@
