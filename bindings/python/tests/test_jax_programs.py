"""Programs with liblasp.jax: a mesh over two processes, and examples/jax as its reader runs it."""

import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("jax")

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "..", "examples", "jax")


def test_two_processes():
    """Each has two devices of the mesh of four; the collectives are gloo's, by jax.distributed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [subprocess.Popen([sys.executable, os.path.join(HERE, "jax_processes.py"), str(port), str(rank)],
                                  env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for rank in range(2)]
    for process in processes:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0 and "same" in said, said


def run(name, *options):
    done = subprocess.run([sys.executable, os.path.join(EXAMPLES, name), *options], capture_output=True, text=True,
                          timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_example_shards():
    assert run("shards.py").count("differs from one device by") == 5


def test_example_train():
    small = ("--steps", "3", "--seq-len", "128", "--layers", "1", "--d-model", "32", "--text", __file__)
    losses = [run("train.py", "--devices", devices, *small).split()[3] for devices in ("1", "2")]
    assert abs(float(losses[0]) - float(losses[1])) < 2e-4  # of four digits the last may differ
