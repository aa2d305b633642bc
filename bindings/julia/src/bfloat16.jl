# bfloat16: the upper half of a Float32, enough of a number to be stored and converted.

"""
    BFloat16

A bfloat16 number, for arrays. Convert with `Float32(x)` and `BFloat16(x)` (to nearest, ties to even); arithmetic
is done in `Float32`. `Core.BFloat16` of newer Julia is understood too, and so is any other type of these bits for
which
`LASP.dtype_code` has a method.
"""
primitive type BFloat16 <: AbstractFloat 16 end

function BFloat16(x::Float32)
    bits = reinterpret(UInt32, x)
    isnan(x) && return reinterpret(BFloat16, (bits >> 16) % UInt16 | 0x0040)
    rounding = 0x00007fff + ((bits >> 16) & 0x00000001)
    return reinterpret(BFloat16, ((bits + rounding) >> 16) % UInt16)
end
BFloat16(x::Real) = BFloat16(Float32(x))
BFloat16(x::BFloat16) = x

Base.Float32(x::BFloat16) = reinterpret(Float32, UInt32(reinterpret(UInt16, x)) << 16)
Base.Float64(x::BFloat16) = Float64(Float32(x))
Base.promote_rule(::Type{BFloat16}, ::Type{Float32}) = Float32
Base.promote_rule(::Type{BFloat16}, ::Type{Float64}) = Float64
Base.promote_rule(::Type{BFloat16}, ::Type{<:Integer}) = BFloat16
Base.zero(::Type{BFloat16}) = reinterpret(BFloat16, 0x0000)
Base.one(::Type{BFloat16}) = reinterpret(BFloat16, 0x3f80)
Base.isnan(x::BFloat16) = isnan(Float32(x))
Base.:(==)(x::BFloat16, y::BFloat16) = Float32(x) == Float32(y)
Base.isless(x::BFloat16, y::BFloat16) = isless(Float32(x), Float32(y))
Base.:(-)(x::BFloat16) = reinterpret(BFloat16, reinterpret(UInt16, x) ⊻ 0x8000)
Base.show(io::IO, x::BFloat16) = print(io, "BFloat16(", Float32(x), ")")

"The library's number for an element type."
dtype_code(::Type{Float32}) = Raw.LASP_FLOAT32
dtype_code(::Type{Float16}) = Raw.LASP_FLOAT16
dtype_code(::Type{BFloat16}) = Raw.LASP_BFLOAT16
@static if isdefined(Core, :BFloat16)
    dtype_code(::Type{Core.BFloat16}) = Raw.LASP_BFLOAT16
end
dtype_code(T::Type) = throw(ArgumentError("elements of $T: must be Float32, Float16 or LASP.BFloat16"))
dtype_code(name::String, type) =
    type isa Type ? dtype_code(type) : refuse_argument(name, type, "Float32, Float16 or LASP.BFloat16")
