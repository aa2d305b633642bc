//! The header's INIT macros, which bindgen cannot read. The layout test holds every byte to the compiled header's.
use std::mem::size_of;
use std::ptr::{null, null_mut};

use crate::bindings::*;

/// No buffer: absent.
pub const LASP_BUFFER_INIT: lasp_buffer = lasp_buffer { data: null_mut(), bytes: 0 };
/// No buffer: absent.
pub const LASP_CONST_BUFFER_INIT: lasp_const_buffer = lasp_const_buffer { data: null(), bytes: 0 };
/// Contiguous, of the usual type.
pub const LASP_LAYOUT_INIT: lasp_layout =
    lasp_layout { dtype: LASP_DTYPE_DEFAULT, flags: 0, batch: 0, token: 0, head: 0, reserved: [0; 2] };

pub const LASP_BUILD_INFO_INIT: lasp_build_info = lasp_build_info {
    size: size_of::<lasp_build_info>(),
    version: null(),
    compiler: null(),
    flags: null(),
    blas: null(),
    cuda: null(),
    nccl: null(),
    has_cuda: 0,
    has_nccl: 0,
    cpu_count: 0,
    reserved: 0,
};

pub const LASP_NCCL_FUNCTIONS_INIT: lasp_nccl_functions = lasp_nccl_functions {
    size: size_of::<lasp_nccl_functions>(),
    get_version: None,
    comm_count: None,
    comm_user_rank: None,
    comm_cu_device: None,
    comm_get_async_error: None,
    get_error_string: None,
    send: None,
    recv: None,
    all_gather: None,
    group_start: None,
    group_end: None,
};

pub const LASP_TRANSPORT_INIT: lasp_transport = lasp_transport {
    size: size_of::<lasp_transport>(),
    name: null(),
    rank: 0,
    nranks: 1,
    local_ranks: 0,
    memory: LASP_DEVICE_CPU,
    latency_us: 0.0,
    bandwidth_gbs: 0.0,
    send: None,
    receive: None,
    test: None,
    wait: None,
    cancel: None,
    abort: None,
    destroy: None,
    wait_for: None,
    peer_state: None,
};

pub const LASP_TRAFFIC_INIT: lasp_traffic = lasp_traffic {
    size: size_of::<lasp_traffic>(),
    bytes_sent: 0,
    bytes_received: 0,
    messages_sent: 0,
    messages_received: 0,
    wait_seconds: 0.0,
};

pub const LASP_CONTEXT_OPTIONS_INIT: lasp_context_options = lasp_context_options {
    size: size_of::<lasp_context_options>(),
    device: LASP_DEVICE_AUTO,
    device_index: -1,
    time_limit_ms: 0,
    cpu_threads: 0,
    log_level: LASP_LOG_OFF,
    log: None,
    log_user: null_mut(),
    latency_us: 0.0,
    bandwidth_gbs: 0.0,
    profiler_ranges: 0,
    verify_messages: 0,
    interrupted: None,
    interrupted_user: null_mut(),
    check_values: 0,
    reserved: 0,
};

pub const LASP_PROBLEM_INIT: lasp_problem = lasp_problem {
    size: size_of::<lasp_problem>(),
    batch: 1,
    tokens: 0,
    heads_q: 1,
    heads_k: 1,
    heads_v: 1,
    head_dim_k: 0,
    head_dim_v: 0,
    dtype: LASP_FLOAT32,
    decay: LASP_DECAY_NONE,
    write: LASP_WRITE_ADDITIVE,
    mask: LASP_MASK_CAUSAL,
    scale_given: 0,
    scale: 0.0,
    ownership: LASP_OWN_CONTIGUOUS,
    max_sequences: 0,
    schedule: LASP_SCHEDULE_AUTO,
    pieces: 0,
    cache: LASP_CACHE_CHUNKS,
    chunk: 0,
    backward: 1,
    broadcast_final_state: 0,
    q: LASP_LAYOUT_INIT,
    k: LASP_LAYOUT_INIT,
    v: LASP_LAYOUT_INIT,
    o: LASP_LAYOUT_INIT,
    decay_layout: LASP_LAYOUT_INIT,
    beta_layout: LASP_LAYOUT_INIT,
    dq: LASP_LAYOUT_INIT,
    dk: LASP_LAYOUT_INIT,
    dv: LASP_LAYOUT_INIT,
    d_o: LASP_LAYOUT_INIT,
    d_decay_layout: LASP_LAYOUT_INIT,
    d_beta_layout: LASP_LAYOUT_INIT,
    segment: 0,
    runs: null(),
    num_runs: 0,
};

pub const LASP_PLAN_INFO_INIT: lasp_plan_info = lasp_plan_info {
    size: size_of::<lasp_plan_info>(),
    workspace_forward_bytes: 0,
    workspace_backward_bytes: 0,
    state_cache_bytes: 0,
    state_cache_incoming_bytes: 0,
    state_cache_chunks_bytes: 0,
    alignment: 0,
    forward_bytes_sent: 0,
    backward_bytes_sent: 0,
    forward_messages_sent: 0,
    backward_messages_sent: 0,
    token_begin: 0,
    total_tokens: 0,
    num_sequences: 0,
    local_chunks: 0,
    rank: 0,
    nranks: 0,
    heads: 0,
    chunk: 0,
    schedule: 0,
    pieces: 0,
    predicted_us: [0.0; 16],
    num_runs: 0,
    carry_forward_bytes: 0,
    carry_backward_bytes: 0,
    map_bytes: 0,
    map_transition_offset: 0,
    transition: 0,
    reserved: 0,
    workspace_add_bytes: 0,
};

pub const LASP_PACKING_INIT: lasp_packing = lasp_packing {
    size: size_of::<lasp_packing>(),
    cu_seqlens: LASP_CONST_BUFFER_INIT,
    num_sequences: 0,
    dtype: LASP_INT64,
    memory: LASP_DEVICE_AUTO,
};

pub const LASP_FORWARD_ARGS_INIT: lasp_forward_args = lasp_forward_args {
    size: size_of::<lasp_forward_args>(),
    q: LASP_CONST_BUFFER_INIT,
    k: LASP_CONST_BUFFER_INIT,
    v: LASP_CONST_BUFFER_INIT,
    decay: LASP_CONST_BUFFER_INIT,
    beta: LASP_CONST_BUFFER_INIT,
    initial_state: LASP_CONST_BUFFER_INIT,
    o: LASP_BUFFER_INIT,
    final_state: LASP_BUFFER_INIT,
    state_cache: LASP_BUFFER_INIT,
    workspace: LASP_BUFFER_INIT,
    reuse_state_cache: 0,
    reserved: 0,
    maps: LASP_BUFFER_INIT,
    incoming: LASP_CONST_BUFFER_INIT,
    carry: LASP_BUFFER_INIT,
    packing: null(),
};

pub const LASP_BACKWARD_ARGS_INIT: lasp_backward_args = lasp_backward_args {
    size: size_of::<lasp_backward_args>(),
    q: LASP_CONST_BUFFER_INIT,
    k: LASP_CONST_BUFFER_INIT,
    v: LASP_CONST_BUFFER_INIT,
    decay: LASP_CONST_BUFFER_INIT,
    beta: LASP_CONST_BUFFER_INIT,
    initial_state: LASP_CONST_BUFFER_INIT,
    d_o: LASP_CONST_BUFFER_INIT,
    d_final_state: LASP_CONST_BUFFER_INIT,
    state_cache: LASP_CONST_BUFFER_INIT,
    dq: LASP_BUFFER_INIT,
    dk: LASP_BUFFER_INIT,
    dv: LASP_BUFFER_INIT,
    d_decay: LASP_BUFFER_INIT,
    d_beta: LASP_BUFFER_INIT,
    d_initial_state: LASP_BUFFER_INIT,
    workspace: LASP_BUFFER_INIT,
    add: 0,
    reserved: 0,
    maps: LASP_BUFFER_INIT,
    incoming: LASP_CONST_BUFFER_INIT,
    carry: LASP_BUFFER_INIT,
    packing: null(),
};

pub const LASP_PLACEMENT_INIT: lasp_placement = lasp_placement {
    size: size_of::<lasp_placement>(),
    rank: 0,
    nranks: 1,
    device: LASP_DEVICE_CPU,
    capability: 0,
    multiprocessors: 0,
    reserved: 0,
};

pub const LASP_MAPS_ARGS_INIT: lasp_maps_args = lasp_maps_args {
    size: size_of::<lasp_maps_args>(),
    maps: LASP_CONST_BUFFER_INIT,
    incoming: LASP_BUFFER_INIT,
    later: LASP_CONST_BUFFER_INIT,
    earlier: LASP_CONST_BUFFER_INIT,
    to: LASP_BUFFER_INIT,
    backward: 0,
    reserved: 0,
};

pub const LASP_STEP_ARGS_INIT: lasp_step_args = lasp_step_args {
    size: size_of::<lasp_step_args>(),
    q: LASP_CONST_BUFFER_INIT,
    k: LASP_CONST_BUFFER_INIT,
    v: LASP_CONST_BUFFER_INIT,
    decay: LASP_CONST_BUFFER_INIT,
    beta: LASP_CONST_BUFFER_INIT,
    state: LASP_BUFFER_INIT,
    o: LASP_BUFFER_INIT,
    tokens: 0,
};

pub const LASP_GROUPS_INIT: lasp_groups = lasp_groups {
    size: size_of::<lasp_groups>(),
    sequence_rank: 0,
    sequence_ranks: 0,
    sequence_group: 0,
    data_rank: 0,
    data_ranks: 0,
    data_group: 0,
};

pub const LASP_TRACE_OPTIONS_INIT: lasp_trace_options =
    lasp_trace_options { size: size_of::<lasp_trace_options>(), max_records: 0 };

pub const LASP_HALO_OPTIONS_INIT: lasp_halo_options = lasp_halo_options {
    size: size_of::<lasp_halo_options>(),
    rows: 1,
    channels: 0,
    x: LASP_LAYOUT_INIT,
    d_x: LASP_LAYOUT_INIT,
};

pub const LASP_HALO_INFO_INIT: lasp_halo_info = lasp_halo_info {
    size: size_of::<lasp_halo_info>(),
    workspace_bytes: 0,
    before_bytes: 0,
    d_before_bytes: 0,
    forward_bytes_sent: 0,
    backward_bytes_sent: 0,
    forward_messages_sent: 0,
    backward_messages_sent: 0,
};

pub const LASP_HALO_ARGS_INIT: lasp_halo_args = lasp_halo_args {
    size: size_of::<lasp_halo_args>(),
    x: LASP_CONST_BUFFER_INIT,
    before: LASP_BUFFER_INIT,
    d_before: LASP_CONST_BUFFER_INIT,
    d_x: LASP_BUFFER_INIT,
    workspace: LASP_BUFFER_INIT,
    packing: null(),
};
