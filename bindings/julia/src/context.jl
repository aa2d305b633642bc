# Context: comm + device + settings.

const DEVICES = (auto = Raw.LASP_DEVICE_AUTO, cpu = Raw.LASP_DEVICE_CPU, cuda = Raw.LASP_DEVICE_CUDA)
const LOG_LEVELS = (off = Raw.LASP_LOG_OFF, warning = Raw.LASP_LOG_WARNING, info = Raw.LASP_LOG_INFO,
                    debug = Raw.LASP_LOG_DEBUG)

"""
    Context(comm; device = :auto, device_index = nothing, time_limit = 600.0, cpu_threads = 0, log = nothing,
            log_level = nothing, latency_us = 0.0, bandwidth_gbs = 0.0, profiler_ranges = false,
            verify_messages = false, check_values = false)

A rank's device and settings. `device` is `:cpu`, `:cuda`, or `:auto`: the GPU of a comm whose memory is a GPU's, else
the CPU; `device_index` the number of the GPU, `nothing` the comm's or the current one. `time_limit` is in seconds, of
every wait for another rank; `Inf` waits for ever. `cpu_threads` are the threads that compute, the caller's included;
0 shares the machine's CPUs among the ranks on it. `log` is a function of a level and a message, called inside calls
into the library; it must not call the library. It is told of `log_level` and what is more important (`:warning` where
none is given). The link's latency and bandwidth are for the automatic schedule. With `verify_messages` (the same on
all ranks, CPU only) a checksum travels with every message, and one that arrives changed ends the comm with
`LASP_ERROR_TRANSPORT` instead of becoming a wrong number.
"""
mutable struct Context <: Handle
    pointer::Ptr{Raw.lasp_context}
    parent::Comm
    references::Threads.Atomic{Int}
    device::Int32
    log::Base.RefValue{Any}  # C holds its address
    interrupt::Base.RefValue{Any}  # likewise; the InterruptException that ended a call

    function Context(comm::Comm; device = :auto, device_index = nothing, time_limit = 600.0, cpu_threads = 0,
                     log = nothing, log_level = nothing, latency_us = 0.0, bandwidth_gbs = 0.0,
                     profiler_ranges = false, verify_messages = false, check_values = false)
        logger, interrupt = Ref{Any}(log), Ref{Any}(nothing)
        log === nothing && log_level !== nothing &&
            throw(ArgumentError("log_level = $(repr(log_level)): is of a log, and none is given"))
        log === nothing || applicable(log, :warning, "") ||
            throw(ArgumentError("log: a $(typeof(log)), must be callable with a level (a Symbol) and a message"))
        options = Raw.lasp_context_options(
            device = choice("device", device, DEVICES),
            device_index = device_index === nothing ? Int32(-1) : whole(Int32, "device_index", device_index),
            time_limit_ms = milliseconds(time_limit), cpu_threads = whole(Int32, "cpu_threads", cpu_threads),
            log_level = log === nothing ? Raw.LASP_LOG_OFF :
                        choice("log_level", something(log_level, :warning), LOG_LEVELS),
            log = log === nothing ? C_NULL : log_trampoline_address[],
            log_user = pointer_from_objref(logger), interrupted = interrupt_trampoline_address[],
            interrupted_user = pointer_from_objref(interrupt), latency_us = finite("latency_us", latency_us),
            bandwidth_gbs = finite("bandwidth_gbs", bandwidth_gbs),
            profiler_ranges = flag("profiler_ranges", profiler_ranges),
            verify_messages = flag("verify_messages", verify_messages),
            check_values = flag("check_values", check_values))
        pointer = Ref{Ptr{Raw.lasp_context}}(C_NULL)
        handle, given = live(comm), Ref(options)
        GC.@preserve comm logger interrupt begin
            call(() -> Raw.lasp_context_create(Raw.LASP_ABI, handle, given, pointer), comm)
        end
        found = Ref{Int32}(0)
        check(Raw.lasp_context_get_device(pointer[], found, Ptr{Int32}(C_NULL)))
        return adopt!(new(pointer[], comm, Threads.Atomic{Int}(1), found[], logger, interrupt))
    end
end

destroy(context::Context) = Raw.lasp_context_destroy(context.pointer)
Base.show(io::IO, context::Context) =
    print(io, "LASP.Context(", isopen(context) ? "" : "closed, ",
          context.device == Raw.LASP_DEVICE_CPU ? "cpu" : "cuda", ", rank ", context.parent.rank, " of ",
          context.parent.nranks, ")")

"""
    LASP.abort(context)

Breaks the group on purpose, from any thread: calls in flight here and on other ranks end with `LASP_ERROR_ABORTED`.
The context and its comm can then only be closed.
"""
abort(context::Context) = GC.@preserve context check(Raw.lasp_context_abort(live(context)))

"""
    LASP.check_async(context)

Throws what a failure outside any call has left behind: on a CUDA context a failed kernel or a lost peer.
"""
function check_async(context::Context)
    status = Ref{Int32}(Raw.LASP_OK)
    handle = live(context)
    text = Vector{UInt8}(undef, 1024)
    GC.@preserve context text call(
        () -> Raw.lasp_context_get_async_error(handle, status, pointer(text), Csize_t(length(text))), context)
    status[] == Raw.LASP_OK || throw(LASPError(status[], GC.@preserve text unsafe_string(pointer(text))))
    return nothing
end

# ---- Log -------------------------------------------------------------------------------------------------

const log_trampoline_address = Ref{Ptr{Cvoid}}(C_NULL)

# C calls this on a thread that is marked as safe for garbage collection (entry.jl): the mark comes off before
# Julia's heap is touched. An exception must not pass through C, so one in the caller's function is shown and
# dropped.
function log_trampoline(user::Ptr{Cvoid}, level::Int32, message::Cstring)
    state = ccall(:jl_gc_unsafe_enter, Int8, ())
    deliver_log(user, level, message)
    ccall(:jl_gc_unsafe_leave, Cvoid, (Int8,), state)
    return nothing
end

@noinline function deliver_log(user, level, message)
    try
        log = unsafe_pointer_to_objref(user)[]
        names = keys(LOG_LEVELS)
        log(names[clamp(level + 1, 1, length(names))], unsafe_string(message))
    catch error
        @error "the log function of a LASP.Context failed" exception = error
    end
    return nothing
end

# ---- Ctrl-C ----------------------------------------------------------------------------------------------

const interrupt_trampoline_address = Ref{Ptr{Cvoid}}(C_NULL)

# C asks this about ten times a second while a call waits for another rank, on the calling thread. Not 0 ends the call.
function interrupt_trampoline(user::Ptr{Cvoid})
    state = ccall(:jl_gc_unsafe_enter, Int8, ())
    interrupted = look_for_interrupt(user)
    ccall(:jl_gc_unsafe_leave, Cvoid, (Int8,), state)
    return interrupted
end

@noinline function look_for_interrupt(user)
    try
        reenable_sigint(GC.safepoint)
        return Int32(0)
    catch error
        unsafe_pointer_to_objref(user)[] = error
        return Int32(1)
    end
end

function throw_interrupt(context::Context)
    error = context.interrupt[]
    error === nothing && return nothing
    context.interrupt[] = nothing
    throw(error)
end
