"""Runs small Python functions written by a model without ever handing them to Python: the syntax tree is walked.

There are budgets for steps, sizes and depth, no attributes but a short list of methods, no imports, no exceptions to
catch. A program that is outside of this, or wrong, ends in `SafeEvalError`; it never hangs and never grows.
"""

from __future__ import annotations

import ast
import warnings

from pytest_moegpu.core.safebudget import SafeEvalError
from pytest_moegpu.core.safewalk import Left, Walker

__all__ = ["evaluate", "parsed"]

_MOST_SOURCE = 8_000
"""Characters of a program. A function that answers a question has a few hundred."""
_MOST_NODES = 4_000
_MOST_NESTING = 60
_OWN_ERRORS = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


def evaluate(source: str, expression: str) -> object:
    """Define the functions of a program, and return the value of an expression that calls them.

    Of the program's top level only functions and assignments count: what a model shows below them is left alone.

    Raises:
        SafeEvalError: It cannot be read, uses what is not allowed here, goes wrong, or takes too long or too much.
    """
    try:
        walker = Walker()
        for statement in parsed(source).body:
            if isinstance(statement, ast.FunctionDef | ast.Assign | ast.AnnAssign):
                walker.run(statement, walker.globals)
        value = walker.value(_expression(expression), walker.globals)
        return walker.budget.charged(value)
    except _OWN_ERRORS as error:
        raise SafeEvalError(f"{type(error).__name__}: {str(error)[:200]}") from None
    except Left:
        raise SafeEvalError("break, continue or return outside of its place") from None


def _expression(text: str) -> ast.expr:
    match parsed(text).body:
        case [ast.Expr(value=value)]:
            return value
    raise SafeEvalError("cannot be read: not one expression")


def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a program that is small and flat enough to be walked.

    Raises:
        SafeEvalError: It is no Python, or too large.
    """
    if len(source) > _MOST_SOURCE:
        raise SafeEvalError(f"longer than {_MOST_SOURCE} characters")
    try:
        with warnings.catch_warnings():
            # What a model writes may hold escapes that Python warns of; that is no matter here.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SafeEvalError(f"cannot be read: {str(error)[:200]}") from None
    nodes = 0
    level: list[ast.AST] = [tree]
    for _ in range(_MOST_NESTING):
        nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if nodes > _MOST_NODES:
            raise SafeEvalError(f"more than {_MOST_NODES} parts")
        if not level:
            return tree
    raise SafeEvalError(f"nested deeper than {_MOST_NESTING}")
