# Every target sets itself up on a fresh machine; python3 is all that has to be there.
PYTHON ?= python3
WORKERS ?= 2
PIP = -m pip install --quiet --disable-pip-version-check

.PHONY: venv test test-tl3 lint bench

venv: .venv/ready
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) --constraint constraints.txt --editable '.[test,lint]'
	touch $@

# The same set with the last TransformerLens of the third generation.
.venv-tl3/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-tl3
	sed 's/^transformer-lens==.*/transformer-lens==3.9.0/' constraints.txt > .venv-tl3/constraints.txt
	.venv-tl3/bin/python $(PIP) --constraint .venv-tl3/constraints.txt --editable '.[test]'
	touch $@

# One torch thread for each worker: more would fight over the cores.
test: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest --numprocesses $(WORKERS) $(ARGS)

test-tl3: .venv-tl3/ready
	OMP_NUM_THREADS=1 .venv-tl3/bin/python -m pytest --numprocesses $(WORKERS) $(ARGS)

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/ready
	for script in tests/benchmarks/*.py; do echo "== $$script"; .venv/bin/python $$script || exit 1; done
