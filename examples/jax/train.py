"""Trains a small language model with JAX on the bytes of a text, each sequence split over a mesh axis. Without GPUs the
devices are made of the host's CPU; the losses are the same for any number of shards, up to rounding.

    python examples/jax/train.py --devices 4 --steps 50 [--text FILE] [--seq-len 4096]
"""
import argparse
import functools
import os
import pathlib
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--devices", type=int, default=4, help="that share each sequence")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--seq-len", type=int, default=4096)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--d-model", type=int, default=64)
parser.add_argument("--heads", type=int, default=2)
parser.add_argument("--text", default=__file__)
options = parser.parse_args()
# Counts where JAX finds no GPU, and is read when it first computes.
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices} " + os.environ.get("XLA_FLAGS", "")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, PartitionSpec as P  # noqa: E402

from liblasp.jax import linear_attention  # noqa: E402

WIDTH, HEADS = options.d_model, options.heads
DECAY = jnp.log(1 - 2.0 ** -jnp.arange(5, 5 + HEADS))  # RetNet's: a head remembers about 32, 64 ... tokens


def normed(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def block(x, weights):
    """One layer; x [B, T of this shard, d_model]. All but the attention acts on a token alone."""
    q, k, v = jnp.split((normed(x) @ weights["qkv"]).reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
    o = linear_attention(q, jax.nn.silu(k), v, DECAY, axis_name="sequence")  # states travel here
    x = x + normed(o).reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(normed(x) @ weights["up"]) @ weights["down"], None


def loss_of(parameters, inputs, targets):
    """The mean over all tokens of all shards; inputs and targets [B, T of this shard]."""
    x = parameters["embedding"][inputs]
    x, _ = jax.lax.scan(jax.checkpoint(block), x, parameters["layers"])
    log_p = jax.nn.log_softmax(normed(x) @ parameters["embedding"].T)
    losses = -jnp.take_along_axis(log_p, targets[..., None], -1)
    return jax.lax.pmean(losses.mean(), "sequence")


def initial(random):
    def weight(*shape):
        return jnp.asarray(random.standard_normal(shape, np.float32) / np.sqrt(shape[-2]))
    layers = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    return {"embedding": weight(256, WIDTH) / 4,
            "layers": {name: weight(options.layers, *shape) for name, shape in layers.items()}}


def main():
    mesh = Mesh(np.array(jax.devices()[:options.devices]), ("sequence",))
    split = P(None, "sequence")  # the second dimension of inputs and targets: tokens
    loss = jax.shard_map(loss_of, mesh=mesh, in_specs=(P(), split, split), out_specs=P())

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters, momentum, inputs, targets):
        value, gradient = jax.value_and_grad(loss)(parameters, inputs, targets)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.05 * m, parameters, momentum), momentum, value

    random = np.random.default_rng(0)
    text = np.frombuffer(pathlib.Path(options.text).read_bytes(), np.uint8).astype(np.int32)
    text = np.tile(text, 1 + (options.seq_len + 1) // len(text))
    parameters = initial(random)
    momentum = jax.tree.map(jnp.zeros_like, parameters)
    for number in range(1, options.steps + 1):
        begin = random.integers(0, len(text) - options.seq_len)
        tokens = text[None, begin:begin + options.seq_len + 1]
        started = time.perf_counter()
        parameters, momentum, value = step(parameters, momentum, tokens[:, :-1], tokens[:, 1:])
        if number % 10 == 0 or number == options.steps:
            print(f"step {number:4d}  loss {value:.4f}  {1e3 * (time.perf_counter() - started):.0f} ms", flush=True)


if __name__ == "__main__":
    main()
