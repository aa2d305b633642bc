"""Problem: what is to be computed, seen from one rank."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Sequence

from . import raw
from .arrays import contiguous_strides, shape_dtype_strides
from .enums import Cache, Decay, DType, Mask, Schedule, Write, take, take_dtype
from .errors import InvalidArgument, assign

__all__ = ["Problem"]

Strides = tuple[int, int, int]
# Names of tensors here, and of their strides in lasp_problem.
LAYOUTS = {"q": "q", "k": "k", "v": "v", "o": "o", "decay": "decay_layout", "beta": "beta_layout", "dq": "dq",
           "dk": "dk", "dv": "dv", "d_o": "d_o", "d_decay": "d_decay_layout", "d_beta": "d_beta_layout"}


@dataclass(frozen=True)
class Problem:
    """One problem. All ranks give the same values but for ``tokens``, ``token_begin`` and ``strides``.

    With B = batch, T = tokens, H = max(heads_q, heads_k, heads_v), K = head_dim_k, V = head_dim_v:
    q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V], o [B, T, H, V]; decay by its kind: none, "head" [H] float32,
    "scalar" [B, T, H], "channel" [B, T, H, K], natural logarithms; states [N, H, K, V] float32.

    ``heads`` and ``head_dim`` set all of heads_q, heads_k, heads_v and both widths where those are not given.
    With a ``segment`` sums are formed in one order over the segments of the whole sequence: results are then equal
    bit for bit for any number of ranks and any cut, as long as each rank that has tokens begins at a multiple of
    it. Causal, on the CPU, and with the schedules "auto", "ring" and "all_scan".

    ``strides`` holds (batch, token, head) strides in elements by tensor name for those that are not contiguous; the
    last dimension is always contiguous. :meth:`like` reads all of this from arrays.
    """

    tokens: int
    heads: int = 1
    head_dim: int = 0
    batch: int = 1
    token_begin: int = -1  #: global index of this rank's first token; -1: after the ranks before it
    heads_q: int = 0
    heads_k: int = 0
    heads_v: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0
    dtype: Any = "float32"
    decay: Any = "none"
    decay_dtype: Any = "float32"
    write: Any = "additive"
    beta_dtype: Any = "float32"
    mask: Any = "causal"
    scale: float = 0.0  #: multiplies o; 0: 1/sqrt(K)
    cu_seqlens: Sequence[int] | None = None  #: global offsets of packed sequences, N + 1 of them
    schedule: Any = "auto"
    pieces: int = 0
    cache: Any = "chunks"
    chunk: int = 0
    segment: int = 0  #: tokens, a multiple of the chunk: results equal bit for bit however the sequence is cut
    backward: bool = True  #: whether the plan serves backward too
    broadcast_final_state: bool = False
    strides: Mapping[str, Strides] = field(default_factory=dict)

    def __post_init__(self) -> None:
        resolved = {
            "heads_q": self.heads_q or self.heads, "heads_k": self.heads_k or self.heads,
            "heads_v": self.heads_v or self.heads, "head_dim_k": self.head_dim_k or self.head_dim,
            "head_dim_v": self.head_dim_v or self.head_dim, "dtype": take_dtype(self.dtype, "dtype"),
            "decay": take(Decay, self.decay, "decay"), "decay_dtype": take_dtype(self.decay_dtype, "decay_dtype"),
            "write": take(Write, self.write, "write"), "beta_dtype": take_dtype(self.beta_dtype, "beta_dtype"),
            "mask": take(Mask, self.mask, "mask"), "schedule": take(Schedule, self.schedule, "schedule"),
            "cache": take(Cache, self.cache, "cache"),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        unknown = set(self.strides) - set(LAYOUTS)
        if unknown:
            raise InvalidArgument(
                f"strides: no tensor is called {sorted(unknown)[0]!r}; known: {', '.join(LAYOUTS)}")

    @property
    def output_heads(self) -> int:
        """H."""
        return max(self.heads_q, self.heads_k, self.heads_v)

    @classmethod
    def like(cls, q: Any, k: Any, v: Any, *, decay: Any = None, beta: Any = None, **fields: Any) -> Problem:
        """The problem that these arrays make: shapes, dtypes and strides are read from them, nothing else is. The
        decay's kind follows from its number of dimensions (1: head, 3: scalar, 4: channel). Gradients that
        ``backward`` makes itself are contiguous; give ``strides`` for others."""
        strides: dict[str, Strides] = {}
        shapes, dtypes = {}, {}
        for name, given in (("q", q), ("k", k), ("v", v), ("decay", decay), ("beta", beta)):
            if given is not None:
                shapes[name], dtypes[name], steps = shape_dtype_strides(given, name)
                if name in LAYOUTS and len(shapes[name]) >= 3:
                    strides.update(_layout(name, shapes[name], steps))
        for name in ("q", "k", "v"):
            if len(shapes.get(name, ())) != 4:
                raise InvalidArgument(f"{name} has shape {shapes.get(name)}: must be [B, T, heads, dim]")
        kinds = {1: Decay.HEAD, 3: Decay.SCALAR, 4: Decay.CHANNEL}
        read: dict[str, Any] = {
            "batch": shapes["q"][0], "tokens": shapes["q"][1], "heads_q": shapes["q"][2], "heads_k": shapes["k"][2],
            "heads_v": shapes["v"][2], "head_dim_k": shapes["q"][3], "head_dim_v": shapes["v"][3],
            "dtype": _known_dtype(dtypes["q"], "q"),
        }
        if decay is not None:
            if len(shapes["decay"]) not in kinds:
                raise InvalidArgument(f"decay has shape {shapes['decay']}: must be [H], [B, T, H] or [B, T, H, K]")
            read["decay"] = kinds[len(shapes["decay"])]
            read["decay_dtype"] = _known_dtype(dtypes["decay"], "decay")
        if beta is not None:
            read["write"], read["beta_dtype"] = Write.DELTA, _known_dtype(dtypes["beta"], "beta")
        strides.update(fields.pop("strides", {}))
        return cls(**{**read, "strides": strides, **fields})

    def with_(self, **fields: Any) -> Problem:
        """A copy with some fields changed."""
        return replace(self, **fields)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a [B, T, ...] tensor or the decay; None where this problem has none."""
        b, t, h = self.batch, self.tokens, self.output_heads
        name = {"d_o": "o"}.get(name, name.removeprefix("d_") if name.startswith("d_") else name)
        if name in ("q", "dq"):
            return b, t, self.heads_q, self.head_dim_k
        if name in ("k", "dk"):
            return b, t, self.heads_k, self.head_dim_k
        if name in ("v", "dv"):
            return b, t, self.heads_v, self.head_dim_v
        if name == "o":
            return b, t, h, self.head_dim_v
        if name == "beta":
            return (b, t, h) if self.write == Write.DELTA else None
        return {Decay.NONE: None, Decay.HEAD: (h,), Decay.SCALAR: (b, t, h),
                Decay.CHANNEL: (b, t, h, self.head_dim_k)}[self.decay]

    def dtype_of(self, name: str) -> DType:
        """The dtype of a [B, T, ...] tensor or the decay."""
        if name in ("decay", "d_decay"):
            return DType.FLOAT32 if self.decay == Decay.HEAD else self.decay_dtype
        return self.beta_dtype if name in ("beta", "d_beta") else self.dtype

    def strides_of(self, name: str) -> tuple[int, ...]:
        """Strides in elements of a tensor of this problem."""
        shape = self.shape_of(name) or ()
        given = self.strides.get(name)
        if given is None or not any(given) or len(shape) < 3:
            return contiguous_strides(shape)
        return (*given, 1)[:len(shape)]

    def fill(self) -> tuple[Any, Any]:
        """The raw layer's lasp_problem, and what must live until the plan is made."""
        made = raw.lasp_problem()
        for name in ("batch", "tokens", "token_begin", "heads_q", "heads_k", "heads_v", "head_dim_k", "head_dim_v",
                     "dtype", "decay", "decay_dtype", "write", "beta_dtype", "mask", "scale", "schedule", "pieces",
                     "cache", "chunk", "segment"):
            assign(made, name, getattr(self, name))
        made.backward = int(self.backward)
        made.broadcast_final_state = int(self.broadcast_final_state)
        for name, (batch, token, head) in self.strides.items():
            layout = getattr(made, LAYOUTS[name])
            for part, value in (("batch", batch), ("token", token), ("head", head)):
                assign(layout, part, value, f"strides[{name!r}].{part}")
        offsets = None
        if self.cu_seqlens is not None:
            try:
                offsets = array("q", (int(offset) for offset in self.cu_seqlens))
            except (TypeError, ValueError, OverflowError):
                raise InvalidArgument(f"cu_seqlens = {self.cu_seqlens!r}: must be whole numbers") from None
            made.cu_seqlens = offsets.buffer_info()[0]
            made.num_sequences = len(offsets) - 1
        return made, offsets


def _known_dtype(code: int, name: str) -> DType:
    if code < 0:
        raise InvalidArgument(f"{name} is of a type that is not float32, bfloat16 (uint16) or float16")
    return DType(code)


def _layout(name: str, shape: tuple[int, ...], steps: tuple[int, ...]) -> dict[str, Strides]:
    """The strides of a tensor where they are not the contiguous ones. That of a dimension of one element means
    nothing and is taken as contiguous."""
    usual = contiguous_strides(shape)
    steps = tuple(step if size > 1 else otherwise for size, step, otherwise in zip(shape, steps, usual))
    if steps == usual or 0 in shape:
        return {}
    if len(shape) == 4 and steps[3] != 1:
        raise InvalidArgument(f"{name} has strides {steps} in elements: the last dimension must be contiguous")
    return {name: (steps[0], steps[1], steps[2])}
