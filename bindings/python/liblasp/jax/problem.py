"""From JAX arrays to a problem of the library, when a call is traced: shapes and types are checked here by name, the rest
by the library itself, which also says the sizes."""
from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp

import liblasp
from liblasp import raw
from liblasp.arguments import describe, take_flag, take_scale
from liblasp.enums import Cache, take

_DTYPES = {"float32": raw.LASP_FLOAT32, "bfloat16": raw.LASP_BFLOAT16, "float16": raw.LASP_FLOAT16}
_DECAYS = {"head": raw.LASP_DECAY_HEAD, "scalar": raw.LASP_DECAY_SCALAR, "channel": raw.LASP_DECAY_CHANNEL}
# A shard is a rank that is neither the first nor the last, so that one compiled program serves them all: the state that
# enters and the one that leaves are arrays, and which shard reads an initial state is said by arrays too.
SHARD = (1, 3)
ALONE = (0, 1)


class Sizes(NamedTuple):
    """Of one call's memory, in bytes, and of a rank's map."""

    workspace_forward: int
    workspace_backward: int
    state_cache: int
    carry_forward: int
    carry_backward: int
    map: int
    transition_at: int
    transition: int


class Problem(NamedTuple):
    """What the library is asked: lasp_problem's fields by their names there. Hashable."""

    batch: int
    tokens: int
    heads_q: int
    heads_k: int
    heads_v: int
    head_dim_k: int
    head_dim_v: int
    dtype: int
    decay: int
    write: int
    mask: int
    scale_given: int
    scale: float
    max_sequences: int
    cache: int
    chunk: int
    decay_dtype: int
    beta_dtype: int

    @property
    def heads(self) -> int:
        return max(self.heads_q, self.heads_k, self.heads_v)

    @property
    def state_shape(self) -> Tuple[int, int, int, int]:
        """[N, H, K, V]"""
        return (self.max_sequences or self.batch, self.heads, self.head_dim_k, self.head_dim_v)

    @property
    def o_shape(self) -> Tuple[int, int, int, int]:
        return self.batch, self.tokens, self.heads, self.head_dim_v

    def attributes(self, backward: bool) -> Dict[str, Any]:
        """Of a custom call."""
        return {**self._asdict(), "backward": int(backward)}

    def sizes(self, place: Tuple[int, int], device: "Device", backward: bool) -> Sizes:
        """Raises what making a plan would."""
        return _sizes(self, place, device, backward)


class Device(NamedTuple):
    """What a plan's sizes depend on."""

    kind: int
    capability: int
    multiprocessors: int


@functools.lru_cache(maxsize=1024)
def _sizes(problem: Problem, place: Tuple[int, int], device: Device, backward: bool) -> Sizes:
    asked, placement, found = raw.lasp_problem(), raw.lasp_placement(), raw.lasp_plan_info()
    for name, value in problem._asdict().items():
        if not name.endswith("_dtype"):
            setattr(asked, name, value)
    asked.backward, asked.schedule = int(backward), raw.LASP_SCHEDULE_ALL_GATHER
    asked.decay_layout.dtype = asked.d_decay_layout.dtype = problem.decay_dtype
    asked.beta_layout.dtype = asked.d_beta_layout.dtype = problem.beta_dtype
    placement.rank, placement.nranks = place
    placement.device, placement.capability, placement.multiprocessors = device
    raw.lasp_problem_get_info(asked, placement, found)
    if place == SHARD and found.map_bytes == 0:
        raise liblasp.Unsupported("axis_name: bidirectional attention (causal=False) has no stages, so that it cannot be "
                                  "split over a mesh axis")
    return Sizes(found.workspace_forward_bytes, found.workspace_backward_bytes, found.state_cache_bytes,
                 found.carry_forward_bytes, found.carry_backward_bytes, found.map_bytes, found.map_transition_offset,
                 found.transition)


def device_of(*arrays: Any) -> Device:
    """Where arrays are, or where the program that is being traced will run: on its mesh, else JAX's default device."""
    return _device(_device_of(arrays))


def _device_of(arrays: Tuple[Any, ...]) -> Any:
    for array in arrays:
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
            return next(iter(array.devices()))
    mesh = jax.sharding.get_abstract_mesh()
    planned = getattr(mesh, "abstract_device", None)
    if planned is not None:  # of another kind than the default one's, it is the CPU
        device = jax.local_devices()[0]
        return device if device.device_kind == planned.device_kind else jax.local_devices(backend="cpu")[0]
    default = jax.config.jax_default_device
    if isinstance(default, str):
        return jax.local_devices(backend=default)[0]
    return jax.local_devices()[0] if default is None else default


@functools.lru_cache(maxsize=None)
def _device(device: Any) -> Device:
    if device.platform == "cpu":
        return Device(raw.LASP_DEVICE_CPU, 0, 0)
    if device.platform not in ("gpu", "cuda"):
        raise liblasp.Unsupported(f"q: is on {device.platform}; liblasp.jax computes on the CPU and on CUDA")
    capability = str(device.compute_capability).replace(".", "")
    return Device(raw.LASP_DEVICE_CUDA, int(capability), int(device.core_count))


def problem_of(q: Any, k: Any, v: Any, decay: Any, beta: Any, initial_state: Any, cu_seqlens: Any, scale: Any,
               causal: Any, state_cache: Any) -> Problem:
    """Raises liblasp.InvalidArgument where the arrays do not go together."""
    for name, array, axes in (("q", q, "B, T, Hq, K"), ("k", k, "B, T, Hk, K"), ("v", v, "B, T, Hv, V")):
        _check_array(name, array)
        if array.ndim != 4:
            raise liblasp.InvalidArgument(f"{name}: has {array.ndim} dimensions, must be [{axes}]")
    dtype = q.dtype.name
    if dtype not in _DTYPES:
        raise liblasp.InvalidArgument(f"q: dtype {dtype} is not one of float32, bfloat16 and float16")
    batch, tokens, heads_q, dim_k = q.shape
    heads_k, heads_v, dim_v = k.shape[2], v.shape[2], v.shape[3]
    heads = max(heads_q, heads_k, heads_v)
    _check("k", k, (batch, tokens, heads_k, dim_k), dtype)
    _check("v", v, (batch, tokens, heads_v, dim_v), dtype)
    sequences = 0
    if cu_seqlens is not None:
        _check_array("cu_seqlens", cu_seqlens)
        if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype.name not in ("int32", "int64"):
            raise liblasp.InvalidArgument(f"cu_seqlens: is {list(cu_seqlens.shape)} of {cu_seqlens.dtype.name}, must be "
                                          "[N + 1] of int32 or int64")
        sequences = cu_seqlens.shape[0] - 1
    kind, decay_dtype = _decay(decay, (batch, tokens, heads, dim_k), dtype)
    if beta is not None:
        _check_array("beta", beta)
        _check("beta", beta, (batch, tokens, heads), "float32", dtype)
    if initial_state is not None:
        _check_array("initial_state", initial_state)
        _check("initial_state", initial_state, (sequences or batch, heads, dim_k, dim_v), "float32")
    scale = take_scale(scale)
    return Problem(batch, tokens, heads_q, heads_k, heads_v, dim_k, dim_v, _DTYPES[dtype], kind,
                   raw.LASP_WRITE_ADDITIVE if beta is None else raw.LASP_WRITE_DELTA,
                   raw.LASP_MASK_CAUSAL if take_flag(causal, "causal") else raw.LASP_MASK_BIDIRECTIONAL,
                   int(scale is not None), 0.0 if scale is None else float(scale), sequences,
                   int(take(Cache, state_cache, "state_cache")), 0, decay_dtype,
                   raw.LASP_DTYPE_DEFAULT if beta is None else _DTYPES[beta.dtype.name])


def _decay(decay: Optional[Any], whole: Tuple[int, ...], dtype: str) -> Tuple[int, int]:
    """Kind and type."""
    if decay is None:
        return raw.LASP_DECAY_NONE, raw.LASP_DTYPE_DEFAULT
    _check_array("decay", decay)
    kind = {1: "head", 3: "scalar", 4: "channel"}.get(decay.ndim)
    wanted = {"head": whole[2:3], "scalar": whole[:3], "channel": whole}.get(str(kind))
    if decay.shape != wanted:
        raise liblasp.InvalidArgument(f"decay: shape {tuple(decay.shape)}, must be [H], [B, T, H] or [B, T, H, K] with "
                                      f"[B, T, H, K] = {whole}")
    if kind == "head":
        _check("decay", decay, whole[2:3], "float32")
        return _DECAYS["head"], raw.LASP_DTYPE_DEFAULT
    _check("decay", decay, decay.shape, "float32", dtype)
    return _DECAYS[str(kind)], _DTYPES[decay.dtype.name]


def _check_array(name: str, array: Any) -> None:
    if not isinstance(array, jax.Array):
        raise liblasp.InvalidArgument(f"{name} = {describe(array)}: must be a JAX array")


def _check(name: str, array: Any, shape: Tuple[int, ...], *dtypes: str) -> None:
    if array.shape != shape:
        raise liblasp.InvalidArgument(f"{name}: shape {tuple(array.shape)}, must be {tuple(shape)}")
    if array.dtype.name not in dtypes:
        raise liblasp.InvalidArgument(f"{name}: dtype {array.dtype.name}, must be "
                                      f"{' or '.join(dict.fromkeys(dtypes))}")


def as_array(value: Any) -> Any:
    """NumPy's arrays as JAX's; others as they are."""
    return jnp.asarray(value) if type(value).__module__ == "numpy" else value
