# Arrays as the library's buffers: where they lie, in which layout, how many bytes of them there are.

# ---- Hooks, for arrays of other packages -----------------------------------------------------------------

"""
    LASP.device_of(array) -> Int32

`LASP.Raw.LASP_DEVICE_CPU`, or `LASP_DEVICE_CUDA` for an array in device memory. A package with device arrays adds a
method of this and of [`LASP.pointer_of`](@ref); with CUDA.jl that has been done (ext/LASPCUDAExt.jl).
"""
device_of(array) = Raw.LASP_DEVICE_CPU

"The address of an array's first element, as a plain pointer."
pointer_of(array) = Ptr{Cvoid}(pointer(array))

"Memory for the library's own use on a device, at least `bytes` long from an address that `alignment` divides."
allocate(::Val{Raw.LASP_DEVICE_CPU}, bytes, alignment) = HostMemory(bytes, alignment)
allocate(::Val, bytes, alignment) = throw(ArgumentError("no package here allocates on this device: load CUDA.jl"))

"The stream that a call without `stream` uses on a device."
default_stream(::Val) = Raw.lasp_stream(C_NULL)

# ---- Memory for workspace and state cache ----------------------------------------------------------------

struct HostMemory
    storage::Vector{UInt8}
    offset::Int
    bytes::Int
end
function HostMemory(bytes::Integer, alignment::Integer)
    storage = Vector{UInt8}(undef, bytes + alignment)
    return HostMemory(storage, Int(-UInt(pointer(storage)) % UInt(alignment)), bytes)
end
pointer_of(memory::HostMemory) = Ptr{Cvoid}(pointer(memory.storage) + memory.offset)
bytes_of(memory::HostMemory) = memory.bytes
bytes_of(array::AbstractArray) = length(array) * sizeof(eltype(array))

# ---- Tensors ---------------------------------------------------------------------------------------------

# What a plan expects of one tensor. `strides` are in elements and of all dimensions.
struct Tensor{N}
    name::String
    type::DataType
    size::NTuple{N, Int}
    strides::NTuple{N, Int}
    bytes::Int  # from the first element to the end of the last
    device::Int32
end

dense_strides(size::NTuple{N, Int}) where {N} = ntuple(i -> reduce(*, size[1:i-1], init = 1), N)

function Tensor(name, type, size::NTuple{N, Int}, strides, device) where {N}
    last = any(iszero, size) ? 0 : 1 + sum((size .- 1) .* strides)
    return Tensor{N}(name, type, size, strides, last * sizeof(type), device)
end

# The strides of an array that is to set a tensor's layout. `contiguous`: whether C wants dimension 1 dense.
function strides_of(name, array, contiguous)
    applicable(strides, array) || throw(ArgumentError("$name: an array of type $(typeof(array)) has no strides"))
    given = strides(array)
    contiguous && size(array, 1) > 1 && given[1] != 1 &&
        throw(ArgumentError("$name: its first dimension must be contiguous, its stride is $(given[1])"))
    return given
end

# Only strides that are used count: those of dimensions longer than one, of arrays that are not empty.
@inline function same_layout(size::NTuple{N, Int}, a::NTuple{N, Int}, b::NTuple{N, Int}) where {N}
    for i in 1:N
        a[i] == b[i] || size[i] <= 1 || any(iszero, size) || return false
    end
    return true
end

@noinline function refuse_tensor(tensor, array)
    name, device = tensor.name, device_of(array)
    device == tensor.device || throw(ArgumentError(string(name, ": an array in ", device_name(device),
        " memory, the plan is for ", device_name(tensor.device))))
    eltype(array) === tensor.type ||
        throw(ArgumentError("$name: elements of $(eltype(array)), the plan has $(tensor.type)"))
    size(array) == tensor.size ||
        throw(DimensionMismatch("$name: size $(size(array)), the plan has $(tensor.size)"))
    throw(ArgumentError("$name: strides $(strides_of(name, array, false)), the plan has $(tensor.strides)"))
end
device_name(device) = device == Raw.LASP_DEVICE_CPU ? "host" : "device"

# An array as a buffer: nothing is copied, and the array has to be kept alive (GC.@preserve) while C has it.
@inline function buffer(::Type{B}, tensor::Tensor{N}, array::AbstractArray) where {B, N}
    (ndims(array) == N && eltype(array) === tensor.type && size(array) == tensor.size &&
     device_of(array) == tensor.device && same_layout(tensor.size, strides(array), tensor.strides)) ||
        refuse_tensor(tensor, array)
    return B(pointer_of(array), tensor.bytes)
end
@inline buffer(::Type{B}, tensor::Union{Tensor, Nothing}, ::Nothing) where {B} = B(C_NULL, 0)
# An array that the problem does not have is handed over as it is, for the library to say so.
@inline buffer(::Type{B}, ::Nothing, array::AbstractArray) where {B} = B(pointer_of(array), bytes_of(array))

@noinline buffer(::Type{B}, tensor::Union{Tensor, Nothing}, other) where {B} = throw(ArgumentError(
    string(tensor === nothing ? "" : tensor.name * ": ", "a $(typeof(other)), must be an array or nothing")))

# Memory without a shape: one block of bytes.
@inline function memory_buffer(plan, name, memory)
    is_block(memory) && device_of(memory) == plan.device || refuse_memory(plan, name, memory)
    return Raw.lasp_buffer(pointer_of(memory), bytes_of(memory))
end
is_block(::HostMemory) = true
is_block(array::AbstractArray) = isbitstype(eltype(array)) && applicable(strides, array) &&
                                 same_layout(size(array), strides(array), dense_strides(size(array)))
is_block(other) = false
@noinline function refuse_memory(plan, name, memory)
    is_block(memory) ||
        throw(ArgumentError("$name: a $(typeof(memory)), must be one block of memory: an array without gaps"))
    throw(ArgumentError(string(name, ": in ", device_name(device_of(memory)), " memory, the plan is for ",
                               device_name(plan.device))))
end
