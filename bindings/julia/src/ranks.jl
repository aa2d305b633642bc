# A rank per thread of this process.

"""
    LASP.on_ranks(f, nranks) -> Vector

Calls `f(comm)` on `nranks` threads at once, each with its rank's comm of a fresh group, and returns what they
return, by rank. A thread waits inside C for the other ranks, so each rank has a Julia thread to itself: start Julia
with at least
`-t nranks`, and call this from the main task. Garbage collection goes on meanwhile.

Where `f` throws on one rank, the group is broken, so that no other rank waits for it, and the first error that is
not merely a consequence is thrown here.
"""
function on_ranks(f, nranks)
    whole(Int32, "nranks", nranks)
    require_threads(nranks)
    comms = thread_comms(nranks)
    results = Vector{Any}(nothing, nranks)
    errors = Vector{Any}(nothing, nranks)
    Threads.@threads :static for i in 1:Threads.nthreads()
        i <= nranks || continue
        try
            results[i] = f(comms[i])
        catch error
            errors[i] = error
            told_to_all(error) || break_group(comms[i])
        end
    end
    foreach(drop_comm, comms)
    failed = filter(!isnothing, errors)
    isempty(failed) && return results
    causes = filter(error -> !(error isa LASPError && error.status in CONSEQUENCES), failed)
    throw(first(isempty(causes) ? failed : causes))
end

const CONSEQUENCES = (Raw.LASP_ERROR_ABORTED, Raw.LASP_ERROR_PEER_LOST, Raw.LASP_ERROR_PEER_REFUSED)

function require_threads(nranks)
    Threads.nthreads() >= nranks || throw(ArgumentError(
        "on_ranks: $nranks ranks need a thread each, this Julia has $(Threads.nthreads()): start it with -t $nranks"))
    # Inside another threaded loop some Julias would run the ranks one after another: the first would wait for ever.
    ccall(:jl_in_threaded_region, Cint, ()) == 0 ||
        throw(ArgumentError("on_ranks: must not be called inside Threads.@threads"))
    VERSION >= v"1.8" || Threads.threadid() == 1 ||
        throw(ArgumentError("on_ranks: this Julia starts threads from the main task only"))
    return nothing
end

# A 3xx status reaches every rank by itself; breaking the group could hide from a rank what was wrong with its own
# problem.
told_to_all(error) = error isa LASPError && damage(error) == :plan

# Tells the other ranks not to wait. A context is what can do that, and the failed rank may not have one any more.
function break_group(comm::Comm)
    isopen(comm) || return nothing
    pointer = Ref{Ptr{Raw.lasp_context}}(C_NULL)
    options = Ref(Raw.lasp_context_options(cpu_threads = 1))
    if Raw.lasp_context_create(Raw.LASP_ABI, comm.pointer, options, pointer) == Raw.LASP_OK
        Raw.lasp_context_abort(pointer[])
        Raw.lasp_context_destroy(pointer[])
    end
    return nothing
end

# Frees a comm, or where the caller still has contexts on it leaves that to the last of them.
function drop_comm(comm::Comm)
    comm.references[] == 1 && call(() -> release(comm), comm)
    return nothing
end
