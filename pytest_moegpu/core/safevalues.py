"""What the safe evaluator may do with values: operators, a few builtins and methods, each within a budget."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from pytest_moegpu.core.safebudget import MOST_ITEMS, Budget, SafeEvalError, bits

__all__ = ["BINARY", "BUILTINS", "COMPARE", "METHODS", "UNARY"]

_MOST_DIGITS = 300


def _add(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, str | list | tuple) and type(left) is type(right):
        budget.count(len(left) + len(right))
    return left + right


def _multiply(budget: Budget, left: Any, right: Any) -> Any:
    for one, times in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(times, int):
            budget.count(len(one) * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        bits(left.bit_length() + right.bit_length())
    return left * right


def _power(_budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        bits(max(left.bit_length(), 1) * right)
    elif not isinstance(left, int | float) or not isinstance(right, int | float) or (left < 0 and right != int(right)):
        raise SafeEvalError("that power is not a real number")
    return left**right


def _remainder(_budget: Budget, left: Any, right: Any) -> Any:
    if not isinstance(left, int | float):
        raise SafeEvalError("% formats no text here")
    return left % right


def _shifted(_budget: Budget, left: Any, right: Any) -> Any:
    bits(left.bit_length() + right)
    return left << right


def _plain(function: Callable[[Any, Any], Any]) -> Callable[[Budget, Any, Any], Any]:
    return lambda _budget, left, right: function(left, right)


BINARY: dict[type[ast.operator], Callable[[Budget, Any, Any], Any]] = {
    ast.Add: _add,
    ast.Mult: _multiply,
    ast.Pow: _power,
    ast.Mod: _remainder,
    ast.LShift: _shifted,
    ast.Sub: _plain(operator.sub),
    ast.Div: _plain(operator.truediv),
    ast.FloorDiv: _plain(operator.floordiv),
    ast.RShift: _plain(operator.rshift),
    ast.BitAnd: _plain(operator.and_),
    ast.BitOr: _plain(operator.or_),
    ast.BitXor: _plain(operator.xor),
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


def _of_all(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a builtin over the items of one value, such as `sum`."""
    return lambda budget, value: function(budget.taken(value))


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def made(budget: Budget, *values: Any, **options: Any) -> Any:
        items = budget.taken(values[0]) if len(values) == 1 else list(values)
        budget.charged(items)
        return function(items, **options)

    return made


def _sorted(budget: Budget, value: Any, *, key: Any = None, reverse: Any = False) -> list[Any]:
    items = budget.charged(budget.taken(value))
    # Each item is compared about log2(n) times, at most 14.
    budget.step(14 * len(items))
    return sorted(items, key=key, reverse=bool(reverse))


def _range(_budget: Budget, *bounds: Any) -> range:
    return range(*bounds)


def _sum(budget: Budget, value: Any, start: Any = 0) -> Any:
    total = start
    for item in budget.items(value):
        total = budget.sized(_add(budget, total, item))
    return total


def _round(_budget: Budget, value: Any, digits: Any = None) -> Any:
    if digits is not None and abs(digits) > _MOST_DIGITS:
        raise SafeEvalError(f"rounding to more than {_MOST_DIGITS} digits")
    return round(value, digits)


BUILTINS: dict[str, Callable[..., Any]] = {
    "abs": lambda _budget, value: abs(value),
    "all": _of_all(all),
    "any": _of_all(any),
    "bool": lambda _budget, value=False: bool(value),
    "chr": lambda _budget, value: chr(value),
    "dict": lambda budget, value=(): {budget.key(k): v for k, v in budget.taken(value)},
    "enumerate": lambda budget, value, start=0: list(enumerate(budget.taken(value), start)),
    "filter": lambda budget, test, value: [one for one in budget.taken(value) if test(one)],
    "float": lambda _budget, value=0: float(value),
    "int": lambda _budget, value=0: int(value),
    "len": lambda _budget, value: len(value),
    "list": lambda budget, value=(): budget.taken(value),
    "map": lambda budget, change, value: [change(one) for one in budget.taken(value)],
    "max": _extreme(max),
    "min": _extreme(min),
    "ord": lambda _budget, value: ord(value),
    "range": _range,
    "reversed": lambda budget, value: budget.taken(value)[::-1],
    "round": _round,
    "set": lambda budget, value=(): {budget.key(one) for one in budget.taken(value)},
    "sorted": _sorted,
    "str": lambda budget, value="": budget.text(value),
    "sum": _sum,
    "tuple": lambda budget, value=(): tuple(budget.taken(value)),
    "zip": lambda budget, *values: list(zip(*map(budget.taken, values), strict=False)),
}


def _native(name: str) -> Callable[..., Any]:
    """Make a method of one that gives back no more than it was given."""
    return lambda _budget, value, *args: getattr(value, name)(*args)


def _joined(budget: Budget, glue: str, parts: Any) -> str:
    texts = budget.taken(parts)
    budget.count(sum(map(len, texts)) + len(glue) * len(texts))
    return glue.join(texts)


def _replaced(budget: Budget, text: str, old: str, new: str) -> str:
    budget.count(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _extended(budget: Budget, held: list[Any], more: Any) -> None:
    held.extend(budget.taken(more))
    budget.sized(held)


def _grown(name: str) -> Callable[..., Any]:
    def made(budget: Budget, held: Any, *args: Any) -> None:
        getattr(held, name)(*args)
        if len(held) > MOST_ITEMS:
            budget.count(len(held))

    return made


def _sort_in_place(budget: Budget, held: list[Any], **options: Any) -> None:
    held[:] = _sorted(budget, held, **options)


def _searched(name: str) -> Callable[..., Any]:
    def made(budget: Budget, held: Any, value: Any) -> Any:
        budget.charged(held)
        return getattr(held, name)(budget.charged(value))

    return made


_TEXT_METHODS = (
    *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower"),
    *("isspace", "isupper", "lower", "lstrip", "rfind", "rstrip", "split", "splitlines", "startswith", "strip"),
    *("swapcase", "title", "upper"),
)
METHODS: dict[tuple[type, str], Callable[..., Any]] = {
    **{(str, name): _native(name) for name in _TEXT_METHODS},
    (str, "join"): _joined,
    (str, "replace"): _replaced,
    **{(list, name): _grown(name) for name in ("append", "insert")},
    **{(list, name): _searched(name) for name in ("count", "index", "remove")},
    **{(list, name): _native(name) for name in ("clear", "copy", "pop", "reverse")},
    (list, "extend"): _extended,
    (list, "sort"): _sort_in_place,
    (dict, "get"): lambda budget, held, key, other=None: held.get(budget.key(key), other),
    (dict, "items"): lambda budget, held: [(key, held[key]) for key in budget.taken(held)],
    (dict, "keys"): lambda budget, held: budget.taken(held),
    (dict, "values"): lambda budget, held: [held[key] for key in budget.taken(held)],
    (set, "add"): lambda budget, held, value: held.add(budget.key(value)),
}
