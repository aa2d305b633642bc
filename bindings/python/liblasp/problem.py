"""Problem: what is to be computed, seen from one rank."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence, TypedDict

from . import raw
from .arguments import describe, take_flag, take_int32, take_int64, take_scale
from .arrays import contiguous_strides, shape_dtype_strides
from .enums import (Cache, CacheLike, Decay, DecayLike, DType, DTypeLike, Mask, MaskLike, Ownership, OwnershipLike,
                    Schedule, ScheduleLike, Write, WriteLike, take, take_dtype)
from .errors import InvalidArgument
from .protocols import Array

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack

__all__ = ["Problem"]

Strides = tuple[int, int, int]
# Names of tensors here, and of their strides in lasp_problem.
LAYOUTS = {"q": "q", "k": "k", "v": "v", "o": "o", "decay": "decay_layout", "beta": "beta_layout", "dq": "dq",
           "dk": "dk", "dv": "dv", "d_o": "d_o", "d_decay": "d_decay_layout", "d_beta": "d_beta_layout"}
GRADIENTS = ("dq", "dk", "dv", "d_decay", "d_beta")
STATES = ("initial_state", "final_state", "d_final_state", "d_initial_state", "state")


class Settings(TypedDict, total=False):
    """The fields that arrays say nothing of."""

    max_sequences: int
    ownership: OwnershipLike
    mask: MaskLike
    scale: float | None
    schedule: ScheduleLike
    pieces: int
    cache: CacheLike
    chunk: int
    segment: int
    backward: bool
    broadcast_final_state: bool
    runs: Sequence[tuple[int, int]]
    strides: Mapping[str, Sequence[int]]
    gradient_dtypes: Mapping[str, DTypeLike]


class Changes(Settings, total=False):
    """All fields."""

    tokens: int
    batch: int
    heads: int | None
    heads_q: int | None
    heads_k: int | None
    heads_v: int | None
    head_dim: int | None
    head_dim_k: int | None
    head_dim_v: int | None
    dtype: DTypeLike
    decay: DecayLike
    decay_dtype: DTypeLike
    write: WriteLike
    beta_dtype: DTypeLike


class Fields(Changes, total=False):
    """What a problem is made from."""

    tokens: Required[int]  # type: ignore[misc]


@dataclass(frozen=True, init=False, repr=False)
class Problem:
    """One problem, seen from one rank. All ranks give the same values but for ``tokens`` and ``strides``.

    With B = batch, T = tokens, H = max(heads_q, heads_k, heads_v), K = head_dim_k, V = head_dim_v, N sequences:
    q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V], o [B, T, H, V] of ``dtype``; decay by its kind: "none",
    "head" [H] float32, "scalar" [B, T, H], "channel" [B, T, H, K], natural logarithms, of ``decay_dtype`` (float32
    or dtype); states [N, H, K, V] float32.

    tokens         T: this rank's tokens of each batch row; 0 is legal, ranks may differ
    batch          B; 1 when packed
    heads          sets heads_q, heads_k and heads_v where they are not given (1); each divides the largest, H
    head_dim       sets head_dim_k and head_dim_v where they are not given: multiples of 8, at most 512
    dtype          "float32", "bfloat16", "float16", or a framework's own; "uint16" is bfloat16
    decay, write, mask, schedule, cache, ownership  by name or as members of the enumerations
    ownership      "contiguous": a rank's tokens follow those of the rank before it. "zigzag": of 2W equal parts rank r
                   has parts r and 2W-1-r, one after the other; causal. "zigzag_each": of each packed sequence by itself, one
                   after the other, with max_sequences. "runs": as `runs` says
    runs           for the ownership "runs": (tokens, rank) of each run of the whole buffer in the order of the tokens,
                   the same on every rank
    decay_dtype    of "scalar" and "channel" decay; beta_dtype  of beta [B, T, H], for the delta write
    scale          multiplies o; None: 1/sqrt(head_dim_k)
    max_sequences  for packed sequences, N: the most that a call is given (``cu_seqlens`` of :meth:`Plan.forward`),
                   the first dimension of states. 0: not packed, N = B
    pieces         of the schedule "all_scan"; 0: from the model
    chunk          tokens handled at once: 16, 32, 64, 128 or 256; 0: chosen
    segment        tokens, a multiple of the chunk: sums are formed in one order over the segments of the whole
                   sequence. All results but a per-head d_decay, which is each rank's share, are equal bit for bit for
                   any number of ranks and any cut, as long as each rank that has tokens begins at a multiple of it.
                   Causal, on the CPU, and with the schedules "auto", "ring" and "all_scan". 0: no such promise
    backward       whether the plan serves backward too
    broadcast_final_state  every rank receives all of final_state
    strides        (batch, token, head) strides in elements, by the tensor's name, of those that are not contiguous;
                   the last dimension is always contiguous. :meth:`like` reads them from arrays
    gradient_dtypes  of "dq", "dk", "dv", "d_decay" and "d_beta", where it is not that of the tensor: "float32" beside
                   16-bit tensors

    Raises :class:`liblasp.InvalidArgument` for a value of the wrong type or out of its choices; the rest is checked
    where the plan is made, on all ranks together.
    """

    tokens: int
    batch: int
    max_sequences: int
    heads_q: int
    heads_k: int
    heads_v: int
    head_dim_k: int
    head_dim_v: int
    dtype: DType
    decay: Decay
    decay_dtype: DType
    write: Write
    beta_dtype: DType
    ownership: Ownership
    mask: Mask
    scale: float | None
    schedule: Schedule
    pieces: int
    cache: Cache
    chunk: int
    segment: int
    backward: bool
    broadcast_final_state: bool
    runs: tuple[tuple[int, int], ...]
    strides: Mapping[str, Strides] = field(hash=False)
    gradient_dtypes: Mapping[str, DType] = field(hash=False)

    def __init__(self, tokens: int, *, batch: int = 1, max_sequences: int = 0, heads: int | None = None,
                 heads_q: int | None = None, heads_k: int | None = None, heads_v: int | None = None,
                 head_dim: int | None = None, head_dim_k: int | None = None, head_dim_v: int | None = None,
                 dtype: DTypeLike = "float32", decay: DecayLike = "none", decay_dtype: DTypeLike = "float32",
                 write: WriteLike = "additive", beta_dtype: DTypeLike = "float32",
                 ownership: OwnershipLike = "contiguous", mask: MaskLike = "causal",
                 scale: float | None = None, schedule: ScheduleLike = "auto", pieces: int = 0,
                 cache: CacheLike = "chunks", chunk: int = 0,
                 segment: int = 0, backward: bool = True, broadcast_final_state: bool = False,
                 runs: Sequence[tuple[int, int]] = (), strides: Mapping[str, Sequence[int]] | None = None,
                 gradient_dtypes: Mapping[str, DTypeLike] | None = None):
        taken: dict[str, Any] = {
            "tokens": take_int64(tokens, "tokens"), "batch": take_int64(batch, "batch"),
            "max_sequences": take_int64(max_sequences, "max_sequences"),
            **_each("heads", heads, 1, heads_q=heads_q, heads_k=heads_k, heads_v=heads_v),
            **_each("head_dim", head_dim, 0, head_dim_k=head_dim_k, head_dim_v=head_dim_v),
            "dtype": take_dtype(dtype, "dtype"), "decay": take(Decay, decay, "decay"),
            "decay_dtype": take_dtype(decay_dtype, "decay_dtype"), "write": take(Write, write, "write"),
            "beta_dtype": take_dtype(beta_dtype, "beta_dtype"), "mask": take(Mask, mask, "mask"),
            "ownership": take(Ownership, ownership, "ownership"),
            "scale": take_scale(scale),
            "schedule": take(Schedule, schedule, "schedule"), "pieces": take_int32(pieces, "pieces"),
            "cache": take(Cache, cache, "cache"), "chunk": take_int32(chunk, "chunk"),
            "segment": take_int64(segment, "segment"), "backward": take_flag(backward, "backward"),
            "broadcast_final_state": take_flag(broadcast_final_state, "broadcast_final_state"),
            "runs": _take_runs(runs),
        }
        for name, value in taken.items():
            object.__setattr__(self, name, value)
        self._refuse_dtypes_of_nothing()
        object.__setattr__(self, "strides", self._take_strides(_checked(strides)))
        object.__setattr__(self, "gradient_dtypes", self._take_gradient_dtypes(gradient_dtypes))

    @property
    def heads(self) -> int:
        """H, the heads of o, beta, a decay and the states: the most of heads_q, heads_k and heads_v."""
        return max(self.heads_q, self.heads_k, self.heads_v)

    @property
    def num_sequences(self) -> int:
        """N, the first dimension of states: the batch, or the most sequences that a call packs."""
        return self.max_sequences or self.batch

    @classmethod
    def like(cls, q: Array, k: Array, v: Array, *, decay: Array | None = None, beta: Array | None = None,
             **settings: Unpack[Settings]) -> Problem:
        """The problem that these arrays make: q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V], decay [H],
        [B, T, H] or [B, T, H, K], beta [B, T, H]. Their shapes, dtypes and strides are read, nothing else is; the
        decay's kind follows from its number of dimensions. `settings` are the other fields. Gradients that
        ``backward`` makes itself are contiguous; give ``strides`` for others. Raises :class:`liblasp.InvalidArgument`
        where the arrays do not go together."""
        given = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}
        seen = {name: _Seen(name, *shape_dtype_strides(array, name)) for name, array in given.items()
                if array is not None or name in ("q", "k", "v")}
        for name in settings:
            if name in Changes.__annotations__ and name not in Settings.__annotations__:
                raise InvalidArgument(f"{name}: is read from the arrays; Problem(...) takes it without arrays")
        read: dict[str, Any] = {}
        for name, heads, dim in (("q", "heads_q", "head_dim_k"), ("k", "heads_k", ""), ("v", "heads_v", "head_dim_v")):
            if len(seen[name].shape) != 4:
                raise InvalidArgument(f"{name} has shape {seen[name].shape}: must be [B, T, heads, dim]")
            read[heads] = seen[name].shape[2]
            if dim:
                read[dim] = seen[name].shape[3]
        read.update(batch=seen["q"].shape[0], tokens=seen["q"].shape[1], dtype=seen["q"].known_dtype())
        if decay is not None:
            read.update(_decay_of(seen["decay"]))
        if beta is not None:
            read.update(write=Write.DELTA, beta_dtype=seen["beta"].known_dtype())
        strides: dict[str, Sequence[int]] = {}
        for each in seen.values():
            strides.update(each.layout())
        strides.update(_checked(settings.get("strides")))
        read.update(settings, strides=strides)
        made = cls(**read)
        for each in seen.values():
            made._compare(each)
        return made

    def with_(self, **changes: Unpack[Changes]) -> Problem:
        """A copy with some fields changed; ``heads`` and ``head_dim`` change all that they set in
        ``Problem(...)``."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        if changes.get("heads") is not None:
            del values["heads_q"], values["heads_k"], values["heads_v"]
        if changes.get("head_dim") is not None:
            del values["head_dim_k"], values["head_dim_v"]
        values.update(changes)
        return Problem(**values)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor by its name in a call ("q", "d_decay", "final_state", ...); None where this problem
        has no such tensor."""
        b, t, h = self.batch, self.tokens, self.heads
        if isinstance(name, str) and name in STATES:
            return self.num_sequences, h, self.head_dim_k, self.head_dim_v
        if not isinstance(name, str) or name not in LAYOUTS:
            raise InvalidArgument(f"name = {describe(name)}: no tensor is called so; known: "
                                  f"{', '.join((*LAYOUTS, *STATES))}")
        if name in ("q", "dq"):
            return b, t, self.heads_q, self.head_dim_k
        if name in ("k", "dk"):
            return b, t, self.heads_k, self.head_dim_k
        if name in ("v", "dv"):
            return b, t, self.heads_v, self.head_dim_v
        if name in ("o", "d_o"):
            return b, t, h, self.head_dim_v
        if name in ("beta", "d_beta"):
            return (b, t, h) if self.write == Write.DELTA else None
        return {Decay.NONE: None, Decay.HEAD: (h,), Decay.SCALAR: (b, t, h),
                Decay.CHANNEL: (b, t, h, self.head_dim_k)}[self.decay]

    def dtype_of(self, name: str) -> DType:
        """The dtype of a tensor by its name."""
        self.shape_of(name)  # refuses names that are none
        if name in STATES:
            return DType.FLOAT32
        if name in self.gradient_dtypes:
            return self.gradient_dtypes[name]
        if name in ("decay", "d_decay"):
            return DType.FLOAT32 if self.decay == Decay.HEAD else self.decay_dtype
        return self.beta_dtype if name in ("beta", "d_beta") else self.dtype

    def strides_of(self, name: str) -> tuple[int, ...]:
        """The strides of a tensor by its name, in elements, of all its dimensions."""
        shape = self.shape_of(name) or ()
        given = self.strides.get(name)
        return contiguous_strides(shape) if given is None else (*given, 1)[:len(shape)]

    def fill(self) -> Any:
        """The raw layer's lasp_problem."""
        made = raw.lasp_problem()
        for name in ("batch", "tokens", "max_sequences", "heads_q", "heads_k", "heads_v", "head_dim_k", "head_dim_v",
                     "dtype", "decay", "write", "ownership", "mask", "schedule", "pieces", "cache", "chunk", "segment"):
            setattr(made, name, getattr(self, name))
        if self.scale is not None:
            made.scale_given, made.scale = 1, self.scale
        made.backward = int(self.backward)
        made.broadcast_final_state = int(self.broadcast_final_state)
        if self.decay in (Decay.SCALAR, Decay.CHANNEL):
            made.decay_layout.dtype = made.d_decay_layout.dtype = self.decay_dtype
        if self.write == Write.DELTA:
            made.beta_layout.dtype = made.d_beta_layout.dtype = self.beta_dtype
        for name, dtype in self.gradient_dtypes.items():
            getattr(made, LAYOUTS[name]).dtype = dtype
        if self.runs:
            listed = array("b", b"".join(struct.pack("=qii", tokens, rank, 0) for tokens, rank in self.runs))
            made.runs, made.num_runs = listed.buffer_info()[0], len(self.runs)
            made.listed = listed  # kept as long as what points to it
        for name, steps in self.strides.items():
            layout = getattr(made, LAYOUTS[name])
            layout.flags = raw.LASP_LAYOUT_STRIDED
            for part, step in zip(("batch", "token", "head"), steps):
                setattr(layout, part, step)
        return made

    def __repr__(self) -> str:
        """As it is made: shapes always, other fields where they are not the default."""
        shown: dict[str, Any] = {"tokens": self.tokens, "batch": self.batch}
        shown.update({"heads": self.heads} if self.heads_q == self.heads_k == self.heads_v else {
            "heads_q": self.heads_q, "heads_k": self.heads_k, "heads_v": self.heads_v})
        shown.update({"head_dim": self.head_dim_k} if self.head_dim_k == self.head_dim_v else {
            "head_dim_k": self.head_dim_k, "head_dim_v": self.head_dim_v})
        usual = Problem(0)
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if name not in ("tokens", "batch") and not name.startswith("head") and value != getattr(usual, name):
                shown[name] = str(value) if isinstance(value, Enum) else value
        if self.gradient_dtypes:
            shown["gradient_dtypes"] = {name: str(dtype) for name, dtype in self.gradient_dtypes.items()}
        return f"Problem({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def _refuse_dtypes_of_nothing(self) -> None:
        if self.decay in (Decay.NONE, Decay.HEAD) and self.decay_dtype != DType.FLOAT32:
            raise InvalidArgument(f"decay_dtype = {self.decay_dtype}: goes with decay \"scalar\" and \"channel\", this "
                                  f"one is \"{self.decay}\"")
        if self.write == Write.ADDITIVE and self.beta_dtype != DType.FLOAT32:
            raise InvalidArgument(f"beta_dtype = {self.beta_dtype}: there is no beta with write \"additive\"")

    def _take_strides(self, given: Mapping[str, Sequence[int]]) -> dict[str, Strides]:
        taken: dict[str, Strides] = {}
        for name, steps in given.items():
            if name not in LAYOUTS:
                raise InvalidArgument(f"strides: no tensor is called {name!r}; known: {', '.join(LAYOUTS)}")
            self._refuse_absent("strides", name, "strides")
            if isinstance(steps, str) or not isinstance(steps, Sequence) or len(steps) != 3:
                raise InvalidArgument(f"strides[{name!r}] = {describe(steps)}: must be three numbers, those of batch, "
                                      "token and head")
            batch, token, head = (take_int64(step, f"strides[{name!r}]") for step in steps)
            if batch == token == head == 0:  # which the library takes for a contiguous tensor
                shape = (self.shape_of(name) or ())[:3]
                if 0 in shape or max(shape) <= 1:
                    continue
                raise InvalidArgument(f"strides[{name!r}] = (0, 0, 0): elements would share a place; leave the name "
                                      "out for a contiguous tensor")
            taken[name] = batch, token, head
        return taken

    def _take_gradient_dtypes(self, given: Mapping[str, DTypeLike] | None) -> dict[str, DType]:
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"gradient_dtypes = {describe(given)}: must be dtypes by the gradient's name")
        taken: dict[str, DType] = {}
        for name, dtype in (given or {}).items():
            if name not in GRADIENTS:
                raise InvalidArgument(f"gradient_dtypes: no gradient is called {describe(name)} that has a dtype to "
                                      f"choose; known: {', '.join(GRADIENTS)}")
            self._refuse_absent("gradient_dtypes", name, "a dtype of its own")
            taken[name] = take_dtype(dtype, f"gradient_dtypes[{name!r}]")
        return taken

    def _refuse_absent(self, argument: str, name: str, what: str) -> None:
        if len(self.shape_of(name) or ()) < 3:
            kind = f'decay is "{self.decay}"' if "decay" in name else f'write is "{self.write}"'
            raise InvalidArgument(f"{argument}[{name!r}]: this problem has no such tensor with {what}, its {kind}")

    def _compare(self, seen: _Seen) -> None:
        """Refuses an array that does not go with the others, which this problem was read from."""
        shape, dtype = self.shape_of(seen.name), self.dtype_of(seen.name)
        if seen.shape != shape:
            raise InvalidArgument(f"{seen.name} has shape {seen.shape}: beside q, k and v of these shapes it must be "
                                  f"{shape}")
        if seen.known_dtype() != dtype:
            raise InvalidArgument(f"{seen.name} is of type {seen.known_dtype()}: must be {dtype} here")


class _Seen(NamedTuple):
    """What was read of an array."""

    name: str
    shape: tuple[int, ...]
    dtype: int
    strides: tuple[int, ...]

    def known_dtype(self) -> DType:
        if self.dtype < 0:
            raise InvalidArgument(f"{self.name} is of a type that is not float32, bfloat16 (uint16) or float16")
        return DType(self.dtype)

    def layout(self) -> dict[str, Strides]:
        """The strides where they are not the contiguous ones. That of a dimension of one element means nothing and
        is taken as contiguous."""
        if len(self.shape) < 3:
            return {}
        usual = contiguous_strides(self.shape)
        steps = tuple(step if size > 1 else otherwise
                      for size, step, otherwise in zip(self.shape, self.strides, usual))
        if steps == usual or 0 in self.shape:
            return {}
        if len(self.shape) == 4 and steps[3] != 1:
            raise InvalidArgument(f"{self.name} has strides {steps} in elements: the last dimension must be contiguous")
        return {self.name: (steps[0], steps[1], steps[2])}


def _take_runs(runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    if isinstance(runs, (str, bytes)) or not isinstance(runs, Sequence):
        raise InvalidArgument(f"runs = {describe(runs)}: must be (tokens, rank) of each run")
    taken = []
    for i, run in enumerate(runs):
        if isinstance(run, (str, bytes)) or not isinstance(run, Sequence) or len(run) != 2:
            raise InvalidArgument(f"runs[{i}] = {describe(run)}: must be (tokens, rank)")
        taken.append((take_int64(run[0], f"runs[{i}]: tokens"), take_int32(run[1], f"runs[{i}]: rank")))
    return tuple(taken)


def _checked(strides: Mapping[str, Sequence[int]] | None) -> Mapping[str, Sequence[int]]:
    if strides is not None and not isinstance(strides, Mapping):
        raise InvalidArgument(f"strides = {describe(strides)}: must be (batch, token, head) strides by tensor name")
    return strides or {}


def _decay_of(seen: _Seen) -> dict[str, Any]:
    kinds = {1: Decay.HEAD, 3: Decay.SCALAR, 4: Decay.CHANNEL}
    if len(seen.shape) not in kinds:
        raise InvalidArgument(f"decay has shape {seen.shape}: must be [H], [B, T, H] or [B, T, H, K]")
    kind = kinds[len(seen.shape)]
    return {"decay": kind, "decay_dtype": DType.FLOAT32 if kind == Decay.HEAD else seen.known_dtype()}


def _each(short: str, value: int | None, otherwise: int, **given: int | None) -> dict[str, int]:
    """Numbers that one short name sets where they are not given by their own."""
    if value is not None and None not in given.values():
        raise InvalidArgument(f"{short} = {describe(value)}: sets nothing, because {', '.join(given)} are given too")
    usual = otherwise if value is None else take_int32(value, short)
    return {name: usual if own is None else take_int32(own, name) for name, own in given.items()}
