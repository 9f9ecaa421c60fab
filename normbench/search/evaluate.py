"""Print the scores of one layer as JSON, so that other optimizers can drive the evaluation."""

import json
from collections.abc import Sequence
from pathlib import Path

from normbench.config import cli
from normbench.errors import BadInput, DamagedFile
from normbench.execution import process_group
from normbench.norms.formulas import parse
from normbench.run_files import parse_json, read_file, require_writable
from normbench.search.options import EvaluationOptions
from normbench.search.request import compose_trainings
from normbench.search.run import check_trainings


def evaluate(target: str, words: Sequence[str]) -> int:
    """Print verdict, scores and cost of a layer; return the exit code.

    Args:
        target: a formula, a file with one (as text, or as "formula" of a JSON object), or
            norm=NAME, which may be a Python layer of the user's.
        words: of the search.

    Raises:
        BadInput: the target is none of these, or the words cannot be used.
    """
    options, others = cli.parse_options(words, EvaluationOptions, owner="evaluate", pass_on=True)
    formula = "" if target.startswith("norm=") else _read_formula(target)
    norm = ["norm=graph", f'norm.formula="{formula}"'] if formula else [target]
    cells, settings = compose_trainings(others, norm)
    if len({cell.norm.name for cell in cells}) > 1:
        raise BadInput(f"{target}: evaluate scores one layer at a time")
    remedy = "use a writable folder, as runs=$HOME/normbench-runs"
    require_writable(Path(settings.runs), f"runs={settings.runs}", remedy)
    check_trainings(cells, settings, show=False)  # only JSON is printed
    log = Path(settings.runs) / "evaluate.log"
    end = process_group.wait_for_exit(
        process_group.start("normbench.search.worker:score_normalizer", (cells, options), log=log)
    )
    if not end.succeeded:
        cli.print_error("normbench.search", f"{end.reason}; see {log}")
        return 1
    chosen = {"formula": formula} if formula else {"norm": target.removeprefix("norm=")}
    print(json.dumps({**chosen, "trainings": [cell.title for cell in cells], **end.result}))
    return 0


def _read_formula(target: str) -> str:
    """Return the formula that is typed, or is in the file of that name.

    Raises:
        BadInput: it is neither.
    """
    try:
        parse(target)
    except ValueError as error:
        if not _is_file(target):
            raise BadInput(
                f"{target}: neither norm=NAME nor a file, and no formula: {error}"
            ) from None
    else:
        return target
    try:
        text = read_file(target).decode().strip()
        formula = str(parse_json(text.encode())["formula"]) if text[:1] == "{" else text
        parse(formula)
    except (DamagedFile, UnicodeDecodeError, ValueError, KeyError) as error:
        raise BadInput(
            f'{target}: it must hold a formula, or a JSON object with a "formula" ({error})'
        ) from None
    return formula


def _is_file(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # it is too long for a name
        return False
