#!/usr/bin/env python3
"""liblasp.jax on GPUs, a line for each check: results and gradients against float64, shards of a mesh axis over one GPU,
two and four, that no program calls the host, and what a pass costs beside the same custom calls made by lasp-bench.

    PYTHONPATH=.gpu/carry/torch python3 tests/gpu/jax/check.py [numbers] [shards] [stacked] [programs] [speed]
"""
import os
import re
import sys
import time
import traceback

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import liblasp
from liblasp.jax import linear_attention

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../bindings/python/tests"))
from jax_cases import Case, errors_of  # noqa: E402

# As tests/gpu/torch/problems.py: float32 by general kernels, 16-bit tensors on tensor cores. Of the delta rule's
# gradients of gates part cancels (docs/reference/delta-rule.md).
BOUNDS = {"float32": 8e-6, "bfloat16": 4e-3, "float16": 4e-3}
DELTA = {"dg": 8e-3, "d_beta": 5.7e-3}
passed = failed = 0


def line(good, text):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(f"  {'pass' if good else 'FAIL'}  {text}", flush=True)


def compare(what, case, found):
    errors = errors_of(case, found)
    bound = BOUNDS[case.dtype]
    good = all(error <= (max(bound, DELTA.get(name, 0)) if case.beta is not None and bound > 1e-4 else bound)
               for name, error in errors.items())
    line(good, f"{what} {case.name}: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()))


def cases():
    for dtype in ("float32", "bfloat16"):
        for decay in ("none", "head", "scalar", "channel"):
            yield Case(decay=decay, dtype=dtype, head_dim=64, tokens=256)
        for decay in ("none", "scalar", "channel"):
            yield Case(decay=decay, dtype=dtype, head_dim=64, tokens=256, delta=True)
        yield Case(decay="scalar", dtype=dtype, head_dim=64, tokens=256, cu_seqlens=(0, 0, 70, 192, 192, 250))


def numbers():
    for case in cases():
        compare("one GPU", case, case.gradients(jax.jit(case.whole)))


def shards():
    few = list(cases())[::2] + list(cases())[-1:]
    for gpus in (1, 2, 4):
        if gpus > len(jax.devices()):
            print(f"  SKIPPED: shards over {gpus} GPUs: this machine has {len(jax.devices())}", flush=True)
            continue
        mesh = Mesh(np.array(jax.devices()[:gpus]), ("s",))
        for case in few if gpus == 1 else cases():
            compare(f"shard_map over {gpus}", case, case.gradients(jax.jit(case.sharded(mesh))))
    for case in few:
        compare("four shards by vmap", case, jax.jit(lambda case=case: case.by_vmap(4))())


def stacked():
    """A loop keeps the state caches of its layers in one array: results are slices of it there."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("s",))
    random = np.random.default_rng(0)
    weights, x = (jnp.asarray(random.standard_normal(shape), jnp.float32) / 16 for shape in ((3, 128, 384), (1, 256, 128)))

    def network(weights, x, loop, axis_name=None):
        def layer(x, w):
            q, k, v = jnp.split((x @ w).reshape(1, 256, 2, 192), 3, axis=-1)
            return x + linear_attention(q, k, v, jnp.full(2, -0.01), axis_name=axis_name).reshape(x.shape), None
        if loop:
            return jax.lax.scan(layer, x, weights)[0]
        for w in weights:
            x, _ = layer(x, w)
        return x

    def gradient(run):
        return np.asarray(jax.jit(jax.grad(lambda w: (run(w, x) ** 2).sum()))(weights), np.float64)

    want = gradient(lambda w, x: network(w, x, False))
    split = jax.shard_map(lambda w, x: network(w, x, True, "s"), mesh=mesh, in_specs=(P(), P(None, "s")),
                          out_specs=P(None, "s"))
    for name, run in (("whole", lambda w, x: network(w, x, True)), ("sharded", split)):
        error = np.linalg.norm(gradient(run) - want) / np.linalg.norm(want)
        line(error <= 1e-4, f"scan over layers that keeps state caches, {name}: differs by {error:.1e} from a loop")


def programs():
    case = Case(decay="head", dtype="bfloat16", head_dim=128, tokens=1024)
    text = jax.jit(jax.grad(lambda q, k, v, g: linear_attention(q, k, v, g).astype(jnp.float32).sum(), (0, 1, 2, 3))).lower(
        *case.arrays()[:4]).compile().as_text()
    calls = set(re.findall(r'custom_call_target="([^"]+)"', text))
    line({name for name in calls if "liblasp" in name} == {"liblasp_forward", "liblasp_backward"} and not
         any("callback" in name or "python" in name.lower() for name in calls), f"custom calls: {sorted(calls)}")
    hosts = re.findall(r"\b(infeed|outfeed|send|recv|copy-start)\(", text)
    line(not hosts, f"no transfer to the host in the program: {hosts}")
    # Calls return before the GPU is done: a long pass is enqueued in a small part of the time that it takes.
    mesh = Mesh(np.array(jax.devices()[:1]), ("s",))
    case = Case(decay="head", dtype="bfloat16", shape=(1, 1 << 18, 16, 128), reference=False, on_device=True)

    for name, attend in (("whole", case.whole), ("sharded", case.sharded(mesh))):
        # Arrays are arguments: those of a closure would be constants of the program.
        run = jax.jit(lambda gradients, *arrays, attend=attend: jax.vjp(attend, *arrays)[1](gradients))
        given = (case.d_o, case.d_state), *case.arrays()
        jax.block_until_ready(run(*given))
        begin = time.perf_counter()
        out = run(*given)
        returned = time.perf_counter()
        jax.block_until_ready(out)
        done = time.perf_counter()
        line(returned - begin < (done - begin) / 2,
             f"{name}: returned after {1e3 * (returned - begin):.2f} ms of {1e3 * (done - begin):.2f} ms")
    del out, case, given

    def layers(w, x):
        @jax.checkpoint
        def layer(x, w):
            y = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
            q, k, v = jnp.split((y @ w).reshape(1, 2048, 8, 192), 3, axis=-1)
            return x + linear_attention(q, k, v, -jnp.ones(8) / 64, scale=1 / 1024).reshape(1, 2048, 512), None
        return (jax.lax.scan(layer, x, w)[0].astype(jnp.float32) ** 2).mean()
    w = jax.random.normal(jax.random.key(0), (4, 512, 1536), jnp.bfloat16) / 23
    x = jax.random.normal(jax.random.key(1), (1, 2048, 512), jnp.bfloat16)
    gradient = np.asarray(jax.jit(jax.grad(layers))(w, x), np.float32)
    line(np.isfinite(gradient).all() and np.abs(gradient).max() > 0,
         f"scan over layers with checkpoint: gradients up to {np.abs(gradient).max():.1e}")
    with jax.default_device(jax.devices("cpu")[0]):
        one = Case(decay="scalar", dtype="float32", head_dim=8, tokens=64)
        compare("the CPU of the same process", one, one.gradients(jax.jit(one.whole)))
    try:
        narrow = jnp.ones((1, 4, 1, 12))
        linear_attention(narrow, narrow, narrow)
    except liblasp.Error as error:
        line(True, f"refused: {error}")
    else:
        line(False, "a width of 12 was not refused")


def milliseconds(run, *arrays):
    jax.block_until_ready(run(*arrays))
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(10):
            out = run(*arrays)
        jax.block_until_ready(out)
        found.append(1e2 * (time.perf_counter() - begin))
    return sorted(found)[2]


def speed():
    """Milliseconds of forward and backward, beside which lasp-bench's stand."""
    def attend(q, k, v, g, beta):
        return linear_attention(q, k, v, g, beta=beta)

    for tokens, decay, delta in ((65536, "none", False), (65536, "head", False), (65536, "channel", False),
                                 (65536, "scalar", True), (128, "head", False)):
        case = Case(decay=decay, dtype="bfloat16", shape=(1, tokens, 16, 128), delta=delta, reference=False, on_device=True)

        def both(d_o, *arrays):
            o, pull = jax.vjp(attend, *arrays)
            return o, pull(d_o)
        arrays = case.arrays()[:5]
        print(f"  {case.name} {tokens} tokens: forward {milliseconds(jax.jit(attend), *arrays):.3f} ms, forward and "
              f"backward {milliseconds(jax.jit(both), case.d_o, *arrays):.3f} ms", flush=True)
    one = jnp.ones(8)
    print(f"  an empty program {milliseconds(jax.jit(lambda x: x + 1), one):.3f} ms", flush=True)


def main():
    print(f"jax {jax.__version__}, {jax.devices()}, {jax.devices()[0].device_kind}, liblasp {liblasp.build_info().cuda}",
          flush=True)
    for part in sys.argv[1:] or ("numbers", "shards", "stacked", "programs", "speed"):
        print(part, flush=True)
        try:
            globals()[part]()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            line(False, part)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
