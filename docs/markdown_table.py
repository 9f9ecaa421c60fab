"""Tables of the generated pages."""

from collections.abc import Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Return a table in Markdown, whose last `numbers` columns are aligned at the right.

    Raises:
        ValueError: a row is shorter or longer than the head.
    """
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"a row has not the {len(head)} cells of the head: {', '.join(head)}")
    alignment = [":--"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, alignment, *rows])
