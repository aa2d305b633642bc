"""A function again, with other globals: the same code, in which some names mean something else. So one instance of a
model gets operations of its own, and classes and modules stay as they are."""
from __future__ import annotations

import types
from typing import Any, Callable, Dict, Set

import liblasp


def rebound(function: Callable[..., Any], names: Dict[str, Any]) -> Callable[..., Any]:
    """`function`, whose innermost code finds `names` among its globals. Decorators that keep `__wrapped__`, and hold
    the function that they wrap in a closure, go around it again."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        return _copied(function, {**function.__globals__, **names}, function.__closure__)
    held = [_content(cell) is inner for cell in function.__closure__ or ()]
    if not any(held):
        raise liblasp.Unsupported(f"{function.__qualname__}: is decorated in a way that cannot be repeated for one "
                                  "model")
    again = rebound(inner, names)
    cells = [types.CellType(again) if own else cell for own, cell in zip(held, function.__closure__)]
    copy = _copied(function, function.__globals__, tuple(cells))
    copy.__wrapped__ = again  # trainers read the signature, to see what a model takes of a batch
    return copy


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def names_used(function: Callable[..., Any]) -> Set[str]:
    """The globals that the innermost code mentions, in functions inside of it too."""
    found: Set[str] = set()
    codes = [innermost(function).__code__]
    while codes:
        code = codes.pop()
        found.update(code.co_names)
        codes.extend(each for each in code.co_consts if isinstance(each, types.CodeType))
    return found


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty yet
        return cell


def _copied(function, names, closure) -> Callable[..., Any]:
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update({key: value for key, value in function.__dict__.items() if key != "__wrapped__"})
    copy.__qualname__, copy.__doc__, copy.__module__ = function.__qualname__, function.__doc__, function.__module__
    return copy
