"""JSON objects checked against the annotated fields of a dataclass. Standard library only."""

import types
from collections.abc import Callable, Mapping, Set
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints


class JsonFields:
    """The keys, types and words that a JSON object of the dataclass `kind` can have."""

    def __init__(self, kind: type) -> None:
        hints = get_type_hints(kind)
        self.types = {name: _types(hint) for name, hint in hints.items()}
        self.required = {
            each.name
            for each in fields(kind)
            if each.default is MISSING and each.default_factory is MISSING
        }
        self._factories: dict[str, Callable[[], Any]] = {
            each.name: (lambda value=each.default: value)  # type: ignore[misc]
            if each.default_factory is MISSING
            else each.default_factory
            for each in fields(kind)
            if each.name not in self.required
        }
        self._words = {
            name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal
        }
        #: Types of what is in a list or a mapping.
        self._elements = {
            name: _types(get_args(hint)[-1])
            for name, hint in hints.items()
            if get_origin(hint) in (list, dict) and get_args(hint)[-1] is not Any
        }

    def defaults(self, names: Set[str]) -> dict[str, Any]:
        """Return the default values of the fields that are not among `names`."""
        return {name: self._factories[name]() for name in self.types.keys() - names}

    def problem(self, raw: dict[str, Any]) -> str:
        """Return why the object `raw` cannot be used, as the end of a sentence, or ""."""
        expected = self.types
        try:
            wrong = [name for name, value in raw.items() if type(value) not in expected[name]]
        except KeyError:
            unknown = sorted(raw.keys() - expected.keys())
            return f"has unknown keys: {', '.join(unknown[:9])}"
        # Fields added later have defaults, which older objects get.
        if not self.required <= raw.keys():
            return f"lacks {', '.join(sorted(self.required - raw.keys()))}"
        if not wrong:
            for name, words in self._words.items():
                if (value := raw.get(name, words[0])) not in words:
                    return f"has {name}={value}, which is none of {', '.join(words)}"
            wrong = [
                name
                for name, kinds in self._elements.items()
                if (value := raw.get(name))
                and {*map(type, value.values() if type(value) is dict else value)} - kinds
            ]
        return f"has values of the wrong type: {', '.join(sorted({*wrong}))}" if wrong else ""


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten {"norm": {"name": "bn", "eps": 1}} to {"norm": "bn", "norm.eps": 1}."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif key == "name" and prefix:
            flat[prefix.removesuffix(".")] = value
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _types(hint: Any) -> frozenset[type]:
    """Return the types of values that a field with this annotation may have."""
    if get_origin(hint) is Literal:
        return frozenset(map(type, get_args(hint)))
    if isinstance(hint, types.UnionType):
        return frozenset().union(*map(_types, get_args(hint)))
    plain = get_origin(hint) or hint
    # JSON writes 1.0 as 1 in places; True is no number.
    return frozenset({float, int} if plain is float else {plain})
