# Needs python3 (3.11 or newer) and a package registry; everything goes into .venv.
# pip's own settings (index, find-links) are handed to uv, which does not read them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FIND_LINKS := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)

.PHONY: setup demo test test-ray test-triton guides personas check dist site release vllm vllm-cpu sglang clean

setup: $(READY)

$(READY): pyproject.toml setup.py constraints.txt tests/references.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; pass PYTHON=python3.11 or newer"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV): about two gigabytes with torch; a minute with a fast registry."
	@echo "1 of 4: the installer, uv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "2 of 4: ajet and what it needs, torch above all, and their bytecode"
	@$(BIN)/uv pip install --compile-bytecode --python $(BIN)/python \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) --constraint constraints.txt -e '.[dev]'
	@echo "3 of 4: what tests compare with"
	@$(BIN)/uv pip install --no-deps --target $(VENV)/references \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) -r tests/references.txt
	@echo "4 of 4: the schema of a config, for editors"
	@$(BIN)/ajet inspect schema --overwrite --out $(VENV)/ajet.schema.json >/dev/null
	@touch $(READY)
	@echo "Done. source $(BIN)/activate puts ajet on the path."

demo: $(READY)
	@$(BIN)/ajet --conf tutorial/example_math_agent/demo.yaml --backbone debug

# Hundreds of processes start here, so bytecode is kept, whatever the environment says.
test test-ray test-triton guides personas: export PYTHONDONTWRITEBYTECODE :=

# A process for each core and one more, since tests wait for processes; at most six, since each
# imports all tests first (15 s). A file at a time, since module fixtures are made once.
# tests/conftest.py puts the files that take longest first.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(6, os.cpu_count() + 1))')
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-ray: $(READY)
	$(BIN)/python -m pytest -m ray

# The kernels for CUDA, in Triton's interpreter and through its compiler: no GPU is needed. Newer
# releases than this one interpret other things wrongly.
test-triton: export PYTHONPATH := $(CURDIR)/$(VENV)/triton
test-triton: $(VENV)/triton/.ready
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/core/model/test_triton_decode.py \
	  tests/core/model/test_triton_kernels.py tests/core/update/test_fused_softmax.py
	$(BIN)/python -m pytest tests/core/model/test_triton_compiles.py \
	  tests/core/model/test_triton_kernels.py -k compile

$(VENV)/triton/.ready: $(READY)
	@$(BIN)/uv pip install --quiet --no-deps --python $(BIN)/python --target $(VENV)/triton \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) triton==3.6.0
	@touch $@

guides: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_guides.py -m guide -n 2

# What users get of `make dist`: the wheel in a new environment, and two newcomers who follow a page
# there.
personas: $(READY)
	$(BIN)/python scripts/try_install.py \
	  --pages train,langgraph:docs/guides/langgraph.md train,datasets:docs/coming_from/verl.md \
	  -- --constraint $(CURDIR)/constraints.txt $(foreach links,$(FIND_LINKS),--find-links $(links))

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	NODE_OPTIONS=--max-semi-space-size=128 $(BIN)/pyright  # a tenth less time
	$(BIN)/lint-imports
	$(BIN)/python scripts/plain_english.py

# A wheel and an sdist in dist/; scripts/try_install.py installs them elsewhere and trains.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
dist: $(READY)
	rm -rf build/lib build/bdist* dist
	$(BIN)/uv build --quiet --python $(BIN)/python $(foreach links,$(FIND_LINKS),--find-links $(links))

# The builder has an environment of its own, .venv-site, with the pins of [dependency-groups].
site: $(VENV)-site/.ready $(READY)
	@$(BIN)/python scripts/site_pages.py
	@NO_COLOR=1 $(VENV)-site/bin/zensical build --strict --clean -f build/site/mkdocs.yml
	@NO_COLOR=1 $(VENV)-site/bin/zensical build --strict --clean -f build/site/mkdocs.zh.yml
	@$(BIN)/python scripts/site_pages.py --check
	@echo "To read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site/html"

$(VENV)-site/.ready: pyproject.toml $(READY)
	@test -x $(VENV)-site/bin/python || $(PYTHON) -m venv $(VENV)-site
	@$(BIN)/uv pip install --quiet --python $(VENV)-site/bin/python \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) --group site
	@touch $(VENV)-site/.ready

# Everything of a release, checked, hashed and signed (SIGNING_KEY=~/.ssh/…), and the command that
# publishes it. Nothing is uploaded. RELEASE=--draft only warns of what is missing.
release: dist site $(VENV)-release/.ready
	$(VENV)-release/bin/python -m scripts.release $(RELEASE)

$(VENV)-release/.ready: pyproject.toml $(READY)
	@test -x $(VENV)-release/bin/python || $(PYTHON) -m venv $(VENV)-release
	@$(BIN)/uv pip install --quiet --python $(VENV)-release/bin/python \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) --group release
	@touch $(VENV)-release/.ready

# Inference servers have environments of their own: .venv-vllm, .venv-sglang.
vllm vllm-cpu sglang: $(READY)
	@$(BIN)/ajet servers install $@

clean:
	rm -rf $(VENV) $(VENV)-site $(VENV)-release $(VENV)-vllm $(VENV)-sglang build dist *.egg-info
