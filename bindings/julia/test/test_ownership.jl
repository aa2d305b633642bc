# Runs of tokens that a list gives to ranks.

@testset "ownership" begin
    context = Context(Comm(); cpu_threads = 1)
    q, k, v = (randn(Float32, 8, 2, 20, 1) for _ in 1:3)
    o = forward!(Plan(context, q, k, v), similar(q), q, k, v)
    listed = Plan(context, q, k, v; ownership = :runs, runs = [(7, 0), (0, 0), (13, 0)])
    @test forward!(listed, similar(q), q, k, v) == o  # neighbours on one rank are one run
    @test forward!(Plan(context, q, k, v; ownership = :zigzag), similar(q), q, k, v) == o
    offsets = [0, 8, 8, 20]
    packed = Plan(context, q, k, v; max_sequences = 3)
    each = Plan(context, q, k, v; ownership = :zigzag_each, max_sequences = 3)
    @test forward!(each, similar(q), q, k, v; cu_seqlens = offsets) ≈
          forward!(packed, similar(q), q, k, v; cu_seqlens = offsets)
    @test refused(() -> forward!(each, similar(q), q, k, v; cu_seqlens = [0, 7, 20]), 100, "2 parts of one length")
    @test refused(() -> Plan(context, q, k, v; ownership = :zigzag_each), 100, "max_sequences = 0")
    @test refused(() -> Plan(context, q, k, v; ownership = :runs), 100, "runs")
    @test refused(() -> Plan(context, q, k, v; ownership = :runs, runs = [(7, 0), (12, 0)]), 100, "runs")
    @test refused(() -> Plan(context, q, k, v; ownership = :runs, runs = [(7, 0), (13, 1)]), 100, "runs")
    @test complains(() -> Plan(context, q, k, v; ownership = :runs, runs = 7), ArgumentError, "runs")
end

@testset "steps of fewer tokens" begin
    context = Context(Comm(); cpu_threads = 1)
    q, k, v = (randn(Float32, 8, 2, 5, 1) for _ in 1:3)
    plan = Plan(context, q, k, v; backward = false)
    state, again = zeros(Float32, 8, 8, 2, 1), zeros(Float32, 8, 8, 2, 1)
    o = step!(plan, similar(q), state, q, k, v)
    first = step!(plan, fill(-1.0f0, size(q)), again, q, k, v; tokens = 2)
    @test first[:, :, 1:2, :] == o[:, :, 1:2, :] && all(==(-1.0f0), first[:, :, 3:5, :])
    later(x) = circshift(x, (0, 0, -2, 0))
    @test step!(plan, similar(q), again, later(q), later(k), later(v); tokens = 3)[:, :, 1:3, :] == o[:, :, 3:5, :]
    @test again == state
    @test refused(() -> step!(plan, similar(q), again, q, k, v; tokens = 6), 100, "tokens = 6")
end
