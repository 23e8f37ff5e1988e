# `make demo` and `make test` need Python 3.11 or later with its venv module, and a network for pip. They set up the rest.

PYTHON   ?= python3
VENV     ?= .venv
EXTRAS   ?= serve,bench,ray,dev
PIP_ARGS ?=
MINUTES  ?= 90
PROMPTS  ?=
MODEL    ?= demo
SECONDS  ?= 600
CLIENTS  ?=
ARGS     ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Tests start ranks of their own, so one worker keeps a core busy. With more than eight workers, memory would be the limit.
CORES   := $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell echo $$(( $(CORES) < 8 ? $(CORES) : 8 )))

# The stamp carries the checkout's path, since the editable install does: a copied checkout sets itself up again.
STAMP := $(VENV)/.installed-$(shell pwd -P | cksum | cut -d' ' -f1)
RUN   := $(VENV)/bin/python
LOG   := $(VENV)/install.log

# Tests start hundreds of processes, which need not compile the sources anew: bytecode is kept even where a user keeps none.
TESTS := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(RUN) -m pytest -q

# $(call pip_install,WHAT): pip's output goes to the log. Downloads of 10 MB and more are shown, and the log's end if pip fails.
define pip_install
PYTHONUNBUFFERED=1 $(RUN) -m pip install --progress-bar off --disable-pip-version-check $(PIP_ARGS) -c constraints.txt $(1) \
    2>&1 | tee -a $(LOG) | { grep -E 'Downloading .*\([0-9]{2,}(\.[0-9]+)? [MG]B\)' || true; } || \
    { tail -n 40 $(LOG) >&2; echo "make: pip failed; its whole output is in $(LOG)" >&2; exit 1; }
endef

.PHONY: help setup demo real-model test test-lowest test-slow test-exhaustive test-kernels test-cluster test-cluster-quick test-clients test-page fuzz docs lint format train-demo bench clean distclean

help:  ## List the targets
	@echo "make TARGET [VARIABLE=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=$(PYTHON), EXTRAS=$(EXTRAS), PIP_ARGS (for pip install), WORKERS=$(WORKERS) (of make test), ARGS"

setup: $(STAMP)  ## Create the virtual environment (the other targets do so themselves)

$(STAMP): pyproject.toml constraints.txt
	@if ! $(RUN) -m pip --version >/dev/null 2>&1; then \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	        { echo "make: $(PYTHON) is not Python 3.11 or later; name one: make PYTHON=python3.12 ..." >&2; exit 1; }; \
	    echo "[1/3] virtual environment in $(VENV), from $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv $(VENV) || \
	        { echo "make: no virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	else echo "[1/3] virtual environment in $(VENV), from $$($(RUN) --version): there already"; fi
	@echo "[2/3] PyTorch (with CUDA a few GB, once)"
	@: > $(LOG); $(call pip_install,torch)
	@echo "[3/3] this project and everything else it needs"
	@$(call pip_install,-e ".[$(EXTRAS)]")
	@rm -f $(VENV)/.installed-*
	@touch $@
	@echo "set-up done: $$($(RUN) -c 'import torch; print("torch", torch.__version__, "with CUDA" if torch.cuda.is_available() else "on the CPU")')"

demo: $(STAMP)  ## Stream text by lookahead on two ranks, then compare methods
	@HF_HUB_OFFLINE=1 $(RUN) -m launch.demo $(ARGS)

real-model: $(STAMP)  ## Download SmolLM2-135M-Instruct (93 MB, once), for model=smollm2, or another (ARGS=gemma3-270m)
	@HF_HUB_OFFLINE=1 $(RUN) -m launch.real_model $(ARGS)

test: $(STAMP)  ## Run the tests that take seconds (ARGS="-k name", WORKERS=0 for one process)
	@$(TESTS) -n $(WORKERS) --dist worksteal -m "not cluster and not slow and not exhaustive and not page" $(ARGS)

# The lowest versions that pyproject.toml allows. Triton 3.6 interprets kernels with numpy up to 2.3.
LOWEST := torch==2.11.0 triton==3.6.0 transformers==5.17.0 "numpy<2.4"

test-lowest:  ## Run the quick tests with the lowest versions of torch, Triton and transformers
	@[ -x .venv-lowest/bin/python ] || $(PYTHON) -m venv .venv-lowest
	@grep -vE '^(torch|triton|transformers|numpy|setuptools|tokenizers|huggingface_hub|safetensors)==' constraints.txt > .venv-lowest/constraints.txt
	@.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c .venv-lowest/constraints.txt \
	    $(LOWEST) -e ".[serve,bench,ray,dev]"
	@$(MAKE) test VENV=.venv-lowest STAMP=

test-slow: $(STAMP)  ## Run the long tests, and other combinations of what `make test` checks once
	@$(TESTS) -n $(WORKERS) --dist worksteal -m "slow and not exhaustive and not interpreted and not cluster and not page" $(ARGS)

test-exhaustive: $(STAMP)  ## Run every combination of what the other targets check in a few (about half an hour)
	@$(TESTS) -n $(WORKERS) --dist worksteal -m exhaustive $(ARGS)

test-kernels: $(STAMP)  ## Run the long tests on an emulated GPU, after a change of lp/model/gpu (about half an hour)
	@$(TESTS) -n $(WORKERS) --dist worksteal -m interpreted $(ARGS)

test-cluster: $(STAMP)  ## Run the tests that start a Ray cluster of their own, one after another
	@$(TESTS) -m cluster $(ARGS)

test-cluster-quick: $(STAMP)  ## Run those cluster tests that take two to three minutes together
	@$(TESTS) -m "cluster and quick" --durations=5 $(ARGS)

test-clients: $(STAMP)  ## Try the server with other people's clients, each in an environment of its own (MODEL=smollm2, CLIENTS=litellm)
	@HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(RUN) -m tests.clients.run --model $(MODEL) $(CLIENTS) $(ARGS)

test-page: $(STAMP)  ## Test the page of the server in a browser: the system's Chromium, or one that this installs
	@$(RUN) -c "import axe_playwright_python, playwright" 2>/dev/null || { $(call pip_install,-e ".[page]"); }
	@$(RUN) -m tests.page.install
	@$(TESTS) -n 2 --dist loadfile -m page tests/page $(ARGS)

fuzz: $(STAMP)  ## Send the server ten minutes (SECONDS=600) of requests made from its own OpenAPI document
	@SCHEMATHESIS_SECONDS=$(SECONDS) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
		$(RUN) -m tests.clients.run --model $(MODEL) --pytest=-s schemathesis

docs: $(STAMP)  ## Build the documentation site in site/ (a warning or a broken link is an error)
	@$(RUN) -c 'import zensical, mkdocstrings_handlers.python' 2>/dev/null || { $(call pip_install,-e ".[docs]"); }
	@$(RUN) -m docs.website

lint: $(STAMP)  ## Check the style (ruff), the format (ruff) and the types (pyright)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m pyright

format: $(STAMP)  ## Sort imports and format the sources
	@$(RUN) -m ruff check --quiet --select I --fix .
	@$(RUN) -m ruff format .

# glibc's malloc gives large blocks back to the kernel at once; keeping them made training steps several times faster.
train-demo: $(STAMP)  ## Train the demo model for MINUTES=90
	@MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_MAX_=0 MALLOC_TOP_PAD_=268435456 \
	    $(RUN) demo/train.py --minutes $(MINUTES) $(ARGS)

bench: $(STAMP)  ## Measure tokens per step and speed, on our own prompts or on PROMPTS=file.jsonl
	@HF_HUB_OFFLINE=1 $(RUN) -m benchmarks.tokens_per_step $(if $(PROMPTS),--prompts "$(PROMPTS)") $(ARGS)

clean:  ## Remove caches and build results
	@rm -rf build dist site ./*.egg-info .pytest_cache .ruff_cache outputs multirun
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## Remove the virtual environments as well
	@rm -rf $(VENV) .venv-clients .venv-lowest
