# Comm: one rank's end of one sequence-parallel group.

"""
    Comm()

A group of one. [`LASP.thread_comms`](@ref) makes a group of threads, [`LASP.nccl_comm`](@ref),
[`LASP.mpi_comm`](@ref) and [`LASP.custom_comm`](@ref) the others. `comm.rank` counts from 0.
"""
mutable struct Comm <: Handle
    pointer::Ptr{Raw.lasp_comm}
    parent::Nothing
    references::Threads.Atomic{Int}
    gate::Threads.Atomic{Int}
    rank::Int
    nranks::Int
    keep::Any  # what C reads as long as the comm lives

    function Comm(pointer::Ptr{Raw.lasp_comm}; keep = nothing, finalize = true)
        rank, nranks = Ref{Int32}(), Ref{Int32}()
        check(Raw.lasp_comm_get_rank(pointer, rank, nranks))
        comm = new(pointer, nothing, Threads.Atomic{Int}(1), Threads.Atomic{Int}(IDLE), rank[], nranks[], keep)
        return adopt!(comm; finalize = finalize)
    end
end

function Comm()
    comm = Ref{Ptr{Raw.lasp_comm}}(C_NULL)
    check(Raw.lasp_comm_create_self(comm))
    return Comm(comm[])
end

destroy(comm::Comm) = Raw.lasp_comm_destroy(comm.pointer)
Base.show(io::IO, comm::Comm) = print(io, "LASP.Comm(rank ", comm.rank, " of ", comm.nranks, ")")

"""
    LASP.thread_comms(nranks) -> Vector{Comm}

A group inside this process: the comm at index `r + 1` is rank r's, to be used by a thread of its own. A rank's
thread waits inside C for the others, so each needs a Julia thread that nothing else runs on:
[`LASP.on_ranks`](@ref) sees to that.
"""
function thread_comms(nranks)
    nranks = whole(Int32, "nranks", nranks)
    comms = fill(Ptr{Raw.lasp_comm}(C_NULL), clamp(nranks, 1, 1024))
    check(Raw.lasp_comm_create_threads(nranks, comms))
    return Comm[Comm(comm) for comm in comms]
end

"""
    LASP.nccl_comm(communicator::Ptr; functions = nothing)

A group over an NCCL communicator, which is borrowed and must outlive the comm. `functions` is a
`LASP.Raw.lasp_nccl_functions`, needed where this process shows no NCCL or has loaded two.
"""
function nccl_comm(communicator::Ptr; functions::Union{Nothing, Raw.lasp_nccl_functions} = nothing)
    comm = Ref{Ptr{Raw.lasp_comm}}(C_NULL)
    table = functions === nothing ? C_NULL : Ref(functions)
    check(Raw.lasp_comm_create_nccl(Ptr{Raw.ncclComm}(communicator), table, comm))
    return Comm(comm[])
end

"""
    LASP.mpi_comm(communicator; library = nothing)

A group over an MPI communicator given as C has it (with MPI.jl: `comm.val`), by the library liblasp_mpi: the one whose
path is `library` or in `LASP_MPI_LIBRARY`, else the one beside the liblasp in use, else where the system's loader
looks. Collective over the communicator, which is duplicated. All calls then come from the main thread. Close the comm
before MPI is finalized: it has no finalizer, since freeing it is a call into MPI.
"""
function mpi_comm(communicator::Union{Ptr, Integer}; library::Union{Nothing, AbstractString} = nothing)
    name = "liblasp_mpi.so.$(Raw.LASP_ABI)"
    loaded = library === nothing ?
             load_library("liblasp_mpi", "LASP_MPI_LIBRARY", [joinpath(dirname(LIBRARY_PATH[]), name), name]) :
             Libdl.dlopen(library)
    create = Libdl.dlsym(loaded, :lasp_mpi_comm_create)
    comm = Ref{Ptr{Raw.lasp_comm}}(C_NULL)
    status = communicator isa Ptr ?  # Open MPI has pointers, MPICH integers
             ccall(create, Int32, (Ptr{Cvoid}, Ptr{Ptr{Raw.lasp_comm}}), communicator, comm) :
             ccall(create, Int32, (Cint, Ptr{Ptr{Raw.lasp_comm}}), communicator, comm)
    check(status)
    return Comm(comm[]; finalize = false)
end

"""
    LASP.custom_comm(transport::LASP.Raw.lasp_transport, user = C_NULL; keep = nothing)

A group over a transport of your own, a table of C functions as lasp.h describes it. `keep` is held as long as the
comm. The library calls these functions while the thread is marked as safe for garbage collection: functions made by
`@cfunction` need Julia 1.9, where they take that mark off themselves.
"""
function custom_comm(transport::Raw.lasp_transport, user = C_NULL; keep = nothing)
    comm = Ref{Ptr{Raw.lasp_comm}}(C_NULL)
    check(Raw.lasp_comm_create_custom(Ref(transport), user, comm))
    return Comm(comm[]; keep = keep)
end

"""
    LASP.traffic(comm)

What this rank has put on the transport so far: a named tuple of bytes, messages and seconds spent waiting.
"""
function traffic(comm::Comm)
    t = Ref(Raw.lasp_traffic())
    GC.@preserve comm check(Raw.lasp_comm_get_traffic(live(comm), t))
    return (bytes_sent = t[].bytes_sent, bytes_received = t[].bytes_received, messages_sent = t[].messages_sent,
            messages_received = t[].messages_received, wait_seconds = t[].wait_seconds)
end
