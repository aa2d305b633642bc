# Comms, contexts and plans: who frees them, and when.
#
# `close` frees a handle at once and says why where it cannot. What is not closed is freed by finalizers, which come
# in any order: a handle is counted by itself and by its children, and the last of them frees it. So a finalizer
# never makes the library refuse, and never disturbs the sentence of a call that failed.
#
# Finalizers also come on any thread, while the comm's own thread may be inside a call, and the library lets no two
# threads into one comm. So each comm has a gate: a finalizer that finds a call inside comes again after the next
# collection, and a call that finds a finalizer inside waits the moment that it takes.

abstract type Handle end

# Fields of every handle: pointer, parent (or nothing), references. A comm has a gate too.

const IDLE, CALL, FINALIZER = 0, 1, 2

comm_of(handle::Handle) = handle.parent === nothing ? handle : comm_of(handle.parent)

# True where the gate is now the caller's to open again. Not so where another thread's call is inside: the library
# then refuses this one, and says it best.
function enter(comm)
    while true
        found = Threads.atomic_cas!(comm.gate, IDLE, CALL)
        found == IDLE && return true
        found == CALL && return false
        GC.safepoint()
    end
end

"""
A call into the library on behalf of a handle: its status, finalizers kept out meanwhile. Ctrl-C is kept out too, since
an exception must not pass through C; a call that waits looks for it (context.jl), and then it is thrown here.
"""
@inline function status_of_call(f::F, handle::Handle) where {F}
    comm = comm_of(handle)
    entered = enter(comm)
    status = try
        disable_sigint(f)
    finally
        entered && (comm.gate[] = IDLE)
    end
    status == Raw.LASP_ERROR_ABORTED && throw_interrupt(handle)
    return status
end

throw_interrupt(handle) = nothing

"The same, with its status checked."
@inline call(f::F, handle::Handle) where {F} = check(status_of_call(f, handle))

"The C handle, or an error where it was closed."
@inline function live(handle::Handle)
    handle.pointer == C_NULL && refuse_closed(handle)
    return handle.pointer
end
@noinline refuse_closed(handle) =
    throw(LASPError(Raw.LASP_ERROR_INVALID_HANDLE, "$(lowercase(string(nameof(typeof(handle))))): it was closed"))

function adopt!(handle::Handle; finalize = true)
    handle.parent === nothing || Threads.atomic_add!(handle.parent.references, 1)
    finalize && finalizer(discard, handle)
    return handle
end

function release(handle::Handle)
    handle.pointer == C_NULL && return Raw.LASP_OK
    status = destroy(handle)
    status == Raw.LASP_OK || return status
    handle.pointer = C_NULL
    handle.parent === nothing || drop(handle.parent)
    return status
end

# One reference less; the last one frees.
function drop(handle::Handle)
    Threads.atomic_sub!(handle.references, 1) == 1 && release(handle)
    return nothing
end

# The finalizer of every handle.
function discard(handle::Handle)
    comm = comm_of(handle)
    if Threads.atomic_cas!(comm.gate, IDLE, FINALIZER) == IDLE
        drop(handle)
        comm.gate[] = IDLE
    else
        finalizer(discard, handle)
    end
    return nothing
end

"""
    close(comm | context | plan)

Frees it now; closing it twice is allowed. A comm with contexts, or a context with plans, refuses
(`LASP_ERROR_IN_USE`) and lives on. What is never closed is freed once it is garbage.
"""
Base.close(handle::Handle) = call(() -> release(handle), handle)
Base.isopen(handle::Handle) = handle.pointer != C_NULL
