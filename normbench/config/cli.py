"""Options, help and exit codes of the commands.

A command declares its key=value words as the fields of a frozen dataclass, each by `option`; the
type of a field says which values work. `parse_options` reads them, `command` answers --help.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, field, fields
from functools import wraps
from inspect import getdoc
from pathlib import Path
from textwrap import fill, wrap
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from normbench.errors import BadInput, choose_from, require_one_of

Main = Callable[[Sequence[str]], int]
Options = TypeVar("Options")

WIDTH = 100  # of the lines of --help
INDENT = 24  # column at which the explanation of an option begins


def run(main: Main) -> NoReturn:
    """Call `main` with the words of the command line, and exit with the code that it returns.

    If a reader of our output closes the pipe, as in `normbench --help | head`, exit silently with
    the code of a process that SIGPIPE has ended.
    """
    try:
        try:
            code = main(sys.argv[1:])
        finally:  # also where Hydra ends the process, having answered by itself
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def command(
    name: str, help_text: Callable[[], str], *, needs_words: bool = False
) -> Callable[[Main], Main]:
    """Decorate the main function of a command with --help and exit codes 2 and 130.

    Args:
        name: of the command; begins its error messages.
        help_text: returns what --help prints.
        needs_words: print the help also if there are no words.
    """

    def decorate(main: Main) -> Main:
        @wraps(main)
        def wrapped(arguments: Sequence[str]) -> int:
            if {"-h", "--help"} & {*arguments} or (needs_words and not arguments):
                print(help_text())
                return 0
            try:
                return main(arguments)
            except BadInput as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 2
            except KeyboardInterrupt:
                return 128 + signal.SIGINT

        return wrapped

    return decorate


def option(
    default: Any, explanation: str, metavar: str = "", parse: Callable[[str], Any] | None = None
) -> Any:
    """Declare a field of a dataclass as an option.

    Args:
        default: value if the option is not given.
        explanation: for --help, which appends the default.
        metavar: placeholder of the value in --help; "" takes one from the field's type.
        parse: text -> value, for types that `parse_options` does not read; raises a `ValueError`
            that says what works.
    """
    metadata = {"explanation": explanation, "metavar": metavar, "parse": parse}
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
    if hint is int and not (text.isdecimal() and int(text)):
        example = _format_default(each.default) if each.default else 8
        raise BadInput(f"{name}={text}: it is a whole number above 0, as {name}={example}")
    return Path(text).expanduser() if hint is Path else hint(text)


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
