"""examples/pytorch as its reader runs it: four_ranks.py, own_collective.py, watchdog.py, and train.py and long.py, in this
process and by torchrun over two ranks, which run one after the other. A process takes seconds to import torch."""
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from support import free_ports  # noqa: E402

TRAIN = pathlib.Path(__file__).resolve().parents[3] / "examples" / "pytorch" / "train.py"
SMALL = ["--steps", "4", "--seq-len", "64", "--batch", "2", "--layers", "1", "--d-model", "32", "--heads", "2",
         "--d-ff", "32", "--device", "cpu", "--log-every", "2", "--text", str(TRAIN)]


LONG = ["--tokens", "2K", "--steps", "2", "--device", "cpu", "--text", str(TRAIN)]
BOTH = """
import os, runpy, sys
folder, port, *lines = sys.argv[1:]
sys.path.insert(0, folder)
for line in lines:
    sys.argv = line.split("|")
    runpy.run_path(f"{folder}/{sys.argv[0]}", run_name="__main__")
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": port}  # a store of its own for the second
"""


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def program(monkeypatch, capsys):
    """Runs a program of the examples in this process: what it prints."""
    monkeypatch.syspath_prepend(str(TRAIN.parent))

    def run_here(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        runpy.run_path(str(TRAIN.parent / name), run_name="__main__")
        return capsys.readouterr().out
    return run_here


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """What train.py and then long.py print over two ranks, and long.py's losses."""
    folder = tmp_path_factory.mktemp("split")
    (folder / "both.py").write_text(BOTH)
    lines = ["|".join(("train.py", *SMALL, "--sequence-ranks", "0")),
             "|".join(("long.py", *LONG, "--segment", "350", "--parallel", "fsdp2", "--json", str(folder / "rows.json")))]
    said = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(folder / "both.py"),
               str(TRAIN.parent), str(free_ports(1)[0]), *lines)
    return said, rows_of(folder / "rows.json")


def losses(output):
    return [line.split()[3] for line in output.splitlines() if line.startswith("step")]


def rows_of(path):
    rows = json.loads(path.read_text())["rows"]
    assert [row["tokens"] for row in rows] == [1400, 2048, 2048]
    return [row["loss"] for row in rows]


def test_alone_and_by_torchrun(program, split, tmp_path):
    alone = program("train.py", *SMALL, "--loss-csv", str(tmp_path / "loss.csv"))
    assert "1 ranks on cpu: 1 x 1" in alone
    assert len((tmp_path / "loss.csv").read_text().splitlines()) == 5
    assert "2 ranks on cpu: 1 x 2" in split[0]
    # Four digits after the point: the last may differ by rounding.
    assert len(losses(alone)) == 2
    assert all(abs(float(a) - float(b)) < 2e-4 for a, b in zip(losses(alone), losses(split[0]), strict=False))


def test_plain(program):
    said = program("train.py", *SMALL, "--steps", "1", "--plain")
    projections, unit, words = 3 + 1, 2 + 1, 2 * 256  # q, k, v and out; with a gate there were one more
    assert f"{(projections + unit) * 32 * 32 + words * 32:,} parameters" in said, said


def test_long(program, split, tmp_path):
    """A step in segments: alone, and over two ranks; the same loss, and a bar's worth of output."""
    alone = program("long.py", *LONG, "--segment", "700", "--json", str(tmp_path / "rows.json"))
    found = rows_of(tmp_path / "rows.json")
    assert "warm-up" in alone and "warm-up" in split[0], (alone, split[0])
    assert found[2] < found[1]  # it learns
    # 2,048 float32 losses summed in another order, after two steps whose rounding AdamW makes much of.
    assert split[1] == pytest.approx(found, rel=1e-4)


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
    # The watchdog may look after the call that failed has ended: then a sentence about that stands before.
    assert re.search(f"watchdog: (comm: unusable since an earlier call: )?{why}", said), said
    assert "rank 0 was gone" in said, said


def test_help(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(TRAIN.parent))
    import train
    with pytest.raises(SystemExit) as ended:
        train.parse_arguments(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "torchrun" in text and "--sequence-ranks" in text
