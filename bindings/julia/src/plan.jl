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
| `gradient_types` | `(;)` | such as `(dk = Float32, dv = Float32)`, beside 16-bit tensors |
| `write`, `mask` | `:additive`, `:causal` | or `:delta`, `:bidirectional` |
| `ownership` | `:contiguous` | or `:zigzag`: of 2W equal parts rank r has parts r and 2W-1-r; or `:zigzag_each`: of each packed sequence; or `:runs` |
| `runs` | `[]` | for `:runs`: `(tokens, rank)` of each run of the whole buffer, in order; the same on every rank |
| `scale` | `nothing` | multiplies o; `nothing` means `1/sqrt(K)` |
| `max_sequences` | 0 | for packed sequences: the most that a call is given (`cu_seqlens`), `batch = 1` |
| `schedule`, `pieces` | `:auto`, 0 | or `:ring`, `:all_gather`, `:all_scan`, `:doubling`, `:head_scatter`, `:relay` |
| `cache` | `:chunks` | or `:incoming`: smaller, slower backward |
| `chunk` | 0 | tokens handled at once; 0: chosen |
| `segment` | 0 | tokens, a multiple of the chunk: one order of sums, see below |
| `backward` | `true` | whether the plan serves `backward!` too |
| `broadcast_final_state` | `false` | every rank receives all of `final_state` |
| `like` | `(;)` | arrays whose layout tensors have, such as `(o = view, dq = view)`; others are dense |

With a `segment` all results but a per-head `d_decay`, which is each rank's share, are equal bit for bit for any number
of ranks and any cut, as long as each rank that has tokens begins at a multiple of it: causal, on the CPU, with the
schedules `:auto`, `:ring` and `:all_scan`.

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
    latest::Symbol  # which cache the latest forward! wrote: :none, :own, the plan's, or :given
    forward_args::Base.RefValue{Raw.lasp_forward_args}
    backward_args::Base.RefValue{Raw.lasp_backward_args}
    step_args::Base.RefValue{Raw.lasp_step_args}
end

function Plan(context::Context; keywords...)
    return make_plan(context, telling(() -> read_problem(context.device; keywords...), context))
end

function Plan(context::Context, q::AbstractArray, k::AbstractArray, v::AbstractArray; keywords...)
    return make_plan(context, telling(() -> read_arrays(context.device, q, k, v; keywords...), context))
end

# A rank that refuses its problem here would not come to the library, and the others would wait for it. So the library
# is asked for a plan without a problem, which it refuses as well, and tells them.
function telling(read, context)
    live(context)
    try
        return read()
    catch
        context.parent.nranks > 1 && refuse_plan(context)
        rethrow()
    end
end
function refuse_plan(context)
    handle = Ref{Ptr{Raw.lasp_plan}}(C_NULL)
    owner, none = live(context), Ptr{Raw.lasp_problem}(C_NULL)
    GC.@preserve context status_of_call(() -> Raw.lasp_plan_create(owner, none, handle), context)
    return nothing
end

# The keywords as lasp_problem has them, and the tensors they make.
function read_problem(device; batch = 1, tokens, heads = nothing, heads_q = nothing, heads_k = nothing,
                      heads_v = nothing, head_dim = nothing, head_dim_k = nothing, head_dim_v = nothing,
                      dtype = Float32, decay = :none, decay_dtype = Float32, write = :additive, beta_dtype = Float32,
                      mask = :causal, ownership = :contiguous, scale = nothing, max_sequences = 0, schedule = :auto,
                      pieces = 0, cache = :chunks, chunk = 0, segment = 0, backward = true,
                      broadcast_final_state = false, runs = [], gradient_types = NamedTuple(), like = NamedTuple())
    of_heads = each("heads", heads, (heads_q = heads_q, heads_k = heads_k, heads_v = heads_v))
    of_dims = each("head_dim", head_dim, (head_dim_k = head_dim_k, head_dim_v = head_dim_v))
    like isa NamedTuple || refuse_argument("like", like, "a named tuple of arrays, such as (o = o, dq = dq)")
    kinds = (dtype = dtype_code("dtype", dtype), decay = choice("decay", decay, DECAYS),
             write = choice("write", write, WRITES), mask = choice("mask", mask, MASKS),
             ownership = choice("ownership", ownership, OWNERSHIPS),
             schedule = choice("schedule", schedule, SCHEDULES), cache = choice("cache", cache, CACHES))
    dtype_code("decay_dtype", decay_dtype), dtype_code("beta_dtype", beta_dtype)
    decay in (:scalar, :channel) || decay_dtype === Float32 ||
        throw(ArgumentError("decay_dtype = $decay_dtype: goes with :scalar and :channel, the decay is :$decay"))
    write == :delta || beta_dtype === Float32 ||
        throw(ArgumentError("beta_dtype = $beta_dtype: there is no beta with write = :additive"))
    check_gradient_types(gradient_types)
    wide = (batch = batch, tokens = tokens, max_sequences = max_sequences, segment = segment)
    numbers = merge(all_whole(Int64, wide), of_heads, of_dims, all_whole(Int32, (pieces = pieces, chunk = chunk)))
    shape = NamedTuple{(:batch, :tokens, :heads_q, :heads_k, :heads_v, :head_dim_k, :head_dim_v)}(numbers)
    # C checks the sizes and says what is wrong with them; only for the tensors' sizes must none be negative.
    tensors = tensors_of(; map(x -> max(x, 0), shape)..., dtype = dtype, decay = decay, decay_dtype = decay_dtype,
                         write = write, beta_dtype = beta_dtype,
                         gradient_types = Dict{Symbol, Any}(pairs(gradient_types)), like = Dict{Symbol, Any}(pairs(like)),
                         device = device)
    layouts = NamedTuple{map(layout_name, keys(tensors))}(map(c_layout, values(tensors)))
    return (fields = merge(numbers, kinds, layouts,
                           (scale_given = Int32(scale !== nothing), scale = scale_of(scale), backward = flag("backward", backward),
                            broadcast_final_state = flag("broadcast_final_state", broadcast_final_state))),
            runs = listed_runs(runs), tensors = tensors)
end
function check_gradient_types(given)
    given isa NamedTuple || refuse_argument("gradient_types", given, "a named tuple of types, such as (dk = Float32,)")
    for (name, type) in pairs(given)
        name in GRADIENTS ||
            throw(ArgumentError("gradient_types: no gradient is called $name that has a type to choose"))
        dtype_code("gradient_types.$name", type)
    end
    return nothing
end

# Numbers that one short name sets where they are not given by their own.
function each(short, value, given)
    value === nothing && any(isnothing, values(given)) &&
        throw(ArgumentError("Plan: $short is needed, or all of $(join(keys(given), ", "))"))
    value === nothing || any(isnothing, values(given)) || throw(ArgumentError(
        "$short = $(repr(value)): sets nothing, because $(join(keys(given), ", ")) are given too"))
    value === nothing || whole(Int32, short, value)
    return all_whole(Int32, map(own -> own === nothing ? value : own, given))
end

all_whole(T, given) = NamedTuple{keys(given)}(map((name, value) -> whole(T, name, value), keys(given), values(given)))

# The same, with what arrays say; they are not kept.
function read_arrays(device, q, k, v; decay = nothing, beta = nothing, like = NamedTuple(), keywords...)
    shapes = shapes_of(q, k, v, decay, beta)
    for name in keys(keywords)
        haskey(shapes, name) &&
            throw(ArgumentError("$name: is read from the arrays; Plan(context; ...) takes it without"))
    end
    like isa NamedTuple || refuse_argument("like", like, "a named tuple of arrays, such as (o = o, dq = dq)")
    layouts = (q = q, k = k, v = v)
    decay === nothing || ndims(decay) == 1 || (layouts = merge(layouts, (decay = decay,)))
    beta === nothing || (layouts = merge(layouts, (beta = beta,)))
    return read_problem(device; shapes..., like = merge(layouts, like), keywords...)
end

function make_plan(context, given)
    handle = Ref{Ptr{Raw.lasp_plan}}(C_NULL)
    listed = given.runs
    GC.@preserve context listed begin
        list = isempty(listed) ? Ptr{Raw.lasp_run}(C_NULL) : pointer(listed)
        owner = live(context)
        asked = Ref(Raw.lasp_problem(; given.fields..., runs = list, num_runs = Int64(length(listed))))
        call(() -> Raw.lasp_plan_create(owner, asked, handle), context)
    end
    info = Ref(Raw.lasp_plan_info())
    check(Raw.lasp_plan_get_info(handle[], info))
    sizes = (Int(given.fields.head_dim_v), Int(given.fields.head_dim_k), Int(info[].heads), Int(info[].num_sequences))
    states = Tensor("state", Float32, sizes, dense_strides(sizes), context.device)
    return adopt!(Plan(handle[], context, Threads.Atomic{Int}(1), context.device, given.tensors, states, info[],
                       given.fields.backward, Raw.lasp_buffer(), Raw.lasp_buffer(), Any[], :none,
                       Ref(Raw.lasp_forward_args()), Ref(Raw.lasp_backward_args()), Ref(Raw.lasp_step_args())))
end

throw_interrupt(plan::Plan) = throw_interrupt(plan.parent)
destroy(plan::Plan) = Raw.lasp_plan_destroy(plan.pointer)
function Base.show(io::IO, plan::Plan)
    shapes = join(("$name $(plan.tensors[name].size)" for name in (:q, :k, :v, :o)), ", ")
    decay = plan.tensors.decay === nothing ? "no decay" : "decay $(plan.tensors.decay.size)"
    from = plan.info.token_begin
    print(io, "LASP.Plan(", isopen(plan) ? "" : "closed, ", shapes, ", ", decay, ", ", plan.tensors.q.type,
          "; tokens ", from, " to ", from + plan.tensors.q.size[3], " of ", plan.info.total_tokens, ", rank ",
          plan.info.rank, " of ", plan.info.nranks, ")")
end

"""
    LASP.workspace(plan), LASP.state_cache(plan)

New memory for the keywords `workspace` and `cache` of the passes. A plan that is given none makes its own at the
first call; give each layer of a model a cache of its own where layers share a plan. One workspace may serve all
layers.
"""
workspace(plan::Plan) = allocate(Val(plan.device), max(plan.info.workspace_forward_bytes,
                                                       plan.info.workspace_add_bytes), plan.info.alignment)
state_cache(plan::Plan) = allocate(Val(plan.device), plan.info.state_cache_bytes, plan.info.alignment)

# The plan's own, or the caller's. (Not its type but the buffer is kept: that is quick to read.)
@inline function workspace_buffer(plan, given)
    given === nothing || return memory_buffer(plan, "workspace", given)
    plan.workspace.data == C_NULL && (plan.workspace = keep_memory!(plan, workspace(plan)))
    return plan.workspace
end
@inline function cache_buffer(plan, given)
    given === nothing || return memory_buffer(plan, "cache", given)
    plan.backward && plan.cache.data == C_NULL && (plan.cache = keep_memory!(plan, state_cache(plan)))
    return plan.cache
end
@noinline function keep_memory!(plan, memory)
    push!(plan.memory, memory)
    return memory_buffer(plan, "memory", memory)::Raw.lasp_buffer
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
    LASP.owners(plan, from, to) -> (first_rank, last_rank)

Which ranks hold the tokens from offset `from` up to offset `to`, as `cu_seqlens` has them: of a sequence the rank that
reads its initial state and the rank that writes its final state (ranks count from 0).
"""
function owners(plan::Plan, from, to)
    first_rank, last_rank = Ref{Int32}(-1), Ref{Int32}(-1)
    GC.@preserve plan check(Raw.lasp_plan_get_owners(live(plan), whole(Int64, "from", from), whole(Int64, "to", to),
                                                     first_rank, last_rank))
    return (first_rank = Int(first_rank[]), last_rank = Int(last_rank[]))
end

"""
    LASP.prepare(plan; stream)

Does now what a first call would do lazily, so that later calls can be captured into a CUDA graph. Collective.
"""
function prepare(plan::Plan; stream = nothing)
    handle, on = live(plan), stream_of(plan, stream)
    return GC.@preserve plan call(() -> Raw.lasp_plan_prepare(handle, on), plan)
end
