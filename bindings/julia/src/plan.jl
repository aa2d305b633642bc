# Plan: one validated problem, with what the calls need of it at hand.

"""
    Plan(context; tokens, heads, head_dim, keywords...)
    Plan(context, q, k, v; decay = nothing, beta = nothing, keywords...)

Validates one problem, compares it with the other ranks' and lays out all work. Collective: every rank of the group
makes it. Everything that can be refused is refused here. The second form takes shapes, element types and layouts
from arrays (dim, heads, tokens, batch) and does not keep them.

| keyword | default | meaning |
|---|---|---|
| `batch`, `tokens` | 1, - | batch rows, and this rank's tokens of each (0 is legal) |
| `heads`, or `heads_q`, `heads_k`, `heads_v` | - | each divides the largest, which is the heads of the output |
| `head_dim`, or `head_dim_k`, `head_dim_v` | - | K and V: multiples of 8, at most 512 |
| `dtype` | `Float32` | or `Float16`, `BFloat16` |
| `decay` | `:none` | `:head` (heads,), `:scalar` (heads, tokens, batch), `:channel` (K, heads, tokens, batch) |
| `decay_dtype`, `beta_dtype` | `Float32` | or `dtype` |
| `write`, `mask` | `:additive`, `:causal` | or `:delta`, `:bidirectional` |
| `scale` | 0 | multiplies o; 0 means `1/sqrt(K)` |
| `token_begin` | -1 | global index of the first token, from 0; -1: after the ranks before |
| `cu_seqlens` | `nothing` | packed sequences: global offsets from 0 to the number of tokens, `batch = 1` |
| `schedule`, `pieces` | `:auto`, 0 | or `:ring`, `:all_gather`, `:all_scan`, `:doubling` |
| `cache` | `:chunks` | or `:incoming`: smaller, slower backward |
| `chunk` | 0 | tokens handled at once; 0: chosen |
| `segment` | 0 | tokens, a multiple of the chunk: one order of sums, see below |
| `backward` | `true` | whether the plan serves `backward!` too |
| `broadcast_final_state` | `false` | every rank receives all of `final_state` |
| `like` | `(;)` | arrays whose layout tensors have, such as `(o = view, dq = view)`; others are dense |

With a `segment` results are equal bit for bit for any number of ranks and any cut, as long as each rank that has
tokens begins at a multiple of it: causal, on the CPU, with the schedules `:auto`, `:ring` and `:all_scan`.

`plan.info` holds sizes and choices (a `LASP.Raw.lasp_plan_info`), [`LASP.describe`](@ref) says them in words.
"""
mutable struct Plan{T <: NamedTuple} <: Handle
    pointer::Ptr{Raw.lasp_plan}
    parent::Context
    references::Threads.Atomic{Int}
    device::Int32
    tensors::T
    states::Tensor{4}
    info::Raw.lasp_plan_info
    backward::Bool
    workspace::Raw.lasp_buffer  # its own memory, made at the first call that is given none
    cache::Raw.lasp_buffer
    memory::Vector{Any}  # what those two lie in
    forward_args::Base.RefValue{Raw.lasp_forward_args}
    backward_args::Base.RefValue{Raw.lasp_backward_args}
    step_args::Base.RefValue{Raw.lasp_step_args}
end

function Plan(context::Context; batch = 1, tokens, heads = nothing, heads_q = heads, heads_k = heads, heads_v = heads,
              head_dim = nothing, head_dim_k = head_dim, head_dim_v = head_dim, dtype = Float32, decay = :none,
              decay_dtype = Float32, write = :additive, beta_dtype = Float32, mask = :causal, scale = 0,
              token_begin = -1, cu_seqlens = nothing, schedule = :auto, pieces = 0, cache = :chunks, chunk = 0,
              segment = 0, backward = true, broadcast_final_state = false, like = NamedTuple())
    any(isnothing, (heads_q, heads_k, heads_v, head_dim_k, head_dim_v)) &&
        throw(ArgumentError("Plan: heads and head_dim are needed, or heads_q, heads_k, heads_v, head_dim_k and head_dim_v"))
    kinds = (dtype = dtype_code(dtype), decay = choice("decay", decay, DECAYS), decay_dtype = dtype_code(decay_dtype),
             write = choice("write", write, WRITES), beta_dtype = dtype_code(beta_dtype),
             mask = choice("mask", mask, MASKS), schedule = choice("schedule", schedule, SCHEDULES),
             cache = choice("cache", cache, CACHES))
    shape = (batch = batch, tokens = tokens, heads_q = heads_q, heads_k = heads_k, heads_v = heads_v,
             head_dim_k = head_dim_k, head_dim_v = head_dim_v)
    # C checks the sizes and says what is wrong with them; only for the tensors' sizes must none be negative.
    tensors = tensors_of(; map(x -> max(x, 0), shape)..., dtype = dtype, decay = decay, decay_dtype = decay_dtype,
                         write = write, beta_dtype = beta_dtype, like = Dict{Symbol, Any}(pairs(like)),
                         device = context.device)
    offsets = cu_seqlens === nothing ? Int64[] : collect(Int64, cu_seqlens)
    layouts = NamedTuple{map(layout_name, keys(tensors))}(map(c_strides, values(tensors)))
    handle = Ref{Ptr{Raw.lasp_plan}}(C_NULL)
    GC.@preserve context offsets begin
        problem = Raw.lasp_problem(; shape..., kinds..., layouts..., scale = scale, token_begin = token_begin,
            cu_seqlens = cu_seqlens === nothing ? Ptr{Int64}(C_NULL) : pointer(offsets),
            num_sequences = cu_seqlens === nothing ? 0 : max(length(offsets) - 1, 0), pieces = pieces, chunk = chunk,
            segment = segment, backward = backward, broadcast_final_state = broadcast_final_state)
        owner, given = live(context), Ref(problem)
        call(() -> Raw.lasp_plan_create(owner, given, handle), context)
    end
    info = Ref(Raw.lasp_plan_info())
    check(Raw.lasp_plan_get_info(handle[], info))
    sizes = (Int(head_dim_v), Int(head_dim_k), Int(info[].heads), Int(info[].num_sequences))
    states = Tensor("state", Float32, sizes, dense_strides(sizes), context.device)
    return adopt!(Plan(handle[], context, Threads.Atomic{Int}(1), context.device, tensors, states, info[], backward,
                       Raw.lasp_buffer(), Raw.lasp_buffer(), Any[], Ref(Raw.lasp_forward_args()),
                       Ref(Raw.lasp_backward_args()), Ref(Raw.lasp_step_args())))
end

function Plan(context::Context, q::AbstractArray, k::AbstractArray, v::AbstractArray; decay = nothing, beta = nothing,
              like = NamedTuple(), keywords...)
    layouts = (q = q, k = k, v = v)
    decay === nothing || ndims(decay) == 1 || (layouts = merge(layouts, (decay = decay,)))
    beta === nothing || (layouts = merge(layouts, (beta = beta,)))
    return Plan(context; shapes_of(q, k, v, decay, beta)..., like = merge(layouts, like), keywords...)
end

destroy(plan::Plan) = Raw.lasp_plan_destroy(plan.pointer)
Base.show(io::IO, plan::Plan) =
    print(io, "LASP.Plan(", plan.info.heads, " heads, tokens ", plan.info.token_begin, "..",
          plan.info.token_begin + plan.tensors.q.size[3], " of ", plan.info.total_tokens, ", rank ", plan.info.rank,
          " of ", plan.info.nranks, ")")

"""
    LASP.workspace(plan), LASP.state_cache(plan)

New memory for the keywords `workspace` and `cache` of the passes. A plan that is given none makes its own at the
first call; give each layer of a model a cache of its own where layers share a plan. One workspace may serve all
layers.
"""
workspace(plan::Plan) = allocate(Val(plan.device), max(plan.info.workspace_forward_bytes,
                                                       plan.info.workspace_backward_bytes), plan.info.alignment)
state_cache(plan::Plan) = allocate(Val(plan.device), plan.info.state_cache_bytes, plan.info.alignment)

# The plan's own, or the caller's. (Not its type but the buffer is kept: that is quick to read.)
@inline function workspace_buffer(plan, given)
    given === nothing || return memory_buffer(Raw.lasp_buffer, given)
    plan.workspace.data == C_NULL && (plan.workspace = keep_memory!(plan, workspace(plan)))
    return plan.workspace
end
@inline function cache_buffer(plan, given)
    given === nothing || return memory_buffer(Raw.lasp_buffer, given)
    plan.backward && plan.cache.data == C_NULL && (plan.cache = keep_memory!(plan, state_cache(plan)))
    return plan.cache
end
@noinline function keep_memory!(plan, memory)
    push!(plan.memory, memory)
    return memory_buffer(Raw.lasp_buffer, memory)::Raw.lasp_buffer
end

"""
    LASP.describe(plan) -> String

The schedule and kernels chosen, the model's inputs, and why the others were not chosen.
"""
function describe(plan::Plan)
    needed = Ref{Csize_t}(0)
    GC.@preserve plan check(Raw.lasp_plan_describe(live(plan), C_NULL, 0, needed))
    text = Vector{UInt8}(undef, needed[])
    GC.@preserve plan check(Raw.lasp_plan_describe(live(plan), text, length(text), C_NULL))
    return String(text[1:end-1])
end

"""
    LASP.sequence(plan, n) -> (tokens, first_rank, last_rank)

The n-th sequence, from 1: its tokens as a range of global indices from 1, the rank that reads its initial state and
the rank that writes its final state (ranks count from 0).
"""
function sequence(plan::Plan, n::Integer)
    info = Ref(Raw.lasp_sequence_info())
    GC.@preserve plan check(Raw.lasp_plan_get_sequence(live(plan), n - 1, info))
    return (tokens = info[].begin_+1:info[].end_, first_rank = Int(info[].first_rank),
            last_rank = Int(info[].last_rank))
end

"""
    LASP.prepare(plan; stream)

Does now what a first call would do lazily, so that later calls can be captured into a CUDA graph. Collective.
"""
function prepare(plan::Plan; stream = nothing)
    handle, on = live(plan), stream_of(plan, stream)
    return GC.@preserve plan call(() -> Raw.lasp_plan_prepare(handle, on), plan)
end
