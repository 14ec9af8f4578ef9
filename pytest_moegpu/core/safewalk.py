"""Walks the syntax tree of a small program and does what it says, within a budget; see `core.safeeval`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_moegpu.core.safebudget import Budget, SafeEvalError
from pytest_moegpu.core.safevalues import BINARY, BUILTINS, COMPARE, METHODS, UNARY

__all__ = ["Left", "Walker"]

_MOST_CALLS = 40
"""Calls inside one another. Each takes up to a few dozen frames of the interpreter that walks it."""


class Left(Exception):  # noqa: N818
    """A statement left its place: not an error but inside of a loop or function."""


class _Break(Left):
    """Leaves a loop."""


class _Continue(Left):
    """Goes on with the next round of a loop."""


class _Return(Left):
    """Leaves a function with a value."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


@dataclass(frozen=True, eq=False)
class _Function:
    """A function of the program, and the names it sees."""

    arguments: ast.arguments
    body: tuple[ast.stmt, ...] | ast.expr
    names: Mapping[str, object]


@dataclass
class Walker:
    """Runs statements and expressions; `globals` are the names of the program's top level."""

    budget: Budget = field(default_factory=Budget)
    globals: dict[str, object] = field(default_factory=dict)
    calls: int = 0

    def run(self, node: ast.stmt, names: dict[str, object]) -> None:
        """Run one statement."""
        self.budget.step()
        match node:
            case ast.FunctionDef(name=name, args=args, body=body, decorator_list=[]):
                names[name] = _Function(args, tuple(body), names)
            case ast.Return(value=value):
                raise _Return(None if value is None else self.value(value, names))
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, names)
                for target in targets:
                    self.assign(target, result, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value, names), names)
            case ast.AugAssign(target=ast.Name() | ast.Subscript() as target, op=op, value=value):
                old = self.value(_loaded(target), names)
                self.assign(target, self.operate(op, old, self.value(value, names)), names)
            case ast.If(test=test, body=body, orelse=orelse):
                self.block(body if self.value(test, names) else orelse, names)
            case ast.While(test=test, body=body, orelse=orelse):
                self.loop((None for _ in iter(lambda: bool(self.value(test, names)), False)), None, node, names)
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                self.loop(self.budget.items(self.value(iterable, names)), target, node, names)
            case ast.Expr(value=value):
                self.value(value, names)
            case ast.Break():
                raise _Break
            case ast.Continue():
                raise _Continue
            case ast.Pass() | ast.AnnAssign(value=None):
                pass
            case _:
                raise SafeEvalError(f"{type(node).__name__} is not allowed here")

    def block(self, statements: list[ast.stmt], names: dict[str, object]) -> None:
        """Run statements in order."""
        for statement in statements:
            self.run(statement, names)

    def loop(
        self, rounds: Iterator[object], target: ast.expr | None, node: ast.While | ast.For, names: dict[str, object]
    ) -> None:
        """Run a loop: its body for every round, and its `else` unless it was left."""
        for item in rounds:
            self.budget.step()
            if target is not None:
                self.assign(target, item, names)
            try:
                self.block(node.body, names)
            except _Continue:
                continue
            except _Break:
                return
        self.block(node.orelse, names)

    def assign(self, target: ast.expr, value: object, names: dict[str, object]) -> None:
        """Bind a name, an item, or several names at once."""
        self.budget.step()
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                items = list(self.budget.items(value))
                if len(items) != len(parts):
                    raise SafeEvalError(f"{len(items)} values for {len(parts)} names")
                for part, item in zip(parts, items, strict=True):
                    self.assign(part, item, names)
            case ast.Subscript(value=inner, slice=index):
                held, place = self.value(inner, names), self.value(index, names)
                if not isinstance(held, list | dict) or isinstance(place, slice):
                    raise SafeEvalError("only an item of a list or dict can be set")
                held[self.budget.key(place)] = value
                self.budget.sized(held)
            case _:
                raise SafeEvalError(f"cannot assign to {type(target).__name__}")

    def operate(self, op: ast.operator, left: object, right: object) -> object:
        """Apply one operator of two values."""
        operation = BINARY.get(type(op))
        if operation is None:
            raise SafeEvalError(f"{type(op).__name__} is not allowed here")
        return self.budget.sized(operation(self.budget, left, right))

    def value(self, node: ast.expr, names: dict[str, object]) -> object:
        """Return the value of one expression."""
        self.budget.step()
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as constant):
                return self.budget.sized(constant)
            case ast.Name(id=name):
                return self.lookup(name, names)
            case ast.BinOp(left=left, op=op, right=right):
                return self.operate(op, self.value(left, names), self.value(right, names))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                return UNARY[type(op)](self.value(operand, names))
            case ast.BoolOp(op=op, values=values):
                result: object = None
                for part in values:
                    result = self.value(part, names)
                    if bool(result) is isinstance(op, ast.Or):
                        break
                return result
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self.compare(self.value(left, names), ops, others, names)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test, names) else orelse, names)
            case ast.List(elts=parts):
                return self.budget.sized([self.value(part, names) for part in parts])
            case ast.Tuple(elts=parts):
                return self.budget.sized(tuple(self.value(part, names) for part in parts))
            case ast.Set(elts=parts):
                return self.budget.sized({self.budget.key(self.value(part, names)) for part in parts})
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {self.budget.key(self.value(k, names)): self.value(v, names) for k, v in pairs if k is not None}
            case ast.Subscript(value=inner, slice=index):
                held, place = self.value(inner, names), self.value(index, names)
                return self.budget.sized(self.budget.item(held, place))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if part is None else self.value(part, names) for part in (lower, upper, step)))
            case ast.JoinedStr(values=parts):
                return self.budget.sized("".join(str(self.value(part, names)) for part in parts))
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self.budget.text(self.value(inner, names))
            case ast.ListComp(elt=element, generators=loops) | ast.GeneratorExp(elt=element, generators=loops):
                return self.budget.sized([self.value(element, n) for n in self.rounds(loops, dict(names))])
            case ast.SetComp(elt=element, generators=generators):
                return {self.budget.key(self.value(element, n)) for n in self.rounds(generators, dict(names))}
            case ast.DictComp(key=key, value=inner, generators=generators):
                found = self.rounds(generators, dict(names))
                return {self.budget.key(self.value(key, n)): self.value(inner, n) for n in found}
            case ast.Lambda(args=args, body=body):
                return _Function(args, body, names)
            case ast.Call(func=function, args=args, keywords=keywords):
                return self.budget.sized(self.call(function, args, keywords, names))
            case _:
                raise SafeEvalError(f"{type(node).__name__} is not allowed here")

    def lookup(self, name: str, names: Mapping[str, object]) -> object:
        """Return what a name stands for."""
        for where in (names, self.globals, BUILTINS):
            if name in where:
                return where[name]
        raise SafeEvalError(f"unknown name {name!r}")

    def compare(self, left: object, ops: list[ast.cmpop], others: list[ast.expr], names: dict[str, object]) -> bool:
        """Compare a chain of values."""
        for op, other in zip(ops, others, strict=True):
            right = self.value(other, names)
            if not COMPARE[type(op)](self.budget.charged(left), self.budget.charged(right)):
                return False
            left = right
        return True

    def rounds(self, generators: list[ast.comprehension], names: dict[str, object]) -> Iterator[dict[str, object]]:
        """Go through the rounds of a comprehension."""
        if not generators:
            yield names
            return
        first, *rest = generators
        for item in self.budget.items(self.value(first.iter, names)):
            self.budget.step()
            self.assign(first.target, item, names)
            if all(self.value(test, names) for test in first.ifs):
                yield from self.rounds(rest, names)

    def call(
        self, function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword], names: dict[str, object]
    ) -> object:
        """Call a function of the program, a builtin, or a method from the short list."""
        values = [self.value(arg, names) for arg in args]
        named = {word.arg: self.value(word.value, names) for word in keywords if word.arg is not None}
        if len(named) != len(keywords):
            raise SafeEvalError("** is not allowed in a call")
        if isinstance(function, ast.Attribute):
            held = self.value(function.value, names)
            method = METHODS.get((type(held), function.attr))
            if method is None:
                raise SafeEvalError(f"no method {function.attr!r} here")
            return method(self.budget, held, *(self.callable(v) for v in values), **self.keyed(named))
        found = self.value(function, names)
        if isinstance(found, _Function):
            return self.apply(found, values, named)
        if isinstance(function, ast.Name) and found is BUILTINS.get(function.id):
            return BUILTINS[function.id](self.budget, *(self.callable(v) for v in values), **self.keyed(named))
        raise SafeEvalError("that cannot be called")

    def callable(self, value: object) -> object:
        """Make a function of the program, or a builtin that it passes on, one that a builtin can call."""
        if isinstance(value, _Function):
            return lambda *given: self.apply(value, list(given), {})
        builtin = next((made for made in BUILTINS.values() if made is value), None)
        return value if builtin is None else lambda *given: builtin(self.budget, *given)

    def keyed(self, named: dict[str, object]) -> dict[str, object]:
        """Make functions among keyword arguments callable."""
        return {word: self.callable(value) for word, value in named.items()}

    def apply(self, function: _Function, values: list[object], named: dict[str, object]) -> object:
        """Call a function of the program."""
        self.budget.step()
        spec = function.arguments
        if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs:
            raise SafeEvalError("only plain parameters are allowed")
        words = [arg.arg for arg in spec.args]
        defaults = dict(zip(words[len(words) - len(spec.defaults) :], spec.defaults, strict=True))
        given = dict(zip(words, values, strict=False))
        if len(values) > len(words) or named.keys() - set(words) or named.keys() & given.keys():
            raise SafeEvalError("wrong number or names of arguments")
        local = dict(function.names) if function.names is not self.globals else {}
        for word in words:
            if word in given or word in named:
                local[word] = given[word] if word in given else named[word]
            elif word in defaults:
                local[word] = self.value(defaults[word], self.globals)
            else:
                raise SafeEvalError(f"argument {word!r} is missing")
        self.calls += 1
        if self.calls > _MOST_CALLS:
            raise SafeEvalError(f"more than {_MOST_CALLS} calls inside one another")
        try:
            if isinstance(function.body, ast.expr):
                return self.value(function.body, local)
            self.block(list(function.body), local)
        except _Return as left:
            return left.value
        finally:
            self.calls -= 1
        return None


def _loaded(target: ast.Name | ast.Subscript) -> ast.expr:
    """Return an assignment's target as an expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.Name(id=target.id, ctx=ast.Load())
    return ast.Subscript(value=target.value, slice=target.slice, ctx=ast.Load())
