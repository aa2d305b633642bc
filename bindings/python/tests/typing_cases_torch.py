"""The same of liblasp.torch. It is not run: a checker without torch takes a tensor for anything."""

from __future__ import annotations

from typing import Any

from liblasp.torch import (LinearAttention, SequenceGroup, alibi_slopes, delta_rule, gated_delta_rule, init_groups, kda,
                           linear_attention, linear_attention_step, shard_bounds)


def right(q: Any, groups: Any) -> None:
    o = linear_attention(q, q, q, group=groups, state_cache="incoming")
    o, state = linear_attention(q, q, q, output_final_state=True, broadcast_final_state=True, cu_seqlens=[0, 4])
    linear_attention_step(q, q, q, state, scale=0.5)
    o = delta_rule(q, q, q, q, group=groups)
    o, state = gated_delta_rule(q, q, q, q, q, output_final_state=True, initial_state=q)
    o = kda(q, q, q, q, q, cu_seqlens=[0, 4])
    linear_attention_step(q, q, q, state, beta=q)
    attention = LinearAttention(64, 8, decay="channel", head_dim_v=16, group=groups)
    attention(o)
    SequenceGroup(groups, schedule="ring", time_limit=10.0, segment=256)
    begin, end = shard_bounds(10, 0, 2)
    alibi_slopes(4, 0.5)


def wrong(q: Any, groups: Any) -> None:
    linear_attention(q, q)  # error
    linear_attention(q, q, q, state_cache="all")  # error
    linear_attention(q, q, q, scale="1")  # error
    linear_attention(q, q, q, final_state=True)  # error
    linear_attention(q, q, q, output_final_state="yes")  # error
    linear_attention_step(q, q, q)  # error
    delta_rule(q, q, q)  # error
    gated_delta_rule(q, q, q, q)  # error
    kda(q, q, q, q, q, causal=True)  # error
    kda(q, q, q, q, q, scale="1")  # error
    LinearAttention(64)  # error
    LinearAttention(64, 8, decay="heda")  # error
    LinearAttention(64, 8, feature_map="relu")  # error
    LinearAttention(64, 8, state_cache="all")  # error
    LinearAttention(64, 8, head_dim=8)  # error
    LinearAttention(64, 8.0)  # error
    SequenceGroup(groups, schedule="quick")  # error
    SequenceGroup(groups, time_limit="10")  # error
    shard_bounds(10.0, 0, 2)  # error
    init_groups(sequence_ranks="4")  # error
