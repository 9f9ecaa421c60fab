"""Names in Markdown: what would be markup is escaped."""

import re

from normbench.errors import printable

# Not an underscore inside of a word, as in evonorm_s0, nor a bracket without a link.
_MARKUP = re.compile(
    r"""^>|^\#(?=[\#\s]) | [`*|~$] | (?<!\w)_ | _(?!\w)
    | \\(?=[!-/:-@\[-`{-~]|$) | <(?=[A-Za-z/!?]) | &(?=\#?\w+;) | \](?=[(\[:])
    """,
    re.VERBOSE,
)


def escape_markdown(text: str) -> str:
    """Return `text` on one line, so that Markdown shows it as it is."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))
