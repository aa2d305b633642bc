# The state cache between forward! and backward!: a plan's own is read only where its latest forward! wrote it.

@testset "caches" begin
    q, k, v, d_o = (randn(Float32, 16, 2, 24, 1) for _ in 1:4)
    o, dq, dk, dv = (similar(q) for _ in 1:4)
    context = Context(Comm(); cpu_threads = 1)
    problem() = Plan(context, q, k, v)
    gradients(plan; options...) = map(copy, backward!(plan, dq, dk, dv, d_o, q, k, v; options...))
    plan = problem()
    forward!(plan, o, q, k, v)
    expected = gradients(plan)
    @test gradients(plan) == expected  # a second time: the cache is only read

    fresh = problem()
    @test complains(() -> gradients(fresh), ArgumentError, "backward!: no forward! has run on this plan")
    @test complains(() -> forward!(fresh, o, q, k, v; reuse_cache = true), ArgumentError,
                    "forward! with reuse_cache = true: no forward! has run on this plan")
    mine = LASP.state_cache(fresh)
    forward!(fresh, o, q, k, v; cache = mine)
    @test complains(() -> gradients(fresh), ArgumentError, "was given a cache: give this call the same one (cache =)")
    @test complains(() -> forward!(fresh, o, q, k, v; reuse_cache = true), ArgumentError, "was given a cache")
    @test gradients(fresh; cache = mine) == expected
    forward!(fresh, o, k, q, v)  # the plan's own, of other inputs
    forward!(fresh, o, q, k, v; cache = mine)
    @test complains(() -> gradients(fresh), ArgumentError, "was given a cache")
    forward!(fresh, o, q, k, v)
    again = zero(o)
    forward!(fresh, again, q, k, v; reuse_cache = true)
    @test again == o && gradients(fresh) == expected

    # A refused call has written nothing: by this layer, and by the library.
    @test complains(() -> forward!(fresh, o, q[:, :, 1:20, :], k, v), DimensionMismatch, "q: size")
    @test refused(() -> forward!(fresh, o, nothing, k, v), 100, "q")
    @test gradients(fresh) == expected
end
