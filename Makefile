# One place for the commands of a fresh machine; everything goes into .venv, no activation needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check nojit parity bench clean install install-test

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

install: .venv/installed
install-test: .venv/installed-test

demo: .venv/installed
	$(BIN)/meshwright compile
	$(BIN)/meshwright plan llama-3.1-70b --cluster dgx-h100:64 --out plan.json --trace trace.json --report report.html

test: .venv/installed-test
	$(BIN)/python -m meshwright compile
	$(BIN)/python -m pytest -n auto -m "not slow"

check: .venv/installed-test
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto -m "not slow"

nojit: .venv/installed-test
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n auto tests/oracle -m "not slow"

parity: .venv/installed-test
	$(BIN)/python -m pytest -n auto tests/parity

bench: .venv/installed
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf .venv build dist plan.json trace.json report.html
