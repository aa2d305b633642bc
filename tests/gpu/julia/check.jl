# The Julia binding on a GPU, without CUDA.jl: arrays in device memory by the CUDA driver's own functions, and the
# methods that a package with device arrays adds. A line for each check; exit status 1 when one failed. With --cpu the
# same on host memory, as far as that goes.
#
#     LASP_LIBRARY=.../liblasp.so.2 julia check.jl [--cpu]
include(joinpath(@__DIR__, "..", "..", "..", "bindings", "julia", "src", "LASP.jl"))
using .LASP
using Libdl

const ON_CPU = "--cpu" in ARGS

# ---- Device memory -----------------------------------------------------------------------------------------

const driver = Ref{Ptr{Cvoid}}(C_NULL)
"@driver cuInit(0::Cuint): calls a function of the driver, which returns 0 or an error."
macro driver(called)
    name, arguments = string(called.args[1]), called.args[2:end]
    types, values = [esc(a.args[2]) for a in arguments], [esc(a.args[1]) for a in arguments]
    return :(ccall(dlsym(driver[], $name), Cint, ($(types...),), $(values...)))
end
must(code) = code == 0 || error("the CUDA driver says error $code")

"Makes the first GPU's context, the one that the library uses too, this thread's."
function use_device()
    driver[] = dlopen("libcuda.so.1")
    device, context = Ref{Cint}(0), Ref{Ptr{Cvoid}}(C_NULL)
    must(@driver cuInit(0::Cuint))
    must(@driver cuDeviceGet(device::Ptr{Cint}, 0::Cint))
    must(@driver cuDevicePrimaryCtxRetain(context::Ptr{Ptr{Cvoid}}, device[]::Cint))
    must(@driver cuCtxSetCurrent(context[]::Ptr{Cvoid}))
end

"An array in device memory. It can be handed over, written from the host and read back; no more."
mutable struct DeviceArray{T, N} <: AbstractArray{T, N}
    address::UInt64
    size::NTuple{N, Int}
    strides::NTuple{N, Int}
    host::Vector{UInt8}  # with --cpu its memory is this

    function DeviceArray{T}(size::Int...) where {T}
        bytes, steps = max(prod(size) * sizeof(T), 1), LASP.dense_strides(size)
        if ON_CPU
            host = Vector{UInt8}(undef, bytes + 256)
            address = (UInt64(UInt(pointer(host))) + 255) & ~UInt64(255)
            return new{T, length(size)}(address, size, steps, host)
        end
        address = Ref{UInt64}(0)
        must(@driver cuMemAlloc_v2(address::Ptr{UInt64}, bytes::Csize_t))
        array = new{T, length(size)}(address[], size, steps, UInt8[])
        # It waits for the work that uses the memory. At the program's end the driver may be gone already.
        return finalizer(a -> @driver(cuMemFree_v2(a.address::UInt64)), array)
    end
end
function DeviceArray(values::Array{T}) where {T}
    array = DeviceArray{T}(size(values)...)
    GC.@preserve values array ON_CPU ? unsafe_copyto!(Ptr{T}(array.address), pointer(values), length(values)) :
        must(@driver cuMemcpyHtoD_v2(array.address::UInt64, pointer(values)::Ptr{Cvoid}, sizeof(values)::Csize_t))
    return array
end
"On the host; waits for the default stream first."
function values_of(array::DeviceArray{T}) where {T}
    values = Array{T}(undef, array.size)
    GC.@preserve values array ON_CPU ? unsafe_copyto!(pointer(values), Ptr{T}(array.address), length(values)) :
        must(@driver cuMemcpyDtoH_v2(pointer(values)::Ptr{Cvoid}, array.address::UInt64, sizeof(values)::Csize_t))
    return values
end
Base.size(array::DeviceArray) = array.size
Base.strides(array::DeviceArray) = array.strides
Base.getindex(::DeviceArray, ::Int...) = error("an element of a device array was read on the host")

const DEVICE = ON_CPU ? LASP.Raw.LASP_DEVICE_CPU : LASP.Raw.LASP_DEVICE_CUDA
LASP.device_of(::DeviceArray) = DEVICE
LASP.pointer_of(array::DeviceArray) = Ptr{Cvoid}(array.address)
if !ON_CPU
    # The driver aligns to 256 bytes, more than any plan asks for.
    LASP.allocate(::Val{LASP.Raw.LASP_DEVICE_CUDA}, bytes, alignment) = DeviceArray{UInt8}(Int(max(bytes, 1)))
end

# ---- Lines of the report -----------------------------------------------------------------------------------

const counts = Dict("pass" => 0, "FAIL" => 0, "SKIPPED" => 0)
function line(verdict::String, text)
    counts[verdict] += 1
    println("  ", verdict, "  ", text)
    flush(stdout)
end
line(good::Bool, text) = line(good ? "pass" : "FAIL", text)
function refused(f, what, kind, words)
    try
        f()
    catch error
        text = sprint(showerror, error)
        return line(error isa kind && occursin(words, text), "$what: $text")
    end
    return line(false, "$what: was not refused")
end
function attempt(f, what)
    try
        f()
    catch error
        line(false, "$what: " * sprint(showerror, error, catch_backtrace()))
    end
end

# ---- What is right, in float64 -----------------------------------------------------------------------------

"o, dq, dk, dv and the final state of arrays (dim, heads, tokens, batch), with a decay per token and head."
recurrence(arrays...) = in_float64(map(x -> Float64.(Float32.(x)), arrays)...)
function in_float64(q, k, v, d_o, g)
    dim, heads, tokens, batch = size(q)
    scale = 1 / sqrt(dim)
    o, dq, dk, dv = (zeros(size(q)) for _ in 1:4)
    final = zeros(dim, dim, heads, batch)  # (V, K, heads, sequences)
    for b in 1:batch, h in 1:heads
        S, D = zeros(dim, dim), zeros(dim, dim)  # [V, K]
        for t in 1:tokens
            decay = exp(g[h, t, b])
            for i in 1:dim, j in 1:dim
                S[j, i] = decay * S[j, i] + k[i, h, t, b] * v[j, h, t, b]
                o[j, h, t, b] += scale * S[j, i] * q[i, h, t, b]
                dq[i, h, t, b] += scale * S[j, i] * d_o[j, h, t, b]
            end
        end
        final[:, :, h, b] = S
        for t in tokens:-1:1
            decay = exp(g[h, t, b])
            for i in 1:dim, j in 1:dim
                D[j, i] += scale * q[i, h, t, b] * d_o[j, h, t, b]
                dk[i, h, t, b] += D[j, i] * v[j, h, t, b]
                dv[j, h, t, b] += D[j, i] * k[i, h, t, b]
                D[j, i] *= decay
            end
        end
    end
    return (o = o, dq = dq, dk = dk, dv = dv, final_state = final)
end
norm_of(x) = sqrt(sum(abs2, x))
error_of(actual, expected) = norm_of(Float64.(Float32.(actual)) .- expected) / norm_of(expected)

wave(T, seed, size...) = T[T(sin(0.7i + seed) * cos(0.013i + seed)) for i in reshape(1:prod(size), size)]

# Sums of at most 2,000 terms in float32; bfloat16's and float16's operands of tensor cores and results are rounded.
const BOUNDS = Dict(Float32 => 8e-6, Float16 => 4e-3, LASP.BFloat16 => 4e-3)
const DIM, HEADS, TOKENS, BATCH = 64, 2, 150, 2
problem(T) = (map(seed -> wave(T, seed, DIM, HEADS, TOKENS, BATCH), (1, 2, 3, 4))...,
              -0.1f0 .* abs.(wave(Float32, 5, HEADS, TOKENS, BATCH)))

# ---- The checks --------------------------------------------------------------------------------------------

make_context() = Context(Comm(); device = ON_CPU ? :cpu : :cuda)

function results(T)
    host = problem(T)
    q, k, v, d_o, g = map(DeviceArray, host)
    o, dq, dk, dv = (DeviceArray(zeros(T, size(host[1]))) for _ in 1:4)
    dg, final = DeviceArray(zeros(Float32, size(host[5]))), DeviceArray(zeros(Float32, DIM, DIM, HEADS, BATCH))
    plan = Plan(make_context(), q, k, v; decay = g)
    forward!(plan, o, q, k, v; decay = g, final_state = final)
    backward!(plan, dq, dk, dv, d_o, q, k, v; decay = g, d_decay = dg)
    expected = recurrence(host...)
    for (name, array) in (("o", o), ("final_state", final), ("dq", dq), ("dk", dk), ("dv", dv))
        error = error_of(values_of(array), expected[Symbol(name)])
        line(error < BOUNDS[T], "$T $name against float64: $(round(error, sigdigits = 2))")
    end
    given = plan.forward_args[]
    line(given.q.data == LASP.pointer_of(q) && given.o.data == LASP.pointer_of(o) &&
         given.final_state.data == LASP.pointer_of(final), "$T: C was given the arrays' own addresses")
    line(all(values_of(array) == was for (array, was) in zip((q, k, v, d_o, g), host)), "$T: inputs are unchanged")
end

function refusals()
    host = problem(Float32)
    q, k, v, _, g = map(DeviceArray, host)
    o = DeviceArray(zeros(Float32, size(host[1])))
    context = make_context()
    plan = Plan(context, q, k, v; decay = g)
    forward(q; o = o, g = g, options...) = () -> forward!(plan, o, q, k, v; decay = g, options...)
    if ON_CPU
        line("SKIPPED", "memory of the wrong kind, streams: with --cpu all memory is the host's")
    else
        refused(forward(host[1]), "an array on the CPU", ArgumentError,
                "q: an array in host memory, the plan is for device")
        refused(forward(q; o = copy(host[1])), "an output on the CPU", ArgumentError, "o: an array in host memory")
        refused(forward(q; g = host[5]), "a decay on the CPU", ArgumentError, "decay: an array in host memory")
        refused(forward(q; final_state = zeros(Float32, DIM, DIM, HEADS, BATCH)), "a state on the CPU",
                ArgumentError, "final_state: an array in host memory")
        plain = Plan(Context(Comm(); cpu_threads = 1), host[1:3]...)
        refused(() -> forward!(plain, copy(host[1]), q, host[2], host[3]), "a GPU's array on a CPU context",
                ArgumentError, "q: an array in device memory, the plan is for host")
        refused(() -> Context(Comm(); device = :cuda, device_index = 4095), "a GPU that is not there", LASPError,
                "device")
        refused(() -> Plan(context, q, k, v; segment = 256), "a segment on a GPU", LASPError, "segment")
    end
    refused(forward(DeviceArray(Float16.(host[1]))), "another element type", ArgumentError,
            "q: elements of Float16")
    refused(forward(DeviceArray(host[1][:, :, 1:20, :])), "another size", DimensionMismatch, "q: size")
    refused(forward(q; cache = DeviceArray{UInt8}(16)), "a cache too small", LASPError, "state_cache")
    refused(forward(q; o = q), "o in q's place", LASPError, "o")
    forward!(plan, o, q, k, v; decay = g)
    error = error_of(values_of(o), recurrence(host...).o)
    line(error < BOUNDS[Float32], "after all of these the plan computes: $(round(error, sigdigits = 2))")
    close(plan)
    refused(forward(q), "a closed plan", Exception, "closed")
end

"Least of several rounds' means, in microseconds."
function microseconds(f)
    f()
    return minimum((@elapsed(for _ in 1:1000; f(); end) * 1e3 for _ in 1:20))
end
function overhead()
    plan = Plan(make_context(); tokens = 0, heads = HEADS, head_dim = DIM)
    empty = DeviceArray{Float32}(DIM, HEADS, 0, 1)
    o = DeviceArray{Float32}(DIM, HEADS, 0, 1)
    full = microseconds(() -> forward!(plan, o, empty, empty, empty))
    pointer, arguments, stream = LASP.live(plan), plan.forward_args, LASP.Raw.lasp_stream(C_NULL)
    plain = microseconds(() -> LASP.Raw.lasp_forward(pointer, arguments, stream))
    line(full - plain < 5, "forward! without work: $(round(full, digits = 2)) us, the C function " *
         "$(round(plain, digits = 2)) us, $(round(full - plain, digits = 2)) us more")
end

println("Julia $VERSION, $(LASP.LIBRARY_PATH[]), ", ON_CPU ? "host memory" : "device memory")
ON_CPU || use_device()
for T in (Float32, LASP.BFloat16, Float16)
    attempt(() -> results(T), "results of $T")
end
attempt(refusals, "refusals")
attempt(overhead, "overhead")
println("$(counts["pass"]) passed, $(counts["FAIL"]) failed, $(counts["SKIPPED"]) skipped")
exit(counts["FAIL"] == 0 ? 0 : 1)
