"""The package's annotations: complete where they are written twice, and true as mypy reads them, which reports wrong
programs line by line."""

import inspect
import os
import re
import subprocess
import typing

import numpy as np
import pytest

import liblasp
from liblasp import plan, problem

MYPY = os.environ.get("LASP_MYPY")
needs_mypy = pytest.mark.skipif(not MYPY, reason="binding.python.mypy runs this one (tests/mypy)")


def parameters_of(function):
    return {name for name in inspect.signature(function).parameters if name != "self"}


def test_marked_as_typed():
    assert os.path.exists(os.path.join(os.path.dirname(liblasp.__file__), "py.typed"))


def test_keywords_that_are_named_twice():
    """The dictionaries that stand for **keywords are the parameters of what they are handed to."""
    assert set(problem.Changes.__annotations__) | {"tokens"} == parameters_of(liblasp.Problem.__init__)
    assert set(problem.Settings.__annotations__) < set(problem.Changes.__annotations__)
    typed = typing.get_overloads if hasattr(typing, "get_overloads") else lambda function: []
    for function, options in ((liblasp.Plan.forward, plan._Forward), (liblasp.Plan.step, plan._Step)):
        for form in typed(function):
            assert parameters_of(form) - {"rest"} | set(options.__annotations__) == parameters_of(function)


def reports_of_mypy(tmp_path, *arguments):
    """Line numbers by file, and everything that it said."""
    root = os.environ["LASP_SOURCE"]
    run = subprocess.run([MYPY, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path),
                          *arguments], cwd=root, capture_output=True, text=True)
    found = re.findall(r"^(\S+\.py):(\d+): error:", run.stdout, re.MULTILINE)
    assert run.returncode == bool(found), run.stdout + run.stderr
    return {(os.path.basename(file), int(line)) for file, line in found}, run.stdout


@needs_mypy
def test_the_package(tmp_path):
    lines, text = reports_of_mypy(tmp_path)
    assert not lines, text


@needs_mypy
@pytest.mark.parametrize("name", ["typing_cases.py", "typing_cases_torch.py"])
def test_programs(tmp_path, name):
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    with open(file, encoding="ascii") as source:
        wrong = {(name, number) for number, line in enumerate(source, 1) if line.endswith("# error\n")}
    lines, text = reports_of_mypy(tmp_path, file)
    assert wrong and lines == wrong, text


def test_the_right_program_runs():
    import typing_cases

    q, k, v, d_o = (np.ones((1, 16, 2, 8), np.float32) for _ in range(4))
    typing_cases.right(q, k, v, d_o, np.zeros((1, 16, 2), np.float32))
