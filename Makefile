# `make demo` and `make test` each set up all they need; run them in either order.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SETUP := pyproject.toml constraints.txt

.PHONY: demo test lint bench tables wheel clean

demo: $(VENV)/.demo ## third-party models rewritten to separable convolutions, with the same answers
	$(BIN)/sepconv try sepconv:quartznet5x5 --shape 64x512 --check-only
	$(BIN)/sepconv try pytorchcv:xception --size 299 --check-only
	$(BIN)/sepconv try pytorchcv:mobilenet_w1 --size 224 --check-only

test: $(VENV)/.dev ## the whole test suite
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/.dev ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python benchmarks/tables.py --check

bench: $(VENV)/.dev ## the two reference problems against every installed peer
	$(BIN)/sepconv bench --peers all

tables: $(VENV)/.dev ## measure again what README and docs show, and write their tables and pictures
	$(BIN)/python benchmarks/backward_memory.py
	$(BIN)/python benchmarks/call_overhead.py
	$(BIN)/python benchmarks/fused_models.py
	$(BIN)/python benchmarks/cpu_forward.py
	$(BIN)/python benchmarks/first_call.py --device cpu
	$(BIN)/python benchmarks/tables.py

wheel: $(VENV)/.dev
	$(BIN)/python -m build --installer pip --outdir dist .

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.torch: $(SETUP)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch==2.13.0
	touch $@

$(VENV)/.demo: $(VENV)/.torch
	$(PIP) --constraint constraints.txt --editable '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.torch
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@
