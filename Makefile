# Every target sets up what it needs first, and only once: `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORPUS := outputs/corpus
PICTURES := outputs/pictures
REF := .venv-ref
REF_STAMP := $(REF)/.installed
LF := .venv-lf
LF_STAMP := $(LF)/.installed

# Lazy on purpose: only `make train` looks for GPUs. Without any, it trains on two CPU ranks.
FOUND_GPUS = $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
# Most tests wait for processes to start; two at a time keep two cores busy.
TESTERS ?= 2
GPUS ?= $(or $(filter-out 0,$(FOUND_GPUS)),2)
ARGS ?=

# Several ranks share the cores of one machine: more threads a rank would slow all of them down.
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS

.DEFAULT_GOAL := help
.PHONY: help llamafactory setup corpus train pictures train-vl lint check test dist docs verify soak fuzz bench bench-quick quality clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'
	@echo '  variables: GPUS=n (train), TESTERS=n (check, test), ARGS="..." (passed on), PYTHON=... (setup)'

setup: $(STAMP) ## create .venv and install everything; nothing is installed a second time

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("setup: Python >= 3.11 is needed, got %d.%d: try make PYTHON=python3.11" \
		% sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@echo "setup: 1/3 making sure there is a $(VENV), with $$($(PYTHON) --version) if it is new"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "setup: 2/3 upgrading pip"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@echo "setup: 3/3 installing the packages of constraints.txt (torch takes minutes the first time)"
	@$(BIN)/python -m pip install --constraint constraints.txt --editable '.[titan,vision,hf,stacks,dev,bench,docs]'
	@touch $@

corpus: setup ## build the default training data, unless it is there
	@$(BIN)/python -m tools.corpus --out $(CORPUS)

train: corpus ## train on the default data: GPUS=n ranks, ARGS="--training.steps 10 ..."
	$(BIN)/python -m titan_integration.launch --standalone --nproc_per_node=$(GPUS) \
		-m titan_integration.train --module configs.llama3 --config debug_odb \
		--data.path $(CORPUS)/corpus.jsonl --data.odb.token_budget 4096 $(ARGS)

pictures: setup ## build the default training data with pictures, unless it is there
	@$(BIN)/python -m tools.pictures --out $(PICTURES)

train-vl: pictures ## train on pages of code as pictures, mixed with texts: GPUS=n ranks, ARGS="..."
	$(BIN)/python -m titan_integration.launch --standalone --nproc_per_node=$(GPUS) \
		-m titan_integration.train --module configs.qwen3_5_vl --config debug_odb \
		--data.path $(PICTURES)/rows.jsonl --hf_assets_path $(PICTURES)/tokenizer $(ARGS)

lint: setup ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint ## lint, then the fast tests: what to run again and again while working
	$(BIN)/python -m pytest -n $(TESTERS) --ignore tests/titan --ignore tests/distributed \
		--ignore tests/hf -m "not slow" $(ARGS)

test: lint ## lint, then run the whole test suite
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal $(ARGS)

dist: setup ## build wheel and sdist into dist/
	@rm -rf build dist
	$(BIN)/python -m build

docs: setup ## build the documentation as a site, in outputs/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'docs: outputs/site/index.html; with search: $(BIN)/python -m http.server -d outputs/site'

verify: setup ## check the guarantees exhaustively on small worlds
	$(BIN)/python -m tools.verify --full $(ARGS)

soak: setup ## run, kill and resume for a long time, with an audit of what was delivered
	$(BIN)/python -m tools.soak $(ARGS)

fuzz: setup ## random worlds, settings and failures
	$(BIN)/python -m tools.fuzz $(ARGS)

bench: corpus $(REF_STAMP) ## measure everything, and draw it
	$(BIN)/python -m tools.bench $(ARGS)

bench-quick: corpus $(REF_STAMP) ## the same measurements, smaller
	$(BIN)/python -m tools.bench --quick $(ARGS)

# The package we compare with needs an older torch than torchtitan does.
$(REF_STAMP): constraints.txt
	@echo "bench: making $(REF) with torch 2.13 and the reference (once)"
	@$(REF)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(REF)
	@$(REF)/bin/python -m pip install --quiet --disable-pip-version-check \
		torch==2.13.0 torchdata==0.11.0 numpy safetensors tokenizers
	@$(REF)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		online-dynamic-batching==0.1.2 --editable .
	@touch $@

llamafactory: $(LF_STAMP) ## make .venv-lf, and check training with LLaMA-Factory in it
	$(LF)/bin/python -m tests.llamafactory.check $(ARGS)

# LLaMA-Factory pins other versions than torchtitan and TRL need.
$(LF_STAMP): lf-constraints.txt
	@echo "llamafactory: making $(LF) with LLaMA-Factory 0.9.5 and DeepSpeed 0.18.4 (once)"
	@$(LF)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(LF)
	@DS_BUILD_OPS=0 $(LF)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint lf-constraints.txt torch llamafactory deepspeed torchdata
	@$(LF)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

quality: corpus ## compare the loss reached with and without dynamic batches
	$(BIN)/python -m tools.quality $(ARGS)

clean: ## remove caches, packages and the default data; keeps .venv and the training runs
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(CORPUS) $(PICTURES)
	find . -path './$(VENV)' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
