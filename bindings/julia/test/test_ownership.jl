# Runs of tokens that a list gives to ranks.

@testset "ownership" begin
    context = Context(Comm(); cpu_threads = 1)
    q, k, v = (randn(Float32, 8, 2, 20, 1) for _ in 1:3)
    o = forward!(Plan(context, q, k, v), similar(q), q, k, v)
    listed = Plan(context, q, k, v; ownership = :runs, runs = [(7, 0), (0, 0), (13, 0)])
    @test forward!(listed, similar(q), q, k, v) == o  # neighbours on one rank are one run
    @test forward!(Plan(context, q, k, v; ownership = :zigzag), similar(q), q, k, v) == o
    @test refused(() -> Plan(context, q, k, v; ownership = :runs), 100, "runs")
    @test refused(() -> Plan(context, q, k, v; ownership = :runs, runs = [(7, 0), (12, 0)]), 100, "runs")
    @test refused(() -> Plan(context, q, k, v; ownership = :runs, runs = [(7, 0), (13, 1)]), 100, "runs")
    @test complains(() -> Plan(context, q, k, v; ownership = :runs, runs = 7), ArgumentError, "runs")
end
