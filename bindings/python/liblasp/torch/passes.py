"""The library's two passes on torch tensors: what autograd's function and the custom operators are made of."""
from __future__ import annotations

from typing import Optional, Tuple

import torch

from .plans import Plan
from .sequence_group import SequenceGroup


def forward(group: SequenceGroup, plan: Plan, output_final_state: bool, kept, q, k, v, decay, beta, initial_state):
    """o, final_state and the state cache. `kept` is of the forward pass that this one recomputes, if it does."""
    try:
        o = plan.new_output(q)
        final_state = cache = None
        if output_final_state:
            final_state = torch.zeros(plan.state_shape, dtype=torch.float32, device=plan.device)
        if kept is not None:
            cache = kept.state_cache
        elif plan.state_cache_bytes:
            cache = torch.empty(plan.state_cache_bytes, dtype=torch.uint8, device=plan.device)
        nbytes = plan.workspace_forward_bytes
        workspace = group.workspace(nbytes, plan) if nbytes else None
    except BaseException:  # no memory is left, say
        if kept is None:  # else nothing is exchanged
            plan.give_up_forward()
        raise
    plan.forward(workspace, kept is not None, q, k, v, decay, beta, initial_state, o, final_state, cache)
    if kept is not None and kept.final_state is not None:
        final_state.copy_(kept.final_state)
    return o, final_state, cache


def backward(group: SequenceGroup, plan: Plan, q, k, v, decay, beta, initial_state, cache, d_o, d_final_state,
             decay_wanted: bool, beta_wanted: bool, initial_state_wanted: bool) -> Tuple[Optional[torch.Tensor], ...]:
    """Those of q, k, v, decay, beta and initial_state, the last three None where they are not wanted. d_o,
    d_final_state: None is zero."""
    try:
        if d_o is None:
            d_o = q.new_zeros(plan.output_shape)
        d_o = d_o.contiguous().resolve_neg()  # as planned; it nearly always is, and is copied where it is not
        if d_final_state is not None and plan.key.broadcast_final_state:
            d_final_state = group.sum(d_final_state)  # of all ranks' copies, for the one that the library reads
        elif d_final_state is not None:
            d_final_state = d_final_state.contiguous().resolve_neg()
        new_dq, new_dk, new_dv, new_d_decay, new_d_beta = plan.new_gradients
        dq, dk, dv = new_dq(q), new_dk(k), new_dv(v)
        d_decay = d_beta = d_initial_state = None
        if decay is not None and decay_wanted:
            d_decay = new_d_decay(decay)
        if beta is not None:  # the library always gives this one
            d_beta = new_d_beta(beta)
        if initial_state is not None and initial_state_wanted:
            d_initial_state = initial_state.new_zeros(initial_state.shape)
        workspace = group.workspace(plan.workspace_backward_bytes, plan)
    except BaseException:  # also where no memory is left
        plan.give_up_backward()
        raise
    plan.backward(workspace, (q, k, v, decay, beta, initial_state), d_o, d_final_state, cache, dq, dk, dv, d_decay,
                  d_beta, d_initial_state)
    return dq, dk, dv, d_decay, d_beta if beta_wanted else None, d_initial_state
