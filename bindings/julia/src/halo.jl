# Halo: the rows before a rank's first token, for short convolutions and token shifts.

"""
    LASP.Halo(plan, rows, channels; dtype, d_dtype)

Brings, of a tensor x `(channels, tokens, batch)`, the `rows` (1 to 64: the width of a convolution less 1) before this
rank's first token within that token's sequence, and their gradients back. Tokens, batch and the split into ranks are
the plan's. `dtype` is that of x and its rows (the plan's), `d_dtype` that of their gradients (`dtype`). Collective.
`halo.info` is a `LASP.Raw.lasp_halo_info`. Where ranks own several runs of tokens, rows come for each of them: the last
dimension of what is called `before` is then as long as `plan.info.num_runs` batches.
"""
mutable struct Halo <: Handle
    pointer::Ptr{Raw.lasp_halo}
    parent::Plan
    references::Threads.Atomic{Int}
    info::Raw.lasp_halo_info
    x::Tensor{3}
    before::Tensor{3}
    d_before::Tensor{3}
    d_x::Tensor{3}
    workspace::Any
end

function Halo(plan::Plan, rows, channels; dtype = plan.tensors.q.type, d_dtype = dtype)
    live(plan)
    given = try
        (whole(Int64, "rows", rows), whole(Int64, "channels", channels), dtype_code("dtype", dtype),
         dtype_code("d_dtype", d_dtype))
    catch
        plan.info.nranks > 1 && refuse_halo(plan)
        rethrow()
    end
    handle = Ref{Ptr{Raw.lasp_halo}}(C_NULL)
    options = Ref(Raw.lasp_halo_options(; rows = given[1], channels = given[2], x = Raw.lasp_layout(; dtype = given[3]),
                                        d_x = Raw.lasp_layout(; dtype = given[4])))
    GC.@preserve plan call(() -> Raw.lasp_halo_create(plan.pointer, options, handle), plan)
    info = Ref(Raw.lasp_halo_info())
    check(Raw.lasp_halo_get_info(handle[], info))
    _, _, tokens, batch = plan.tensors.q.size
    tensor(name, type, count, lines = batch) = Tensor(name, type, (Int(channels), count, lines),
                                                      dense_strides((Int(channels), count, lines)), plan.device)
    row_bytes = Int(rows) * Int(channels) * sizeof(dtype)
    lines = Int(info[].before_bytes) ÷ row_bytes  # of each run of tokens the batch's, or the sequences' rows
    return adopt!(Halo(handle[], plan, Threads.Atomic{Int}(1), info[], tensor("x", dtype, tokens),
                       tensor("before", dtype, Int(rows), lines), tensor("d_before", d_dtype, Int(rows), lines),
                       tensor("d_x", d_dtype, tokens),
                       allocate(Val(plan.device), info[].workspace_bytes, plan.info.alignment)))
end
function refuse_halo(plan)
    handle, none = Ref{Ptr{Raw.lasp_halo}}(C_NULL), Ptr{Raw.lasp_halo_options}(C_NULL)
    GC.@preserve plan status_of_call(() -> Raw.lasp_halo_create(plan.pointer, none, handle), plan)
    return nothing
end

throw_interrupt(halo::Halo) = throw_interrupt(halo.parent)
destroy(halo::Halo) = Raw.lasp_halo_destroy(halo.pointer)
function Base.show(io::IO, halo::Halo)
    channels, rows, _ = halo.before.size
    print(io, "LASP.Halo(", isopen(halo) ? "" : "closed, ", rows, " rows of ", channels, " channels)")
end

# A call: its struct by `make`, which is given the workspace and the packing. A rank that refuses it here tells the
# others by a call without arguments.
function halo_call(make, function_, halo, cu_seqlens, stream, kept)
    plan = halo.parent
    pointer, packing = live(halo), Packing(cu_seqlens)
    GC.@preserve halo plan packing kept begin
        args, on = try
            take_offsets!(packing, cu_seqlens)
            Ref(make(memory_buffer(plan, "workspace", halo.workspace), pointer_of(packing))), stream_of(plan, stream)
        catch
            none = Ptr{Raw.lasp_halo_args}(C_NULL)
            plan.info.nranks > 1 && status_of_call(() -> function_(pointer, none, Raw.lasp_stream(C_NULL)), halo)
            rethrow()
        end
        call(() -> function_(pointer, args, on), halo)
    end
    return nothing
end

"""
    forward!(halo, before, x; cu_seqlens, stream) -> before

Writes `before` `(channels, rows, batch)`, oldest first: the rows before this rank's first token, zero before the
beginning of its sequence. `x` `(channels, tokens, batch)` may be `nothing` on a rank without tokens. Collective.
"""
function forward!(halo::Halo, before, x; cu_seqlens = nothing, stream = nothing)
    halo_call(Raw.lasp_halo_forward, halo, cu_seqlens, stream, (before, x)) do workspace, packing
        Raw.lasp_halo_args(; x = buffer(Input, halo.x, x), before = buffer(Output, halo.before, before),
                           workspace = workspace, packing = packing)
    end
    return before
end

"""
    backward!(halo, d_x, d_before; cu_seqlens, stream) -> d_x

Adds to `d_x` the gradients of the rows that other ranks took from here, in `Float32`, rounded once; `d_before` is the
gradient of what `forward!` gave. Collective.
"""
function backward!(halo::Halo, d_x, d_before; cu_seqlens = nothing, stream = nothing)
    halo_call(Raw.lasp_halo_backward, halo, cu_seqlens, stream, (d_before, d_x)) do workspace, packing
        Raw.lasp_halo_args(; d_before = buffer(Input, halo.d_before, d_before), d_x = buffer(Output, halo.d_x, d_x),
                           workspace = workspace, packing = packing)
    end
    return d_x
end
