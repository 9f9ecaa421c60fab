"""A worker of a search: evaluate candidates that no other worker has, until all are evaluated."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from normbench.config.cells import Cell
from normbench.data.reading import open_splits
from normbench.errors import BadInput
from normbench.execution import preflight
from normbench.execution.job import PreflightRequest
from normbench.execution.worker_process import stop_signals
from normbench.run_files import open_locked
from normbench.search.candidates import (
    Candidate,
    Records,
    Rejected,
    baseline_file,
    candidate_file,
    write_candidate,
)
from normbench.search.cost import cost_of
from normbench.search.evolution import propose
from normbench.search.fingerprint import fingerprint
from normbench.search.options import EvaluationOptions, SearchOptions
from normbench.search.request import SearchRequest, read_search_file
from normbench.search.scoring import Scorer, with_formula
from normbench.search.space import BASELINES
from normbench.training.experiment import Experiment
from normbench.training.hardware import device_type, uses_gpu

POLL = 0.5  # seconds between two looks for candidates of other workers


def check(request: PreflightRequest, report: Callable[[Any], None]) -> int:
    """Check the trainings of a search; return the number of GPUs that they use.

    Raises:
        BadInput: one cannot work, or has no images to score a candidate with.
    """
    results = preflight.check(request, report)
    for cell in request.cells:
        if reason := results.cells[cell.id].impossible:
            raise BadInput(f"{cell.title} cannot work: {reason}")
        splits, _ = open_splits(Experiment(cell).data, cell.loader, load=False)
        if not len(splits.val.labels):
            raise BadInput(
                f"{cell.title}: no images are held out to score candidates with; data.val=0.2 "
                "holds out a fifth of the training images"
            )
    return results.gpus if uses_gpu(request.cells[0]) else 0


def score_normalizer(
    request: tuple[Sequence[Cell], EvaluationOptions], _report: Callable[[Any], None]
) -> dict[str, Any]:
    """Return the scores of the normalizer of some trainings, or what has rejected it.

    A formula also has a fingerprint and both costs.
    """
    (cells, options), started = request, time.monotonic()
    formula = cells[0].norm.options.get("formula")
    result: dict[str, Any] = {"verdict": "trained", "reason": ""}
    try:
        scorer = Scorer(cells[0].trainer.threads, stop_signals)
        if formula is not None:
            result["fingerprint"] = fingerprint(formula)
            device = device_type(cells[0])
            result["reads"] = cost_of(formula, "reads", device)
            result["relative_time"] = cost_of(formula, "time", device)
        accuracies, seconds = zip(*scorer.score(cells, options), strict=True)
        result |= {"scores": accuracies, "train_seconds": seconds}
    except Rejected as rejection:
        result |= {"verdict": rejection.verdict, "reason": str(rejection)}
    return {**result, "seconds": time.monotonic() - started}


def work(request: SearchRequest, _report: Callable[[Any], None]) -> None:
    """Evaluate candidates until none is left."""
    worker = Worker(request)
    for path, evaluate in worker.open_tasks():
        with ExitStack() as stack:
            try:
                stack.enter_context(open_locked(request.folder / "locks" / path.stem))
            except BlockingIOError:  # another worker evaluates it
                continue
            if not path.exists():  # none has evaluated it since this one looked
                write_candidate(path, evaluate())


#: A file, and how its record is made.
Task = tuple[Path, Callable[[], Candidate]]


class Worker:
    """One process that evaluates candidates of a search."""

    def __init__(self, request: SearchRequest) -> None:
        self.folder, self.cells, self.options = request.folder, request.cells, request.options
        self.records = Records(request.folder)
        self.scorer = Scorer(request.cells[0].trainer.threads, stop_signals)

    def open_tasks(self) -> Iterator[Task]:
        """Yield the tasks that have no record, again and again, until all have one.

        Among them are those that other workers have locked.
        """
        while tasks := list(self._find_open_tasks()):
            for task in tasks:
                yield task
                if task[0].exists():
                    break  # others may have been finished, too: look for the first again
            else:
                time.sleep(POLL)

    def _find_open_tasks(self) -> Iterator[Task]:
        """Yield baselines without a record, then the candidates that can be proposed already."""
        for name, formula in BASELINES.items():
            if not (path := baseline_file(self.folder, name)).exists():
                yield path, partial(self.evaluate_baseline, formula)
        # A later command may have raised it.
        total = read_search_file(self.folder).options["candidates"]
        first = len(self.records.completed_prefix(total))
        for number in range(first, min(total, first + self.options.in_flight)):
            if self.records.find(number) is None:
                path = candidate_file(self.folder, number)
                yield path, partial(self.evaluate_candidate, number)

    def evaluate_baseline(self, formula: str) -> Candidate:
        """Return the record of a baseline, for which no criterion of the search counts."""
        options = replace(self.options, min_accuracy=0.0, max_gradient=0.0)
        return Candidate(number=-1, formula=formula, **self.evaluate(formula, options, []))

    def evaluate_candidate(self, number: int) -> Candidate:
        """Propose candidate `number` and return its record."""
        history = self.records.completed_prefix(max(0, number - self.options.in_flight + 1))
        genotype, parent = propose(number, history, self.options)
        formula = str(genotype.graph)
        try:
            result = self.evaluate(formula, self.options, history)
        except Exception as error:  # the message of the worker must name the candidate
            error.add_note(f"candidate {number}: {formula}")
            raise
        return Candidate(
            number=number, formula=formula, genotype=genotype.to_json(), parent=parent, **result
        )

    def evaluate(
        self, formula: str, options: SearchOptions, history: Sequence[Candidate]
    ) -> dict[str, Any]:
        """Return verdict, scores and cost of a formula, as fields of a candidate."""
        started, result = time.monotonic(), dict[str, Any](verdict="trained")
        try:
            result["fingerprint"] = mark = fingerprint(formula)
            if equal := next((each for each in history if each.fingerprint == mark), None):
                result["verdict"] = "duplicate" if equal.valid else equal.verdict
                result |= {"reason": f"equals {equal.number}", "scores": equal.scores}
            else:
                scores = self.scorer.score(with_formula(self.cells, formula), options)
                result["scores"] = [accuracy for accuracy, _ in scores]
                result["train_seconds"] = [round(seconds, 2) for _, seconds in scores]
            if result["scores"]:
                result["cost"] = cost_of(formula, options.cost, device_type(self.cells[0]))
        except Rejected as rejection:
            result |= {"verdict": rejection.verdict, "reason": str(rejection)}
        return {**result, "seconds": round(time.monotonic() - started, 2)}
