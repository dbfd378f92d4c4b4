"""Small faults in Python source: which there are, a draw of them, and the source with one.

A fault changes one comparison, operator, number or statement, as a slip of the author would:
``<`` for ``<=``, ``n`` for ``n - 1``, ``min`` for ``max``, ``and`` for ``or``, a lost statement.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fault", "drawn", "faults_of", "with_fault"]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
}
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin",
    "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "ceil": "floor", "sin": "cos",
    "cos": "sin", "sum": "mean", "mean": "sum", "sqrt": "abs", "expm1": "exp", "log1p": "log",
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A change of one place of a file.

    Attributes
    ----------
    path : Path
    first, last : (int, int)
        Line, from 1, and byte in the line, from 0, of the place's begin and end.
    was, becomes : str
        The source of the place, before and after.
    lines : tuple of int
        Lines whose execution shows the fault: those of the place, or the whole module where the
        place runs at import.
    is_default : bool
        Whether the place is in the default of an argument.  Then the lines are those of the
        function.
    """

    path: Path
    first: tuple[int, int]
    last: tuple[int, int]
    was: str
    becomes: str
    lines: tuple[int, ...]
    is_default: bool = False

    def __str__(self) -> str:
        short = [" ".join(text.split()) for text in (self.was, self.becomes)]
        line, column = self.first
        return f"{self.path}:{line}:{column + 1}: {short[0]}  ->  {short[1]}"


def faults_of(path: Path, root: Path) -> list[Fault]:
    """Return every fault that this module knows for the file `path`, relative to `root`."""
    source = (root / path).read_text()
    tree = ast.parse(source)
    # `ast.get_source_segment` divides the source into lines for each node.
    text = source.encode().splitlines(keepends=True)
    faults = []
    for node, changed, function, is_default in _changes(tree):
        becomes = "pass" if changed is None else f"({ast.unparse(changed)})"
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant) and changed is not None:
            becomes = ast.unparse(changed)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first, last = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        segment = text[node.lineno - 1 : node.end_lineno]
        segment[-1] = segment[-1][: node.end_col_offset]
        segment[0] = segment[0][node.col_offset :]
        was = b"".join(segment).decode()
        seen = function if is_default else node
        assert seen is None or seen.end_lineno is not None
        lines = () if function is None else range(seen.lineno, seen.end_lineno + 1)
        faults.append(Fault(path, first, last, was, becomes, tuple(lines), is_default))
    return faults


def drawn(faults: Sequence[Fault], count: int, seed: int) -> list[Fault]:
    """Return `count` faults, drawn without replacement.

    A fault's place in the draw depends on its text and its file, and not on its line or on other
    files: so a draw can be repeated after the package has changed, as far as its faults are left.
    """
    seen: Counter[tuple[Path, str, str]] = Counter()
    places = {}
    for fault in faults:
        what = fault.path, fault.was, fault.becomes
        text = f"{seed} {fault.path} {seen[what]} {fault.was} -> {fault.becomes}"
        places[fault] = hashlib.sha256(text.encode()).digest()
        seen[what] += 1
    return sorted(places, key=lambda fault: places[fault])[:count]


def with_fault(source: str, fault: Fault) -> str:
    """Return the source of a file with a fault."""
    lines = source.encode().splitlines(keepends=True)
    (line, column), (last_line, last_column) = fault.first, fault.last
    before = b"".join(lines[: line - 1]) + lines[line - 1][:column]
    after = lines[last_line - 1][last_column:] + b"".join(lines[last_line:])
    return (before + fault.becomes.encode() + after).decode()


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _changes(
    tree: ast.Module,
) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | None, _Function | None, bool]]:
    """Yield each place that may change, what it becomes, its function, and whether in a default."""
    todo: list[tuple[ast.AST, _Function | None, bool]] = [(tree, None, False)]
    while todo:
        node, function, is_default = todo.pop()
        within = node if isinstance(node, _Function) else function
        in_default = is_default or isinstance(node, ast.arguments)
        todo += [(child, within, in_default) for child in _children(node)]
        if isinstance(node, ast.expr):
            for changed in _replacements(node):
                yield node, changed, function, is_default
        elif function is not None and _can_go(node):
            assert isinstance(node, ast.stmt)
            yield node, None, function, is_default


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that run: no annotations, messages, docstrings or `__all__`."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
    ):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _replacements(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what an expression may become."""
    match node:
        case ast.Compare(ops=operators):
            for at, operator in enumerate(operators):
                for other in _COMPARISONS[type(operator)]:
                    changed = copy.deepcopy(node)
                    changed.ops[at] = other()
                    yield changed
        case ast.BinOp(op=operator):
            if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
                return
            for kind in _OPERATORS.get(type(operator), ()):
                yield ast.BinOp(node.left, kind(), node.right)
        case ast.BoolOp(op=ast.And()):
            yield ast.BoolOp(ast.Or(), node.values)
        case ast.BoolOp(op=ast.Or()):
            yield ast.BoolOp(ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(value * 1.1 if value else 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield ast.Call(ast.Name(_NAMES[name], ast.Load()), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in _NAMES:
            other = ast.Attribute(function.value, _NAMES[name], ast.Load())
            yield ast.Call(other, node.args, node.keywords)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)


def _can_go(node: ast.AST) -> bool:
    """Return whether a statement may be left out: an update, or a call for its effect."""
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Assign):
        return not any(isinstance(target, ast.Name) for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
