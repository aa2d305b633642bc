"""LinearAttention: the module that takes the place of an ordinary trainer's attention."""
from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Optional, Sequence, Tuple, Union, overload

import torch
from torch import nn
from torch.nn import functional as F

import liblasp
from liblasp.arguments import describe, take_flag, take_integer, take_number, take_scale
from liblasp.enums import Cache, Decay, take

from .attention import linear_attention, linear_attention_step
from .grouped import GroupedModule
from .problem import invalid_argument, refuse_distributed
from .sequence_group import Group, names_a_group

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Inputs(TypedDict, total=False):
        cu_seqlens: Union[None, torch.Tensor, Sequence[int]]
        total_tokens: Optional[int]

_GATE_TEMPER = 16.0  # data-dependent decays start near 1: log(sigmoid) / 16, as in GLA (arXiv 2312.06635)
_GATE_RANK = 16      # of the projection to a decay per key channel


def alibi_slopes(heads: int, scale: float = 1.0) -> torch.Tensor:
    """Constant log-decays per head [H] float32, -scale * 2^(-8 h / heads) for h = 1..heads, as in RetNet and
    TransNormerLLM, whose deeper layers take a smaller scale."""
    heads, scale = take_integer(heads, "heads", least=1), take_number(scale, "scale")
    return torch.tensor([-scale * 2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], dtype=torch.float32)


class LinearAttention(GroupedModule):
    """Gated linear attention over a sequence that may be split over ranks.

    x [B, T, d_model], this rank's tokens, gives [B, T, d_model]. One projection makes q, k, v and the output gate;
    heads are normalised each on its own, gated and projected back.

    decay: "none", "head" (a constant per head: `slopes`, log-decays of at most 0, and a parameter with
      learn_decay=True, then below 0), "scalar" (per token and head) or "channel" (per token, head and key channel), the
      last two from x by a projection.
    head_dim_k, head_dim_v: multiples of 8, at most 512; None: d_model / heads, and the same as head_dim_k.
    kv_heads: fewer heads of k and v than of q, a divisor of `heads`.
    feature_map: of q and k: "silu", or None for none. gate, norm: whether the output is gated, and each head's divided
      by its root mean square. bias: of the projections. device, dtype: of the parameters.
    group: the sequence group: a torch process group, a SequenceGroup, or None for whole sequences; may be set
      later.
    scale, causal, state_cache: see linear_attention; causal=False goes with decay="none".

    What the library cannot compute is refused here: liblasp.InvalidArgument (a ValueError) or liblasp.Unsupported.
    """

    def __init__(self, d_model: int, heads: int, *,
                 head_dim_k: Optional[int] = None, head_dim_v: Optional[int] = None,
                 kv_heads: Optional[int] = None, decay: Literal["none", "head", "scalar", "channel"] = "head",
                 slopes: Union[None, Sequence[float], torch.Tensor] = None, learn_decay: bool = False,
                 feature_map: Optional[Literal["silu"]] = "silu", gate: bool = True, norm: bool = True,
                 bias: bool = False, causal: bool = True, scale: Optional[float] = None, group: Group = None,
                 state_cache: Optional[Literal["chunks", "incoming"]] = None,
                 device: Union[None, str, int, torch.device] = None, dtype: Optional[torch.dtype] = None):
        super().__init__()
        d_model, heads = take_integer(d_model, "d_model", least=1), take_integer(heads, "heads", least=1)
        kv_heads = heads if kv_heads is None else take_integer(kv_heads, "kv_heads", least=1)
        if heads % kv_heads:
            raise invalid_argument(f"kv_heads = {kv_heads}: must divide heads = {heads}")
        if head_dim_k is None and d_model % heads:
            raise invalid_argument(f"heads = {heads}: must divide d_model = {d_model} where head_dim_k is not given")
        self.head_dim_k = d_model // heads if head_dim_k is None else take_integer(head_dim_k, "head_dim_k")
        self.head_dim_v = self.head_dim_k if head_dim_v is None else take_integer(head_dim_v, "head_dim_v")
        self.heads, self.kv_heads, self.decay = heads, kv_heads, str(take(Decay, decay, "decay"))
        self.causal, self.scale = take_flag(causal, "causal"), take_scale(scale)
        self._ask_the_library()
        if feature_map not in (None, "silu"):
            raise invalid_argument(f"feature_map = {describe(feature_map)}: must be None or 'silu'")
        if (slopes is not None or take_flag(learn_decay, "learn_decay")) and self.decay != "head":
            raise invalid_argument("slopes and learn_decay go with decay='head'")
        if not names_a_group(group):
            raise invalid_argument(f"group = {describe(group)}: must be a process group, a SequenceGroup or None")
        self.feature_map, self.norm, self.group = feature_map, take_flag(norm, "norm"), group
        self.state_cache = None if state_cache is None else str(take(Cache, state_cache, "state_cache"))
        factory = {"device": device, "dtype": dtype}
        self.widths = [heads * self.head_dim_k, kv_heads * self.head_dim_k, kv_heads * self.head_dim_v,
                       heads * self.head_dim_v if take_flag(gate, "gate") else 0]
        self.qkvg = nn.Linear(d_model, sum(self.widths), bias=take_flag(bias, "bias"), **factory)
        self.out = nn.Linear(heads * self.head_dim_v, d_model, bias=bias, **factory)
        if self.decay == "head":
            self._make_slopes(slopes, learn_decay, device)
        elif self.decay == "scalar":
            self.decay_proj = nn.Linear(d_model, heads, bias=True, **factory)
        elif self.decay == "channel":
            self.decay_proj = nn.Sequential(nn.Linear(d_model, _GATE_RANK, bias=False, **factory),
                                            nn.Linear(_GATE_RANK, heads * self.head_dim_k, bias=True, **factory))

    def _ask_the_library(self) -> None:
        """Makes a plan of these heads without tokens: what cannot be computed is refused with the library's reason."""
        with liblasp.Context(cpu_threads=1) as context:
            context.plan(tokens=0, heads_q=self.heads, heads_k=self.kv_heads, heads_v=self.kv_heads,
                         head_dim_k=self.head_dim_k, head_dim_v=self.head_dim_v, decay=self.decay,
                         mask="causal" if self.causal else "bidirectional")

    def _make_slopes(self, slopes, learn: bool, device) -> None:
        try:
            values = torch.as_tensor(alibi_slopes(self.heads) if slopes is None else slopes, dtype=torch.float32,
                                     device=device)
        except (TypeError, ValueError) as reason:
            raise invalid_argument(f"slopes = {describe(slopes)}: {reason}") from None
        if values.shape != (self.heads,) or not bool((values <= 0).all()):
            raise invalid_argument("slopes: must be one log-decay, at most 0, for each head")
        if not learn:
            self.register_buffer("slopes", values, persistent=False)
            return
        if not bool((values < 0).all()):
            raise invalid_argument("slopes: must be below 0 with learn_decay=True, whose parameter is their logarithm")
        self.log_rate = nn.Parameter(torch.log(-values))

    @overload
    def forward(self, x: torch.Tensor, state: Optional[torch.Tensor] = None, *, return_state: Literal[False] = False,
                **inputs: Unpack[_Inputs]) -> torch.Tensor: ...

    @overload
    def forward(self, x: torch.Tensor, state: Optional[torch.Tensor] = None, *, return_state: Literal[True],
                **inputs: Unpack[_Inputs]) -> Tuple[torch.Tensor, torch.Tensor]: ...

    def forward(self, x: torch.Tensor, state: Optional[torch.Tensor] = None, *,
                cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None, total_tokens: Optional[int] = None,
                return_state: bool = False) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """y [B, T, d_model] of x [B, T, d_model], or (y, state) with return_state=True: the state [N, H, K, V] float32
        after each sequence, the same on every rank, to be given to the next call as `state`. cu_seqlens and
        total_tokens as in linear_attention, whose errors it raises."""
        q, k, v, gate = self._project(x)
        o = linear_attention(q, k, v, self._decay(x), initial_state=state, cu_seqlens=cu_seqlens, scale=self.scale,
                             causal=self.causal, group=self.group, total_tokens=total_tokens,
                             state_cache=self.state_cache, output_final_state=return_state,
                             broadcast_final_state=return_state)
        o, state = o if return_state else (o, None)
        y = self._finish(o, gate)
        return (y, state) if return_state else y

    @torch.no_grad()
    def step(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Decoding: y [B, T, d_model] of one token or a short run, x [B, T, d_model], on this rank alone. Advances
        `state` [B, H, K, V] float32 in place."""
        q, k, v, gate = self._project(x)
        return self._finish(linear_attention_step(q, k, v, state, self._decay(x), scale=self.scale), gate)

    def zero_state(self, sequences: int, device: Union[None, str, int, torch.device] = None) -> torch.Tensor:
        """The state before the first token: float32 zeros [sequences, H, K, V] on `device`."""
        sequences = take_integer(sequences, "sequences", least=0)
        return torch.zeros(sequences, self.heads, self.head_dim_k, self.head_dim_v, device=device)

    def _project(self, x):
        refuse_distributed(x=x)
        q, k, v, gate = self.qkvg(x).split(self.widths, dim=-1)
        if self.feature_map == "silu":
            q, k = F.silu(q), F.silu(k)
        return (q.unflatten(-1, (self.heads, self.head_dim_k)), k.unflatten(-1, (self.kv_heads, self.head_dim_k)),
                v.unflatten(-1, (self.kv_heads, self.head_dim_v)), gate)

    def _decay(self, x):
        if self.decay == "none":
            return None
        if self.decay == "head":
            return -torch.exp(self.log_rate.float()) if hasattr(self, "log_rate") else self.slopes.float()
        decay = F.logsigmoid(self.decay_proj(x).float()) / _GATE_TEMPER
        return decay if self.decay == "scalar" else decay.unflatten(-1, (self.heads, self.head_dim_k))

    def _finish(self, o, gate):
        if self.norm:  # root mean square per head, without weights: SRMSNorm of TransNormerLLM
            o = F.rms_norm(o, (self.head_dim_v,), eps=1e-6)
        o = o.flatten(-2)
        return self.out(o * torch.sigmoid(gate) if gate.shape[-1] else o)

    def extra_repr(self) -> str:
        """What repr shows of the module."""
        return (f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim_k={self.head_dim_k}, "
                f"head_dim_v={self.head_dim_v}, decay={self.decay!r}")
