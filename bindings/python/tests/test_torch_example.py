"""examples/pytorch as its reader runs it: four_ranks.py, own_collective.py, watchdog.py, and train.py by itself and by torchrun over two ranks."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

TRAIN = pathlib.Path(__file__).resolve().parents[3] / "examples" / "pytorch" / "train.py"
SMALL = ["--steps", "4", "--seq-len", "64", "--batch", "2", "--layers", "1", "--d-model", "32", "--heads", "2",
         "--d-ff", "32", "--device", "cpu", "--log-every", "2", "--text", str(TRAIN)]


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(output):
    return [line.split()[3] for line in output.splitlines() if line.startswith("step")]


def test_alone_and_by_torchrun(tmp_path):
    alone = run(str(TRAIN), *SMALL, "--loss-csv", str(tmp_path / "loss.csv"))
    assert "1 ranks on cpu: 1 x 1" in alone
    assert len((tmp_path / "loss.csv").read_text().splitlines()) == 5
    split = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(TRAIN), *SMALL,
                "--sequence-ranks", "0")
    assert "2 ranks on cpu: 1 x 2" in split
    # Four digits after the point: the last may differ by rounding.
    assert len(losses(alone)) == 2
    assert all(abs(float(a) - float(b)) < 2e-4 for a, b in zip(losses(alone), losses(split)))


def test_plain():
    said = run(str(TRAIN), *SMALL, "--steps", "1", "--plain")
    projections, unit, words = 3 + 1, 2 + 1, 2 * 256  # q, k, v and out; with a gate there were one more
    assert f"{(projections + unit) * 32 * 32 + words * 32:,} parameters" in said, said


def test_long(tmp_path):
    """A step in segments: alone, and over two ranks; the same loss, and a bar's worth of output."""
    common = [str(TRAIN.parent / "long.py"), "--tokens", "2K", "--steps", "2", "--device", "cpu", "--text", str(TRAIN)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = []
    for command in ([*common, "--segment", "700"], [*torchrun, *common, "--segment", "350", "--parallel", "fsdp2"]):
        said = run(*command, "--json", str(tmp_path / "rows.json"))
        rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
        assert "warm-up" in said and [row["tokens"] for row in rows] == [1400, 2048, 2048], said
        found.append([row["loss"] for row in rows])
    assert found[0][2] < found[0][1]  # it learns
    # 2,048 float32 losses summed in another order, after two steps whose rounding AdamW makes much of.
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_four_ranks():
    said = run(str(TRAIN.parent / "four_ranks.py"))  # the ranks share one output: their lines may run together
    assert said.count("differs from one rank's by") == 12, said


def test_own_collective():
    said = run(str(TRAIN.parent / "own_collective.py"))
    assert said.count("differs from one rank's by") == 33, said  # additive, and the delta rule's with beta


@pytest.mark.parametrize("where, why", (("exchange", "rank 1 did not come within the time limit of 3000 ms"),
                                        ("all-reduce", "no step for 3 s")))
def test_watchdog(where, why):
    said = run(str(TRAIN.parent / "watchdog.py"), "--stop-before", where)
    assert f"watchdog: {why}" in said and "rank 0 was gone" in said, said


def test_help(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(TRAIN.parent))
    import train
    with pytest.raises(SystemExit) as ended:
        train.parse_arguments(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "torchrun" in text and "--sequence-ranks" in text
