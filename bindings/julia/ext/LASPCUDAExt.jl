# Arrays of CUDA.jl on a CUDA context: handed over by their device address, on CUDA.jl's current stream. Loaded by
# itself where both packages are (Julia 1.9 and later); an older Julia includes this file after `using CUDA`.
module LASPCUDAExt

using LASP
using CUDA

const DeviceArray = CUDA.AnyCuArray  # CuArray and its views

LASP.device_of(::DeviceArray) = LASP.Raw.LASP_DEVICE_CUDA
LASP.pointer_of(array::DeviceArray) = reinterpret(Ptr{Cvoid}, pointer(array))
LASP.stream_pointer(stream::CUDA.CuStream) = reinterpret(Ptr{Cvoid}, stream.handle)
LASP.default_stream(::Val{LASP.Raw.LASP_DEVICE_CUDA}) =
    LASP.Raw.lasp_stream(LASP.stream_pointer(CUDA.stream()))

# CUDA.jl's pool aligns to 256 bytes, more than any plan asks for.
LASP.allocate(::Val{LASP.Raw.LASP_DEVICE_CUDA}, bytes, alignment) = CUDA.CuVector{UInt8}(undef, max(bytes, 1))

end
