"""The custom operators of torch.library: torch.ops.liblasp.forward, backward and step.

Whatever looks at operators (torch.compile, torch.export, FakeTensor, torch.func, dispatch modes such as FLOP counters
and selective checkpointing) sees these, and calls come here where one of them is at work. Other calls go to the library
at once, because torch's dispatch alone would take longer than they do.

What an operator cannot carry, it has by name or leaves behind:
- The group is a string, `SequenceGroup.name`. The registry holds groups weakly: a name leads to its group for as long
  as the group lives, and a module keeps its group alive. "" is this thread's group of one, in every process. A process
  group's name is torch's, so that an exported program finds it in another process.
- Plans are found again by `strides`, those of q, k, v, decay and beta in turn, and the other arguments. So forward
  and backward have one plan, whatever layouts a compiler gives the tensors in between; a tensor with other strides is
  copied.
- Compiled and exported programs are kept on disk, so that what an operator takes and gives is only added to at the end,
  with a default.
- The state cache is a tensor [1] of bytes whose storage holds all of it, for only the plan knows its size. A copy of
  that tensor is refused.
"""
from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import Tensor

import liblasp
from . import passes, walking
from .keys import key_of, step_key_of
from .packing import PackedPlan
from .plans import Plan
from .problem import check_shapes, invalid_argument, seen
from .sequence_group import SequenceGroup, group_named

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? decay, Tensor? beta, Tensor? initial_state, Tensor? cu_seqlens"
_CALL = ("SymInt[] strides, str group, float? scale, bool causal, SymInt? total_tokens, str state_cache, "
         "bool broadcast_final_state")
_tags = [torch.Tag.pt2_compliant_tag]
for _name in ("needs_exact_strides", "cudagraph_unsafe"):  # of later versions of torch
    if hasattr(torch.Tag, _name):
        _tags.append(getattr(torch.Tag, _name))
library = torch.library.Library("liblasp", "DEF")
library.define(f"forward({_INPUTS}, {_CALL}, bool differentiable, bool output_final_state) -> "
               "(Tensor o, Tensor final_state, Tensor state_cache)", tags=_tags)
library.define(f"backward(Tensor? d_o, Tensor? d_final_state, Tensor cache, {_INPUTS}, {_CALL}, "
               "bool decay_wanted, bool initial_state_wanted, bool beta_wanted=False) -> "
               "(Tensor dq, Tensor dk, Tensor dv, Tensor d_decay, Tensor d_initial_state, Tensor d_beta)", tags=_tags)
library.define("step(Tensor q, Tensor k, Tensor v, Tensor? decay, Tensor(a!) state, float? scale, Tensor? beta=None) -> "
               "Tensor", tags=_tags)
FORWARD, BACKWARD, STEP = (getattr(torch.ops.liblasp, name).default for name in ("forward", "backward", "step"))


# ---- What the operators do ----


def _run_forward(q, k, v, decay, beta, initial_state, cu_seqlens, strides, group, scale, causal, total_tokens,
                 state_cache, broadcast_final_state, differentiable, output_final_state):
    walking.refuse_operator()
    ranks = group_named(group)
    settings = (scale, causal, total_tokens, state_cache, differentiable, broadcast_final_state)
    plan, (q, k, v, decay, beta) = _plan_of(ranks, settings, strides, q, k, v, decay, beta, initial_state, cu_seqlens)
    o, final_state, cache = passes.forward(ranks, plan, output_final_state, None, q, k, v, decay, beta, initial_state)
    if final_state is None:
        final_state = q.new_empty(0, dtype=torch.float32)
    if cache is None:
        cache = q.new_empty(1 if differentiable else 0, dtype=torch.uint8)
    return o, final_state, cache[:1]


def _run_backward(d_o, d_final_state, cache, q, k, v, decay, beta, initial_state, cu_seqlens, strides, group, scale,
                  causal, total_tokens, state_cache, broadcast_final_state, decay_wanted,
                  initial_state_wanted, beta_wanted=False):
    ranks = group_named(group)
    settings = (scale, causal, total_tokens, state_cache, True, broadcast_final_state)
    plan, (q, k, v, decay, beta) = _plan_of(ranks, settings, strides, q, k, v, decay, beta, initial_state, cu_seqlens)
    whole = whole_cache(cache)
    if whole.numel() < plan.state_cache_bytes:
        plan.give_up_backward()
        raise liblasp.Unsupported(f"state_cache: holds {whole.numel()} bytes of {plan.state_cache_bytes}: something "
                                  "copied it between forward and backward (a hook on saved tensors?), and what it "
                                  "keeps cannot be copied")
    dq, dk, dv, d_decay, d_beta, d_initial_state = passes.backward(
        ranks, plan, q, k, v, decay, beta, initial_state, whole if plan.state_cache_bytes else None, d_o, d_final_state,
        decay_wanted, beta_wanted, initial_state_wanted)
    return dq, dk, dv, *(q.new_empty(0) if each is None else each for each in (d_decay, d_initial_state, d_beta))


def whole_cache(cache: Tensor) -> Tensor:
    """All bytes of a state cache that forward gave."""
    return torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())


def _plan_of(ranks: SequenceGroup, settings, strides, q, k, v, decay, beta, initial_state,
             cu_seqlens) -> Tuple[Plan, Tuple[Optional[Tensor], ...]]:
    """The plan, and q, k, v, decay and beta with its strides."""
    try:
        q, k, v, decay, beta = _laid_out(strides, q, k, v, decay, beta)
        plan = None if cu_seqlens is not None else ranks.recent_plan(settings, q, k, v, decay, beta, initial_state)
        if plan is None:
            *_, key, packing = key_of(settings, False, q, k, v, decay, beta, initial_state, cu_seqlens)
    except BaseException:
        ranks.give_up(q.device)
        raise
    if plan is None:
        plan = ranks.plan(key)
        if packing is None:
            ranks.keep_recent(plan, settings, q, k, v, decay, beta, initial_state)
        else:
            plan = PackedPlan(plan, packing, ranks)
    return plan, (q, k, v, decay, beta)


def _laid_out(strides: List[int], *tensors: Optional[Tensor]) -> List[Optional[Tensor]]:
    needed = sum(tensor.dim() for tensor in tensors if tensor is not None)
    if needed != len(strides):
        raise invalid_argument(f"strides: are {len(strides)} numbers, must be {needed}: those of q, k, v, decay and "
                               "beta in turn")
    laid_out, at = [], 0
    for tensor in tensors:
        if tensor is not None:
            wanted = tuple(strides[at:at + tensor.dim()])
            at += tensor.dim()
            if tensor.stride() != wanted:
                tensor = _with_strides(tensor, wanted)
        laid_out.append(tensor)
    return laid_out


def strides_of(*tensors: Optional[Tensor]) -> List[int]:
    """Those of q, k, v, decay and beta in turn, as the operators take them."""
    return [step for tensor in tensors if tensor is not None for step in tensor.stride()]


def _with_strides(tensor: Tensor, strides: Tuple[int, ...]) -> Tensor:
    """A copy. Along a dimension of stride 0 all elements are the same."""
    distinct = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]
    copy = torch.empty_strided(distinct.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(distinct)
    return copy.as_strided(tensor.shape, strides)


def _run_step(q, k, v, decay, state, scale, beta=None) -> Tensor:
    group = group_named("")
    plan = group.plan(step_key_of(q, k, v, decay, beta, state, scale))
    o = plan.new_output(q)
    plan.step(q, k, v, decay, beta, state, o)
    return o


for _device in ("CPU", "CUDA"):
    library.impl("forward", _run_forward, _device)
    library.impl("backward", _run_backward, _device)
    library.impl("step", _run_step, _device)


# ---- Shapes of what they give, for fake and meta tensors ----


@torch.library.register_fake("liblasp::forward", lib=library)
def _fake_forward(q, k, v, decay, beta, initial_state, cu_seqlens, strides, group, scale, causal, total_tokens,
                  state_cache, broadcast_final_state, differentiable, output_final_state):
    sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    batch, tokens, heads, dim_k, dim_v = check_shapes(*map(seen, (q, k, v, decay, beta, initial_state)), sequences)
    state = (batch if sequences is None else sequences, heads, dim_k, dim_v) if output_final_state else (0,)
    return (q.new_empty(batch, tokens, heads, dim_v), q.new_empty(state, dtype=torch.float32),
            q.new_empty(1 if differentiable else 0, dtype=torch.uint8))


@torch.library.register_fake("liblasp::backward", lib=library)
def _fake_backward(d_o, d_final_state, cache, q, k, v, decay, beta, initial_state, cu_seqlens, strides, group, scale,
                   causal, total_tokens, state_cache, broadcast_final_state, decay_wanted, initial_state_wanted,
                   beta_wanted=False):
    return (*(tensor.new_empty(tensor.shape) for tensor in (q, k, v)),
            *(tensor.new_empty(tensor.shape) if tensor is not None and wanted else q.new_empty(0) for tensor, wanted in
              ((decay, decay_wanted), (initial_state, initial_state_wanted), (beta, beta_wanted))))


@torch.library.register_fake("liblasp::step", lib=library)
def _fake_step(q, k, v, decay, state, scale, beta=None):
    batch, tokens, heads, _, dim_v = check_shapes(*map(seen, (q, k, v, decay, beta, state)), None)
    return q.new_empty(batch, tokens, heads, dim_v)
