"""The programs of the tutorials in docs/guide, as torchrun starts them, over two ranks: first_steps.py, then decode.py with
its model, and documents.py. The two processes run one program after the other, which spares starting them anew."""
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from support import free_ports  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples" / "pytorch"
RANKS = 2
RUN = """
import os, runpy, sys
sys.path.insert(0, sys.argv[1])
for line in sys.argv[2:]:
    os.environ["MASTER_PORT"], name, *sys.argv[1:] = line.split("|")  # a store of its own for each
    sys.argv[0] = name
    runpy.run_path(f"{sys.path[0]}/{name}", run_name="__main__")
"""


def test_tutorials(tmp_path):
    text = f"--text|{EXAMPLES / 'train.py'}"
    model = tmp_path / "model.pt"
    lines = [f"first_steps.py|--steps|20|--length|192|--save|{model}|{text}",
             f"decode.py|--prompt-bytes|1001|--bytes|20|--model|{model}|{text}",
             f"documents.py|--steps|10|--row|512|{text}"]
    lines = [f"{port}|{line}" for port, line in zip(free_ports(len(lines)), lines)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1",
                   "WORLD_SIZE": str(RANKS)}
    processes = [subprocess.Popen([sys.executable, "-c", RUN, str(EXAMPLES), *lines], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                 for rank in range(RANKS)]
    try:
        said = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(said)
    losses = [float(line.split()[3]) for line in said[0].splitlines() if line.startswith("step")]
    assert len(losses) == 3 and losses[1] < losses[0] < 5.5, said[0]
    assert "prompt of 1,001 bytes on 2 ranks, 20 more from its state: logits differ by" in said[0], said[0]
    assert "the row's loss differs by" in said[0], said[0]
