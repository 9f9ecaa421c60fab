# The gate is `make check`; continuous integration runs the same.

.PHONY: check format lint types contracts test gpu

check: format lint types contracts test

format:
	python -m ruff format --check .

lint:
	python -m ruff check .

types:
	python -m mypy

contracts:
	lint-imports

test:
	python -m pytest

# Needs a CUDA device; elsewhere every test of it is skipped with the reason.
gpu:
	python -m pytest -m gpu -rs
