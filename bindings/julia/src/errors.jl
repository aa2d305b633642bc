# Statuses as exceptions.

"""
    LASPError

What the library refused or could not do. `status` is one of `LASP.Raw.LASP_ERROR_*`, `sentence` names the argument
and the reason, and [`LASP.damage`](@ref) says what is still usable.
"""
struct LASPError <: Exception
    status::Int32
    sentence::String
end

status_name(status) = unsafe_string(Raw.lasp_status_name(status))

Base.showerror(io::IO, error::LASPError) = print(io, status_name(error.status), ": ", error.sentence)

"""
    LASP.damage(error) -> Symbol

What an error has made unusable: `:nothing` (the caller's mistake, not supported, or values that a check found; everything lives on), `:plan`
(the ranks disagree: no plan was made, contexts live on), `:context` (close it; after a plan's creation or a
pass its comm too, which the other ranks see as `:comm`), or `:comm` (close it with its contexts and make a new group).
"""
function damage(error::LASPError)
    error.status < 300 && return :nothing
    error.status < 400 && return :plan
    error.status < 500 && return :context
    error.status >= 600 && return :nothing
    return :comm
end

# The sentence is this thread's until its next call into the library. Finalizers call it only where it will not
# refuse (handles.jl), so they leave the sentence alone.
@noinline refuse(status) = throw(LASPError(status, unsafe_string(Raw.lasp_last_error())))

@inline check(status) = status == Raw.LASP_OK ? nothing : refuse(status)
