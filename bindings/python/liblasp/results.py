"""What a plan tells of itself, and what backward gives."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

from .enums import Schedule
from .protocols import Array

__all__ = ["PlanInfo", "Owners", "Gradients", "GradientArrays"]


class PlanInfo(NamedTuple):
    """What a plan needs and will do; sizes are this rank's. The fields of lasp_plan_info.

    workspace_forward_bytes, workspace_backward_bytes  of the calls' workspace
    workspace_add_bytes           of that of a backward call that adds to dv
    state_cache_bytes             of the cache that forward leaves for backward; 0 without backward
    state_cache_incoming_bytes, state_cache_chunks_bytes  the same problem's with cache "incoming" and "chunks"
    alignment                     of workspace and cache, in bytes
    forward_bytes_sent, backward_bytes_sent, forward_messages_sent, backward_messages_sent  by this rank in a call
    token_begin, total_tokens     global index of this rank's first token; tokens of all ranks, of one batch row
    num_sequences, heads          N and H, the first dimensions of states
    local_chunks, chunk           chunks of this rank over all rows; tokens of each
    rank, nranks                  this rank and the size of the group
    schedule, pieces              the schedule chosen; pieces of "all_scan", else 1
    predicted_us                  exchange time by the model, by schedule: [0] of the one chosen, then ring,
                                  all_gather, all_scan, doubling, head_scatter, relay; -1 for what is not possible here
    num_runs                      the most runs of tokens that any rank has
    """

    workspace_forward_bytes: int
    workspace_backward_bytes: int
    workspace_add_bytes: int
    state_cache_bytes: int
    state_cache_incoming_bytes: int
    state_cache_chunks_bytes: int
    alignment: int
    forward_bytes_sent: int
    backward_bytes_sent: int
    forward_messages_sent: int
    backward_messages_sent: int
    token_begin: int
    total_tokens: int
    num_sequences: int
    local_chunks: int
    rank: int
    nranks: int
    heads: int
    chunk: int
    schedule: Schedule
    pieces: int
    predicted_us: tuple[float, ...]
    num_runs: int


class Owners(NamedTuple):
    """Which ranks hold a run of tokens: `first_rank` its first, `last_rank` its last one."""

    first_rank: int
    last_rank: int


class Gradients(NamedTuple):
    """What backward gives: dq [B, T, Hq, K], dk [B, T, Hk, K], dv [B, T, Hv, V] of the inputs' dtype, d_decay shaped
    like the decay, d_beta [B, T, H], d_initial_state [N, H, K, V] float32. None for what the problem has not or was
    not asked for."""

    dq: Any
    dk: Any
    dv: Any
    d_decay: Any
    d_beta: Any
    d_initial_state: Any


class GradientArrays(TypedDict, total=False):
    """Arrays for backward to write, by name."""

    dq: Array
    dk: Array
    dv: Array
    d_beta: Array
