"""Attention over a sequence that is split over a mesh axis, forward and backward, beside the same on one device.

    python examples/jax/shards.py        # four devices: GPUs, or made of the host's CPU
"""
import os
from functools import partial

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 " + os.environ.get("XLA_FLAGS", "")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, PartitionSpec as P  # noqa: E402

from liblasp.jax import linear_attention  # noqa: E402

BATCH, TOKENS, HEADS, WIDTH = 2, 4096, 4, 64
random = np.random.default_rng(0)
q, k, v = (jnp.asarray(random.standard_normal((BATCH, TOKENS, HEADS, WIDTH), np.float32)) for _ in range(3))
decay = jnp.log(1 - 2.0 ** -jnp.arange(5, 5 + HEADS))  # [heads], natural logarithms

mesh = Mesh(np.array(jax.devices()[:4]), ("sequence",))
split = P(None, "sequence")  # the second dimension, tokens, lies on four devices
attend = jax.shard_map(partial(linear_attention, axis_name="sequence"), mesh=mesh,
                       in_specs=(split, split, split, P()), out_specs=split)


def gradients(function):
    """Of the mean square of all outputs."""
    return jax.jit(jax.value_and_grad(lambda *arrays: (function(*arrays) ** 2).mean(), (0, 1, 2, 3)))(q, k, v, decay)


(value, found), (whole, want) = gradients(attend), gradients(linear_attention)
for name, one, other in zip(("loss", "dq", "dk", "dv", "d_decay"), (value, *found), (whole, *want)):
    error = float(jnp.linalg.norm(one - other) / jnp.linalg.norm(other))
    print(f"{name:8s} differs from one device by {error:.1e}")
    assert error < 1e-5, name
