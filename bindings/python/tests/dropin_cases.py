"""liblasp.torch.dropins over ranks against one rank, for test_torch_ranks: outputs, final states, and the gradients of
everything. What one rank gives is compared with the recurrences in test_torch_pieces."""
import torch
import torch.distributed as dist
from torch.nn import functional as F

import liblasp.torch as lt
from liblasp.torch import dropins
from test_torch_support import BOUNDS, relative_error

TOKENS, HEADS, KEYS, VALUES = 23, 4, 8, 16
PACKED = (0, 9, 10, 23)
# Two orders of the same sums in float32, each within the bound of what is exact, through two products at most.
BOUND = 8 * BOUNDS[torch.float32]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(batch):
    return {"q": normal(batch, TOKENS, HEADS, KEYS), "k": normal(batch, TOKENS, HEADS, KEYS, seed=1),
            "v": normal(batch, TOKENS, HEADS, VALUES, seed=2)}


def delta(batch, *dims):
    x = {**qkv(batch), "g": -F.softplus(normal(batch, TOKENS, HEADS, *dims, seed=3) - 2),
         "beta": normal(batch, TOKENS, HEADS, seed=4).sigmoid()}
    return {**x, "k": F.normalize(x["k"], dim=-1)}


def state(count):
    return {"initial_state": normal(count, HEADS, KEYS, VALUES, seed=5)}


def mamba(batch):
    return {"x": normal(batch, TOKENS, HEADS, KEYS), "dt": normal(batch, TOKENS, HEADS, seed=1),
            "A": -normal(HEADS, seed=2).exp(), "B": normal(batch, TOKENS, 2, VALUES, seed=3),
            "C": normal(batch, TOKENS, 2, VALUES, seed=4), "D": normal(HEADS, seed=5), "dt_bias": normal(HEADS, seed=6),
            "z": normal(batch, TOKENS, HEADS, KEYS, seed=7)}


def without(inputs, *names):
    return {name: each for name, each in inputs.items() if name not in names}


FINAL = {"output_final_state": True}
# function: its inputs for a batch, options, and the initial states of so many sequences
CASES = {
    "chunk_gated_delta_rule": (delta, {**FINAL, "use_qk_l2norm_in_kernel": True}, state),
    "chunk_kda": (lambda batch: delta(batch, KEYS), FINAL, state),
    "chunk_delta_rule": (lambda batch: without(delta(batch), "g"), FINAL, state),
    "chunk_simple_gla": (lambda batch: without(delta(batch), "beta"), FINAL, state),
    "chunk_gla": (lambda batch: without(delta(batch, KEYS), "beta"), {**FINAL, "scale": 0.5}, state),
    "chunk_retention": (qkv, FINAL, state),
    "chunk_lightning_attn": (qkv, {**FINAL, "layer_idx": 1, "num_layers": 4}, state),
    "mamba_chunk_scan_combined": (mamba, {"dt_softplus": True, "return_final_states": True},
                                  lambda count: {"initial_states": normal(count, HEADS, KEYS, VALUES, seed=8)}),
    "causal_conv1d_fn": (lambda batch: {"x": normal(batch, 5, TOKENS), "weight": normal(5, 4, seed=1),
                                        "bias": normal(5, seed=2)}, {"activation": "silu"}, None),
}


def along(name, key):
    """The dimension of an input's tokens, or None."""
    if name == "causal_conv1d_fn":
        return 2 if key == "x" else None
    return None if key in ("A", "D", "dt_bias") or key.startswith("initial_state") else 1


def results(name, packed, group=None, rank=0, ranks=1):
    """A rank's outputs, and its gradients by inputs; the final state, which every rank has, counts once over all."""
    make, options, states = CASES[name]
    inputs = {**make(1 if packed else 2), **(states((len(PACKED) - 1) if packed else 2) if states else {})}
    leaves = {}
    for key, each in inputs.items():
        dim = along(name, key)
        leaves[key] = (each if dim is None else lt.shard(each, rank, ranks, dim)).detach().clone().requires_grad_()
    given = getattr(dropins, name)(**leaves, **options, group=group, **({"cu_seqlens": PACKED} if packed else {}))
    o, final = given if isinstance(given, tuple) else (given, None)
    dim = 2 if name == "causal_conv1d_fn" else 1
    shape = list(o.shape)
    shape[dim] = TOKENS
    loss = (o * lt.shard(normal(*shape, seed=9), rank, ranks, dim)).sum()
    if final is not None:
        loss = loss + (final * normal(*final.shape, seed=10)).sum() / ranks
    loss.backward()
    return o.detach(), final, {key: each.grad for key, each in leaves.items()}


def errors(name, packed):
    """How far this rank's results are from one rank's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wanted, final, gradients = results(name, packed)
    o, other, found = results(name, packed, dist.group.WORLD, rank, ranks)
    far = {"o": relative_error(o, lt.shard(wanted, rank, ranks, 2 if name == "causal_conv1d_fn" else 1))}
    if final is not None:
        far["final state"] = relative_error(other, final)
    for key, gradient in gradients.items():
        dim = along(name, key)
        if dim is None:
            dist.all_reduce(found[key])
        far[key] = relative_error(found[key], gradient if dim is None else lt.shard(gradient, rank, ranks, dim))
    return far


def on_ranks():
    return {(name, packed): errors(name, packed) for name in CASES for packed in (False, True)}
