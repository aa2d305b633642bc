# What a program can do wrong, and what must hold besides the numbers: nothing is copied, handles die in any order,
# garbage collection goes on while ranks wait.

const Raw_ = LASP.Raw
arrays(T = Float32; tokens = 24, heads = 2, batch = 1) = (randn(Float32, 16, heads, tokens, batch) .|> T for _ in 1:4)

@testset "bad input" begin
    context = Context(Comm(); cpu_threads = 1)
    q, k, v, o = arrays()
    plan = Plan(context, q, k, v)
    forward!(plan, o, q, k, v)
    good = copy(o)
    wrong_type, wrong_shape = Float64.(q), q[:, :, 1:20, :]
    @test complains(() -> forward!(plan, o, wrong_type, k, v), ArgumentError, "q: elements of Float64")
    @test complains(() -> forward!(plan, o, q, wrong_shape, v), DimensionMismatch, "k: size (16, 2, 20, 1)")
    @test complains(() -> forward!(plan, o, q, k, vec(v)), DimensionMismatch, "v: size (768,)")
    every_second = view(randn(Float32, 32, 2, 24, 1), 1:2:32, :, :, :)
    @test complains(() -> forward!(plan, o, q, k, every_second), ArgumentError, "strides")
    @test complains(() -> Plan(context, q, k, every_second), ArgumentError, "v: its first dimension must be contiguous")
    padded = view(randn(Float32, 24, 2, 24, 1), 1:16, :, :, :)
    @test complains(() -> forward!(plan, padded, q, k, v), ArgumentError, "o: strides (1, 24, 48, 1152)")
    @test complains(() -> forward!(plan, o, q, k, v; final_state = zeros(Float32, 16, 16, 3, 1)), DimensionMismatch,
                    "final_state: size (16, 16, 3, 1)")
    @test complains(() -> forward!(plan, o, q, k, v; initial_state = zeros(16, 16, 2, 1)), ArgumentError,
                    "initial_state: elements of Float64")
    @test refused(() -> forward!(plan, o, q, k, v; decay = zeros(Float32, 2)), 100, "decay")
    @test refused(() -> forward!(plan, o, nothing, k, v), 100, "q")
    @test refused(() -> forward!(plan, q, q, k, v), 100, "o")
    @test refused(() -> forward!(plan, o, q, k, v; cache = LASP.HostMemory(16, 64)), 104, "state_cache")
    @test refused(() -> forward!(plan, o, q, k, v; stream = Ptr{Cvoid}(8)), 100, "stream")
    @test complains(() -> Plan(context, wrong_type, wrong_type, wrong_type), ArgumentError, "elements of Float64")
    @test complains(() -> Plan(context, q, k, v; decay = zeros(Float32, 2, 2)), DimensionMismatch, "decay: 2 dimensions")
    @test complains(() -> Plan(context, q, k, v; schedule = :fastest), ArgumentError, "schedule = :fastest: must be one of")
    @test complains(() -> Plan(context; tokens = 1), ArgumentError, "heads is needed, or all of heads_q")
    @test complains(() -> Plan(context; tokens = 1, heads = 1, head_dim = 8, like = (p = q,)), ArgumentError, "called p")
    @test refused(() -> Plan(context; tokens = 3, heads = 2, head_dim = 12), 200, "head_dim_k = 12: not a multiple of 8")
    @test refused(() -> Plan(context; tokens = -3, heads = 2, head_dim = 16), 100, "tokens = -3")
    @test refused(() -> Plan(context; tokens = 3, heads_q = 2, heads_k = 3, heads_v = 2, head_dim = 16), 100, "heads_q = 2")
    packed = Plan(context; tokens = 3, heads = 2, head_dim = 16, max_sequences = 3)
    few = zeros(Float32, 16, 2, 3, 1)
    @test refused(() -> forward!(packed, few, few, few, few), 100, "packing is null")
    @test refused(() -> forward!(packed, few, few, few, few; cu_seqlens = [0, 2, 1, 3]), 100, "cu_seqlens[2] = 1: less")
    forward!(packed, copy(few), few, few, few; cu_seqlens = [0, 2])
    @test refused(() -> Plan(context, q, k, v; chunk = 16, segment = 24), 100, "segment = 24")
    @test refused(() -> Plan(context, q, k, v; segment = 128, schedule = :doubling), 200, "segment")
    forward!(Plan(context, q, k, v; chunk = 16, segment = 48), o, q, k, v)
    @test o ≈ good
    @test refused(() -> Plan(context, q, k, v; beta = zeros(Float32, 2, size(q, 3), 1), mask = :bidirectional), 200,
                  "not with write = LASP_WRITE_DELTA")
    @test refused(() -> Context(Comm(); cpu_threads = -1), 100, "cpu_threads")
    @test refused(() -> LASP.thread_comms(0), 100, "nranks = 0")
    @test refused(() -> LASP.custom_comm(LASP.Raw.lasp_transport()), 100, "null")
    @test thrown(() -> LASP.nccl_comm(Ptr{Cvoid}(0))).status in (100, 201)
    @test refused(() -> LASP.owners(plan, 2, 1), 100, "end = 1: must be at least begin, 2")
    @test refused(() -> LASP.groups_of_rank(8, 3, 0), 100, "sequence_ranks")
    forward_only = Plan(context, q, k, v; backward = false)
    forward!(forward_only, o, q, k, v)
    @test refused(() -> backward!(forward_only, q, q, q, o, q, k, v), 100, "backward = 0")
    in_cuda = thrown(() -> Context(Comm(); device = :cuda))
    @test in_cuda === nothing || in_cuda isa LASPError && in_cuda.status in (201, 202)
    forward!(plan, o, q, k, v)  # all of that has broken nothing
    @test o == good
end

@testset "bad betas" begin
    context = Context(Comm(); cpu_threads = 1)
    q, k, v, o = arrays()
    beta, state = fill(0.5f0, 2, 24, 1), fill(7f0, 16, 16, 2, 1)
    few, wide, wrong_type = beta[:, 1:20, :], fill(0.5f0, 16, 2, 24, 1), Float64.(beta)
    @test complains(() -> Plan(context, q, k, v; beta = few), DimensionMismatch, "beta: size (2, 20, 1)")
    @test complains(() -> Plan(context, q, k, v; beta = zeros(Float32, 3, 24, 1)), DimensionMismatch, "beta: size (3, 24, 1)")
    @test complains(() -> Plan(context, q, k, v; beta = wrong_type), ArgumentError, "elements of Float64")
    plan = Plan(context, q, k, v; beta = beta)
    fill!(o, 7f0)
    for call in ((; given...) -> forward!(plan, o, q, k, v; given...),
                 (; given...) -> step!(plan, o, state, q, k, v; given...))
        @test refused(() -> call(), 100, "beta is null")
        @test complains(() -> call(beta = few), DimensionMismatch, "beta: size (2, 20, 1)")
        @test complains(() -> call(beta = wide), DimensionMismatch, "beta: size (16, 2, 24, 1)")
        @test complains(() -> call(beta = permutedims(beta, (2, 1, 3))), DimensionMismatch, "beta: size (24, 2, 1)")
        @test complains(() -> call(beta = wrong_type), ArgumentError, "beta: elements of Float64")
    end
    @test all(==(7f0), o) && all(==(7f0), state)
    forward!(plan, o, q, k, v; beta = beta)
    dq, dk, dv, d_beta = similar(q), similar(k), similar(v), similar(beta)
    backward(; given...) = backward!(plan, dq, dk, dv, o, q, k, v; given...)
    @test refused(() -> backward(d_beta = d_beta), 100, "beta is null")
    @test refused(() -> backward(beta = beta), 100, "d_beta is null")
    @test complains(() -> backward(beta = beta, d_beta = few), DimensionMismatch, "d_beta: size (2, 20, 1)")
    backward(beta = beta, d_beta = d_beta)
    @test refused(() -> step!(Plan(context, q, k, v), o, state, q, k, v; beta = beta), 100, "beta")
end

# What a device array looks like to this package, without a device.
struct OnDevice <: AbstractArray{Float32, 4}
    host::Array{Float32, 4}
end
Base.size(a::OnDevice) = size(a.host)
Base.strides(a::OnDevice) = strides(a.host)
Base.getindex(a::OnDevice, i::Int...) = error("an element of a device array was read")
LASP.device_of(::OnDevice) = LASP.Raw.LASP_DEVICE_CUDA
LASP.pointer_of(a::OnDevice) = Ptr{Cvoid}(pointer(a.host))

@testset "device" begin
    q, k, v, o = arrays()
    plan = Plan(Context(Comm(); cpu_threads = 1), q, k, v)
    @test complains(() -> forward!(plan, o, OnDevice(q), k, v), ArgumentError, "q: an array in device memory")
    @test LASP.buffer(LASP.Input, LASP.Tensor("q", Float32, size(q), strides(q), LASP.Raw.LASP_DEVICE_CUDA),
                      OnDevice(q)) == LASP.Input(Ptr{Cvoid}(pointer(q)), sizeof(q))
end

@testset "nothing is copied" begin
    all_heads = randn(Float32, 16, 6, 24, 2)  # q, k and v side by side in one projection
    q, k, v = (view(all_heads, :, i:i+1, :, :) for i in (1, 3, 5))
    head_major = PermutedDimsArray(zeros(Float32, 16, 24, 2, 2), (1, 3, 2, 4))  # memory as (dim, tokens, heads, batch)
    context = Context(Comm(); cpu_threads = 1)
    plan = Plan(context, q, k, v; like = (o = head_major,))
    forward!(plan, head_major, q, k, v)
    args = plan.forward_args[]
    @test args.q.data == pointer(all_heads) && args.k.data == pointer(all_heads, 16 * 2 + 1)
    @test args.v.data == pointer(all_heads, 16 * 4 + 1) && args.o.data == pointer(parent(head_major))
    @test args.q.bytes == sizeof(Float32) * (length(all_heads) - 16 * 4)
    dense_q, dense_k, dense_v, o = copy(q), copy(k), copy(v), zeros(Float32, 16, 2, 24, 2)
    dense = Plan(context, dense_q, dense_k, dense_v)
    call() = forward!(dense, o, dense_q, dense_k, dense_v)
    call()
    @test o == head_major
    @test @allocated(call()) < sizeof(o)
end

@testset "16-bit numbers" begin
    @test BFloat16(1.0f0) == one(BFloat16) && Float32(BFloat16(3.14159f0)) == 3.140625f0
    @test reinterpret(UInt16, BFloat16(1.00390625f0)) == 0x3f80  # halfway between two: to even
    @test isnan(BFloat16(NaN32)) && Float32(BFloat16(Inf32)) == Inf32 && Float32(-BFloat16(2)) == -2.0f0
    context = Context(Comm(); cpu_threads = 1)
    for T in (BFloat16, Float16)
        q, k, v, o = arrays(T)
        exact = zeros(Float32, size(o))
        forward!(Plan(context, q, k, v), o, q, k, v)
        forward!(Plan(context, Float32.(q), Float32.(k), Float32.(v)), exact, Float32.(q), Float32.(k), Float32.(v))
        @test o == T.(exact)  # one rounding at the end
    end
end

@testset "closing" begin
    comm = Comm()
    context = Context(comm; cpu_threads = 1)
    q, k, v, o = arrays()
    plan = Plan(context, q, k, v)
    @test refused(() -> close(context), Raw_.LASP_ERROR_IN_USE, "plan")
    @test refused(() -> close(comm), Raw_.LASP_ERROR_IN_USE, "context")
    forward!(plan, o, q, k, v)
    dead = plan.pointer
    close(plan)
    close(plan)
    @test !isopen(plan)
    @test refused(() -> forward!(plan, o, q, k, v), Raw_.LASP_ERROR_INVALID_HANDLE, "plan: it was closed")
    @test Raw_.lasp_forward(dead, plan.forward_args, C_NULL) == Raw_.LASP_ERROR_INVALID_HANDLE
    @test Raw_.lasp_forward(Ptr{Raw_.lasp_plan}(comm.pointer), plan.forward_args, C_NULL) == Raw_.LASP_ERROR_INVALID_HANDLE
    close(context)
    @test refused(() -> Plan(context, q, k, v), Raw_.LASP_ERROR_INVALID_HANDLE, "context: it was closed")
    close(comm)
    @test refused(() -> LASP.traffic(comm), Raw_.LASP_ERROR_INVALID_HANDLE, "comm: it was closed")

    # Finalizers in every order: the last of a comm, its context and its plan frees what waited for it.
    for order in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1))
        comm = Comm()
        context = Context(comm; cpu_threads = 1)
        handles = (comm, context, Plan(context, q, k, v))
        for i in order
            finalize(handles[i])
        end
        @test !any(isopen, handles)
    end
    # One closed by hand, its parent by the collector.
    comm = Comm()
    context = Context(comm; cpu_threads = 1)
    close(context)
    finalize(comm)
    finalize(context)
    @test !isopen(comm)
end

@testset "log" begin
    lines = Tuple{Symbol, String}[]
    context = Context(Comm(); cpu_threads = 1, log_level = :debug, log = (level, text) -> push!(lines, (level, text)))
    q, k, v, o = arrays()
    plan = Plan(context, q, k, v)
    @test !isempty(lines) && all(level in keys(LASP.LOG_LEVELS) for (level, _) in lines)
    GC.gc()
    forward!(plan, o, q, k, v)
    @test occursin("schedule", LASP.describe(plan))
end

@testset "helpers" begin
    @test LASP.build_info().version == string(LASP.version()) && LASP.build_info().cpu_count >= 1
    group = LASP.groups_of_rank(8, 4, 5; stride = 2)
    @test LASP.world_rank(8, 4, group.sequence_group, group.sequence_rank; stride = 2) == 5
    @test LASP.predict_exchange(:ring, 4, 1000; latency_us = 2.0, bandwidth_gbs = 1.0) ≈ 3 * (2.0 + 1.0)
    error = LASPError(Raw_.LASP_ERROR_PEER_LOST, "rank 3")
    @test sprint(showerror, error) == "LASP_ERROR_PEER_LOST: rank 3" && LASP.damage(error) == :comm
end

# Waits without a task switch and without keeping the collector waiting, as a rank that is busy elsewhere would.
sleep_outside_julia(seconds) = (until = time() + seconds; while time() < until; GC.safepoint(); end)

# How often one of two threads is refused when both use one context.
function two_in_one_context()
    context = Context(Comm(); cpu_threads = 1)
    q, k, v, _ = arrays(tokens = 4000)
    plan = Plan(context, q, k, v)
    workspace, cache = LASP.workspace(plan), LASP.state_cache(plan)
    o = similar(q)
    forward!(plan, o, q, k, v; workspace = workspace, cache = cache)
    seen = zeros(Int, Threads.nthreads())
    until = time() + 10
    GC.@preserve q k v o workspace cache begin
        Threads.@threads :static for i in 1:Threads.nthreads()
            i <= 2 || continue
            while sum(seen) == 0 && time() < until
                status = LASP.Raw.lasp_forward(plan.pointer, plan.forward_args, C_NULL)
                status == LASP.Raw.LASP_ERROR_IN_USE && (seen[i] += 1)
            end
        end
    end
    return sum(seen)
end

# Whether a context can be closed, after as many collections as its garbage may take.
function all_plans_freed(context)
    for attempt in 1:10
        GC.gc()
        thrown(() -> close(context)) === nothing && return true
    end
    return false
end

@testset "ranks" begin
    many = min(Threads.nthreads(), 4)
    @test many >= 2
    @test complains(() -> LASP.on_ranks(identity, Threads.nthreads() + 1), ArgumentError, "start it with -t")
    make(comm; tokens = 30, options...) = (context = Context(comm; cpu_threads = 1, time_limit = 30);
        (context, Plan(context; tokens = tokens, heads = 2, head_dim = 16, options...)))

    @test LASP.on_ranks(comm -> comm.rank => make(comm)[2].info.total_tokens, many) == [r => 30many for r in 0:many-1]
    # Packed sequences: who holds them.
    found = LASP.on_ranks(2) do comm
        LASP.owners(make(comm; max_sequences = 2)[2], 20, 60)
    end
    @test found[1] == (first_rank = 0, last_rank = 1) && found[2] == found[1]
    # A problem that differs on one rank; one that is refused on one rank; a rank that fails by itself.
    @test refused(() -> LASP.on_ranks(comm -> make(comm; decay = comm.rank == 1 ? :head : :none), many), 300, "decay")
    @test refused(() -> LASP.on_ranks(comm -> make(comm; head_dim = comm.rank == 1 ? 12 : 16), many), 200, "head_dim_k = 12")
    @test complains(() -> LASP.on_ranks(comm -> comm.rank == 1 ? error("by itself") : make(comm), many), ErrorException,
                    "by itself")
    # Aborted from outside the waiting call.
    @test refused(501, "abort") do
        LASP.on_ranks(2) do comm
            context, plan = make(comm)
            comm.rank == 1 && return LASP.abort(context)
            x = randn(Float32, 16, 2, 30, 1)
            while true
                forward!(plan, similar(x), x, x, x)
            end
        end
    end
    # A rank that stays away.
    @test refused(500, "rank 1") do
        LASP.on_ranks(2) do comm
            context = Context(comm; cpu_threads = 1, time_limit = 0.2)
            comm.rank == 1 ? sleep_outside_julia(1.0) : Plan(context; tokens = 3, heads = 2, head_dim = 16)
        end
    end
    # Two threads in one context: the second is refused, and not let in.
    @test two_in_one_context() > 0

    # Plans that nobody closed are freed by whichever thread collects, while their comm's own thread is inside calls:
    # no call is refused for that, and in the end all are gone.
    freed = LASP.on_ranks(2) do comm
        context = Context(comm; cpu_threads = 1, time_limit = 60)
        x = fill(0.5f0, 16, 2, 30, 1)
        o = similar(x)
        for i in 1:60
            plan = Plan(context, x, x, x)
            forward!(plan, o, x, x, x)
            i % 5 == comm.rank && GC.gc(false)
        end
        context
    end
    @test all(context -> all_plans_freed(context), freed)

    # Every rank allocates and collects while others wait for it inside C.
    sums = LASP.on_ranks(many) do comm
        context, plan = make(comm; tokens = 200, decay = :head)
        x, g = fill(0.5f0, 16, 2, 200, 1), fill(-0.1f0, 2)
        o = similar(x)
        for i in 1:100
            forward!(plan, o, x, x, x; decay = g)
            garbage = [rand(100 * (comm.rank + 1)) for _ in 1:100]
            i % (10 + comm.rank) == 0 && GC.gc(isodd(i))
            length(garbage) == 100 || error("lost")
        end
        sum(o)
    end
    @test length(sums) == many && all(isfinite, sums)
end

@testset "traces" begin
    context = Context(Comm(); cpu_threads = 1)
    q, k, v, o = arrays()
    folder = mktempdir()
    path = joinpath(folder, "trace.json")
    @test LASP.trace(context, path) do
        forward!(Plan(context, q, k, v), o, q, k, v)
        42
    end == 42
    text = read(path, String)
    @test occursin("\"name\":\"lasp_forward\"", text)
    @test thrown(() -> LASP.trace(() -> error("mine"), context, path)) isa ErrorException
    @test !occursin("lasp_forward", read(path, String))
    @test refused(() -> LASP.trace(() -> nothing, context, path; max_records = -1), 100, "options.max_records = -1")
    @test refused(() -> LASP.trace(() -> nothing, context, joinpath(folder, "none", "t.json")), 100, "No such file")
    @test complains(() -> LASP.trace(() -> nothing, context, "a\0b"), ArgumentError, "zero byte")
    @test refused(() -> LASP.trace(() -> LASP.trace(() -> nothing, context, path), context, path), 106, "traced already")
end
