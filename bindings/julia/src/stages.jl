# A plan's passes in two stages, for programs that move the maps of the ranks by a collective of their own.

"""
    LASP.detached_comm(rank, nranks) -> Comm

A place in a group, `rank` (from 0) of `nranks`, whose messages are the program's business: there is no transport. It
serves [`LASP.Stages`](@ref) and all that asks; what would send is refused. A plan on it takes the other ranks to have
as many tokens as this one.
"""
function detached_comm(rank, nranks)
    comm = Ref{Ptr{Raw.lasp_comm}}(C_NULL)
    check(Raw.lasp_comm_create_detached(whole(Int32, "rank", rank), whole(Int32, "nranks", nranks), comm))
    return Comm(comm[])
end

"""
    LASP.Stages(plan)

One pass of a plan, forward and backward, with the program's own collective in between:

    own = LASP.summarize(stages, q, k, v; decay = g)          # this rank's map, bytes
    maps = LASP.new_maps(stages, nranks)                       # where yours puts those of all ranks
    LASP.apply!(stages, o, q, k, v; decay = g, incoming = LASP.incoming(stages, maps))

and backward by `summarize_backward`, `incoming(stages, maps; backward = true)` and `apply_backward!`. Nobody is talked
to. It keeps what lies between the stages, so that a second pass in flight takes a `Stages` of its own. Arrays and
keywords are those of [`forward!`](@ref) and [`backward!`](@ref).
"""
mutable struct Stages{P <: Plan}
    plan::P
    state::Tensor{4}
    carry_forward::Any
    carry_backward::Any
    cache::Any
    summarized_forward::Bool
    summarized_backward::Bool
    applied::Bool
end

function Stages(plan::Plan)
    live(plan)
    info = plan.info
    info.map_bytes == 0 && throw(LASPError(Raw.LASP_ERROR_UNSUPPORTED,
        "plan: it has no stages (bidirectional, or with segment)"))
    v, k, heads, _ = plan.states.size
    size = (v, k, heads, plan.tensors.q.size[4])
    carry(bytes) = allocate(Val(plan.device), bytes, info.alignment)
    return Stages(plan, Tensor("incoming", Float32, size, dense_strides(size), plan.device),
                  carry(info.carry_forward_bytes), carry(info.carry_backward_bytes), state_cache(plan), false, false,
                  false)
end

"""
    LASP.new_maps(stages, count) -> vector of bytes

Memory on the CPU for `count` maps one after the other, aligned as the library needs it.
"""
function new_maps(stages::Stages, count)
    count = whole(Int, "count", count)
    count >= 1 || refuse_argument("count", count, "at least 1")
    memory = HostMemory(count * Int(stages.plan.info.map_bytes), stages.plan.info.alignment)
    return view(memory.storage, memory.offset+1:memory.offset+memory.bytes)
end

const_buffer(b::Raw.lasp_buffer) = Input(b.data, b.bytes)
stage_memory(stages, name, memory) = memory_buffer(stages.plan, name, memory)

# A call's struct with its packing, which `make` is given; `kept` are its arrays.
function stage_call(make, function_, stages, cu_seqlens, stream, kept)
    plan = stages.plan
    pointer, packing = live(plan), Packing(cu_seqlens)
    GC.@preserve stages plan packing kept begin
        take_offsets!(packing, cu_seqlens)
        args, on = Ref(make(pointer_of(packing))), stream_of(plan, stream)
        return call(() -> function_(pointer, args, on), plan)
    end
end

"""
    LASP.summarize(stages, q, k, v; decay, beta, initial_state, maps, cu_seqlens, stream) -> maps

This rank's map: what its tokens do to the state that enters. `q` may be `nothing`. `maps` is where it is written.
"""
function summarize(stages::Stages, q, k, v; decay = nothing, beta = nothing, initial_state = nothing,
                   maps = new_maps(stages, 1), cu_seqlens = nothing, stream = nothing)
    t, plan = stages.plan.tensors, stages.plan
    stages.summarized_forward = stages.applied = false
    kept = (q, k, v, decay, beta, initial_state, maps)
    stage_call(Raw.lasp_forward_summarize, stages, cu_seqlens, stream, kept) do packing
        Raw.lasp_forward_args(; q = buffer(Input, t.q, q), k = buffer(Input, t.k, k), v = buffer(Input, t.v, v),
            decay = buffer(Input, t.decay, decay), beta = buffer(Input, t.beta, beta),
            initial_state = state_buffer(Input, plan, "initial_state", initial_state),
            state_cache = stage_memory(stages, "cache", stages.cache), workspace = workspace_buffer(plan, nothing),
            maps = stage_memory(stages, "maps", maps), carry = stage_memory(stages, "carry", stages.carry_forward),
            packing = packing)
    end
    stages.summarized_forward = true
    return maps
end

"""
    LASP.apply!(stages, o, q, k, v; incoming, decay, beta, initial_state, final_state, cu_seqlens, stream) -> o

The rest of the pass, from the state that enters this rank; without `incoming` it is zero. Final states are not
broadcast. What `summarize` has left is used; without it, it is worked out again.
"""
function apply!(stages::Stages, o, q, k, v; incoming = nothing, decay = nothing, beta = nothing,
                initial_state = nothing, final_state = nothing, cu_seqlens = nothing, stream = nothing)
    t, plan = stages.plan.tensors, stages.plan
    kept = (o, q, k, v, incoming, decay, beta, initial_state, final_state)
    stage_call(Raw.lasp_forward_apply, stages, cu_seqlens, stream, kept) do packing
        Raw.lasp_forward_args(; q = buffer(Input, t.q, q), k = buffer(Input, t.k, k), v = buffer(Input, t.v, v),
            decay = buffer(Input, t.decay, decay), beta = buffer(Input, t.beta, beta),
            initial_state = state_buffer(Input, plan, "initial_state", initial_state),
            o = buffer(Output, t.o, o), final_state = state_buffer(Output, plan, "final_state", final_state),
            state_cache = stage_memory(stages, "cache", stages.cache), workspace = workspace_buffer(plan, nothing),
            incoming = buffer(Input, stages.state, incoming),
            carry = stages.summarized_forward ? stage_memory(stages, "carry", stages.carry_forward) : Output(),
            packing = packing)
    end
    stages.applied = true
    return o
end

"""
    LASP.summarize_backward(stages, d_o, q; decay, k, beta, d_final_state, maps, cu_seqlens, stream) -> maps

This rank's map of the gradient of the state. With the delta write it takes `k` and `beta` too, after `summarize` or
`apply!`, which leave the state cache.
"""
function summarize_backward(stages::Stages, d_o, q; decay = nothing, k = nothing, beta = nothing,
                            d_final_state = nothing, maps = new_maps(stages, 1), cu_seqlens = nothing,
                            stream = nothing)
    t, plan = stages.plan.tensors, stages.plan
    delta = beta !== nothing  # the call refuses it where it is not the plan's
    delta && !stages.applied && !stages.summarized_forward && throw(ArgumentError(
        "summarize_backward: summarize or apply! comes first, which leaves the state cache"))
    stages.summarized_backward = false
    kept = (d_o, q, decay, k, beta, d_final_state, maps)
    stage_call(Raw.lasp_backward_summarize, stages, cu_seqlens, stream, kept) do packing
        Raw.lasp_backward_args(; q = buffer(Input, t.q, q), k = k === nothing ? Input() : buffer(Input, t.k, k),
            decay = buffer(Input, t.decay, decay), beta = buffer(Input, t.beta, beta),
            state_cache = delta ? const_buffer(stage_memory(stages, "cache", stages.cache)) : Input(),
            d_o = buffer(Input, t.d_o, d_o), d_final_state = state_buffer(Input, plan, "d_final_state", d_final_state),
            workspace = workspace_buffer(plan, nothing), maps = stage_memory(stages, "maps", maps),
            carry = stage_memory(stages, "carry", stages.carry_backward), packing = packing)
    end
    stages.summarized_backward = true
    return maps
end

"""
    LASP.apply_backward!(stages, dq, dk, dv, d_o, q, k, v; incoming, decay, d_decay, beta, d_beta, initial_state,
                         d_initial_state, d_final_state, cu_seqlens, stream)

All gradients of the pass that `apply!` has run. `incoming` is the gradient of the state that leaves this rank.
"""
function apply_backward!(stages::Stages, dq, dk, dv, d_o, q, k, v; incoming = nothing, decay = nothing,
                         d_decay = nothing, beta = nothing, d_beta = nothing, initial_state = nothing,
                         d_initial_state = nothing, d_final_state = nothing, cu_seqlens = nothing, stream = nothing)
    t, plan = stages.plan.tensors, stages.plan
    stages.applied || throw(ArgumentError("apply_backward!: apply! comes first, which leaves the state cache"))
    kept = (dq, dk, dv, d_o, q, k, v, incoming, decay, d_decay, beta, d_beta, initial_state, d_initial_state,
            d_final_state)
    stage_call(Raw.lasp_backward_apply, stages, cu_seqlens, stream, kept) do packing
        Raw.lasp_backward_args(; q = buffer(Input, t.q, q), k = buffer(Input, t.k, k), v = buffer(Input, t.v, v),
            decay = buffer(Input, t.decay, decay), beta = buffer(Input, t.beta, beta),
            initial_state = state_buffer(Input, plan, "initial_state", initial_state),
            d_o = buffer(Input, t.d_o, d_o), d_final_state = state_buffer(Input, plan, "d_final_state", d_final_state),
            state_cache = const_buffer(stage_memory(stages, "cache", stages.cache)),
            dq = buffer(Output, t.dq, dq), dk = buffer(Output, t.dk, dk), dv = buffer(Output, t.dv, dv),
            d_decay = buffer(Output, t.d_decay, d_decay), d_beta = buffer(Output, t.d_beta, d_beta),
            d_initial_state = state_buffer(Output, plan, "d_initial_state", d_initial_state),
            workspace = workspace_buffer(plan, nothing), incoming = buffer(Input, stages.state, incoming),
            carry = stages.summarized_backward ? stage_memory(stages, "carry", stages.carry_backward) : Output(),
            packing = packing)
    end
    return nothing
end

"""
    LASP.incoming(stages, maps; backward = false, out, stream) -> out

The state `(V, K, heads, batch)` that enters this rank, from the `maps` of all ranks, one after the other as an
all-gather leaves them. `backward = true`: of maps of `summarize_backward`.
"""
function incoming(stages::Stages, maps; backward = false, out = Array{Float32}(undef, stages.state.size),
                  stream = nothing)
    flag("backward", backward)
    stage_call(Raw.lasp_maps_apply, stages, nothing, stream, (maps, out)) do _
        Raw.lasp_maps_args(; maps = const_buffer(stage_memory(stages, "maps", maps)),
                           incoming = buffer(Output, stages.state, out), backward = backward)
    end
    return out
end

"""
    LASP.compose(stages, later, earlier; out, stream) -> out

The map of two neighbours: `later` after `earlier`, in the order in which a state passes them.
"""
function compose(stages::Stages, later, earlier; out = new_maps(stages, 1), stream = nothing)
    stage_call(Raw.lasp_maps_compose, stages, nothing, stream, (later, earlier, out)) do _
        Raw.lasp_maps_args(; later = const_buffer(stage_memory(stages, "later", later)),
                           earlier = const_buffer(stage_memory(stages, "earlier", earlier)),
                           to = stage_memory(stages, "out", out))
    end
    return out
end
