"""Search for layers, as EvoNorm was found, with accuracy at several numbers of images per worker.

    python -m normbench.search run NAME [WORDS]
    python -m normbench.search show NAME ... [WORDS]
    python -m normbench.search rerank NAME [WORDS]
    python -m normbench.search evaluate FORMULA [WORDS]

    run       evaluates candidates; the same command continues a search, and `show` draws it
    show      prints the best layers, and writes a page with progress, Pareto front and genealogy
    rerank    trains the best layers and baselines with other seeds, and compares test accuracies
    evaluate  prints the scores of one layer as JSON, for other optimizers; the layer is a formula,
              a file with one, or norm=NAME

WORDS are options of search, and words of `python -m normbench` that change the trainings of a
candidate, as batch=4,128 data=fashion_mnist jobs=2. These are by default those of
sweeps/search.yaml; sweeps=NAME selects another file. norm=graph 'norm.formula="FORMULA"' trains
with a formula in any other command. docs/guide/search.md explains search and formulas.
"""

from collections.abc import Sequence

from normbench.config import cli
from normbench.errors import BadInput, choose_from
from normbench.search import evaluate, rerank, run, show
from normbench.search.options import EvaluationOptions, SearchOptions

KINDS = {
    "run": (run.run, "the name of a search"),
    "show": (show.show, "the name of a search"),
    "rerank": (rerank.rerank, "the name of a search"),
    "evaluate": (evaluate.evaluate, "a formula, a file or norm=NAME"),
}


def _help() -> str:
    return "\n\n".join([
        __doc__.rstrip(),
        f"run:\n{cli.describe(SearchOptions, EvaluationOptions)}",
        f"run, evaluate:\n{cli.describe(EvaluationOptions)}",
        f"show:\n{cli.describe(show.ShowOptions)}",
        f"rerank:\n{cli.describe(rerank.RerankOptions)}",
    ])  # fmt: skip


@cli.command("normbench.search", _help, needs_words=True)
def main(arguments: Sequence[str]) -> int:
    """Run a command of the search."""
    kind, *words = arguments
    if kind not in KINDS:
        raise BadInput(f"{kind} is no command of the search; {choose_from(kind, KINDS)}")
    function, target = KINDS[kind]
    is_norm = kind == "evaluate" and words and words[0].startswith("norm=")
    if not words or ("=" in words[0] and not is_norm):
        raise BadInput(f"{kind} needs {target} first, before its options")
    return function(words[0], words[1:])


if __name__ == "__main__":
    cli.run(main)
