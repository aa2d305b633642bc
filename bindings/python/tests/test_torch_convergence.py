"""bench/convergence.py, short: loss curves of two ranks under DDP, FSDP2 and ZeRO stay within float32 rounding of one
rank's, and the program notices what does not. tests/long/convergence.sh runs the whole."""
import importlib.util
import json
import math
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "bench" / "convergence.py"


@pytest.fixture
def convergence(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    import convergence
    return convergence


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300)


def test_short_curves(tmp_path):
    done = run(PROGRAM, "--ranks", "2", "--steps", "8", "--only", "^(ddp|fsdp2|zero|one)", "--json",
               tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "rows.json").read_text())
    share = {row["name"]: row["share"] for row in report["setups"]}
    assert share.pop("ddp, 1 x 2, exchange cut") > 10
    assert set(share) == {"one rank", "one rank, last places changed", *(
        f"{parallel}, {split}" for parallel in ("ddp", "fsdp2", "zero") for split in ("2 x 1", "1 x 2"))}
    assert max(share.values()) <= 1
    assert all(len(row["loss"]) == 8 and row["loss"][-1] < row["loss"][0] - 0.3 for row in report["setups"])
    assert all(f"| {row['name']} |" in done.stdout for row in report["setups"])


def test_what_is_not_as_it_must_be(convergence):
    one, bound = [5.0, 4.0, 3.0], [1e-5, 2e-5, 3e-5]
    near = convergence.compare([5.0, 4.0, 3.0 + 1.5e-5], one, bound)
    assert near["step"] == 3 and near["share"] == pytest.approx(0.5)
    far = convergence.compare([5.0 + 2e-5, 4.0, 3.0 - 2.9e-5], one, bound)
    assert far["step"] == 3 and far["share"] == pytest.approx(2)  # the largest difference, and the largest share
    lost = convergence.compare([5.0, math.nan, 3.0], one, bound)
    assert lost["step"] == 2 and lost["share"] == math.inf
    assert [convergence.holds(row | {"cut": False}) for row in (near, far, lost)] == [True, False, False]
    assert not convergence.holds(far | {"cut": True})  # too near for a control that must be found


def test_a_setup_that_breaks_its_world(convergence, monkeypatch):
    """It is named, and the others run."""
    def start_world(ranks, plan, rows, device):
        for setup in json.loads(plan.read_text()):
            if setup["name"] == "zero, 2 x 1":
                return 1
            with rows.open("a") as file:
                file.write(json.dumps({"name": setup["name"]}) + "\n")
        return 0

    monkeypatch.setattr(convergence, "start_world", start_world)
    monkeypatch.setattr(sys, "argv", ["convergence.py", "--ranks", "2", "--only", "^(ddp|zero)"])
    args = convergence.parse_arguments()
    ended, failed = convergence.run_setups(convergence.chosen_setups(args)[0], args)
    assert list(ended) == ["one rank", "ddp, 2 x 1", "ddp, 1 x 2", "zero, 1 x 2", "ddp, 1 x 2, exchange cut"]
    assert failed == {"zero, 2 x 1": "torchrun ended with 1"}


@pytest.mark.parametrize("words, sentence", [
    (["--ranks", "3"], "only 1, 2 and 4 divide"), (["--ranks", "two"], "--ranks"), (["--only", "("], "--only"),
    (["--steps", "0"], "--steps: must be at least 1"), (["--device", "cuda"], "need as many GPUs, here are 0")])
def test_refusals(convergence, monkeypatch, capsys, words, sentence):
    monkeypatch.setattr(sys, "argv", ["convergence.py", *words])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        convergence.parse_arguments()
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_without_deepspeed():
    done = run(ROOT / "examples" / "pytorch" / "train.py", "--parallel", "deepspeed-2", "--device", "cpu")
    assert done.returncode == 1 and "--parallel deepspeed-2 needs DeepSpeed" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
