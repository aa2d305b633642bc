"""What torch asks about the operators: their derivatives, what vmap makes of them, how much they compute."""
from __future__ import annotations

from typing import List, Optional

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as has_transforms
from torch.utils.flop_counter import register_flop_formula

import liblasp

from .operators import BACKWARD, FORWARD, library, strides_of

_TENSORS = 7      # the first arguments of forward: q, k, v, decay, beta, initial_state, cu_seqlens
_TWICE = ("linear_attention has no second derivative: the library's backward pass cannot be differentiated "
          "(create_graph=True, or torch.func.grad of a gradient)")


# ---- Derivatives ----


def _keep_for_backward(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    *ctx.call, ctx.broadcast_final_state, _, ctx.output_final_state = inputs[_TENSORS:]
    ctx.save_for_backward(*inputs[:_TENSORS], output[2])


def _backward(ctx, d_o, d_final_state, _):
    *inputs, cache = ctx.saved_tensors
    if not ctx.output_final_state:
        d_final_state = None
    decay_wanted, beta_wanted, initial_state_wanted = (bool(wanted) for wanted in ctx.needs_input_grad[3:6])
    dq, dk, dv, d_decay, d_initial_state, d_beta = backward(
        d_o, d_final_state, cache, *inputs, *ctx.call, ctx.broadcast_final_state, decay_wanted, initial_state_wanted,
        beta_wanted)
    return (dq, dk, dv, d_decay if decay_wanted else None, d_beta if beta_wanted else None,
            d_initial_state if initial_state_wanted else None, *[None] * (len(ctx.call) + 4))


def _refuse_twice(ctx, *gradients):
    raise liblasp.Unsupported(_TWICE)


def _nothing(ctx, inputs, output) -> None:
    pass


torch.library.register_autograd("liblasp::forward", _backward, setup_context=_keep_for_backward, lib=library)
torch.library.register_autograd("liblasp::backward", _refuse_twice, setup_context=_nothing, lib=library)


# ---- vmap: the mapped dimension is folded into the batch ----


class _Folding:
    """Tensors of which some have a mapped dimension of `size`."""

    def __init__(self, info):
        self.size = info.batch_size

    def fold(self, tensor: Optional[Tensor], at: Optional[int]) -> Optional[Tensor]:
        """[size * B, ...] of [B, ...] with a mapped dimension `at`, or without one."""
        if tensor is None:
            return None
        mapped = tensor.expand(self.size, *tensor.shape) if at is None else tensor.movedim(at, 0)
        return mapped.flatten(0, 1)

    def unfold(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (self.size, -1)) if tensor.numel() or tensor.dim() > 1 else tensor

    def inputs(self, given, dims) -> List[Optional[Tensor]]:
        """Those of an operator from q to cu_seqlens."""
        q, k, v, decay, beta, initial_state, cu_seqlens = given
        if cu_seqlens is not None:
            raise liblasp.Unsupported("vmap of linear_attention with cu_seqlens: packed sequences have no batch to "
                                      "fold into; pack the mapped sequences too")
        if decay is not None and dims[3] is not None and decay.dim() == 2:
            raise liblasp.Unsupported("vmap of linear_attention over a decay [H]: give it for each token, as [B, T, H]")
        return [decay if each is decay and decay is not None and decay.dim() == 1 else self.fold(each, at)
                for each, at in zip((q, k, v, decay, beta, initial_state), dims)] + [None]


def _vmap_forward(info, dims, *given):
    folding = _Folding(info)
    inputs = folding.inputs(given[:_TENSORS], dims)
    o, final_state, cache = forward(*inputs, strides_of(*inputs[:5]), *given[_TENSORS + 1:])
    if not given[-1]:  # output_final_state
        return (folding.unfold(o), final_state, cache), (0, None, None)
    return (folding.unfold(o), folding.unfold(final_state), cache), (0, 0, None)


def _vmap_backward(info, dims, d_o, d_final_state, cache, *given):
    folding = _Folding(info)
    inputs = folding.inputs(given[:_TENSORS], dims[3:])
    *call, decay_wanted, initial_state_wanted, beta_wanted = given[_TENSORS + 1:]
    wanted = {3: decay_wanted, 5: initial_state_wanted, 4: beta_wanted}  # by the input's place
    decay = inputs[3]
    if decay_wanted and decay is not None and decay.dim() == 1:
        raise liblasp.Unsupported("vmap of the gradient by a decay [H]: give the decay for each token, as [B, T, H]")
    gradients = backward(folding.fold(d_o, dims[0]), folding.fold(d_final_state, dims[1]), cache, *inputs,
                         strides_of(*inputs[:5]), *call, *wanted.values())
    given_out = [True, True, True, *(each and inputs[at] is not None for at, each in wanted.items())]
    return (tuple(folding.unfold(gradient) if there else gradient for gradient, there in zip(gradients, given_out)),
            tuple(0 if there else None for there in given_out))


def _vmap_step(info, dims, *given):
    raise liblasp.Unsupported("vmap of linear_attention_step: fold the mapped dimension into the batch")


if hasattr(torch.library, "register_vmap"):  # PyTorch 2.5 and later
    torch.library.register_vmap("liblasp::forward", _vmap_forward, lib=library)
    torch.library.register_vmap("liblasp::backward", _vmap_backward, lib=library)
    torch.library.register_vmap("liblasp::step", _vmap_step, lib=library)


# ---- The same for torch.func, which does not take an operator's registered derivative ----


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(*given):
        return FORWARD(*given)

    setup_context = staticmethod(_keep_for_backward)
    backward = staticmethod(_backward)
    vmap = staticmethod(_vmap_forward)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(*given):
        return BACKWARD(*given)

    setup_context = staticmethod(_nothing)
    backward = staticmethod(_refuse_twice)
    vmap = staticmethod(_vmap_backward)


def forward(*given):
    """The operator, also under transforms of torch.func."""
    return _Forward.apply(*given) if has_transforms() else FORWARD(*given)


def backward(*given):
    """As `forward`."""
    return _Backward.apply(*given) if has_transforms() else BACKWARD(*given)


# ---- Floating-point operations ----


def _tokens_times_state(q, k, v) -> int:
    batch, tokens, heads_q, dim_k = q
    return batch * tokens * max(heads_q, k[2], v[2]) * dim_k * v[3]


@register_flop_formula(torch.ops.liblasp.step)
def step_flop(q, k, v, decay, state, scale=None, beta=None, **__) -> int:
    """As forward_flop."""
    return forward_flop(q, k, v, decay, beta)


@register_flop_formula(torch.ops.liblasp.forward)
def forward_flop(q, k, v, decay, beta, *_, **__) -> int:
    """4 B T H K V, those of the recurrence: two for each number of the state to take a token in, two to read it; with
    beta two more, to read it by the key. What the library's chunks add, and what a recomputation does again, are its
    own affair."""
    return (4 if beta is None else 6) * _tokens_times_state(q, k, v)


@register_flop_formula(torch.ops.liblasp.backward)
def backward_flop(d_o, d_final_state, cache, q, k, v, decay, beta, *_, **__) -> int:
    """8 B T H K V: dq, dk, dv, and the gradient of the state; with beta 12, for the key as a reader."""
    return (8 if beta is None else 12) * _tokens_times_state(q, k, v)
