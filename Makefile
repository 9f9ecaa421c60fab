# `make check` is the gate of every day: under 5 minutes on two cores. `make check-all` adds what is
# slow, at most 20 minutes more. Continuous integration (.ci/run) runs both.

.PHONY: check check-all ffcv format lint types contracts test slow mutants gpu large \
	errors variances plans kills faults rates pages coverage demo demo-rates

PYTEST = python -m pytest --numprocesses=2

check: format lint types contracts test

check-all: check slow

format:
	python -m ruff format --check .

lint:
	python -m ruff check .

types:
	python -m mypy

contracts:
	lint-imports

# Two processes for two cores: trainings in tests have one thread each.
test:
	$(PYTEST) --dist=worksteal -m "not slow and not ffcv and not large"

# Slurm, toy repositories, plans over all normalizers, whole sweeps, FFCV. By file: one process
# starts Slurm.
slow:
	$(PYTEST) --dist=loadfile --no-loadscope-reorder --durations=50 -m "(slow or ffcv) and not large"

# Mutation testing: which changes of the code no everyday test notices. Hours for all of it;
# ONLY='normbench.report.verdicts.*' limits it. `mutmut show NAME` prints a surviving change.
mutants:
	python -m pip install --quiet "mutmut>=3.8,<4"
	mutmut run $(if $(ONLY),"$(ONLY)")
	mutmut results

# FFCV is built from source, with libraries of the system; tests that need it are skipped without.
ffcv:
	python -m pip install -e ".[ffcv]" || echo "no FFCV here: loader=ffcv and its tests need it"

# The worst error of every normalizer against its reference in double precision.
errors:
	PYTHONPATH=tests python tests/norms/test_normalizers.py

# Generated files: the reference pages of docs/, and the golden losses that no refactor may change.
pages:
	python docs/build.py
	python tests/test_golden.py

# The demonstration of the README: trains it, a minute, and writes study, figure, table and answer.
demo:
	python -m normbench -m sweeps=demo runs=runs/demonstration
	python -m normbench.probe speed norm=evonorm_s0 batch=2,4,128 mode=training reports=runs/demonstration/reports
	cp runs/demonstration/reports/probes/speed.csv reports/studies/default/speed.csv
	rm -f reports/studies/default/rows.jsonl.gz
	python -m normbench.studies add demo runs=runs/demonstration study=reports/studies/default
	python -m normbench.report study=reports/studies/default
	cp runs/demonstration/reports/batch_size/*-128.png reports/studies/default/accuracy.png
	python docs/build.py readme

# How often 100 other groups of five seeds show what the README says of the demonstration: 75
# minutes.
demo-rates:
	python -m normbench -m sweeps=demo "seed=range(1000,1500)" runs=runs/demonstration-rates logger=none
	PYTHONPATH=tests python -m support.demonstration_rates runs/demonstration-rates

# Variances in NF-ResNet-50 before training, over those that the paper predicts.
variances:
	PYTHONPATH=tests python tests/models/test_architectures.py

# How often verdicts err where the truth is known (docs/statistics.md), and the methods between which
# was chosen: a quarter of an hour.
rates:
	PYTHONPATH=tests python -m support.verdict_rates
	PYTHONPATH=tests python -m support.interval_candidates

# The difference of every plan of workers from the reference: after each step, and after 20 steps.
plans:
	PYTHONPATH=tests python tests/training/test_plans.py

# Kill processes of a sweep (kill -9) at 30 random moments: the command, a run, the fork server, the
# service of W&B, a rank. The rows must be those of an undisturbed sweep. SEED draws the moments.
kills:
	PYTHONPATH=tests python tests/faults/test_kills.py 30 $(or $(SEED),0)

# Thousands of wrong command lines and damaged files: six minutes. A seed repeats a campaign.
faults:
	PYTHONPATH=tests python -m faults.campaign $(SEED)

# docs/reference/coverage.md: every normalizer in networks of timm; minutes.
coverage:
	python docs/build.py coverage

# Networks of full width, which are narrower in the other tests: minutes, and 10 GB of memory.
large:
	python -m pytest -m large

# Needs a CUDA device; elsewhere every test of it is skipped with the reason.
gpu:
	python -m pytest -m gpu -rs
