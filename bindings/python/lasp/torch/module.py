"""LinearAttention: the module that takes the place of an ordinary trainer's attention."""
from __future__ import annotations

from typing import Optional, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from .attention import linear_attention, linear_attention_step

_GATE_TEMPER = 16.0  # data-dependent decays start near 1: log(sigmoid) / 16, as in GLA (arXiv 2312.06635)
_GATE_RANK = 16      # of the projection to a decay per key channel


def alibi_slopes(heads: int, scale: float = 1.0) -> torch.Tensor:
    """Constant log-decays per head, -scale * 2^(-8 h / heads) for h = 1..heads, as in RetNet and TransNormerLLM,
    whose deeper layers take a smaller scale."""
    return torch.tensor([-scale * 2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], dtype=torch.float32)


class LinearAttention(nn.Module):
    """Gated linear attention over a sequence that may be split over ranks.

    x [B, T, d_model], this rank's tokens, gives [B, T, d_model]. One projection makes q, k, v and the output gate;
    heads are normalised each on its own, gated and projected back.

    decay: "none", "head" (a constant per head: `slopes`, log-decays, and a parameter with learn_decay=True),
    "scalar" (per token and head) or "channel" (per token, head and key channel), the last two from x by a
    projection.
    kv_heads: fewer heads of k and v than of q, a divisor of `heads`.
    group: the sequence group: a torch process group, a SequenceGroup, or None for whole sequences; may be set
    later.
    state_cache: see linear_attention.
    """

    def __init__(self, d_model: int, heads: int, *,
                 head_dim_k: Optional[int] = None, head_dim_v: Optional[int] = None,
                 kv_heads: Optional[int] = None, decay: str = "head", slopes: Optional[Sequence[float]] = None,
                 learn_decay: bool = False, feature_map: Optional[str] = "silu", gate: bool = True,
                 norm: bool = True, bias: bool = False, causal: bool = True, scale: Optional[float] = None,
                 group=None, state_cache: Optional[str] = None, device=None, dtype=None):
        super().__init__()
        if decay not in ("none", "head", "scalar", "channel"):
            raise ValueError(f"decay = {decay!r}: must be 'none', 'head', 'scalar' or 'channel'")
        if feature_map not in (None, "silu"):
            raise ValueError(f"feature_map = {feature_map!r}: must be None or 'silu'")
        if (slopes is not None or learn_decay) and decay != "head":
            raise ValueError("slopes and learn_decay go with decay='head'")
        kv_heads = kv_heads or heads
        if head_dim_k is None and d_model % heads:
            raise ValueError(f"heads = {heads}: must divide d_model = {d_model} where head_dim_k is not given")
        self.heads, self.kv_heads, self.decay = heads, kv_heads, decay
        self.feature_map, self.norm = feature_map, norm
        self.head_dim_k = head_dim_k or d_model // heads
        self.head_dim_v = head_dim_v or self.head_dim_k
        self.group, self.causal, self.scale, self.state_cache = group, causal, scale, state_cache
        factory = {"device": device, "dtype": dtype}
        self.widths = [heads * self.head_dim_k, kv_heads * self.head_dim_k, kv_heads * self.head_dim_v,
                       heads * self.head_dim_v if gate else 0]
        self.qkvg = nn.Linear(d_model, sum(self.widths), bias=bias, **factory)
        self.out = nn.Linear(heads * self.head_dim_v, d_model, bias=bias, **factory)
        if decay == "head":
            values = torch.as_tensor(alibi_slopes(heads) if slopes is None else slopes, dtype=torch.float32,
                                     device=device)
            if values.shape != (heads,) or not bool((values <= 0).all()):
                raise ValueError("slopes: must be one log-decay, at most 0, for each head")
            if learn_decay:
                self.log_rate = nn.Parameter(torch.log(-values.clamp(max=-1e-6)))
            else:
                self.register_buffer("slopes", values, persistent=False)
        elif decay == "scalar":
            self.decay_proj = nn.Linear(d_model, heads, bias=True, **factory)
        elif decay == "channel":
            self.decay_proj = nn.Sequential(nn.Linear(d_model, _GATE_RANK, bias=False, **factory),
                                            nn.Linear(_GATE_RANK, heads * self.head_dim_k, bias=True, **factory))

    def forward(self, x: torch.Tensor, state: Optional[torch.Tensor] = None, *, cu_seqlens=None,
                total_tokens: Optional[int] = None, return_state: bool = False):
        """y, or (y, state) with return_state=True: the state [N, H, K, V] after each sequence, the same on every
        rank, to be given to the next call as `state`."""
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
        """Decoding: y of one token or a short run, x [B, T, d_model], on this rank alone. Advances `state` in
        place."""
        q, k, v, gate = self._project(x)
        return self._finish(linear_attention_step(q, k, v, state, self._decay(x), scale=self.scale), gate)

    def zero_state(self, sequences: int, device=None) -> torch.Tensor:
        """The state before the first token: float32 zeros [sequences, H, K, V]."""
        return torch.zeros(sequences, self.heads, self.head_dim_k, self.head_dim_v, device=device)

    def _project(self, x):
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
        return (f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim_k={self.head_dim_k}, "
                f"head_dim_v={self.head_dim_v}, decay={self.decay!r}")
