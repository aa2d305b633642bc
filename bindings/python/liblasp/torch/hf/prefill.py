"""prefill: a prompt over the ranks, and then every rank has the whole cache, to decode from."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

import torch
from torch import nn

import liblasp

from ..problem import invalid_argument
from ..sharding import gather, last_tokens
from .batch import shard
from .state import parallel_of, remember_prompt


# Those whose caches the tests compare: state, the convolution's last inputs, and keys and values of any softmax layer.
_SERVED = ("minimax", "mamba2", "qwen3_next", "qwen3_5_text", "olmo_hybrid", "kimi_linear", "bamba", "falcon_h1",
           "granitemoehybrid", "nemotron_h", "zamba2")


@torch.no_grad()
def prefill(model: nn.Module, batch: Mapping[str, Any]) -> Tuple[torch.Tensor, Any]:
    """The logits [B, words] behind a prompt, and the cache of transformers that the model decodes from, both the same on
    every rank. Then, in `with whole(model)`, model.generate(prompt_and_next_token, past_key_values=cache) goes on.
    Without softmax layers generate takes the next token alone (Mamba-2: cache_params=cache), and the model refuses the
    prompt again. MiniMax's generate takes up no cache: model(input_ids=token, position_ids=..., past_key_values=cache,
    use_cache=True), token by token.

    model: parallelized, in evaluation mode. batch: as in shard, without labels and packing, padded on the left alone;
    without position_ids, positions count from each row's first token behind the padding, as generate has it.
    Collective. Raises liblasp.InvalidArgument (a ValueError) and liblasp.Unsupported.
    """
    parallel = parallel_of(model)
    group = parallel.group
    if model.config.model_type not in _SERVED:
        raise liblasp.Unsupported(f"prefill of {type(model).__name__}: serves the models of {', '.join(_SERVED)}")
    if isinstance(batch, Mapping):
        batch = _with_positions({name: each for name, each in batch.items() if name != "labels"})
    with shard(model, batch) as local:
        share = parallel.now
        if share.cu_seqlens is not None or model.training:
            raise invalid_argument("prefill: takes a batch that is not packed, and a model in evaluation mode")
        parallel.prefilled = []
        try:
            found = model(**{**local, "use_cache": True})
            rows = parallel.prefilled
        finally:
            parallel.prefilled = None
    cache = found.cache_params if "cache_params" in found else found.past_key_values
    for layer in cache.layers:
        if getattr(layer, "is_conv_states_initialized", {}).get(0):
            layer.conv_states[0].copy_(rows.pop(0))
        if getattr(layer, "keys", None) is not None and layer.keys.numel():
            for name in ("keys", "values"):
                own = getattr(layer, name).transpose(1, 2)
                setattr(layer, name, gather(own, group, share.total).transpose(1, 2).contiguous())
    remember_prompt(cache, batch.get("input_ids"))
    return last_tokens(found.logits, 1, group, share.total)[:, 0], cache


def _with_positions(batch: Dict[str, Any]) -> Dict[str, Any]:
    mask = batch.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or batch.get("position_ids") is not None:
        return batch
    return {**batch, "position_ids": (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)}
