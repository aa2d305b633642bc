"""examples/pytorch/recall.py: a model trained over a sequence on two ranks, in segments of time, recalls what it saw in
another segment and on another rank. One whose segments or ranks are on their own, all else the same, guesses there.

LASP_RECALL and LASP_RECALL_RANKS make it longer (tests/long/recall.sh)."""
import json
import math
import os
import pathlib
import shlex
import socket
import subprocess
import sys

import pytest

RECALL = pathlib.Path(__file__).resolve().parents[3] / "examples" / "pytorch" / "recall.py"
RANKS = int(os.environ.get("LASP_RECALL_RANKS", "2"))
SIZE = os.environ.get("LASP_RECALL", "--tokens 2K --segment 512 --batch-tokens 2K")
UNLIKELY = 1e-6  # that a bound is broken by chance, or kept by it
GOOD = 0.7       # luck gives 0.03; training ends between 0.95 and 1, by the seed


def run_ranks(arguments, ranks, path):
    """The rows, by cut, of ranks as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    command = [sys.executable, str(RECALL), *shlex.split(arguments), "--device", "cpu", "--json", str(path)]
    processes = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(ranks)]
    try:
        assert [process.wait(1800) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return {row["cut"]: row for row in json.loads(path.read_text())}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return run_ranks(f"{SIZE} --cut none segments ranks", RANKS, tmp_path_factory.mktemp("recall") / "rows.json")


def chance_of(least, asked, recall):
    """That of `asked` questions, each answered rightly with probability `recall`, `least` or more are."""
    def chance(right):  # by logarithms: the binomial coefficients of thousands exceed any float
        ways = math.lgamma(asked + 1) - math.lgamma(right + 1) - math.lgamma(asked - right + 1)
        return math.exp(ways + right * math.log(recall) + (asked - right) * math.log1p(-recall))
    return sum(chance(right) for right in range(least, asked + 1))


@pytest.mark.parametrize("beyond", ["beyond_segment", "beyond_rank"])
def test_recalls_across_segments_and_ranks(rows, beyond):
    """A model that recalls GOOD of them or fewer would answer so many rightly once in a million times."""
    asked, right = rows["none"][beyond]
    assert chance_of(right, asked, GOOD) < UNLIKELY, (asked, right)


@pytest.mark.parametrize("cut", ["segments", "ranks"])
def test_guesses_what_is_cut_off(rows, cut):
    """Values are drawn each on its own. So whoever has not seen a question's pair is right with the probability
    `chance`, whatever else was seen, and one question's luck is not another's: their number is binomial."""
    row = rows[cut]
    asked, right = row["beyond_" + cut.rstrip("s")]
    assert chance_of(right, asked, row["chance"]) >= UNLIKELY, (asked, right)
    assert asked > 100, "too few questions to tell 3 in 100 from recall"


def test_recalls_within_a_segment(rows):
    """A model that is cut learns all the same: what lies well within one segment it recalls, more often than not."""
    row = rows["segments"]
    held = [counts for least, *counts in row["by_distance"] if 2 * least <= row["segment"] // 4]
    asked, right = (sum(column) for column in zip(*held))
    assert chance_of(right, asked, 0.5) < UNLIKELY, (asked, right)


@pytest.mark.parametrize("pieces, ranks, beyond", [("--segment 32", 1, "beyond_segment"), ("", 2, "beyond_rank")])
def test_learns_by_the_gradient_of_states_alone(pieces, ranks, beyond, tmp_path):
    """In the first stage all pairs are in one segment, or on one rank, and all questions in the other. So whether a
    pair is worth keeping is told by the gradient of the state between them alone: without it this stays at chance."""
    row = run_ranks(f"--tokens 128 {pieces} --batch-tokens 2K --evaluate 4", ranks, tmp_path / "rows.json")["none"]
    asked, right = row[beyond]
    assert chance_of(right, asked, GOOD) < UNLIKELY, (asked, right)
