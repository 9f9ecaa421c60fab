"""Formulas of layers as computation graphs: the language of `norm=graph` and of the search.

Liu et al. 2020 search among computation graphs over the input x, a zero and two learned vectors.
Here a graph is also a text, as in Python and without spaces: EvoNorm-B0 is

    x/max(std_bwh(x),v1*x+std_wh(x))

    x, 0, v0, v1         input (N, C, H, W), zero, learned vectors (C,), initially 0 and 1
    a+b, a-b, a*b, a/b, max(a,b), -a
    sigmoid, tanh, exp, log, abs, square, sqrt
    mean_S, rms_S, std_S  over a set S: bwh is a channel over the images of a worker; of one image
                          wh is a channel, whc all channels, g a group of channels

a-b is a+(-b). log(a) is sign(a) log|a| and sqrt(a) is sign(a) sqrt|a|, so that they are defined
everywhere. Gain and shift follow the formula; they are not written.

The appendix shows formulas and sets, not the list of primitives. That list is from the main paper's
table 1 and unverified here. Standard library only.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from normbench.errors import choose_from

LEAVES = ("x", "0", "v0", "v1")
UNARY = ("neg", "sigmoid", "tanh", "exp", "log", "abs", "square", "sqrt")
BINARY = ("add", "mul", "div", "max")
MOMENTS = ("mean", "rms", "std")
SCOPES = ("bwh", "wh", "whc", "g")
AGGREGATIONS = tuple(f"{moment}_{scope}" for moment in MOMENTS for scope in SCOPES)
MAX_CHARACTERS = 2000  # of a formula
MAX_OPERATIONS = 300  # of a formula; deeper ones exceed Python's recursion

_OPERATORS = {ast.Add: "add", ast.Sub: "add", ast.Mult: "mul", ast.Div: "div"}
_SIGNS = {"add": "+", "mul": "*", "div": "/"}
_FUNCTIONS = {**dict.fromkeys((*UNARY[1:], *AGGREGATIONS), 1), "max": 2}
# Binding strength, as in Python.
_SUM, _PRODUCT, _NEGATION, _ATOM = range(4)


@dataclass(frozen=True)
class Node:
    """An operation of a graph, and the indices of the nodes that it is applied to."""

    op: str
    inputs: tuple[int, ...] = ()

    @property
    def moment(self) -> str:
        """The moment of an aggregation, as std; the operation itself of others."""
        return self.op.partition("_")[0]

    @property
    def scope(self) -> str:
        """The set of an aggregation, as bwh; "" of other operations."""
        return self.op.partition("_")[2]


@dataclass(frozen=True)
class Graph:
    """A computation graph: distinct nodes, each after its inputs; the last one is the output."""

    nodes: tuple[Node, ...]

    @property
    def uses_batch(self) -> bool:
        """True if a statistic over the images of a worker is part of the output."""
        return any(node.scope == "bwh" for node in self.nodes)

    @property
    def depends_on_input(self) -> bool:
        return any(node.op == "x" for node in self.nodes)

    def __str__(self) -> str:
        """Return the formula; `parse` reads it as a graph of the same computation."""
        return _write(self.nodes, len(self.nodes) - 1, _SUM)


def reachable(nodes: Sequence[Node], output: int) -> Graph:
    """Return the graph of the node `output`, without nodes that it does not depend on.

    Nodes with equal operations and inputs become one.
    """
    places: dict[Node, int] = {}  # in the new graph
    new_index: dict[int, int] = {}  # by index in `nodes`
    needed = {output}
    for index in range(output, -1, -1):
        if index in needed:
            needed.update(nodes[index].inputs)
    for index in sorted(needed):
        old = nodes[index]
        node = Node(old.op, tuple(new_index[each] for each in old.inputs))
        new_index[index] = places.setdefault(node, len(places))
    return Graph(tuple(places))


@lru_cache(4096)
def parse(formula: str) -> Graph:
    """Return the graph of a formula.

    Raises:
        ValueError: it cannot be read; the message says what works.
    """
    if len(formula) > MAX_CHARACTERS:
        raise ValueError(
            f"it has {len(formula):,} characters; a formula may have {MAX_CHARACTERS:,}"
        )
    if any(character.isspace() for character in formula):
        raise ValueError(f"leave out the spaces: {''.join(formula.split())}")
    if "**" in formula:
        raise ValueError("formulas have no powers; use square(x), or x*x*x")
    tokens = re.findall("[a-z][a-z0-9_]*|[0-9]+|.", formula)
    if odd := [each for each in tokens if not re.fullmatch("[a-z0-9_]+|[-+*/(),]", each)]:
        raise ValueError(f"{odd[0]} is no part of a formula; docs/guide/search.md has the language")
    if numbers := [each for each in tokens if each.isdecimal() and each != "0"]:
        raise ValueError(
            f"{numbers[0]}: formulas have no number but 0; exp(0) is 1, x+x is twice x"
        )
    try:
        tree = ast.parse(formula, mode="eval").body
        nodes: list[Node] = []
        _read(tree, nodes)
        if (operations := sum(bool(node.inputs) for node in nodes)) > MAX_OPERATIONS:
            raise ValueError(f"it has {operations} operations; a formula may have {MAX_OPERATIONS}")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            "it cannot be read; x/max(std_bwh(x),v1*x+std_wh(x)) works, and docs/guide/search.md "
            "has the language"
        ) from None
    return reachable(nodes, len(nodes) - 1)


def _read(tree: ast.expr, nodes: list[Node]) -> int:
    """Append the nodes of a syntax tree to `nodes`; return the index of the last."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        nodes.append(Node("neg", (_read(tree.operand, nodes),)))
    elif isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = _read(tree.left, nodes), _read(tree.right, nodes)
        if isinstance(tree.op, ast.Sub):
            nodes.append(Node("neg", (right,)))
            right = len(nodes) - 1
        nodes.append(Node(_OPERATORS[type(tree.op)], (left, right)))
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        nodes.append(_read_call(tree.func.id, tree.args, nodes))
    elif (leaf := ast.unparse(tree)) in LEAVES:
        nodes.append(Node(leaf))
    elif leaf in _FUNCTIONS:
        raise ValueError(f"{leaf} is a function; it needs arguments, as {leaf}(x)")
    elif isinstance(tree, ast.Name):
        raise ValueError(f"unknown name {leaf}; {choose_from(leaf, LEAVES)}")
    else:
        raise ValueError(f"{leaf} is no part of a formula; docs/guide/search.md has the language")
    return len(nodes) - 1


def _read_call(name: str, arguments: Sequence[ast.expr], nodes: list[Node]) -> Node:
    if name not in _FUNCTIONS:
        raise ValueError(f"unknown function {name}; functions: {', '.join(_FUNCTIONS)}")
    if len(arguments) != _FUNCTIONS[name]:
        expected = "one argument" if _FUNCTIONS[name] == 1 else "two arguments"
        raise ValueError(f"{name} takes {expected}, not {len(arguments)}")
    return Node(name, tuple(_read(each, nodes) for each in arguments))


def _write(nodes: Sequence[Node], index: int, strength: int) -> str:
    """Return node `index` as text, in parentheses if it binds less than `strength`."""
    text, strength_of_text = _write_node(nodes, nodes[index])
    return text if strength_of_text >= strength else f"({text})"


def _write_node(nodes: Sequence[Node], node: Node) -> tuple[str, int]:
    """Return a node as text, and how strongly it binds."""
    if node.op == "neg":
        return f"-{_write(nodes, node.inputs[0], _NEGATION)}", _NEGATION
    if node.op not in _SIGNS:
        arguments = ",".join(_write(nodes, each, _SUM) for each in node.inputs)
        return (f"{node.op}({arguments})" if arguments else node.op), _ATOM
    left, right = node.inputs
    if node.op == "add" and nodes[right].op == "neg":
        negated = nodes[right].inputs[0]
        return f"{_write(nodes, left, _SUM)}-{_write(nodes, negated, _PRODUCT)}", _SUM
    strength = _SUM if node.op == "add" else _PRODUCT
    sign = _SIGNS[node.op]
    return f"{_write(nodes, left, strength)}{sign}{_write(nodes, right, strength + 1)}", strength


def latex(graph: Graph) -> str:
    """Return the formula in LaTeX, in the notation of the paper's appendix D."""
    return _typeset(graph.nodes, len(graph.nodes) - 1, _SUM)


def _typeset(nodes: Sequence[Node], index: int, strength: int) -> str:
    text, strength_of_text = _typeset_node(nodes, nodes[index])
    return text if strength_of_text >= strength else rf"\left({text}\right)"


def _typeset_node(nodes: Sequence[Node], node: Node) -> tuple[str, int]:
    """Return a node in LaTeX, and how strongly it binds."""
    if node.op == "neg":
        return f"-{_typeset(nodes, node.inputs[0], _NEGATION)}", _NEGATION
    if node.op == "mul":
        left, right = node.inputs  # a sign in the middle would look like a sum
        return rf"{_typeset(nodes, left, _PRODUCT)}\,{_typeset(nodes, right, _ATOM)}", _PRODUCT
    if node.op == "add":
        left, right = node.inputs
        negative = nodes[right].op == "neg"
        term = nodes[right].inputs[0] if negative else right
        sign, strength = (" - ", _PRODUCT) if negative else (" + ", _SUM)
        return _typeset(nodes, left, _SUM) + sign + _typeset(nodes, term, strength), _SUM
    if node.op == "square":
        base = _typeset(nodes, node.inputs[0], _ATOM)
        if nodes[node.inputs[0]].op in ("div", "sqrt"):
            base = rf"\left({base}\right)"
        return rf"{base}^2", _PRODUCT
    inner = [_typeset(nodes, each, _SUM) for each in node.inputs]
    if node.scope:
        return _typeset_moment(node, inner[0]), _ATOM
    return _TYPESET[node.op].format(*inner), _ATOM


def _typeset_moment(node: Node, argument: str) -> str:
    letters = {"bwh": "b,w,h", "wh": "w,h", "whc": "w,h,c", "g": "w,h,c/g"}[node.scope]
    if node.moment == "mean":
        return rf"\mu_{{{letters}}}({argument})"
    if node.moment == "rms":
        square = f"{argument}^2" if len(argument) == 1 else rf"({argument})^2"
        return rf"\sqrt{{\mu_{{{letters}}}({square})}}"
    return rf"\sqrt{{s^2_{{{letters}}}({argument})}}"


_TYPESET = {
    "x": "x",
    "0": "0",
    "v0": "v_0",
    "v1": "v_1",
    "sigmoid": r"\sigma({})",
    "tanh": r"\tanh({})",
    "exp": r"\exp({})",
    "log": r"\log({})",
    "abs": r"|{}|",
    "sqrt": r"\sqrt{{{}}}",
    "max": r"\max({}, {})",
    "div": r"\frac{{{}}}{{{}}}",
}
