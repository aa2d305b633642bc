# @entry: a C function as a Julia function.
#
# A call may wait for other ranks, and those may be threads of this very process that want to collect garbage, for
# which Julia has to stop every thread that is not marked as safe. So every call is marked: it converts its
# arguments first, then leaves Julia's heap alone until C has returned. Without this, one rank that allocates while
# another waits for it in C would stop both for good.

struct Entry
    name::Symbol
    address::Base.RefValue{Ptr{Cvoid}}  # filled in when the library is loaded
    returns::Type
    arguments::Tuple
end

"Every C function of the interface, in the header's order."
const ENTRIES = Entry[]

function gc_safe_call(address, returns, types, values)
    if VERSION >= v"1.12-"  # Julia's own way, where there is one
        typed = [:($value::$type) for (value, type) in zip(values, types)]
        call = Expr(:(::), Expr(:call, Expr(:$, address), typed...), returns)
        return Expr(:macrocall, Symbol("@ccall"), LineNumberNode(@__LINE__, @__FILE__), :(gc_safe = true), call)
    end
    return quote
        state = ccall(:jl_gc_safe_enter, Int8, ())
        result = ccall($address, $returns, ($(types...),), $(values...))
        ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
        result
    end
end

macro entry(declaration)
    call, returns = declaration.args
    name, parameters = call.args[1], call.args[2:end]
    names = Symbol[parameter.args[1] for parameter in parameters]
    types = Any[parameter.args[2] for parameter in parameters]
    rooted = [Symbol(argument, "_rooted") for argument in names]
    plain = [Symbol(argument, "_plain") for argument in names]
    reference = Symbol(name, "_address")
    root = [:($to = Base.cconvert($T, $from)) for (to, T, from) in zip(rooted, types, names)]
    convert = [:($to = Base.unsafe_convert($T, $from)::$T) for (to, T, from) in zip(plain, types, rooted)]
    body = quote
        $(convert...)
        address = $reference[]
        $(gc_safe_call(:address, returns, types, plain))
    end
    preserved = isempty(rooted) ? body : :(Base.GC.@preserve $(rooted...) $body)
    return esc(quote
        const $reference = Ref{Ptr{Cvoid}}(C_NULL)
        function $name($(names...))
            $(root...)
            $preserved
        end
        push!(ENTRIES, Entry($(QuoteNode(name)), $reference, $returns, ($(types...),)))
    end)
end
