# lasp.h as the C compiler sees it. Made by gen/generate.jl from lasp-layout; not edited by hand.
# A struct's keyword constructor starts from its INIT macro's values, as a C program would.

const LASP_VERSION_MAJOR = Int32(0)
const LASP_VERSION_MINOR = Int32(2)
const LASP_VERSION_PATCH = Int32(0)
const LASP_ABI = Int32(2)
const LASP_OK = Int32(0)
const LASP_ERROR_INVALID_ARGUMENT = Int32(100)
const LASP_ERROR_INVALID_HANDLE = Int32(101)
const LASP_ERROR_INVALID_STRUCT = Int32(102)
const LASP_ERROR_ABI_MISMATCH = Int32(103)
const LASP_ERROR_BUFFER_TOO_SMALL = Int32(104)
const LASP_ERROR_MISALIGNED = Int32(105)
const LASP_ERROR_IN_USE = Int32(106)
const LASP_ERROR_UNSUPPORTED = Int32(200)
const LASP_ERROR_NOT_BUILT = Int32(201)
const LASP_ERROR_NO_DEVICE = Int32(202)
const LASP_ERROR_LIBRARY_MISSING = Int32(203)
const LASP_ERROR_DEVICE_MEMORY = Int32(204)
const LASP_ERROR_DISAGREEMENT = Int32(300)
const LASP_ERROR_PEER_REFUSED = Int32(301)
const LASP_ERROR_INTERNAL = Int32(400)
const LASP_ERROR_OUT_OF_MEMORY = Int32(401)
const LASP_ERROR_DEVICE = Int32(402)
const LASP_ERROR_PEER_LOST = Int32(500)
const LASP_ERROR_ABORTED = Int32(501)
const LASP_ERROR_TRANSPORT = Int32(502)
const LASP_ERROR_VALUES = Int32(600)
const LASP_STATUS_FORCE_INT32 = Int32(2147483647)
const LASP_DEVICE_AUTO = Int32(0)
const LASP_DEVICE_CPU = Int32(1)
const LASP_DEVICE_CUDA = Int32(2)
const LASP_DEVICE_FORCE_INT32 = Int32(2147483647)
const LASP_PEER_UNKNOWN = Int32(0)
const LASP_PEER_WAITS = Int32(1)
const LASP_PEER_LEFT = Int32(2)
const LASP_PEER_FAILED = Int32(3)
const LASP_PEER_FORCE_INT32 = Int32(2147483647)
const LASP_LOG_OFF = Int32(0)
const LASP_LOG_WARNING = Int32(1)
const LASP_LOG_INFO = Int32(2)
const LASP_LOG_DEBUG = Int32(3)
const LASP_LOG_FORCE_INT32 = Int32(2147483647)
const LASP_DTYPE_DEFAULT = Int32(0)
const LASP_FLOAT32 = Int32(1)
const LASP_BFLOAT16 = Int32(2)
const LASP_FLOAT16 = Int32(3)
const LASP_INT32 = Int32(16)
const LASP_INT64 = Int32(17)
const LASP_DTYPE_FORCE_INT32 = Int32(2147483647)
const LASP_DECAY_NONE = Int32(0)
const LASP_DECAY_HEAD = Int32(1)
const LASP_DECAY_SCALAR = Int32(2)
const LASP_DECAY_CHANNEL = Int32(3)
const LASP_DECAY_FORCE_INT32 = Int32(2147483647)
const LASP_WRITE_ADDITIVE = Int32(0)
const LASP_WRITE_DELTA = Int32(1)
const LASP_WRITE_FORCE_INT32 = Int32(2147483647)
const LASP_MASK_CAUSAL = Int32(0)
const LASP_MASK_BIDIRECTIONAL = Int32(1)
const LASP_MASK_FORCE_INT32 = Int32(2147483647)
const LASP_OWN_CONTIGUOUS = Int32(0)
const LASP_OWN_ZIGZAG = Int32(1)
const LASP_OWN_ZIGZAG_EACH = Int32(2)
const LASP_OWN_RUNS = Int32(3)
const LASP_OWN_FORCE_INT32 = Int32(2147483647)
const LASP_SCHEDULE_AUTO = Int32(0)
const LASP_SCHEDULE_RING = Int32(1)
const LASP_SCHEDULE_ALL_GATHER = Int32(2)
const LASP_SCHEDULE_ALL_SCAN = Int32(3)
const LASP_SCHEDULE_DOUBLING = Int32(4)
const LASP_SCHEDULE_HEAD_SCATTER = Int32(5)
const LASP_SCHEDULE_RELAY = Int32(6)
const LASP_SCHEDULE_FORCE_INT32 = Int32(2147483647)
const LASP_CACHE_INCOMING = Int32(0)
const LASP_CACHE_CHUNKS = Int32(1)
const LASP_CACHE_FORCE_INT32 = Int32(2147483647)
const LASP_LAYOUT_STRIDED = Int32(1)
const LASP_LAYOUT_FORCE_INT32 = Int32(2147483647)
const LASP_ADD_DQ = Int32(1)
const LASP_ADD_DK = Int32(2)
const LASP_ADD_DV = Int32(4)
const LASP_ADD_D_DECAY = Int32(8)
const LASP_ADD_D_BETA = Int32(16)
const LASP_ADD_D_INITIAL_STATE = Int32(32)
const LASP_ADD_FORCE_INT32 = Int32(2147483647)
const LASP_TRANSITION_IDENTITY = Int32(0)
const LASP_TRANSITION_SCALAR = Int32(1)
const LASP_TRANSITION_DIAGONAL = Int32(2)
const LASP_TRANSITION_DENSE = Int32(3)
const LASP_TRANSITION_FORCE_INT32 = Int32(2147483647)

# Types that only C looks into.
struct CUstream_st end
struct ncclComm end
struct lasp_comm end
struct lasp_context end
struct lasp_plan end
struct lasp_halo end

const lasp_status = Int32
const lasp_stream = Ptr{CUstream_st}
const lasp_function = Ptr{Cvoid}
const lasp_log_function = Ptr{Cvoid}
const lasp_interrupted_function = Ptr{Cvoid}

struct lasp_build_info
    size::Csize_t
    version::Cstring
    compiler::Cstring
    flags::Cstring
    blas::Cstring
    cuda::Cstring
    nccl::Cstring
    has_cuda::Int32
    has_nccl::Int32
    cpu_count::Int32
    reserved::Int32
end
lasp_build_info(;
    size = 72,
    version = Cstring(C_NULL),
    compiler = Cstring(C_NULL),
    flags = Cstring(C_NULL),
    blas = Cstring(C_NULL),
    cuda = Cstring(C_NULL),
    nccl = Cstring(C_NULL),
    has_cuda = 0,
    has_nccl = 0,
    cpu_count = 0,
    reserved = 0) =
    lasp_build_info(size, version, compiler, flags, blas, cuda, nccl, has_cuda, has_nccl, cpu_count, reserved)

struct lasp_nccl_functions
    size::Csize_t
    get_version::lasp_function
    comm_count::lasp_function
    comm_user_rank::lasp_function
    comm_cu_device::lasp_function
    comm_get_async_error::lasp_function
    get_error_string::lasp_function
    send::lasp_function
    recv::lasp_function
    all_gather::lasp_function
    group_start::lasp_function
    group_end::lasp_function
end
lasp_nccl_functions(;
    size = 96,
    get_version = C_NULL,
    comm_count = C_NULL,
    comm_user_rank = C_NULL,
    comm_cu_device = C_NULL,
    comm_get_async_error = C_NULL,
    get_error_string = C_NULL,
    send = C_NULL,
    recv = C_NULL,
    all_gather = C_NULL,
    group_start = C_NULL,
    group_end = C_NULL) =
    lasp_nccl_functions(size, get_version, comm_count, comm_user_rank, comm_cu_device, comm_get_async_error, get_error_string, send, recv, all_gather, group_start, group_end)

struct lasp_transport
    size::Csize_t
    name::Cstring
    rank::Int32
    nranks::Int32
    local_ranks::Int32
    memory::Int32
    latency_us::Float64
    bandwidth_gbs::Float64
    send::Ptr{Cvoid}
    receive::Ptr{Cvoid}
    test::Ptr{Cvoid}
    wait::Ptr{Cvoid}
    cancel::Ptr{Cvoid}
    abort::Ptr{Cvoid}
    destroy::Ptr{Cvoid}
    wait_for::Ptr{Cvoid}
    peer_state::Ptr{Cvoid}
end
lasp_transport(;
    size = 120,
    name = Cstring(C_NULL),
    rank = 0,
    nranks = 1,
    local_ranks = 0,
    memory = 1,
    latency_us = 0.0,
    bandwidth_gbs = 0.0,
    send = C_NULL,
    receive = C_NULL,
    test = C_NULL,
    wait = C_NULL,
    cancel = C_NULL,
    abort = C_NULL,
    destroy = C_NULL,
    wait_for = C_NULL,
    peer_state = C_NULL) =
    lasp_transport(size, name, rank, nranks, local_ranks, memory, latency_us, bandwidth_gbs, send, receive, test, wait, cancel, abort, destroy, wait_for, peer_state)

struct lasp_traffic
    size::Csize_t
    bytes_sent::UInt64
    bytes_received::UInt64
    messages_sent::UInt64
    messages_received::UInt64
    wait_seconds::Float64
end
lasp_traffic(;
    size = 48,
    bytes_sent = 0,
    bytes_received = 0,
    messages_sent = 0,
    messages_received = 0,
    wait_seconds = 0.0) =
    lasp_traffic(size, bytes_sent, bytes_received, messages_sent, messages_received, wait_seconds)

struct lasp_context_options
    size::Csize_t
    device::Int32
    device_index::Int32
    time_limit_ms::Int64
    cpu_threads::Int32
    log_level::Int32
    log::lasp_log_function
    log_user::Ptr{Cvoid}
    latency_us::Float64
    bandwidth_gbs::Float64
    profiler_ranges::Int32
    verify_messages::Int32
    interrupted::lasp_interrupted_function
    interrupted_user::Ptr{Cvoid}
    check_values::Int32
    reserved::Int32
end
lasp_context_options(;
    size = 96,
    device = 0,
    device_index = -1,
    time_limit_ms = 0,
    cpu_threads = 0,
    log_level = 0,
    log = C_NULL,
    log_user = C_NULL,
    latency_us = 0.0,
    bandwidth_gbs = 0.0,
    profiler_ranges = 0,
    verify_messages = 0,
    interrupted = C_NULL,
    interrupted_user = C_NULL,
    check_values = 0,
    reserved = 0) =
    lasp_context_options(size, device, device_index, time_limit_ms, cpu_threads, log_level, log, log_user, latency_us, bandwidth_gbs, profiler_ranges, verify_messages, interrupted, interrupted_user, check_values, reserved)

struct lasp_run
    tokens::Int64
    rank::Int32
    reserved::Int32
end
lasp_run(;
    tokens = 0,
    rank = 0,
    reserved = 0) =
    lasp_run(tokens, rank, reserved)

struct lasp_layout
    dtype::Int32
    flags::Int32
    batch::Int64
    token::Int64
    head::Int64
    reserved::NTuple{2, Int64}
end
lasp_layout(;
    dtype = 0,
    flags = 0,
    batch = 0,
    token = 0,
    head = 0,
    reserved = ntuple(_ -> zero(Int64), 2)) =
    lasp_layout(dtype, flags, batch, token, head, reserved)

struct lasp_problem
    size::Csize_t
    batch::Int64
    tokens::Int64
    heads_q::Int32
    heads_k::Int32
    heads_v::Int32
    head_dim_k::Int32
    head_dim_v::Int32
    dtype::Int32
    decay::Int32
    write::Int32
    mask::Int32
    scale_given::Int32
    scale::Float32
    ownership::Int32
    max_sequences::Int64
    schedule::Int32
    pieces::Int32
    cache::Int32
    chunk::Int32
    backward::Int32
    broadcast_final_state::Int32
    q::lasp_layout
    k::lasp_layout
    v::lasp_layout
    o::lasp_layout
    decay_layout::lasp_layout
    beta_layout::lasp_layout
    dq::lasp_layout
    dk::lasp_layout
    dv::lasp_layout
    d_o::lasp_layout
    d_decay_layout::lasp_layout
    d_beta_layout::lasp_layout
    segment::Int64
    runs::Ptr{lasp_run}
    num_runs::Int64
end
lasp_problem(;
    size = 704,
    batch = 1,
    tokens = 0,
    heads_q = 1,
    heads_k = 1,
    heads_v = 1,
    head_dim_k = 0,
    head_dim_v = 0,
    dtype = 1,
    decay = 0,
    write = 0,
    mask = 0,
    scale_given = 0,
    scale = 0.0,
    ownership = 0,
    max_sequences = 0,
    schedule = 0,
    pieces = 0,
    cache = 1,
    chunk = 0,
    backward = 1,
    broadcast_final_state = 0,
    q = lasp_layout(),
    k = lasp_layout(),
    v = lasp_layout(),
    o = lasp_layout(),
    decay_layout = lasp_layout(),
    beta_layout = lasp_layout(),
    dq = lasp_layout(),
    dk = lasp_layout(),
    dv = lasp_layout(),
    d_o = lasp_layout(),
    d_decay_layout = lasp_layout(),
    d_beta_layout = lasp_layout(),
    segment = 0,
    runs = C_NULL,
    num_runs = 0) =
    lasp_problem(size, batch, tokens, heads_q, heads_k, heads_v, head_dim_k, head_dim_v, dtype, decay, write, mask, scale_given, scale, ownership, max_sequences, schedule, pieces, cache, chunk, backward, broadcast_final_state, q, k, v, o, decay_layout, beta_layout, dq, dk, dv, d_o, d_decay_layout, d_beta_layout, segment, runs, num_runs)

struct lasp_plan_info
    size::Csize_t
    workspace_forward_bytes::UInt64
    workspace_backward_bytes::UInt64
    state_cache_bytes::UInt64
    state_cache_incoming_bytes::UInt64
    state_cache_chunks_bytes::UInt64
    alignment::UInt64
    forward_bytes_sent::UInt64
    backward_bytes_sent::UInt64
    forward_messages_sent::UInt64
    backward_messages_sent::UInt64
    token_begin::Int64
    total_tokens::Int64
    num_sequences::Int64
    local_chunks::Int64
    rank::Int32
    nranks::Int32
    heads::Int32
    chunk::Int32
    schedule::Int32
    pieces::Int32
    predicted_us::NTuple{16, Float64}
    num_runs::Int64
    carry_forward_bytes::UInt64
    carry_backward_bytes::UInt64
    map_bytes::UInt64
    map_transition_offset::UInt64
    transition::Int32
    reserved::Int32
    workspace_add_bytes::UInt64
end
lasp_plan_info(;
    size = 328,
    workspace_forward_bytes = 0,
    workspace_backward_bytes = 0,
    state_cache_bytes = 0,
    state_cache_incoming_bytes = 0,
    state_cache_chunks_bytes = 0,
    alignment = 0,
    forward_bytes_sent = 0,
    backward_bytes_sent = 0,
    forward_messages_sent = 0,
    backward_messages_sent = 0,
    token_begin = 0,
    total_tokens = 0,
    num_sequences = 0,
    local_chunks = 0,
    rank = 0,
    nranks = 0,
    heads = 0,
    chunk = 0,
    schedule = 0,
    pieces = 0,
    predicted_us = ntuple(_ -> zero(Float64), 16),
    num_runs = 0,
    carry_forward_bytes = 0,
    carry_backward_bytes = 0,
    map_bytes = 0,
    map_transition_offset = 0,
    transition = 0,
    reserved = 0,
    workspace_add_bytes = 0) =
    lasp_plan_info(size, workspace_forward_bytes, workspace_backward_bytes, state_cache_bytes, state_cache_incoming_bytes, state_cache_chunks_bytes, alignment, forward_bytes_sent, backward_bytes_sent, forward_messages_sent, backward_messages_sent, token_begin, total_tokens, num_sequences, local_chunks, rank, nranks, heads, chunk, schedule, pieces, predicted_us, num_runs, carry_forward_bytes, carry_backward_bytes, map_bytes, map_transition_offset, transition, reserved, workspace_add_bytes)

struct lasp_placement
    size::Csize_t
    rank::Int32
    nranks::Int32
    device::Int32
    capability::Int32
    multiprocessors::Int32
    reserved::Int32
end
lasp_placement(;
    size = 32,
    rank = 0,
    nranks = 1,
    device = 1,
    capability = 0,
    multiprocessors = 0,
    reserved = 0) =
    lasp_placement(size, rank, nranks, device, capability, multiprocessors, reserved)

struct lasp_buffer
    data::Ptr{Cvoid}
    bytes::Csize_t
end
lasp_buffer(;
    data = C_NULL,
    bytes = 0) =
    lasp_buffer(data, bytes)

struct lasp_const_buffer
    data::Ptr{Cvoid}
    bytes::Csize_t
end
lasp_const_buffer(;
    data = C_NULL,
    bytes = 0) =
    lasp_const_buffer(data, bytes)

struct lasp_packing
    size::Csize_t
    cu_seqlens::lasp_const_buffer
    num_sequences::Int64
    dtype::Int32
    memory::Int32
end
lasp_packing(;
    size = 40,
    cu_seqlens = lasp_const_buffer(),
    num_sequences = 0,
    dtype = 17,
    memory = 0) =
    lasp_packing(size, cu_seqlens, num_sequences, dtype, memory)

struct lasp_forward_args
    size::Csize_t
    q::lasp_const_buffer
    k::lasp_const_buffer
    v::lasp_const_buffer
    decay::lasp_const_buffer
    beta::lasp_const_buffer
    initial_state::lasp_const_buffer
    o::lasp_buffer
    final_state::lasp_buffer
    state_cache::lasp_buffer
    workspace::lasp_buffer
    reuse_state_cache::Int32
    reserved::Int32
    maps::lasp_buffer
    incoming::lasp_const_buffer
    carry::lasp_buffer
    packing::Ptr{lasp_packing}
end
lasp_forward_args(;
    size = 232,
    q = lasp_const_buffer(),
    k = lasp_const_buffer(),
    v = lasp_const_buffer(),
    decay = lasp_const_buffer(),
    beta = lasp_const_buffer(),
    initial_state = lasp_const_buffer(),
    o = lasp_buffer(),
    final_state = lasp_buffer(),
    state_cache = lasp_buffer(),
    workspace = lasp_buffer(),
    reuse_state_cache = 0,
    reserved = 0,
    maps = lasp_buffer(),
    incoming = lasp_const_buffer(),
    carry = lasp_buffer(),
    packing = C_NULL) =
    lasp_forward_args(size, q, k, v, decay, beta, initial_state, o, final_state, state_cache, workspace, reuse_state_cache, reserved, maps, incoming, carry, packing)

struct lasp_backward_args
    size::Csize_t
    q::lasp_const_buffer
    k::lasp_const_buffer
    v::lasp_const_buffer
    decay::lasp_const_buffer
    beta::lasp_const_buffer
    initial_state::lasp_const_buffer
    d_o::lasp_const_buffer
    d_final_state::lasp_const_buffer
    state_cache::lasp_const_buffer
    dq::lasp_buffer
    dk::lasp_buffer
    dv::lasp_buffer
    d_decay::lasp_buffer
    d_beta::lasp_buffer
    d_initial_state::lasp_buffer
    workspace::lasp_buffer
    add::Int32
    reserved::Int32
    maps::lasp_buffer
    incoming::lasp_const_buffer
    carry::lasp_buffer
    packing::Ptr{lasp_packing}
end
lasp_backward_args(;
    size = 328,
    q = lasp_const_buffer(),
    k = lasp_const_buffer(),
    v = lasp_const_buffer(),
    decay = lasp_const_buffer(),
    beta = lasp_const_buffer(),
    initial_state = lasp_const_buffer(),
    d_o = lasp_const_buffer(),
    d_final_state = lasp_const_buffer(),
    state_cache = lasp_const_buffer(),
    dq = lasp_buffer(),
    dk = lasp_buffer(),
    dv = lasp_buffer(),
    d_decay = lasp_buffer(),
    d_beta = lasp_buffer(),
    d_initial_state = lasp_buffer(),
    workspace = lasp_buffer(),
    add = 0,
    reserved = 0,
    maps = lasp_buffer(),
    incoming = lasp_const_buffer(),
    carry = lasp_buffer(),
    packing = C_NULL) =
    lasp_backward_args(size, q, k, v, decay, beta, initial_state, d_o, d_final_state, state_cache, dq, dk, dv, d_decay, d_beta, d_initial_state, workspace, add, reserved, maps, incoming, carry, packing)

struct lasp_step_args
    size::Csize_t
    q::lasp_const_buffer
    k::lasp_const_buffer
    v::lasp_const_buffer
    decay::lasp_const_buffer
    beta::lasp_const_buffer
    state::lasp_buffer
    o::lasp_buffer
    tokens::Int64
end
lasp_step_args(;
    size = 128,
    q = lasp_const_buffer(),
    k = lasp_const_buffer(),
    v = lasp_const_buffer(),
    decay = lasp_const_buffer(),
    beta = lasp_const_buffer(),
    state = lasp_buffer(),
    o = lasp_buffer(),
    tokens = 0) =
    lasp_step_args(size, q, k, v, decay, beta, state, o, tokens)

struct lasp_maps_args
    size::Csize_t
    maps::lasp_const_buffer
    incoming::lasp_buffer
    later::lasp_const_buffer
    earlier::lasp_const_buffer
    to::lasp_buffer
    backward::Int32
    reserved::Int32
end
lasp_maps_args(;
    size = 96,
    maps = lasp_const_buffer(),
    incoming = lasp_buffer(),
    later = lasp_const_buffer(),
    earlier = lasp_const_buffer(),
    to = lasp_buffer(),
    backward = 0,
    reserved = 0) =
    lasp_maps_args(size, maps, incoming, later, earlier, to, backward, reserved)

struct lasp_halo_options
    size::Csize_t
    rows::Int64
    channels::Int64
    x::lasp_layout
    d_x::lasp_layout
end
lasp_halo_options(;
    size = 120,
    rows = 1,
    channels = 0,
    x = lasp_layout(),
    d_x = lasp_layout()) =
    lasp_halo_options(size, rows, channels, x, d_x)

struct lasp_halo_info
    size::Csize_t
    workspace_bytes::UInt64
    before_bytes::UInt64
    d_before_bytes::UInt64
    forward_bytes_sent::UInt64
    backward_bytes_sent::UInt64
    forward_messages_sent::UInt64
    backward_messages_sent::UInt64
end
lasp_halo_info(;
    size = 64,
    workspace_bytes = 0,
    before_bytes = 0,
    d_before_bytes = 0,
    forward_bytes_sent = 0,
    backward_bytes_sent = 0,
    forward_messages_sent = 0,
    backward_messages_sent = 0) =
    lasp_halo_info(size, workspace_bytes, before_bytes, d_before_bytes, forward_bytes_sent, backward_bytes_sent, forward_messages_sent, backward_messages_sent)

struct lasp_halo_args
    size::Csize_t
    x::lasp_const_buffer
    before::lasp_buffer
    d_before::lasp_const_buffer
    d_x::lasp_buffer
    workspace::lasp_buffer
    packing::Ptr{lasp_packing}
end
lasp_halo_args(;
    size = 96,
    x = lasp_const_buffer(),
    before = lasp_buffer(),
    d_before = lasp_const_buffer(),
    d_x = lasp_buffer(),
    workspace = lasp_buffer(),
    packing = C_NULL) =
    lasp_halo_args(size, x, before, d_before, d_x, workspace, packing)

struct lasp_trace_options
    size::Csize_t
    max_records::Int64
end
lasp_trace_options(;
    size = 16,
    max_records = 0) =
    lasp_trace_options(size, max_records)

struct lasp_groups
    size::Csize_t
    sequence_rank::Int32
    sequence_ranks::Int32
    sequence_group::Int32
    data_rank::Int32
    data_ranks::Int32
    data_group::Int32
end
lasp_groups(;
    size = 32,
    sequence_rank = 0,
    sequence_ranks = 0,
    sequence_group = 0,
    data_rank = 0,
    data_ranks = 0,
    data_group = 0) =
    lasp_groups(size, sequence_rank, sequence_ranks, sequence_group, data_rank, data_ranks, data_group)

@entry lasp_last_error()::Cstring
@entry lasp_set_last_error(status::lasp_status, sentence::Cstring)::lasp_status
@entry lasp_status_name(status::lasp_status)::Cstring
@entry lasp_version(major::Ptr{Int32}, minor::Ptr{Int32}, patch::Ptr{Int32}, abi::Ptr{Int32})::lasp_status
@entry lasp_get_build_info(info::Ptr{lasp_build_info})::lasp_status
@entry lasp_comm_create_self(comm::Ptr{Ptr{lasp_comm}})::lasp_status
@entry lasp_comm_create_threads(nranks::Int32, comms::Ptr{Ptr{lasp_comm}})::lasp_status
@entry lasp_comm_create_detached(rank::Int32, nranks::Int32, comm::Ptr{Ptr{lasp_comm}})::lasp_status
@entry lasp_comm_create_nccl(nccl::Ptr{ncclComm}, functions::Ptr{lasp_nccl_functions}, comm::Ptr{Ptr{lasp_comm}})::lasp_status
@entry lasp_comm_create_custom(transport::Ptr{lasp_transport}, user::Ptr{Cvoid}, comm::Ptr{Ptr{lasp_comm}})::lasp_status
@entry lasp_comm_get_rank(comm::Ptr{lasp_comm}, rank::Ptr{Int32}, nranks::Ptr{Int32})::lasp_status
@entry lasp_comm_get_traffic(comm::Ptr{lasp_comm}, traffic::Ptr{lasp_traffic})::lasp_status
@entry lasp_comm_destroy(comm::Ptr{lasp_comm})::lasp_status
@entry lasp_context_options_init(options::Ptr{lasp_context_options}, size::Csize_t)::lasp_status
@entry lasp_context_create(header_abi::Int32, comm::Ptr{lasp_comm}, options::Ptr{lasp_context_options}, context::Ptr{Ptr{lasp_context}})::lasp_status
@entry lasp_context_get_device(context::Ptr{lasp_context}, device::Ptr{Int32}, device_index::Ptr{Int32})::lasp_status
@entry lasp_context_get_async_error(context::Ptr{lasp_context}, status::Ptr{lasp_status}, text::Ptr{UInt8}, capacity::Csize_t)::lasp_status
@entry lasp_context_abort(context::Ptr{lasp_context})::lasp_status
@entry lasp_context_destroy(context::Ptr{lasp_context})::lasp_status
@entry lasp_problem_init(problem::Ptr{lasp_problem}, size::Csize_t)::lasp_status
@entry lasp_plan_create(context::Ptr{lasp_context}, problem::Ptr{lasp_problem}, plan::Ptr{Ptr{lasp_plan}})::lasp_status
@entry lasp_plan_get_info(plan::Ptr{lasp_plan}, info::Ptr{lasp_plan_info})::lasp_status
@entry lasp_problem_get_info(problem::Ptr{lasp_problem}, placement::Ptr{lasp_placement}, info::Ptr{lasp_plan_info})::lasp_status
@entry lasp_plan_get_owners(plan::Ptr{lasp_plan}, begin_::Int64, end_::Int64, first_rank::Ptr{Int32}, last_rank::Ptr{Int32})::lasp_status
@entry lasp_plan_describe(plan::Ptr{lasp_plan}, text::Ptr{UInt8}, capacity::Csize_t, needed::Ptr{Csize_t})::lasp_status
@entry lasp_plan_prepare(plan::Ptr{lasp_plan}, stream::lasp_stream)::lasp_status
@entry lasp_plan_destroy(plan::Ptr{lasp_plan})::lasp_status
@entry lasp_forward_args_init(args::Ptr{lasp_forward_args}, size::Csize_t)::lasp_status
@entry lasp_forward(plan::Ptr{lasp_plan}, args::Ptr{lasp_forward_args}, stream::lasp_stream)::lasp_status
@entry lasp_backward_args_init(args::Ptr{lasp_backward_args}, size::Csize_t)::lasp_status
@entry lasp_backward(plan::Ptr{lasp_plan}, args::Ptr{lasp_backward_args}, stream::lasp_stream)::lasp_status
@entry lasp_step_args_init(args::Ptr{lasp_step_args}, size::Csize_t)::lasp_status
@entry lasp_step(plan::Ptr{lasp_plan}, args::Ptr{lasp_step_args}, stream::lasp_stream)::lasp_status
@entry lasp_forward_summarize(plan::Ptr{lasp_plan}, args::Ptr{lasp_forward_args}, stream::lasp_stream)::lasp_status
@entry lasp_forward_apply(plan::Ptr{lasp_plan}, args::Ptr{lasp_forward_args}, stream::lasp_stream)::lasp_status
@entry lasp_backward_summarize(plan::Ptr{lasp_plan}, args::Ptr{lasp_backward_args}, stream::lasp_stream)::lasp_status
@entry lasp_backward_apply(plan::Ptr{lasp_plan}, args::Ptr{lasp_backward_args}, stream::lasp_stream)::lasp_status
@entry lasp_maps_args_init(args::Ptr{lasp_maps_args}, size::Csize_t)::lasp_status
@entry lasp_maps_compose(plan::Ptr{lasp_plan}, args::Ptr{lasp_maps_args}, stream::lasp_stream)::lasp_status
@entry lasp_maps_apply(plan::Ptr{lasp_plan}, args::Ptr{lasp_maps_args}, stream::lasp_stream)::lasp_status
@entry lasp_halo_create(plan::Ptr{lasp_plan}, options::Ptr{lasp_halo_options}, halo::Ptr{Ptr{lasp_halo}})::lasp_status
@entry lasp_halo_get_info(halo::Ptr{lasp_halo}, info::Ptr{lasp_halo_info})::lasp_status
@entry lasp_problem_get_halo_info(problem::Ptr{lasp_problem}, placement::Ptr{lasp_placement}, options::Ptr{lasp_halo_options}, info::Ptr{lasp_halo_info})::lasp_status
@entry lasp_halo_forward(halo::Ptr{lasp_halo}, args::Ptr{lasp_halo_args}, stream::lasp_stream)::lasp_status
@entry lasp_halo_backward(halo::Ptr{lasp_halo}, args::Ptr{lasp_halo_args}, stream::lasp_stream)::lasp_status
@entry lasp_halo_destroy(halo::Ptr{lasp_halo})::lasp_status
@entry lasp_trace_start(context::Ptr{lasp_context}, options::Ptr{lasp_trace_options})::lasp_status
@entry lasp_trace_stop(context::Ptr{lasp_context})::lasp_status
@entry lasp_trace_write(context::Ptr{lasp_context}, path::Cstring)::lasp_status
@entry lasp_groups_of_rank(world_size::Int32, sequence_ranks::Int32, stride::Int32, world_rank::Int32, groups::Ptr{lasp_groups})::lasp_status
@entry lasp_groups_world_rank(world_size::Int32, sequence_ranks::Int32, stride::Int32, sequence_group::Int32, sequence_rank::Int32, world_rank::Ptr{Int32})::lasp_status
@entry lasp_predict_exchange(schedule::Int32, nranks::Int32, payload_bytes::UInt64, pieces::Int32, latency_us::Float64, bandwidth_gbs::Float64, predicted_us::Ptr{Float64})::lasp_status
