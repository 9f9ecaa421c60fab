# The gate is `make check`; continuous integration runs the same.

.PHONY: ffcv check format lint types contracts test gpu large errors variances plans kills pages coverage

check: format lint types contracts test

# FFCV is built from source, with libraries of the system; tests that need it are skipped without.
ffcv:
	python -m pip install -e ".[ffcv]" || echo "no FFCV here: loader=ffcv and its tests need it"

format:
	python -m ruff format --check .

lint:
	python -m ruff check .

types:
	python -m mypy

contracts:
	lint-imports

# Two beside each other: what starts processes waits much, and what computes has one thread.
test:
	python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder

# The worst error of every normalizer against its reference in double precision.
errors:
	PYTHONPATH=tests python tests/norms/test_normalizers.py

# What is written by programs: the pages of docs/ and the losses that refactors must keep.
pages:
	python docs/build.py
	python tests/test_golden.py

# Variances in NF-ResNet-50 at its beginning, over those that the paper reckons with.
variances:
	PYTHONPATH=tests python tests/models/test_architectures.py

# How far every plan of workers is from the reference: each step, and 20 free ones.
plans:
	PYTHONPATH=tests python tests/training/test_plans.py

# Kill -9 of a sweep at 20 random moments; its rows must be those of one left alone.
kills:
	PYTHONPATH=tests python tests/execution/test_resume.py 20

# docs/reference/coverage.md: every normalizer in networks of timm; minutes.
coverage:
	python docs/build.py coverage

# Networks of full size, which the tests otherwise make narrower: minutes, and 10 GB of memory.
large:
	python -m pytest -m large

# Needs a CUDA device; elsewhere every test of it is skipped with the reason.
gpu:
	python -m pytest -m gpu -rs
