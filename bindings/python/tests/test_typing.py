"""Every public name has a docstring and complete annotations; mypy agrees where it is installed."""

import importlib.util
import inspect
import os
import subprocess
import sys

import pytest

import lasp

PUBLIC = [getattr(lasp, name) for name in lasp.__all__ if not inspect.ismodule(getattr(lasp, name))]


def functions_of(thing):
    """A function itself, or the public methods that a class of the package defines."""
    if inspect.isfunction(thing):
        return [thing]
    found = [inspect.unwrap(getattr(value, "__func__", value)) for name, value in vars(thing).items()
             if not name.startswith("_") or name == "__init__"]
    return [function for function in found if inspect.isfunction(
        function) and function.__module__.startswith("lasp")]


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
def test_annotations_and_docstrings(thing):
    assert inspect.getdoc(thing)
    for function in functions_of(thing):
        parameters = [p for name, p in inspect.signature(
            function).parameters.items() if name not in ("self", "cls")]
        assert all(p.annotation is not p.empty for p in parameters), function
        if function.__name__ != "__init__":
            assert inspect.signature(function).return_annotation is not inspect.Signature.empty, function
            assert inspect.getdoc(function), f"{function.__qualname__} has no docstring"


def test_marked_as_typed():
    assert os.path.exists(os.path.join(os.path.dirname(lasp.__file__), "py.typed"))


if importlib.util.find_spec("mypy"):
    def test_mypy(tmp_path):
        root = os.path.join(os.environ["LASP_SOURCE"], "bindings", "python")
        run = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir",
                              str(tmp_path)], cwd=root, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
