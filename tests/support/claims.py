"""Claims about a small table, and their verdicts."""

from collections.abc import Sequence
from typing import Any

from normbench.report.claim_results import Verdict
from normbench.report.claims import Claim, claims
from normbench.report.pivot import tables
from normbench.report.table_spec import TableSpec, spec
from normbench.report.verdicts import judge
from normbench.results import Row

TABLE: dict[str, Any] = {
    "title": "A table",
    "paper": "Somebody (2020)",
    "metric": "test_top1",
    "seeds": 3,
    "where": {"recipe": "demo"},
    "setting": {"data": "digits"},
    "rows": {"BN": {"norm": "bn"}, "GN": {"norm": "gn"}},
    "columns": {4: {"batch": 4}, 16: {"batch": 16}, 64: {"batch": 64}},
    "published": {"BN": [70.0, 75.0, 76.0], "GN": [74.0, 74.2, "74.1 ± 0.3"]},
}
SPEC = spec("made", TABLE)


def claim(known: TableSpec = SPEC, **entry: Any) -> Claim:
    """Return the claim of a yaml entry about the table `known`."""
    raw = {"says": "So.", "place": "table 1", "tables": ["made"], **entry}
    (found,) = claims("made", {"paper": "Somebody (2020)", "claims": {"it": raw}}, {"made": known})
    return found


def verdict(rows: Sequence[Row], **entry: Any) -> Verdict:
    """Return the verdict of `rows` on a claim about the small table."""
    (table,) = tables([SPEC], rows, None)
    return judge(claim(**entry), table)
