"""Files of figures: the same bytes for the same data, colours, and names of lines in an SVG."""

import io
import re
import warnings
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation

from normbench.report.figure_kinds import FileFormat

Files = dict[FileFormat, bytes]
#: The same data gives the same bytes, and no text is markup: a name may have a dollar sign.
RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "normbench", "svg.fonttype": "none", "text.parse_math": False,
    "font.sans-serif": ["DejaVu Sans"],  # each text of an SVG names all of them
}  # fmt: skip
# Four colours of Okabe and Ito and two of Tol, distinct for colour-blind readers, and five more as
# far from those as possible. All have a contrast of at least 3 to white.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#664400", "#8866FF", "#000000",
    "#882255", "#CC00AA", "#332288", "#4400EE",
)  # fmt: skip
_SEPARATOR = "\N{INVISIBLE SEPARATOR}"  # between the parts of an id
_NAMED = re.compile(
    rf'<g id="(line|point|key){_SEPARATOR}([^"{_SEPARATOR}]*){_SEPARATOR}?([^"]*)">'
)


def artist_id(kind: str, *texts: str) -> str:
    """Return the id that makes an artist the line, a point or the key of a label in an SVG."""
    return _SEPARATOR.join((kind, *texts))


def use_log_scale(axes: Axes) -> None:
    """Make the y-axis logarithmic."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_PowerFormatter())
    axes.yaxis.set_minor_formatter(_PowerFormatter())


class _PowerFormatter(LogFormatterSciNotation):
    """Labels of a logarithmic axis as plain text: 10³, where matplotlib's are markup."""

    _POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label at `x`, "" if the axis is too full for it."""
        plain = re.sub(r"\$|\\mathdefault|[{}]", "", super().__call__(x, pos))
        number, _, power = plain.replace(r"\times", "×").partition("^")
        return number + power.translate(self._POWERS)


def save_figure(figure: Figure, forms: Sequence[FileFormat]) -> Files:
    """Return the content of the figure's files, without a date."""
    with warnings.catch_warnings():
        # Names may have letters that the font lacks, or leave no room beside them.
        warnings.filterwarnings("ignore", "Glyph|constrained_layout")
        if engine := figure.get_layout_engine():
            engine.execute(figure)
            figure.set_layout_engine("none")  # laid out once for all formats: half the time
        return {form: _save(figure, form) for form in forms}


def _save(figure: Figure, form: FileFormat) -> bytes:
    dated = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}
    out = io.BytesIO()
    figure.savefig(
        out, format=form, dpi=160, metadata={dated[form]: None}, transparent=form == "svg"
    )
    if form == "svg":  # XML has no control characters, not even escaped ones
        text = re.sub("[\0-\x08\x0b\x0c\x0e-\x1f]", "", out.getvalue().decode())
        return _NAMED.sub(_name_group, text).encode()
    return out.getvalue()


def _name_group(group: re.Match[str]) -> str:
    """Return a group with the label of its line, and with the text that hovering shows."""
    kind, label, text = group.groups()
    title = f"<title>{text}</title>" if text else ""
    return f'<g class="{kind}" data-line="{label}">{title}'
