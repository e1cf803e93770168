# Everything runs in .venv, which the first target that needs it makes. Versions are pinned in constraints.txt.
# pip's own settings apply, such as $PIP_INDEX_URL for a CPU-only build of torch.

PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
READY := .venv/ready
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo quick slow test nightly lint types imports audit format unit docs docs-run docs-write picture bench-coverage bench-capture bench-memory laws fuzz fuzz-openapi soak wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY)  ## make .venv with everything in it

# torch comes first and alone: torchvision and timm ask for a torch of their own, so they come without dependencies.
$(READY): pyproject.toml bench/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Foretell needs Python 3.11 or later, got " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "Setting up .venv: a few minutes, once"
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --no-deps torchvision timm
	$(PIP) transformers pillow hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev,store,ray,learn,serve]' --editable ./bench
	@touch $@

demo: $(READY)  ## forecast ResNet-50 and a small Llama on eight H100s, and write reports to out/
	@mkdir -p out
	$(BIN)/foretell predict examples/resnet.py:resnet --set batch=256 --on 8xh100-sxm --html out/demo.html
	$(BIN)/foretell predict hf/llama-small --set precision=amp-bf16 --on 8xh100-sxm --html out/demo-llama.html

quick: $(READY)  ## everyday work, in a minute: style, import directions, and the tests of every room that are fast
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not slow"

slow: $(READY)  ## measure again which tests `make quick` leaves out (on a quiet machine)
	$(BIN)/pytest --write-slow

test: $(READY)  ## lint, types, import directions, known weaknesses, and all tests but the nightly ones
	@$(MAKE) --no-print-directory --jobs 2 unit lint audit

nightly: $(READY)  ## the tests that need a cluster, a server or a browser, or take long; JOBS at a time
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m nightly

lint: types imports  ## what needs no tests: style, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

audit: $(READY)  ## bandit, and pip-audit where its database can be reached
	$(BIN)/python tests/audit.py

unit: $(READY)  ## all tests but the nightly ones, JOBS at a time
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not nightly"

docs: $(READY)  ## build the documentation site into out/site, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-run: $(READY)  ## run the code blocks of README.md and docs/
	$(BIN)/pytest tests/test_docs.py

docs-write: $(READY)  ## write what README.md and docs/ quote: outputs under commands, numbers of the catalog
	$(BIN)/python -m tests.test_docs

format: $(READY)  ## rewrite the code in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

picture: demo  ## draw the picture of the README anew (needs chromium)
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1040,800 \
		--screenshot=docs/images/report.png out/demo.html 2>/dev/null

bench-coverage: $(READY)  ## capture every named architecture (hours; goes on where it stopped)
	$(BIN)/foretell bench captures --jobs $(JOBS)

bench-capture: $(READY)  ## time the capture beside PyTorch's own FLOP counter
	$(BIN)/foretell bench speed captures

bench-memory: $(READY)  ## forecast memory against what was measured on an H200
	$(BIN)/foretell bench memory compare

laws: $(READY)  ## what no forecast may break: 75,000 forecasts over every device, JOBS at a time; goes on where it stopped
	$(BIN)/python -m tests.laws.whole --workers $(JOBS)

fuzz: $(READY)  ## 20,000 hostile files and questions, JOBS at a time; FUZZ="--seed 1 --only graph" asks for others
	$(BIN)/python tests/fuzz/run.py --workers $(JOBS) $(FUZZ)

fuzz-openapi: $(READY)  ## requests that follow /openapi.json and requests that do not, of every address
	$(BIN)/python -m tests.fuzz.openapi $(FUZZ)

soak: $(READY)  ## kill writers, campaigns, captures and services with jobs 200 times each, at random moments; SOAK="--only store" asks for some
	$(BIN)/python tests/soak/run.py $(SOAK)

wheel: $(READY)  ## the distribution to install elsewhere: dist/foretell-*.whl
	$(BIN)/python -m hatchling build -t wheel

clean:  ## remove .venv and what the tools left behind
	rm -rf .venv out build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
