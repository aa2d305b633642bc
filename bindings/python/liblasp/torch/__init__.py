"""liblasp.torch: linear attention over a split sequence, for PyTorch.

    from liblasp.torch import LinearAttention, init_groups
    groups = init_groups(sequence_ranks=4)                    # torch.distributed is initialised
    attention = LinearAttention(1024, 8, group=groups.sequence)
    y = attention(x)                                          # x [B, T, 1024]: this rank's tokens

linear_attention is the function below the module, checkpoint the activation checkpointing that exchanges nothing
twice, time_segments a training step over any length in the memory of a piece of it, SequenceGroup what a process group
does not say: time limit, threads, schedule.
"""
import torch as _torch

if not hasattr(_torch.nn.functional, "rms_norm"):
    raise ImportError(f"liblasp.torch needs PyTorch 2.4 or later; this is {_torch.__version__}")

from liblasp.arrays import learn_torch_type as _learn_torch_type

from .attention import linear_attention, linear_attention_step
from .checkpointing import checkpoint, keep_states
from .convolution import ShortConvolution, causal_conv1d
from .delta import delta_rule, gated_delta_rule, kda
from .delta_layers import DeltaNet, DeltaState, GatedDeltaNet, KimiDeltaAttention
from .groups import Groups, init_groups
from .module import LinearAttention, alibi_slopes
from .segments import time_segments
from .sequence_group import SequenceGroup, sequence_group
from .sharding import gather, shard, shard_bounds, shard_with_targets, shift
from .softmax import softmax_attention
from .verifying import verify
from .vocabulary import cross_entropy, linear_cross_entropy

for _type in (_torch.Tensor, _torch.nn.Parameter):
    _learn_torch_type(_type)

__all__ = ["DeltaNet", "DeltaState", "GatedDeltaNet", "Groups", "KimiDeltaAttention", "LinearAttention",
           "SequenceGroup", "ShortConvolution", "alibi_slopes", "causal_conv1d", "checkpoint", "cross_entropy",
           "delta_rule", "gated_delta_rule", "gather", "init_groups", "kda", "keep_states", "linear_attention",
           "linear_attention_step", "linear_cross_entropy", "sequence_group", "shard", "shard_bounds",
           "shard_with_targets", "shift", "softmax_attention", "time_segments",
           "verify"]
