"""MiniMax's linear layers, whose attention stands in their forward pass itself."""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn

from ..attention import linear_attention
from ..problem import invalid_argument
from .state import LOCAL, WHOLE, Parallel


def lightning_attention(parallel: Parallel, name: str, module: nn.Module, own: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of a MiniMaxLightningAttention, which sentences call by its `name`."""
    for head, rate in enumerate([] if module.slope_rate.is_meta else module.slope_rate.flatten().tolist()):
        if not rate >= 0:  # NaN neither
            raise invalid_argument(f"{name} ({type(module).__name__}): slope_rate of head {head} = {rate:.3g}: must be at "
                                   "least 0, or the state would grow")

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **other):
        share = parallel.share(hidden_states.shape[1])
        if share == WHOLE:
            return own(self, hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
                       past_key_values=past_key_values, **other)
        qkv = self.act_fn(self.qkv_proj(hidden_states))
        if attention_mask is not None:
            qkv = (qkv * attention_mask[:, :, None]).to(qkv.dtype)
        q, k, v = qkv.unflatten(-1, (self.num_attention_heads, 3 * self.head_dim)).split(self.head_dim, -1)
        if share == LOCAL:
            o = v
        else:
            keep = past_key_values is not None
            o = linear_attention(q, k, v, -self.slope_rate.flatten().float(), scale=1.0, cu_seqlens=share.cu_seqlens,
                                 group=parallel.group, total_tokens=share.total, output_final_state=keep,
                                 broadcast_final_state=keep)
            if keep:
                o, state = o
                past_key_values.set_linear_cache(self.layer_idx, state.to(v.dtype))
        o = self.norm(o.flatten(-2))
        return self.out_proj(torch.sigmoid(self.output_gate(hidden_states)) * o), None
    return forward
