"""DeltaNet, GatedDeltaNet and KimiDeltaAttention: the layers around the delta rule, over a sequence that is split.
Their parameters have the names and the initial values of flash-linear-attention's, so that state dicts go from one to
the other."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, Sequence, Tuple, Union, overload

import torch
from torch import nn
from torch.nn import functional as F

import liblasp
from liblasp.arguments import describe, take_flag, take_integer, take_number, take_scale
from liblasp.enums import Cache, take

from . import walking
from .attention import linear_attention, linear_attention_step
from .convolution import WIDEST, Taps, convolve, convolve_further
from .grouped import GroupedModule
from .problem import invalid_argument, refuse_distributed
from .sequence_group import Group, names_a_group

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Inputs(TypedDict, total=False):
        cu_seqlens: Union[None, torch.Tensor, Sequence[int]]
        total_tokens: Optional[int]

_UNIT_EPS = 1e-6  # beside a squared length


class DeltaState(NamedTuple):
    """What a layer knows of the tokens before: `recurrent`, the state [N, H, K, V] float32, and `rows`
    [N, width - 1, C], the last inputs of the short convolution of q, k and v; of no width without one."""

    recurrent: torch.Tensor
    rows: torch.Tensor


class _DeltaLayer(GroupedModule):
    """What the three have in common: q, k and v, short convolutions, keys and queries of length 1, norm and gate of
    each head's output. A layer gives g and beta (`_gates`), and what its norm is gated by (`_output_gate`)."""

    _decay = "none"

    def __init__(self, d_model, heads, head_dim_k, head_dim_v, v_heads, conv_width, conv_bias, negative_eigenvalues,
                 norm_eps, scale, group, state_cache, factory):
        super().__init__()
        d_model, heads = take_integer(d_model, "d_model", least=1), take_integer(heads, "heads", least=1)
        if head_dim_k is None and d_model % heads:
            raise invalid_argument(f"heads = {heads}: must divide d_model = {d_model} where head_dim_k is not given")
        self.head_dim_k = d_model // heads if head_dim_k is None else take_integer(head_dim_k, "head_dim_k")
        self.head_dim_v = self.head_dim_k if head_dim_v is None else take_integer(head_dim_v, "head_dim_v")
        self.heads = heads
        self.v_heads = heads if v_heads is None else take_integer(v_heads, "v_heads", least=1)
        if self.v_heads % heads:
            raise invalid_argument(f"v_heads = {self.v_heads}: must be a multiple of heads = {heads}")
        if conv_width is not None and take_integer(conv_width, "conv_width", least=1) > WIDEST:
            raise invalid_argument(f"conv_width = {conv_width}: must be at most {WIDEST}")
        if take_flag(conv_bias, "conv_bias") and conv_width is None:
            raise invalid_argument("conv_bias = True: goes with a conv_width")
        if not names_a_group(group):
            raise invalid_argument(f"group = {describe(group)}: must be a process group, a SequenceGroup or None")
        self.most_beta = 2.0 if take_flag(negative_eigenvalues, "negative_eigenvalues") else 1.0
        self.norm_eps, self.scale, self.group = take_number(norm_eps, "norm_eps"), take_scale(scale), group
        if self.norm_eps < 0:
            raise invalid_argument(f"norm_eps = {norm_eps}: must be at least 0")
        self.state_cache = None if state_cache is None else str(take(Cache, state_cache, "state_cache"))
        self._ask_the_library()
        self.widths = [heads * self.head_dim_k, heads * self.head_dim_k, self.v_heads * self.head_dim_v]
        for name, width in zip("qkv", self.widths):
            setattr(self, f"{name}_proj", nn.Linear(d_model, width, bias=False, **factory))
        self.conv_width = conv_width
        if conv_width is not None:
            for name, width in zip("qkv", self.widths):  # they hold parameters; `_mixed` convolves
                setattr(self, f"{name}_conv1d",
                        nn.Conv1d(width, width, conv_width, groups=width, bias=conv_bias, **factory))
        self.o_norm = nn.Module()
        self.o_norm.weight = nn.Parameter(torch.ones(self.head_dim_v, **factory))
        self.o_proj = nn.Linear(self.widths[2], d_model, bias=False, **factory)

    def _ask_the_library(self) -> None:
        """Makes a plan of these heads without tokens: what cannot be computed is refused with the library's reason."""
        with liblasp.Context(cpu_threads=1) as context:
            context.plan(tokens=0, heads_q=self.heads, heads_k=self.heads, heads_v=self.v_heads, write="delta",
                         head_dim_k=self.head_dim_k, head_dim_v=self.head_dim_v, decay=self._decay)

    @overload
    def forward(self, x: torch.Tensor, state: Optional[DeltaState] = None, *, return_state: Literal[False] = False,
                **inputs: Unpack[_Inputs]) -> torch.Tensor: ...

    @overload
    def forward(self, x: torch.Tensor, state: Optional[DeltaState] = None, *, return_state: Literal[True],
                **inputs: Unpack[_Inputs]) -> Tuple[torch.Tensor, DeltaState]: ...

    def forward(self, x: torch.Tensor, state: Optional[DeltaState] = None, *,
                cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None, total_tokens: Optional[int] = None,
                return_state: bool = False) -> Union[torch.Tensor, Tuple[torch.Tensor, DeltaState]]:
        """y [B, T, d_model] of x [B, T, d_model], this rank's tokens; with return_state=True (y, state), the DeltaState
        after the sequences, the same on every rank, for the next call's `state` or for step. cu_seqlens and
        total_tokens as in linear_attention, whose errors it raises; a state does not go with cu_seqlens yet."""
        carried = take_flag(return_state, "return_state") or state is not None
        if carried:
            self._check_carried(x, state, cu_seqlens)
        rows = None if state is None else state.rows
        q, k, v, rows = self._mixed(x, rows, cu_seqlens, total_tokens, carried)
        g, beta = self._gates(x)
        o = linear_attention(q, k, v, g, beta=beta, initial_state=None if state is None else state.recurrent,
                             cu_seqlens=cu_seqlens, scale=self.scale, group=self.group, total_tokens=total_tokens,
                             state_cache=self.state_cache, output_final_state=return_state,
                             broadcast_final_state=return_state)
        o, recurrent = o if return_state else (o, None)
        y = self._finish(o, x)
        return (y, DeltaState(recurrent, rows)) if return_state else y

    @torch.no_grad()
    def step(self, x: torch.Tensor, state: DeltaState) -> torch.Tensor:
        """Decoding: y [B, T, d_model] of one token or a short run, x [B, T, d_model], on this rank alone. Advances both
        tensors of `state` in place."""
        self._check_state(x, state)
        qkv = self._project(x)
        if self.conv_width is not None:
            before = state.rows.to(qkv.dtype)
            further = torch.cat([before, qkv], 1)[:, qkv.shape[1]:]
            qkv = self._taps().of(before, qkv)
            state.rows.copy_(further)
        q, k, v = self._heads(qkv)
        g, beta = self._gates(x)
        return self._finish(linear_attention_step(q, k, v, state.recurrent, g, beta=beta, scale=self.scale), x)

    def zero_state(self, sequences: int, device: Union[None, str, int, torch.device] = None,
                   dtype: Optional[torch.dtype] = None) -> DeltaState:
        """The state before the first token of `sequences` sequences: zeros on `device` (None: the parameters'), rows of
        `dtype` (None: the parameters')."""
        sequences = take_integer(sequences, "sequences", least=0)
        like = self.q_proj.weight
        device, dtype = like.device if device is None else device, like.dtype if dtype is None else dtype
        rows = (self.conv_width or 1) - 1
        return DeltaState(torch.zeros(sequences, self.v_heads, self.head_dim_k, self.head_dim_v, device=device),
                          torch.zeros(sequences, rows, sum(self.widths), device=device, dtype=dtype))

    # ---- Parts ----

    def _project(self, x) -> torch.Tensor:
        refuse_distributed(x=x)
        return torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)

    def _taps(self) -> Taps:
        convolutions = [self.q_conv1d, self.k_conv1d, self.v_conv1d]
        bias = None if self.q_conv1d.bias is None else torch.cat([each.bias for each in convolutions])
        return Taps(torch.cat([each.weight for each in convolutions]), bias, "silu")

    def _mixed(self, x, rows, cu_seqlens, total_tokens, carried) -> Tuple[torch.Tensor, ...]:
        """q, k and v of neighbouring tokens, and the rows for those that follow: one convolution, one halo."""
        qkv = self._project(x)
        if self.conv_width is None:
            return (*self._heads(qkv), qkv.new_zeros(len(qkv), 0, qkv.shape[-1]))
        if carried:
            qkv, rows = convolve_further(qkv, self._taps(), self.group, None if rows is None else rows.to(qkv.dtype))
        else:
            qkv = convolve(qkv, self._taps(), self.group, cu_seqlens, total_tokens)
        return (*self._heads(qkv), rows)

    def _heads(self, qkv) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = (F.silu(qkv) if self.conv_width is None else qkv).split(self.widths, -1)
        return (unit_length(q.unflatten(-1, (self.heads, self.head_dim_k))),
                unit_length(k.unflatten(-1, (self.heads, self.head_dim_k))), v.unflatten(-1, (self.v_heads, self.head_dim_v)))

    def _beta(self, x) -> torch.Tensor:
        return self.most_beta * torch.sigmoid(self.b_proj(x).float())

    def _gates(self, x) -> Tuple[Optional[torch.Tensor], torch.Tensor]:
        """The log-decay and beta of each token, in float32."""
        raise NotImplementedError

    def _output_gate(self, x) -> Optional[torch.Tensor]:
        """[B, T, d] in float32, by which the norm is multiplied; None for none."""
        raise NotImplementedError

    def _finish(self, o, x) -> torch.Tensor:
        gate = self._output_gate(x)
        normal = F.rms_norm(o.float(), (self.head_dim_v,), self.o_norm.weight.float(), self.norm_eps).flatten(-2)
        return self.o_proj((normal if gate is None else normal * gate).to(o.dtype))

    # ---- Refusals ----

    def _check_carried(self, x, state, cu_seqlens) -> None:
        if cu_seqlens is not None:
            raise liblasp.Unsupported("state and return_state with cu_seqlens: rows of packed sequences are not "
                                      "carried; give a batch of whole sequences")
        if walking.current() is not None:
            raise liblasp.Unsupported("state and return_state in time_segments, which carries the states itself")
        if state is not None:
            self._check_state(x, state)

    def _check_state(self, x, state) -> None:
        if not isinstance(state, DeltaState):
            raise invalid_argument(f"state = {describe(state)}: must be a DeltaState, of zero_state or return_state")
        batch = x.shape[0] if isinstance(x, torch.Tensor) and x.dim() == 3 else None
        wanted = ("recurrent", (batch, self.v_heads, self.head_dim_k, self.head_dim_v)), (
            "rows", (batch, (self.conv_width or 1) - 1, sum(self.widths)))
        for name, shape in wanted:
            tensor = getattr(state, name)
            if not isinstance(tensor, torch.Tensor):
                raise invalid_argument(f"state.{name} = {describe(tensor)}: must be a tensor")
            if batch is not None and tensor.shape != shape:
                raise invalid_argument(f"state.{name}: shape {tuple(tensor.shape)}, must be {shape}")

    def extra_repr(self) -> str:
        """What repr shows of the module."""
        return (f"heads={self.heads}, v_heads={self.v_heads}, head_dim_k={self.head_dim_k}, "
                f"head_dim_v={self.head_dim_v}, conv_width={self.conv_width}")


class DeltaNet(_DeltaLayer):
    """DeltaNet (arXiv 2406.06484): x [B, T, d_model], this rank's tokens, gives [B, T, d_model].

        q, k, v = silu(conv(x W_q)), silu(conv(x W_k)), silu(conv(x W_v))      q, k then of length 1
        beta = sigmoid(x W_b)       y = rms_norm(delta_rule(q, k, v, beta)) W_o

    head_dim_k, head_dim_v: multiples of 8, at most 512; None: d_model / heads, and the same as head_dim_k.
    conv_width: tokens that a short convolution sees, 1 to 8; None: no convolutions. conv_bias: whether they have one.
    negative_eigenvalues: beta is twice the sigmoid (arXiv 2411.12537).
    gate: the norm is multiplied by silu(x W_g). norm_eps: added under its root.
    group: the sequence group: a torch process group, a SequenceGroup, or None for whole sequences; may be set later.
    scale, state_cache: see linear_attention. device, dtype: of the parameters.

    State dict: q_proj.weight, k_proj.weight [heads K, d_model], v_proj.weight [heads V, d_model], b_proj.weight
    [heads, d_model], {q,k,v}_conv1d.weight [channels, 1, conv_width] and .bias, g_proj.weight where gated,
    o_norm.weight [V], o_proj.weight [d_model, heads V]. What the library cannot compute is refused here:
    liblasp.InvalidArgument (a ValueError) or liblasp.Unsupported.
    """

    def __init__(self, d_model: int, heads: int, *, head_dim_k: Optional[int] = None, head_dim_v: Optional[int] = None,
                 conv_width: Optional[int] = 4, conv_bias: bool = False, negative_eigenvalues: bool = False,
                 gate: bool = False, norm_eps: float = 1e-5, scale: Optional[float] = None, group: Group = None,
                 state_cache: Optional[Literal["chunks", "incoming"]] = None,
                 device: Union[None, str, int, torch.device] = None, dtype: Optional[torch.dtype] = None):
        factory = {"device": device, "dtype": dtype}
        super().__init__(d_model, heads, head_dim_k, head_dim_v, None, conv_width, conv_bias, negative_eigenvalues,
                         norm_eps, scale, group, state_cache, factory)
        self.b_proj = nn.Linear(d_model, heads, bias=False, **factory)
        self.g_proj = nn.Linear(d_model, self.widths[2], bias=False, **factory) if take_flag(gate, "gate") else None

    def _gates(self, x) -> Tuple[Optional[torch.Tensor], torch.Tensor]:
        return None, self._beta(x)

    def _output_gate(self, x) -> Optional[torch.Tensor]:
        return None if self.g_proj is None else F.silu(self.g_proj(x).float())


class GatedDeltaNet(_DeltaLayer):
    """Gated DeltaNet (arXiv 2412.06464): DeltaNet on a state that decays,

        g = -exp(A_log) softplus(x W_a + dt_bias)       y = rms_norm(gated_delta_rule(q, k, v, g, beta)) silu(x W_g) W_o

    v_heads: heads of v, of g and of beta, a multiple of `heads`, those of q and k; None: as many. gate: whether the
    norm is multiplied by silu(x W_g). d_model, heads, head_dim_k, head_dim_v, conv_width, conv_bias, negative_eigenvalues,
    norm_eps, scale, group, state_cache, device and dtype as in DeltaNet.

    State dict: DeltaNet's, with v_heads for heads in v_proj, b_proj, g_proj and o_proj, and a_proj.weight [v_heads,
    d_model], A_log and dt_bias [v_heads]. exp(A_log) begins uniform in 0 to 16, softplus(dt_bias) in 0.001 to 0.1 by
    its logarithm.
    """

    _decay = "scalar"

    def __init__(self, d_model: int, heads: int, *, head_dim_k: Optional[int] = None, head_dim_v: Optional[int] = None,
                 v_heads: Optional[int] = None, conv_width: Optional[int] = 4, conv_bias: bool = False,
                 negative_eigenvalues: bool = False, gate: bool = True, norm_eps: float = 1e-5,
                 scale: Optional[float] = None, group: Group = None,
                 state_cache: Optional[Literal["chunks", "incoming"]] = None,
                 device: Union[None, str, int, torch.device] = None, dtype: Optional[torch.dtype] = None):
        factory = {"device": device, "dtype": dtype}
        super().__init__(d_model, heads, head_dim_k, head_dim_v, v_heads, conv_width, conv_bias, negative_eigenvalues,
                         norm_eps, scale, group, state_cache, factory)
        self.a_proj = nn.Linear(d_model, self.v_heads, bias=False, **factory)
        self.b_proj = nn.Linear(d_model, self.v_heads, bias=False, **factory)
        self.A_log = nn.Parameter(_log_uniform(self.v_heads, 0.0, 16.0, device))
        self.dt_bias = nn.Parameter(_time_steps(self.v_heads, device))
        self.g_proj = nn.Linear(d_model, self.widths[2], bias=False, **factory) if take_flag(gate, "gate") else None

    def _gates(self, x) -> Tuple[Optional[torch.Tensor], torch.Tensor]:
        steps = F.softplus(self.a_proj(x).float() + self.dt_bias.float())
        return -torch.exp(self.A_log.float()) * steps, self._beta(x)

    def _output_gate(self, x) -> Optional[torch.Tensor]:
        return None if self.g_proj is None else F.silu(self.g_proj(x).float())


class KimiDeltaAttention(_DeltaLayer):
    """Kimi Delta Attention (arXiv 2510.26692): the delta rule on a state each of whose key channels decays for itself,

        g = -exp(A_log) softplus(x W_f1 W_f2 + dt_bias)
        y = rms_norm(kda(q, k, v, g, beta)) sigmoid(x W_g1 W_g2 + b) W_o

    v_heads: heads of v, a multiple of `heads`, those of q, k, g and beta; None: as many. d_model, heads, head_dim_k,
    head_dim_v, conv_width, conv_bias, negative_eigenvalues, norm_eps, scale, group, state_cache, device and dtype as in
    DeltaNet.

    State dict: DeltaNet's without g_proj.weight, with v_heads for heads in v_proj and o_proj, and f_proj.0.weight
    [V, d_model], f_proj.1.weight [heads K, V], g_proj.0.weight [V, d_model], g_proj.1.weight [v_heads V, V] and .bias,
    A_log [heads] and dt_bias [heads K]. exp(A_log) begins uniform in 1 to 16, dt_bias as zero.
    """

    _decay = "channel"

    def __init__(self, d_model: int, heads: int, *, head_dim_k: Optional[int] = None, head_dim_v: Optional[int] = None,
                 v_heads: Optional[int] = None, conv_width: Optional[int] = 4, conv_bias: bool = False,
                 negative_eigenvalues: bool = False, norm_eps: float = 1e-5, scale: Optional[float] = None,
                 group: Group = None, state_cache: Optional[Literal["chunks", "incoming"]] = None,
                 device: Union[None, str, int, torch.device] = None, dtype: Optional[torch.dtype] = None):
        factory = {"device": device, "dtype": dtype}
        super().__init__(d_model, heads, head_dim_k, head_dim_v, v_heads, conv_width, conv_bias, negative_eigenvalues,
                         norm_eps, scale, group, state_cache, factory)
        rank = self.head_dim_v
        self.b_proj = nn.Linear(d_model, heads, bias=False, **factory)
        self.f_proj = nn.Sequential(nn.Linear(d_model, rank, bias=False, **factory),
                                    nn.Linear(rank, self.widths[0], bias=False, **factory))
        self.g_proj = nn.Sequential(nn.Linear(d_model, rank, bias=False, **factory),
                                    nn.Linear(rank, self.widths[2], bias=True, **factory))
        self.A_log = nn.Parameter(_log_uniform(heads, 1.0, 16.0, device))
        self.dt_bias = nn.Parameter(torch.zeros(self.widths[0], device=device))

    def _gates(self, x) -> Tuple[Optional[torch.Tensor], torch.Tensor]:
        steps = F.softplus(self.f_proj(x).float() + self.dt_bias.float()).unflatten(-1, (self.heads, self.head_dim_k))
        g, beta = -torch.exp(self.A_log.float())[:, None] * steps, self._beta(x)
        each = self.v_heads // self.heads
        return (g, beta) if each == 1 else (g.repeat_interleave(each, 2), beta.repeat_interleave(each, 2))

    def _output_gate(self, x) -> Optional[torch.Tensor]:
        return torch.sigmoid(self.g_proj(x).float())


def unit_length(x: torch.Tensor) -> torch.Tensor:
    """Of length 1 along the last dimension, but for zeros."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + _UNIT_EPS)).to(x.dtype)


def _log_uniform(count: int, least: float, most: float, device: Any) -> torch.Tensor:
    """Logarithms of numbers that are uniform in least to most."""
    values = torch.empty(count, dtype=torch.float32, device=device).uniform_(least, most)
    return torch.log(values.clamp_min(torch.finfo(torch.float32).tiny))


def _time_steps(count: int, device: Any, least: float = 1e-3, most: float = 0.1) -> torch.Tensor:
    """What softplus makes numbers between least and most of, even in their logarithm, as in Mamba-2."""
    steps = torch.exp(torch.empty(count, dtype=torch.float32, device=device).uniform_(math.log(least), math.log(most)))
    return steps + torch.log(-torch.expm1(-steps))
