"""From torch tensors to a problem of the library. A plan is found again by its Key: what was seen of the tensors,
without looking at them closer. Only a new key is examined, here as far as this language alone can be wrong, and
else by the library."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch

import liblasp

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_DECAY_OF_DIMENSIONS = {1: "head", 3: "scalar", 4: "channel"}


def seen(tensor: Optional[torch.Tensor]) -> Optional[Tuple]:
    """What a plan depends on: (shape, strides, dtype, device)."""
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


class Key(NamedTuple):
    """A call, as far as its plan depends on it."""

    q: Tuple  # these six by `seen`
    k: Tuple
    v: Tuple
    decay: Optional[Tuple]
    beta: Optional[Tuple]
    initial_state: Optional[Tuple]
    max_sequences: int  # 0: each of the batch is a sequence
    scale: Optional[float]
    causal: bool
    total_tokens: Optional[int]
    state_cache: Optional[str]
    backward: bool
    broadcast_final_state: bool



def invalid_argument(sentence: str) -> liblasp.InvalidArgument:
    return liblasp.InvalidArgument(sentence)


def refuse_distributed(**tensors: Any) -> None:
    """Raises liblasp.Unsupported for a DTensor, which says itself where its parts lie."""
    for name, tensor in tensors.items():
        if type(tensor).__name__ == "DTensor":
            what = "the whole of it, weight.full_tensor()" if name == "weight" else (
                f"what this rank holds of it, {name}.to_local()")
            raise liblasp.Unsupported(f"{name}: is a DTensor, and a sequence is split here by the argument `group`: give "
                                      f"{what}")


def problem_of(key: Key, settings: Dict[str, Any]) -> liblasp.Problem:
    """`settings`: fields of liblasp.Problem that are the group's. Raises liblasp.InvalidArgument where the tensors do
    not go together."""
    shape, _, dtype, device = key.q
    batch, tokens, heads, dim_k, dim_v = check_shapes(*key[:6], key.max_sequences or None)
    heads_q, heads_k, heads_v = (each[0][2] for each in key[:3])
    decay, decay_dtype, decay_layout = _decay(key.decay, (batch, tokens, heads, dim_k), dtype, device)
    beta_dtype, beta_layout = ("float32", {}) if key.beta is None else (DTYPES[key.beta[2]], {"beta": key.beta[1]})
    strides = {"q": key.q[1][:3], "k": key.k[1][:3], "v": key.v[1][:3], **decay_layout, **beta_layout}
    return liblasp.Problem(
        batch=batch, tokens=tokens, heads_q=heads_q, heads_k=heads_k, heads_v=heads_v, head_dim_k=dim_k,
        head_dim_v=dim_v, dtype=DTYPES[dtype], decay=decay, decay_dtype=decay_dtype,
        write="additive" if key.beta is None else "delta", beta_dtype=beta_dtype,
        mask="causal" if key.causal else "bidirectional", scale=key.scale,
        max_sequences=key.max_sequences, cache=key.state_cache, backward=key.backward,
        broadcast_final_state=key.broadcast_final_state, strides=strides, **settings)


def check_shapes(q: Tuple, k: Tuple, v: Tuple, decay: Optional[Tuple], beta: Optional[Tuple],
                 initial_state: Optional[Tuple], sequences: Optional[int]) -> Tuple[int, int, int, int, int]:
    """B, T, H, K and V of tensors as they were `seen`. `sequences`: that are packed; None: each of the batch is one.
    Raises liblasp.InvalidArgument where the tensors do not go together."""
    shape, _, dtype, device = q
    if dtype not in DTYPES:
        raise invalid_argument(f"q: dtype {dtype} is not one of float32, bfloat16 and float16")
    for name, tensor, axes in (("q", q, "B, T, Hq, K"), ("k", k, "B, T, Hk, K"), ("v", v, "B, T, Hv, V")):
        if len(tensor[0]) != 4:
            raise invalid_argument(f"{name}: has {len(tensor[0])} dimensions, must be [{axes}]")
        _check(name, tensor, device, (dtype,))
    batch, tokens, heads_q, dim_k = shape
    heads_k, heads_v, dim_v = k[0][2], v[0][2], v[0][3]
    for name, given, wanted in (("k", k[0], (batch, tokens, heads_k, dim_k)),
                                ("v", v[0], (batch, tokens, heads_v, dim_v))):
        if given != wanted:
            raise invalid_argument(f"{name}: shape {tuple(given)} does not go with q's {tuple(shape)}")
    heads = max(heads_q, heads_k, heads_v)
    _decay(decay, (batch, tokens, heads, dim_k), dtype, device)
    if beta is not None:
        _check("beta", beta, device, (torch.float32, dtype), (batch, tokens, heads), last_contiguous=False)
    if initial_state is not None:
        wanted = (batch if sequences is None else sequences, heads, dim_k, dim_v)
        _check("initial_state", initial_state, device, (torch.float32,), wanted)
        usual = (heads * dim_k * dim_v, dim_k * dim_v, dim_v, 1)
        if any(size > 1 and step != wanted for size, step, wanted in zip(*initial_state[:2], usual)):
            raise invalid_argument(f"initial_state: strides {initial_state[1]}, must be contiguous")
    return batch, tokens, heads, dim_k, dim_v


def _decay(given, whole, dtype, device) -> Tuple[str, str, Dict[str, Tuple[int, ...]]]:
    """Kind, dtype and strides by name."""
    if given is None:
        return "none", "float32", {}
    kind = _DECAY_OF_DIMENSIONS.get(len(given[0]))
    wanted = {"head": whole[2:3], "scalar": whole[:3], "channel": whole}.get(kind)
    if wanted is None or given[0] != wanted:
        raise invalid_argument(f"decay: shape {tuple(given[0])}, must be [H], [B, T, H] or [B, T, H, K] with "
                               f"[B, T, H, K] = {whole}")
    if kind == "head":
        _check("decay", given, device, (torch.float32,))
        return kind, "float32", {}
    _check("decay", given, device, (torch.float32, dtype), last_contiguous=kind == "channel")
    return kind, DTYPES[given[2]], {"decay": given[1][:3]}


def _check(name: str, given: Tuple, device: Any, dtypes: Tuple, wanted: Optional[Tuple] = None,
           last_contiguous: bool = True) -> None:
    shape, strides, dtype, own_device = given
    if own_device != device:
        raise invalid_argument(f"{name}: is on {own_device}, q is on {device}")
    if dtype not in dtypes:
        raise invalid_argument(f"{name}: dtype {dtype}, must be {' or '.join(dict.fromkeys(map(str, dtypes)))}")
    if wanted is not None and shape != wanted:
        raise invalid_argument(f"{name}: shape {tuple(shape)}, must be {wanted}")
    if last_contiguous and strides[-1] != 1 and shape[-1] > 1 and 0 not in shape:
        raise invalid_argument(f"{name}: its last dimension has stride {strides[-1]}, must be contiguous (1)")
