# What the binding adds to a call, on a plan without work: 5 microseconds at most over the same call made in C's own
# way. The machine may be busy: of many medians the least counts, and a bad moment gets another chance.

function median_seconds(f, calls)
    times = Vector{Float64}(undef, calls)
    for i in 1:calls
        begun = time_ns()
        f()
        times[i] = 1e-9 * (time_ns() - begun)
    end
    return sort!(times)[calls÷2]
end

function added_seconds()
    plan = Plan(Context(Comm(); cpu_threads = 1); tokens = 0, heads = 2, head_dim = 64, decay = :head)
    x, g = zeros(Float32, 64, 2, 0, 1), zeros(Float32, 2)
    native() = forward!(plan, x, x, x, x; decay = g)
    native()
    # The struct is filled in and in place, as in a C program's loop.
    plain() = ccall(LASP.Raw.lasp_forward_address[], Int32, (Ptr{Cvoid}, Ptr{Cvoid}, Ptr{Cvoid}), plan.pointer,
                    plan.forward_args, C_NULL)
    plain() == LASP.Raw.LASP_OK || error("the plain call failed")
    native_s = minimum(median_seconds(native, 2000) for _ in 1:20)
    plain_s = minimum(median_seconds(plain, 2000) for _ in 1:20)
    println("forward! without work: ", round(1e6 * native_s, digits = 2), " us, in C ", round(1e6 * plain_s, digits = 2),
            " us")
    return native_s - plain_s
end

@testset "speed" begin
    @test any(added_seconds() < 5e-6 for attempt in 1:3)
end
