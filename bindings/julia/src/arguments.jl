# What is taken as an argument. Nothing is converted silently: true is no number, 2.0 no whole number, 1 no flag.

refuse_argument(name, value, wanted) = throw(ArgumentError("$name = $(sprint(show, value)): must be $wanted"))

"A whole number that fits one of C's types."
function whole(::Type{T}, name, value) where {T}
    value isa Integer && !(value isa Bool) || refuse_argument(name, value, "a whole number")
    typemin(T) <= value <= typemax(T) || refuse_argument(name, value, "a number of $(8 * sizeof(T)) bits")
    return T(value)
end

flag(name, value) = value isa Bool ? value : refuse_argument(name, value, "true or false")

function finite(name, value)
    value isa Real && !(value isa Bool) && isfinite(value) || refuse_argument(name, value, "a finite number")
    return Float64(value)
end

"A factor of o that Float32 can hold."
function scale_of(value)
    value === nothing && return 0.0f0
    taken = Float32(finite("scale", value))
    isfinite(taken) || refuse_argument("scale", value, "a number that Float32 can hold")
    iszero(taken) && !iszero(value) && refuse_argument("scale", value, "zero, or not zero in Float32 too")
    return taken
end

"A time limit in milliseconds, as the library takes it: -1 is no limit."
function milliseconds(seconds)
    seconds isa Real && !(seconds isa Bool) && seconds > 0 ||
        refuse_argument("time_limit", seconds, "more than 0 seconds, or Inf")
    return isinf(seconds) ? Int64(-1) : ceil(Int64, min(1000.0 * seconds, 9.0e18))
end

"cu_seqlens as whole numbers: a vector, or something like one, of integers."
function offsets_of(given)
    given isa Union{AbstractVector, Tuple} || refuse_argument("cu_seqlens", given, "a vector of whole numbers")
    return Int64[whole(Int64, "cu_seqlens[$i]", offset) for (i, offset) in enumerate(given)]
end

"The value of a keyword that is given as a symbol."
choice(name, value, choices) = value isa Symbol && haskey(choices, value) ? choices[value] :
                               refuse_argument(name, value, "one of $(join(keys(choices), ", ", " or "))")
