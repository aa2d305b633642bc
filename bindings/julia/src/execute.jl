# Forward, backward and step: each array checked against the plan, handed over where it lies.

# Val of a constant: of a number known at run time alone it would cost as much as the rest of a call.
stream_of(plan, ::Nothing) =
    plan.device == Raw.LASP_DEVICE_CPU  ? Raw.lasp_stream(C_NULL) :
    plan.device == Raw.LASP_DEVICE_CUDA ? default_stream(Val(Raw.LASP_DEVICE_CUDA))::Raw.lasp_stream :
                                          default_stream(Val(plan.device))::Raw.lasp_stream
stream_of(plan, stream) = Raw.lasp_stream(stream_pointer(stream))
"A stream as a pointer; a package with streams of its own adds a method."
stream_pointer(stream::Ptr) = stream
stream_pointer(other) = throw(ArgumentError("stream: a $(typeof(other)), must be a pointer"))

const Input, Output = Raw.lasp_const_buffer, Raw.lasp_buffer

# The states' tensor under the name that the caller knows.
@inline function state_buffer(::Type{B}, plan, name, array) where {B}
    array === nothing && return B(C_NULL, 0)
    array isa AbstractArray && size(array) == plan.states.size && eltype(array) === Float32 &&
        device_of(array) == plan.device && same_layout(plan.states.size, strides(array), plan.states.strides) ||
        refuse_state(plan, name, array)
    return B(pointer_of(array), plan.states.bytes)
end
@noinline function refuse_state(plan, name, array)
    s = plan.states
    array isa AbstractArray || throw(ArgumentError("$name: a $(typeof(array)), must be an array"))
    ndims(array) == 4 && return refuse_tensor(Tensor{4}(name, s.type, s.size, s.strides, s.bytes, s.device), array)
    throw(DimensionMismatch("$name: $(ndims(array)) dimensions, must be (V, K, heads, sequences)"))
end

# What this layer refuses does not come to the library, where the other ranks wait for it: a call without arguments is
# refused there, and they are told. (Reusing a cache exchanges nothing, so that nobody waits.)
@inline function prepared(prepare::F, plan, tell_others::T) where {F, T}
    plan.info.nranks == 1 && return prepare()
    try
        return prepare()
    catch
        tell_others(plan)
        rethrow()
    end
end
no_others(plan) = nothing
tell_forward(plan) = status_of_call(plan) do
    Raw.lasp_forward(plan.pointer, Ptr{Raw.lasp_forward_args}(C_NULL), Raw.lasp_stream(C_NULL))
end
tell_backward(plan) = status_of_call(plan) do
    Raw.lasp_backward(plan.pointer, Ptr{Raw.lasp_backward_args}(C_NULL), Raw.lasp_stream(C_NULL))
end

# A refused call (1xx to 3xx) has written nothing; after a failure of the group (5xx) the library refuses every call,
# with the reason of that failure.
@inline function after_forward(plan, status, cache)
    if status == Raw.LASP_OK
        plan.latest = cache === nothing ? :own : :given
    elseif Raw.LASP_ERROR_INTERNAL <= status < Raw.LASP_ERROR_PEER_LOST
        plan.latest = :none
    end
    return nothing
end

# The plan's own cache is of its latest forward, or nobody wrote what is in it.
@inline require_own_cache(plan, name) = plan.latest === :own || !plan.backward || refuse_cache(plan, name)
@noinline refuse_cache(plan, name) = throw(ArgumentError(plan.latest === :none ?
    "$name: no forward! has run on this plan, so that its own cache holds nothing: call forward! first, or give the " *
    "cache of another forward! (cache =)" :
    "$name: the plan's latest forward! was given a cache: give this call the same one (cache =)"))

# A call's offsets and the struct that points to them; without offsets a call allocates nothing.
struct Packing
    offsets::Vector{Int64}
    raw::Base.RefValue{Raw.lasp_packing}
end
Packing(::Any) = Packing(Int64[], Ref(Raw.lasp_packing()))
Packing(::Nothing) = nothing
take_offsets!(::Nothing, given) = nothing
function take_offsets!(packing::Packing, given)
    append!(packing.offsets, offsets_of(given))
    bytes = sizeof(packing.offsets)
    packing.raw[] = Raw.lasp_packing(; cu_seqlens = Input(pointer(packing.offsets), bytes),
                                     num_sequences = length(packing.offsets) - 1)
    return nothing
end
pointer_of(::Nothing) = Ptr{Raw.lasp_packing}(C_NULL)
pointer_of(packing::Packing) = Base.unsafe_convert(Ptr{Raw.lasp_packing}, packing.raw)

"""
    forward!(plan, o, q, k, v; decay, beta, initial_state, final_state, cache, workspace,
             reuse_cache = false, cu_seqlens, stream)

Writes `o`, and `final_state` where it is given, from `q`, `k`, `v`. Collective.

- `q`, `k` `(K, heads, tokens, batch)`, `v`, `o` `(V, heads, tokens, batch)`, with the plan's element type and
  layouts; `nothing` is allowed on a rank without tokens
- `decay`: of the plan's kind, natural log, normally not positive; `beta` `(heads, tokens, batch)` for the
  delta write
- `initial_state`, `final_state` `(V, K, heads, sequences)` of `Float32`, dense; a rank touches only the sequences
  that it is first (last) rank of
- `cache`, `workspace`: memory of the caller's, see [`LASP.workspace`](@ref); without them the plan's own, whose cache
  the next `forward!` overwrites
- `reuse_cache = true`: the cache holds an earlier forward's of the same inputs; nothing is exchanged
- `cu_seqlens`: for a plan with `max_sequences`: the offsets of packed sequences into the tokens of all ranks, from 0,
  the same on every rank; what follows the last one is padding
- `stream`: on a CUDA context, else CUDA.jl's current one
"""
function forward!(plan::Plan, o, q, k, v; decay = nothing, beta = nothing, initial_state = nothing,
                  final_state = nothing, cache = nothing, workspace = nothing, reuse_cache = false, cu_seqlens = nothing,
                  stream = nothing)
    pointer, t = live(plan), plan.tensors
    packing = Packing(cu_seqlens)
    GC.@preserve plan o q k v decay beta initial_state final_state cache workspace packing begin
        on = prepared(plan, reuse_cache === true ? no_others : tell_forward) do
            flag("reuse_cache", reuse_cache)
            take_offsets!(packing, cu_seqlens)
            plan.forward_args[] = Raw.lasp_forward_args(sizeof(Raw.lasp_forward_args),
                buffer(Input, t.q, q), buffer(Input, t.k, k), buffer(Input, t.v, v), buffer(Input, t.decay, decay),
                buffer(Input, t.beta, beta), state_buffer(Input, plan, "initial_state", initial_state),
                buffer(Output, t.o, o), state_buffer(Output, plan, "final_state", final_state),
                cache_buffer(plan, cache), workspace_buffer(plan, workspace), reuse_cache, 0,
                Output(), Input(), Output(), pointer_of(packing))
            reuse_cache && cache === nothing && require_own_cache(plan, "forward! with reuse_cache = true")
            stream_of(plan, stream)
        end
        status = status_of_call(() -> Raw.lasp_forward(pointer, plan.forward_args, on), plan)
        after_forward(plan, status, cache)
        check(status)
    end
    return o
end

const ADDED = (dq = Raw.LASP_ADD_DQ, dk = Raw.LASP_ADD_DK, dv = Raw.LASP_ADD_DV, d_decay = Raw.LASP_ADD_D_DECAY,
               d_beta = Raw.LASP_ADD_D_BETA, d_initial_state = Raw.LASP_ADD_D_INITIAL_STATE)

# Gradients that are added to, as C has them. One that is not given the library refuses.
added_to(::Tuple{}) = Int32(0)
function added_to(names)
    names isa Union{Tuple, AbstractVector} ||
        refuse_argument("add", names, "names of gradients, such as (:dk, :dv)")
    return reduce(|, (Int32(choice("add", name, ADDED)) for name in names); init = Int32(0))
end

"""
    backward!(plan, dq, dk, dv, d_o, q, k, v; decay, d_decay, beta, d_beta, initial_state, d_initial_state,
              d_final_state, cache, workspace, add = (), cu_seqlens, stream)

Writes all gradients; to those that `add` names, such as `(:dk, :d_decay)`, it adds, as the microbatches after the first
do: a sum in `Float32`, rounded once. After an error in the pass such a sum is lost. Collective. The inputs
are those of the forward pass that left `cache`; without it the plan's own, which its latest `forward!` must have written. `cu_seqlens` is that pass's.
`d_decay` is shaped like `decay` and may be left out; of a per-head decay it is this rank's share, to be summed over
ranks.
`d_final_state` is read by a sequence's last rank, `d_initial_state` is written by its first.
"""
function backward!(plan::Plan, dq, dk, dv, d_o, q, k, v; decay = nothing, d_decay = nothing, beta = nothing,
                   d_beta = nothing, initial_state = nothing, d_initial_state = nothing, d_final_state = nothing,
                   cache = nothing, workspace = nothing, add = (), cu_seqlens = nothing, stream = nothing)
    pointer, t = live(plan), plan.tensors
    packing = Packing(cu_seqlens)
    GC.@preserve plan dq dk dv d_o q k v cache workspace packing begin
    GC.@preserve decay d_decay beta d_beta initial_state d_initial_state d_final_state begin
        on = prepared(plan, tell_backward) do
            take_offsets!(packing, cu_seqlens)
            cache === nothing && require_own_cache(plan, "backward!")
            kept = cache_buffer(plan, cache)
            plan.backward_args[] = Raw.lasp_backward_args(sizeof(Raw.lasp_backward_args),
                buffer(Input, t.q, q), buffer(Input, t.k, k), buffer(Input, t.v, v), buffer(Input, t.decay, decay),
                buffer(Input, t.beta, beta), state_buffer(Input, plan, "initial_state", initial_state),
                buffer(Input, t.d_o, d_o), state_buffer(Input, plan, "d_final_state", d_final_state),
                Input(kept.data, kept.bytes), buffer(Output, t.dq, dq), buffer(Output, t.dk, dk),
                buffer(Output, t.dv, dv), buffer(Output, t.d_decay, d_decay), buffer(Output, t.d_beta, d_beta),
                state_buffer(Output, plan, "d_initial_state", d_initial_state), workspace_buffer(plan, workspace),
                added_to(add), 0, Output(), Input(), Output(), pointer_of(packing))
            stream_of(plan, stream)
        end
        call(() -> Raw.lasp_backward(pointer, plan.backward_args, on), plan)
    end
    end
    return dq, dk, dv
end

"""
    step!(plan, o, state, q, k, v; decay, beta, tokens, stream)

Decoding: the recurrence itself, token by token, on `state` `(V, K, heads, sequences)`, which is read and written.
With `tokens` the call has only so many, the first of each row, and leaves the others of `o` alone; 0: all.
It talks to nobody, whatever the plan's group, and needs no workspace. Refused where the plan is not causal, or has
`max_sequences`.
"""
function step!(plan::Plan, o, state, q, k, v; decay = nothing, beta = nothing, tokens = 0, stream = nothing)
    pointer, t, on = live(plan), plan.tensors, stream_of(plan, stream)
    GC.@preserve plan o state q k v decay beta begin
        plan.step_args[] = Raw.lasp_step_args(sizeof(Raw.lasp_step_args),
            buffer(Input, t.q, q), buffer(Input, t.k, k), buffer(Input, t.v, v), buffer(Input, t.decay, decay),
            buffer(Input, t.beta, beta), state_buffer(Output, plan, "state", state), buffer(Output, t.o, o),
            whole(Int64, "tokens", tokens))
        call(() -> Raw.lasp_step(pointer, plan.step_args, on), plan)
    end
    return o
end
