# Each target makes its virtual environment by itself; nothing else is needed than Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# a worker that has finished its half takes tests over from the other one
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
VISION := torchvision==0.28.0 timm==1.0.29 ultralytics==8.4.190 opencv-python-headless==5.0.0.93 \
  polars==2.1.0 polars-runtime-32==2.1.0 matplotlib==3.11.2 kiwisolver==1.5.1 cycler==0.12.1 \
  pyparsing==3.3.3
# without what they depend on: some would install another torch, or one for CUDA
ZOO := transformers==5.22.2 diffusers==0.42.1 monai==1.6.1 segmentation-models-pytorch==0.6.0 \
  spandrel==0.4.2 einops==0.8.2

.PHONY: run test test-slow test-all test-busy check format docs zoo clean help
.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

run: .venv/run.done ## the whole method on the embedded data: train, prune, finetune, report
	$(BIN)/dafp run

test: .venv/dev.done ## run the tests, without the slow ones
	$(PYTEST) -m "not slow"

test-slow: .venv/dev.done ## run the slow tests only
	$(PYTEST) -m slow

test-all: .venv/dev.done ## run all tests
	$(PYTEST)

test-busy: .venv/dev.done ## run all tests beside two busy processes: none may depend on speed
	@yes >/dev/null & one=$$!; yes >/dev/null & two=$$!; \
	trap "kill $$one $$two" EXIT; trap "exit 130" INT TERM; $(PYTEST)

check: .venv/dev.done ## lint, format check, type check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev.done ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev.done ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

zoo: .venv-zoo/zoo.done ## prune networks of torchvision, timm and others, beside Torch-Pruning
	.venv-zoo/bin/python benchmarks/zoo.py

clean: ## remove virtual environments, caches and the built documentation
	rm -rf .venv .venv-zoo site .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("dafp needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/run.done: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

# apart from the others, for two examples: lightning fails to import if torchvision is there and
# broken; of what ultralytics depends on, only what it imports here
.venv/dev.done: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	$(PIP) install -q --no-deps --upgrade --target .venv/vision $(VISION)
	@touch $@ .venv/run.done

# torchvision is an environment of its own: beside a CPU build of torch it needs a shim to import
.venv-zoo/zoo.done: pyproject.toml constraints.txt benchmarks/requirements-zoo.txt
	$(PYTHON) -m venv .venv-zoo
	.venv-zoo/bin/python -m pip install -q -c constraints.txt -e ".[onnx]"
	.venv-zoo/bin/python -m pip install -q -c constraints.txt -r benchmarks/requirements-zoo.txt
	.venv-zoo/bin/python -m pip install -q --no-deps $(VISION) $(ZOO)
	@touch $@
