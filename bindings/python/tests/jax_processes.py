"""One of two processes of test_jax_shards.py: jax_processes.py PORT RANK. Prints "same" where its shards of results and
gradients are those of whole sequences."""

import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from jax_cases import Case

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
case = Case(decay="head", reference=False)
mesh = Mesh(np.array(jax.devices()), ("s",))


def step(run, *arrays):
    (o, final_state), pull = jax.vjp(lambda q, k, v, g, state: run(q, k, v, g, None, state), *arrays)
    return o, final_state, pull((case.d_o, case.d_state))


tokens, everywhere = NamedSharding(mesh, P(None, "s")), NamedSharding(mesh, P())
q, k, v, g, _, state = case.arrays()
given = [jax.make_array_from_callback(x.shape, where, lambda index, x=x: np.asarray(x)[index])
         for x, where in ((q, tokens), (k, tokens), (v, tokens), (g, everywhere), (state, everywhere))]
whole = jax.jit(lambda *arrays: step(case.whole, *arrays))(q, k, v, g, state)
split = jax.jit(lambda *arrays: step(case.sharded(mesh), *arrays))(*given)
for one, other in zip(jax.tree.leaves(split), jax.tree.leaves(whole)):
    for shard in one.addressable_shards:
        want = np.asarray(other)[shard.index]
        assert np.linalg.norm(shard.data - want) <= 1e-6 * np.linalg.norm(want)
print("same", len(jax.devices()), len(jax.local_devices()))
