"""
Linear attention over a sequence that is split along its length across ranks, in Julia: a thin layer over liblasp.

    comm = LASP.Comm()                             # a group of one; LASP.on_ranks(f, n) for a rank per thread
    context = LASP.Context(comm)
    plan = LASP.Plan(context, q, k, v; decay = g)  # q, k, v: arrays (dim, heads, tokens, batch)
    forward!(plan, o, q, k, v; decay = g)
    backward!(plan, dq, dk, dv, d_o, q, k, v; decay = g, d_decay = dg)

Arrays are column-major, so that `(dim, heads, tokens, batch)` here is what `[batch, tokens, heads, dim]` is in C
and Python: the same memory. No array is copied. Views are fine where the first dimension is contiguous. States are
`(V, K, heads, sequences)` of `Float32`.

What the library refuses is a [`LASPError`](@ref) with its sentence; what this layer sees first (a wrong element
type, shape or layout) is an `ArgumentError` or a `DimensionMismatch`.
"""
module LASP

using Libdl

export LASPError, BFloat16, Comm, Context, Plan, forward!, backward!, step!

"The C interface, name for name as in lasp.h. Needs that header's care; the rest of the package takes it for you."
module Raw
include("entry.jl")
include("raw.jl")
end

include("errors.jl")
include("arguments.jl")
include("bfloat16.jl")
include("arrays.jl")
include("handles.jl")
include("comm.jl")
include("context.jl")
include("problem.jl")
include("plan.jl")
include("execute.jl")
include("stages.jl")
include("halo.jl")
include("trace.jl")
include("ranks.jl")
include("helpers.jl")

"Where the library was loaded from."
const LIBRARY_PATH = Ref("")

"""
Loads the library: the path in `LASP_LIBRARY`, else `liblasp.so` of this interface's number where the system's
loader finds it. One that lacks a function of this interface is refused here.
"""
function __init__()
    refuse_split_unwinder()
    library = load_library("liblasp", "LASP_LIBRARY", ["liblasp.so.$(Raw.LASP_ABI)"])
    LIBRARY_PATH[] = Libdl.dlpath(library)
    for entry in Raw.ENTRIES
        address = Libdl.dlsym(library, entry.name; throw_error = false)
        address === nothing && error(
            "LASP: $(LIBRARY_PATH[]) is of another version than this package, it has no $(entry.name): install one of ",
            "version $HEADER_VERSION, or name it in LASP_LIBRARY")
        entry.address[] = address
    end
    log_trampoline_address[] = @cfunction(log_trampoline, Cvoid, (Ptr{Cvoid}, Int32, Cstring))
    interrupt_trampoline_address[] = @cfunction(interrupt_trampoline, Int32, (Ptr{Cvoid},))
    return nothing
end

# The library at the path that an environment variable holds, else at the first of the places where it can be loaded.
function load_library(name, variable, places)
    named = get(ENV, variable, "")
    reasons = String[]
    for place in (isempty(named) ? places : [named])
        try
            return Libdl.dlopen(place)
        catch reason
            push!(reasons, "$place ($(sprint(showerror, reason)))")
        end
    end
    error("LASP: $name cannot be loaded: $variable ", isempty(named) ? "is not set" : "= $named", "; tried ",
          join(reasons, ", "), ". Set $variable to the path of $(last(places))")
end

# Debian's Julia 1.5 brings a libunwind whose _Unwind_* functions hide some of libgcc's: a C++ exception, even one
# that is caught inside the library, then ends the process. Better said than seen.
function refuse_split_unwinder()
    (Sys.islinux() && VERSION < v"1.6") || return nothing
    in_process = ccall(:dlsym, Ptr{Cvoid}, (Ptr{Cvoid}, Cstring), C_NULL, "_Unwind_Resume")
    of_gcc = Libdl.dlsym(Libdl.dlopen("libgcc_s.so.1"), :_Unwind_Resume)
    in_process in (C_NULL, of_gcc) ||
        error("LASP: this Julia's libunwind gets in the way of C++ exceptions; start it with LD_PRELOAD=libgcc_s.so.1")
    return nothing
end

end
