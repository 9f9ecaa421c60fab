"""Options, help and exit codes of the commands.

A command declares its key=value words as the fields of a frozen dataclass, each by `option`; the
type of a field says which values work. `parse_options` reads them, `command` answers --help.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, field, fields
from functools import wraps
from inspect import getdoc
from pathlib import Path
from textwrap import fill, wrap
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints
from unicodedata import category

from normbench.config.files import expand
from normbench.config.output import protect_output
from normbench.errors import BadInput, choose_from, count, for_screen, left_out, require_one_of

Main = Callable[[Sequence[str]], int]
Options = TypeVar("Options")

MOST_LETTERS = 20_000  # of a word, which Hydra's parser reads in a second
MOST = 10**9  # of a whole number, if its option says nothing else
WIDTH = 100  # of the lines of --help
LEFT_OUT = 8  # files that are named; for the others only their number is printed
INDENT = 24  # column at which the explanation of an option begins


def run(main: Main) -> NoReturn:
    """Call `main` with the words of the command line, and exit with the code that it returns.

    If a reader of our output closes the pipe, as in `normbench --help | head`, exit silently with
    the code of a process that SIGPIPE has ended. What a full disk cannot take is dropped; at the
    end that is an error.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # from normbench/__init__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    output = protect_output()
    try:
        folder = str(Path.cwd())
    except FileNotFoundError:
        print_error("normbench", "the working directory is gone; call it from another folder")
        sys.exit(2)
    if not sys.flags.safe_path and sys.path[0] not in ("", folder):
        sys.path.insert(0, folder)  # as `python -m` does, for normalizers of a user's own
    try:
        try:
            code = main(sys.argv[1:])
        finally:  # also where Hydra ends the process, having answered by itself
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    if output.error is not None:
        print_error("normbench", f"the output cannot be written ({output.error.strerror})")
        code = code or 1
    gc.freeze()  # else garbage collection spends a second on torch's objects at exit
    sys.exit(code)


def command(
    name: str,
    help_text: Callable[[], str],
    *,
    needs_words: bool = False,
    needs_all_files: bool = False,
) -> Callable[[Main], Main]:
    """Decorate the main function of a command with --help and exit codes 2 and 130.

    Args:
        name: of the command; begins its error messages.
        help_text: returns what --help prints.
        needs_words: print the help also if there are no words.
        needs_all_files: exit with 1 if a damaged file was left out.
    """

    def decorate(main: Main) -> Main:
        @wraps(main)
        def wrapped(arguments: Sequence[str]) -> int:
            if {"-h", "--help"} & {*arguments} or (needs_words and not arguments):
                print(help_text())
                return 0
            with name_left_out(name) as sentences:
                try:
                    require_text(arguments)
                    code = main(arguments)
                except BadInput as error:
                    print_error(name, error)
                    return 2
                except KeyboardInterrupt:
                    return 128 + signal.SIGINT
            return code or int(needs_all_files and bool(sentences))

        return wrapped

    return decorate


def require_text(words: Sequence[str]) -> None:
    """Refuse words that no terminal, name of a file or yaml can hold.

    Raises:
        BadInput: there is such a word.
    """
    for word in words:
        if len(word) > MOST_LETTERS:
            raise BadInput(f"{word} has {len(word):,} letters; a word may have {MOST_LETTERS:,}")
        kinds = {category(letter): letter for letter in {*word}}
        if "Cs" in kinds:  # Python's placeholder for a byte that is no UTF-8
            hint = "write names in UTF-8"
            if (encoding := sys.getfilesystemencoding()) != "utf-8":
                hint = f"Python reads words as {encoding} here, and as UTF-8 after PYTHONUTF8=1"
            raise BadInput(f"{word} is not UTF-8; {hint}")
        if control := kinds.get("Cc", kinds.get("Zl", kinds.get("Zp"))):
            raise BadInput(f"{word} has the control character U+{ord(control):04X}; leave it out")


def print_error(name: str, message: object) -> None:
    """Print an error of the command `name` as one line on stderr."""
    print(f"{name}: {for_screen(message)}", file=sys.stderr)


@contextmanager
def name_left_out(name: str) -> Iterator[list[str]]:
    """Print a line for each damaged file that the command `name` leaves out, at the end.

    Yields:
        These lines, empty as long as nothing was left out.
    """
    with left_out() as sentences:
        try:
            yield sentences
        finally:
            for sentence in sentences[:LEFT_OUT]:
                print_error(name, f"left out: {sentence}")
            if len(sentences) > LEFT_OUT:
                more = count(len(sentences) - LEFT_OUT, "more file")
                print_error(name, f"left out: {more}")


def option(
    default: Any,
    explanation: str,
    metavar: str = "",
    parse: Callable[[str], Any] | None = None,
    *,
    most: int = MOST,
) -> Any:
    """Declare a field of a dataclass as an option.

    Args:
        default: value if the option is not given.
        explanation: for --help, which appends the default.
        metavar: placeholder of the value in --help; "" takes one from the field's type.
        parse: text -> value, for types that `parse_options` does not read; raises a `ValueError`
            that says what works.
        most: the largest whole number.
    """
    metadata = {"explanation": explanation, "metavar": metavar, "parse": parse, "most": most}
    return field(default=default, metadata=metadata)


def parse_options(
    words: Sequence[str], kind: type[Options], *, owner: str = "", pass_on: bool = False
) -> tuple[Options, list[str]]:
    """Return the options among `words` as a `kind`, and all other words.

    Args:
        words: of the command line; of a repeated option the last one counts.
        kind: dataclass of the options. One that is false by default is a flag, as --dry-run.
        owner: whose options these are, if a command has several kinds.
        pass_on: return options that `kind` lacks among the other words.

    Raises:
        BadInput: an option is unknown, or its value cannot be used.
    """
    hints = get_type_hints(kind)
    known = {_word(each): each for each in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    others = []
    for word in words:
        head, equals, text = word.partition("=")
        if word in known and known[word].default is False:
            values[known[word].name] = True
        elif equals and head in known and not head.startswith("-"):  # a flag takes no value
            values[head] = _parse(known[head], text, hints[head])
        elif not pass_on and (equals or word.startswith("-")):
            of_owner = f" to {owner}" if owner else ""
            raise BadInput(f"{word} is unknown{of_owner}; {choose_from(head, known)}")
        else:
            others.append(word)
    return kind(**values), others


def describe(kind: type, base: type | None = None) -> str:
    """Return lines for --help on the options of `kind`, without those of its `base`."""
    hints = get_type_hints(kind)
    described_elsewhere = get_type_hints(base) if base else {}
    return "\n".join(
        line
        for each in fields(kind)
        if each.name not in described_elsewhere
        for line in _describe_option(each, hints[each.name])
    )


def describe_kind(name: str, kind: type, base: type) -> str:
    """Return lines for --help on a kind of a command: the docstring of its options, and those."""
    text = fill(f"{name:<15} {getdoc(kind)}", WIDTH, subsequent_indent=" " * 16)
    return f"{text}\n{describe(kind, base)}"


def _describe_option(each: Field[Any], hint: Any) -> Iterator[str]:
    text, head = each.metadata["explanation"], f"    {_word(each)}"
    if each.default is not False:
        head += f"={each.metadata['metavar'] or _metavar(hint)}"
    if each.default:
        text = f"{text} ({_format_default(each.default)})"
    if len(head) > INDENT - 2:
        yield head
        head = ""
    for line in wrap(text, WIDTH - INDENT):
        yield f"{head:<{INDENT}}{line}"
        head = ""


def _parse(each: Field[Any], text: str, hint: Any) -> Any:
    """Return the value of an option from its text.

    Raises:
        BadInput: the text does not fit `hint`.
    """
    name, parse = each.name, each.metadata["parse"]
    origin, arguments = get_origin(hint), get_args(hint)
    if not text:
        raise BadInput(
            f"{name}= has no value; write {name}={each.metadata['metavar'] or _metavar(hint)}"
        )
    if parse is not None:
        try:
            return parse(text)
        except ValueError as error:
            raise BadInput(f"{name}={text}: {error}") from None
    if origin is tuple:  # tuple[X, ...]: values separated by commas
        return tuple(_parse(each, part, arguments[0]) for part in text.split(","))
    if type(None) in arguments:  # X | None: not given is None, and no word gives it
        return _parse(each, text, arguments[0])
    if origin is Literal:
        return require_one_of(name, text, arguments)
    if hint is bool:
        return require_one_of(name, text, ("true", "false")) == "true"
    if hint is int:
        return _parse_number(each, text)
    if hint is Path:
        return expand(name, text)
    return hint(text)


def _parse_number(each: Field[Any], text: str) -> int:
    name, most = each.name, each.metadata["most"]
    digits = text.lstrip("0") if text.isascii() and text.isdecimal() else ""
    if not digits:
        example = _format_default(each.default) if each.default else 8
        raise BadInput(f"{name}={text}: it is a whole number above 0, as {name}={example}")
    if len(digits) > len(str(most)) or int(digits) > most:  # int() takes 4,300 digits at most
        raise BadInput(f"{name}={text}: it may be at most {most:,}")
    return int(digits)


def _word(each: Field[Any]) -> str:
    """Return an option as it is typed, without its value."""
    return f"--{each.name.replace('_', '-')}" if each.default is False else each.name


def _metavar(hint: Any) -> str:
    """Return the placeholder of a value, as N of a whole number."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return f"{_metavar(arguments[0])},..."
    if type(None) in arguments:
        return _metavar(arguments[0])
    if origin is Literal:
        return "|".join(arguments)
    return {bool: "true|false", int: "N", Path: "DIR"}.get(hint, "NAME")


def _format_default(default: object) -> str:
    """Return a default as it is typed."""
    if isinstance(default, tuple):
        return ",".join(map(_format_default, default))
    return str(default).lower() if isinstance(default, bool) else str(default)
