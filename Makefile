# One place for the commands of a fresh machine; everything goes into .venv, no activation needed.
PYTHON ?= python3
BIN := .venv/bin
# Tests start hundreds of processes: each would translate the package's Python anew
unexport PYTHONDONTWRITEBYTECODE
# Each process takes a file at a time, in their order: what a file's tests share is made once, and the last files are quick
BY_FILE := --dist loadfile --no-loadscope-reorder
# Tests that run kernels as plain Python within two minutes, for their coverage: compiled lines are not counted
PLAIN := tests/oracle tests/property/test_codesign_steps.py tests/unit/planners/topoopt/test_step.py tests/unit/network/test_routes.py \
	tests/unit/planners/parmesan/test_partition.py tests/unit/planners/dapple/test_pipedream.py
# Whole searches, whose kernels the others reach in smaller pieces
NOT_PLAIN := --ignore tests/oracle/test_joint_enumerator.py

MUTANTS ?= --n 60 --without runtime

.PHONY: demo test check frameworks nojit parity docs hooks bench constants mutants record prove clean install install-test

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

install: .venv/installed
install-test: .venv/installed-test

demo: .venv/installed
	$(BIN)/meshwright plan llama-3.1-70b --cluster dgx-h100:64 --out plan.json --trace trace.json --report report.html

test: .venv/installed-test
	$(BIN)/python -m meshwright compile
	$(BIN)/python -m pytest -n auto $(BY_FILE) -m "not slow"

check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto $(BY_FILE) -m "not slow"

# Real consumers of exported files; some of their dependencies are older than ours, so they have a place of their own
.venv-frameworks/installed: pyproject.toml
	$(PYTHON) -m venv .venv-frameworks
	DS_BUILD_OPS=0 .venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,frameworks]'
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check --no-deps megatron-core==0.16.1
	touch $@

frameworks: .venv-frameworks/installed
	.venv-frameworks/bin/python -m pytest tests/unit/frameworks/test_consumers.py

nojit: .venv/installed-test
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n auto $(PLAIN) $(NOT_PLAIN) -m "not slow" --cov

parity: .venv/installed-test
	$(BIN)/python -m pytest -n auto tests/parity

docs: .venv/installed-docs
	$(BIN)/python docs/pages.py build/pages
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs build/pages build/site
	@echo "the documentation: build/site/index.html"

hooks: .venv/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pre-commit
	$(BIN)/pre-commit install

prove: .venv/installed
	$(BIN)/python benchmarks/prove.py

bench: .venv/installed
	for file in $(filter-out benchmarks/prove.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$file || exit 1; done

# That every fitted figure of the data files is what the script finds, from its starts: three minutes of a core
constants: .venv/installed
	$(BIN)/python benchmarks/fit_costs.py --check

# Figures that tests recorded, written anew; read their difference before it is committed
RECORD ?= tests
record: .venv/installed-test
	$(BIN)/python -m pytest -p no:xdist --record -m "not slow" $$(grep -rlw --include='test_*.py' recorded $(RECORD))

mutants: .venv/installed-test
	$(BIN)/python tests/mutants.py $(MUTANTS)

clean:
	rm -rf .venv .venv-frameworks build dist plan.json trace.json report.html .coverage
