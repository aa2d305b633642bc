"""Problems for liblasp.jax: arrays, the float64 recurrence, and the ways to compute it."""

import os

import numpy as np

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # read when JAX first computes

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from liblasp.jax import linear_attention
from support import relative_error

NAMES = ("dq", "dk", "dv", "dg", "d_beta", "d_initial_state")


def recurrence(q, k, v, g, beta, state, d_o, d_state, scale, cu_seqlens=None):
    """The definition and its gradients, token by token in float64, the delta rule too (beta not None). One head of each
    tensor for each of o."""
    wide = lambda x: None if x is None else np.asarray(x, np.float64)
    q, k, v, g, beta, state, d_o, d_state = map(wide, (q, k, v, g, beta, state, d_o, d_state))
    batch, tokens, heads, width = q.shape
    a = np.zeros((batch, tokens, heads, 1)) if g is None else g
    a = np.broadcast_to(a[None, None, :, None], (batch, tokens, heads, 1)) if a.ndim == 1 else a
    a = np.exp(a[..., None] if a.ndim == 3 else a)[..., None]  # [B, T, H, 1 or K, 1]
    spans = [(b, 0, tokens) for b in range(batch)] if cu_seqlens is None else [
        (0, begin, end) for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:])]
    out = {"o": np.zeros(d_o.shape), "final_state": np.zeros(state.shape), "d_initial_state": np.zeros(state.shape),
           "dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(v.shape),
           "d_beta": np.zeros((batch, tokens, heads))}
    terms = np.zeros((batch, tokens, heads, width))
    for n, (b, begin, end) in enumerate(spans):
        s, kept = state[n], []
        for t in range(begin, end):
            kept.append(s)
            s, kt, vt = a[b, t] * s, k[b, t][:, :, None], v[b, t][:, None, :]
            if beta is not None:
                vt = beta[b, t][:, None, None] * (vt - (kt * s).sum(1, keepdims=True))
            s = s + kt * vt
            out["o"][b, t] = scale * (s * q[b, t][:, :, None]).sum(1)
            out["dq"][b, t] = scale * (s * d_o[b, t][:, None, :]).sum(2)
        out["final_state"][n], d = s, d_state[n]
        for t in reversed(range(begin, end)):
            d = d + scale * q[b, t][:, :, None] * d_o[b, t][:, None, :]
            before = kept[t - begin]
            decayed, kt, vt = a[b, t] * before, k[b, t][:, :, None], v[b, t][:, None, :]
            if beta is None:
                out["dk"][b, t], out["dv"][b, t] = (d * vt).sum(2), (d * kt).sum(1)
            else:
                gate = beta[b, t][:, None, None]
                held = (kt * decayed).sum(1, keepdims=True)
                written = (d * kt).sum(1, keepdims=True)  # gradient of what is written
                out["dv"][b, t] = (gate * written)[:, 0]
                out["d_beta"][b, t] = (written * (vt - held)).sum((1, 2))
                out["dk"][b, t] = (gate * (d * (vt - held) - decayed * written)).sum(2)
                d = d - gate * kt * written
            terms[b, t] = (d * decayed).sum(2)
            d = a[b, t] * d
        out["d_initial_state"][n] = d
    if g is not None:
        out["dg"] = terms if g.ndim == 4 else terms.sum(3) if g.ndim == 3 else terms.sum((0, 1, 3))
        # Of a decay per head the terms cancel: its error is measured against their sizes.
        out["dg_size"] = np.linalg.norm(np.abs(terms.sum(3)).sum((0, 1))) if g.ndim == 1 else 0.0
    return out


class OnDevice:
    """Random numbers of large cases, as NumPy's generators have them."""

    def __init__(self):
        self.key = jax.random.key(0)

    def standard_normal(self, shape):
        self.key, key = jax.random.split(self.key)
        return jax.random.normal(key, shape)

    def uniform(self, least, most, shape):
        self.key, key = jax.random.split(self.key)
        return jax.random.uniform(key, shape if isinstance(shape, tuple) else (shape,), minval=least, maxval=most)


class Case:
    """q, k, v, g, beta and an initial state of unit scale, and what is right for them."""

    def __init__(self, decay="scalar", dtype="float32", head_dim=8, tokens=64, batch=None, heads=2, delta=False,
                 cu_seqlens=None, shape=None, reference=True, on_device=False, seed=0):
        random = OnDevice() if on_device else np.random.default_rng(seed)
        batch = (1 if cu_seqlens else 2) if batch is None else batch
        shape = (batch, tokens, heads, head_dim) if shape is None else shape
        batch, tokens, heads, head_dim = shape
        self.name = f"{dtype} {decay}{' delta' if delta else ''}{' packed' if cu_seqlens else ''}"
        self.dtype, self.cu_seqlens, self.tokens, self.scale = dtype, cu_seqlens, tokens, head_dim ** -0.5
        kind = jnp.dtype(dtype)
        q, k, v, d_o = (random.standard_normal(shape) for _ in range(4))
        if delta:
            k /= (k * k).sum(-1, keepdims=True) ** 0.5
        self.q, self.k, self.v, self.d_o = (jnp.asarray(x, kind) for x in (q, k, v, d_o))
        # Weak, so that what comes from other shards is not forgotten.
        shapes = {"none": None, "head": heads, "scalar": shape[:3], "channel": shape}
        g = None if decay == "none" else random.uniform(-0.05, 0, shapes[decay])
        self.g = None if g is None else jnp.asarray(g, jnp.float32)
        self.beta = jnp.asarray(random.uniform(0, 1, shape[:3]), jnp.float32) if delta else None
        states = (len(cu_seqlens) - 1 if cu_seqlens else batch, heads, head_dim, head_dim)
        self.state, self.d_state = (jnp.asarray(random.standard_normal(states), jnp.float32) for _ in range(2))
        if reference:
            self.right = recurrence(*self.arrays(), self.d_o, self.d_state, self.scale, cu_seqlens)

    def arrays(self):
        return self.q, self.k, self.v, self.g, self.beta, self.state

    def whole(self, q, k, v, g, beta, state, axis_name=None, **options):
        """o and the final state."""
        return linear_attention(q, k, v, g, beta=beta, initial_state=state, output_final_state=True,
                                axis_name=axis_name, cu_seqlens=self.cu_seqlens, **options)

    def sharded(self, mesh, check_vma=True):
        """`whole`, with the tokens over the only axis of the mesh."""
        tokens = P(None, mesh.axis_names[0])
        decay = P() if self.g is None or self.g.ndim == 1 else tokens
        return jax.shard_map(lambda *arrays: self.whole(*arrays, axis_name=mesh.axis_names[0]), mesh=mesh,
                             in_specs=(tokens, tokens, tokens, decay, tokens, P()), out_specs=(tokens, P()),
                             check_vma=check_vma)

    def gradients(self, function):
        """Results and gradients by name of a function as `whole`."""
        (o, final_state), pull = jax.vjp(function, *self.arrays())
        return dict(zip(("o", "final_state", *NAMES), (o, final_state, *pull((self.d_o, self.d_state)))))

    def by_vmap(self, shards):
        """The same with shards that are an axis of jax.vmap: several on one device."""
        def cut(x):
            return None if x is None else jnp.moveaxis(x.reshape(x.shape[0], shards, -1, *x.shape[2:]), 1, 0)

        def joined(x):
            return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])

        def shard(q, k, v, g, beta, d_o):
            (o, final_state), pull = jax.vjp(lambda *arrays: self.whole(*arrays, axis_name="shards"),
                                             q, k, v, g, beta, self.state)
            # The gradient of a sum over the axis is a sum over it: each shard gives its part.
            return o, final_state, pull((d_o, self.d_state / shards))

        per_token = self.g is not None and self.g.ndim > 1
        given = (*map(cut, (self.q, self.k, self.v)), cut(self.g) if per_token else self.g, cut(self.beta),
                 cut(self.d_o))
        axes = tuple(None if x is None or x is self.g else 0 for x in given)
        o, final_state, found = jax.vmap(shard, in_axes=axes, axis_name="shards")(*given)
        found = [None if x is None else x.sum(0) if at == 5 or (at == 3 and not per_token) else joined(x)
                 for at, x in enumerate(found)]
        return dict(zip(("o", "final_state", *NAMES), (joined(o), final_state[0], *found)))


def errors_of(case, found):
    """Relative Frobenius errors by name."""
    return {name: relative_error(np.asarray(array, np.float64), case.right[name],
                                 case.right["dg_size"] if name == "dg" else 0.0)
            for name, array in found.items() if array is not None}
