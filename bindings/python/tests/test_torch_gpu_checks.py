"""tests/gpu/torch/check.py, as far as it can be tested without a GPU: its modules, its arguments, and the recurrence
that it compares with."""
import os
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

FOLDER = pathlib.Path(os.environ.get("LASP_SOURCE", pathlib.Path(__file__).resolve().parents[3])) / "tests/gpu/torch"
NAMES = ["attention", "stream", "graph", "arrays", "streams", "refusals", "module", "softmax", "states", "operators", "packed",
         "delta", "segments", "segments_over_gpus", "long", "training", "watchdog", "exchange", "models", "fla", "trainers",
         "overhead", "speed"]
MODULES = ["check", "compiled", "delta", "frameworks", "layers_of_fla", "models", "modules", "one_gpu", "overhead", "packed", "problems",
           "refusals", "segments", "several_gpus", "speed", "trainers"]


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import check
    yield check
    for name in MODULES:
        sys.modules.pop(name, None)


def test_every_check_is_there(checks):
    assert list(checks.CHECKS) == NAMES
    assert all(f"\n  {name} " in checks.__doc__ for name in NAMES)
    assert (checks.several_gpus.EXAMPLE / "train.py").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: tests/gpu/run runs it")
def test_arguments(checks, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check.py"])
    assert checks.main() == 77 and "no CUDA device" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["check.py", "stream", "nonsense"])
    with pytest.raises(SystemExit):
        checks.main()
    assert "no check is called nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("decay", ["none", "head", "scalar", "channel"])
def test_its_recurrence_is_right(checks, decay):
    """The same comparison on the CPU, where the library is tested otherwise; and it sees a wrong result."""
    problems = checks.one_gpu
    x, d_o = problems.problem(decay, tokens=40, heads=(4, 2, 2), dim=24)
    expected = problems.run(lambda leaves: problems.recurrence(**leaves), x, d_o, "cpu", double=True)
    actual = problems.run(problems.on_gpu, x, d_o, "cpu")
    assert all(problems.error(actual[name], expected[name]) < 1e-5 for name in expected)
    assert problems.error(2 * actual["o"], expected["o"]) > 0.9
