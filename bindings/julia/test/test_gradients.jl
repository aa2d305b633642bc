# Gradients of a type of their own and those that are added to, a scale of zero, and check_values.

@testset "gradients" begin
    context = Context(Comm(); cpu_threads = 1)
    q, k, v, d_o = (randn(Float32, 8, 2, 20, 1) .|> Float16 for _ in 1:4)
    plan = Plan(context, q, k, v; gradient_types = (dk = Float32, dv = Float32))
    o, dq, dk, dv = similar(q), similar(q), zeros(Float32, size(k)), zeros(Float32, size(v))
    forward!(plan, o, q, k, v)
    backward!(plan, dq, dk, dv, d_o, q, k, v)
    @test any(Float32.(Float16.(dk)) .!= dk)  # it was not rounded to Float16
    once, sum = copy(dk), fill(2.0f0, size(k))
    backward!(plan, dq, sum, dv, d_o, q, k, v; add = (:dk,))
    # One float32 sum more than in a pass that writes, and the pass's own may be in another order.
    @test all(abs.(sum .- (once .+ 2)) .<= 4 .* eps(Float32) .* max.(1, abs.(sum)))
    backward!(plan, dq, sum, dv, d_o, q, k, v; add = Symbol[])
    @test sum == once
    @test complains(() -> backward!(plan, dq, similar(k), dv, d_o, q, k, v), ArgumentError, "dk: elements of Float16")
    @test refused(() -> backward!(plan, dq, dk, dv, d_o, q, k, v; add = [:d_initial_state]), 100,
                  "LASP_ADD_D_INITIAL_STATE")
    @test refused(() -> Plan(context, q, k, v; gradient_types = (dk = BFloat16,)), 200, "dk")
    decayed(type) = Plan(context, q, k, v; decay = zeros(Float16, 2, 20, 1), gradient_types = (d_decay = type,))
    @test decayed(Float32).tensors.d_decay.type === Float32 && decayed(Float16).tensors.d_decay.type === Float16

    forward!(Plan(context, q, k, v; scale = 0), o, q, k, v)
    @test all(iszero, o)
    forward!(plan, o, q, k, v)
    @test !all(iszero, o)

    checking = Context(Comm(); cpu_threads = 1, check_values = true)
    plan = Plan(checking, q, k, v)
    wrong = copy(k)
    wrong[4, 2, 8, 1] = NaN
    @test refused(() -> forward!(plan, o, q, wrong, v), 600, "k: NaN at sequence 0, token 7, head 1")
    good = forward!(plan, copy(o), q, k, v)
    @test good == forward!(plan, o, q, k, v)
end
