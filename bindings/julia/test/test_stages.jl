# Stages on detached ranks, whose collective is a copy here; halos on ranks as threads.

const RANKS, SHARE = 3, 20

# Both are right to 2e-6.
close_to(actual, expected) = sqrt(sum(abs2, Float64.(actual) .- expected)) <= 4e-6 * sqrt(sum(abs2, Float64.(expected)))

@testset "stages, $(delta ? "delta" : "additive") write" for delta in (false, true)
    q, k, v, d_o = (randn(Float32, 8, 2, RANKS * SHARE, 2) for _ in 1:4)
    g = -0.1f0 .* rand(Float32, 2, RANKS * SHARE, 2)
    beta = delta ? rand(Float32, 2, RANKS * SHARE, 2) : nothing
    delta && (k ./= sqrt.(sum(abs2, k; dims = 1)))
    initial, d_final = (randn(Float32, 8, 8, 2, 2) for _ in 1:2)
    alone = Plan(Context(Comm(); cpu_threads = 1), q, k, v; decay = g, beta = beta)
    o, dq, dk, dv, dg, dbeta = similar(q), similar(q), similar(q), similar(q), similar(g), delta ? similar(g) : nothing
    final, d_initial = similar(initial), similar(initial)
    forward!(alone, o, q, k, v; decay = g, beta = beta, initial_state = initial, final_state = final)
    backward!(alone, dq, dk, dv, d_o, q, k, v; decay = g, d_decay = dg, beta = beta, d_beta = dbeta, initial_state = initial,
              d_initial_state = d_initial, d_final_state = d_final)

    part(x, rank) = ndims(x) == 4 ? x[:, :, rank*SHARE+1:(rank+1)*SHARE, :] : x[:, rank*SHARE+1:(rank+1)*SHARE, :]
    part(::Nothing, rank) = nothing
    mine = [map(x -> part(x, rank), (q = q, k = k, v = v, g = g, d_o = d_o, beta = beta)) for rank in 0:RANKS-1]
    stages = map(0:RANKS-1) do rank
        x = mine[rank+1]
        LASP.Stages(Plan(Context(LASP.detached_comm(rank, RANKS); cpu_threads = 1), x.q, x.k, x.v; decay = x.g, beta = x.beta))
    end
    first_state(rank) = rank == 0 ? initial : nothing
    last_gradient(rank) = rank == RANKS - 1 ? d_final : nothing
    function gathered(make)
        maps = LASP.new_maps(stages[1], RANKS)
        maps .= reduce(vcat, [make(rank) for rank in 0:RANKS-1])
        return maps
    end
    maps = gathered(rank -> (x = mine[rank+1];
        LASP.summarize(stages[rank+1], x.q, x.k, x.v; decay = x.g, beta = x.beta, initial_state = first_state(rank))))
    outputs, finals = [similar(x.q) for x in mine], similar(final)
    for rank in 0:RANKS-1
        x = mine[rank+1]
        LASP.apply!(stages[rank+1], outputs[rank+1], x.q, x.k, x.v; decay = x.g, beta = x.beta, initial_state = first_state(rank),
                    incoming = LASP.incoming(stages[rank+1], maps), final_state = rank == RANKS - 1 ? finals : nothing)
    end
    @test close_to(cat(outputs...; dims = 3), o) && close_to(finals, final)
    size = length(maps) ÷ RANKS
    one(rank) = (map = LASP.new_maps(stages[1], 1); map .= maps[rank*size+1:(rank+1)*size]; map)
    both = LASP.compose(stages[1], one(1), one(0))
    state = LASP.incoming(stages[3], maps)
    @test close_to(reinterpret(Float32, both[1:sizeof(state)]), vec(state))

    maps = gathered(rank -> (x = mine[rank+1];
        LASP.summarize_backward(stages[rank+1], x.d_o, x.q; decay = x.g, k = x.k, beta = x.beta,
                                d_final_state = last_gradient(rank))))
    found = [map(similar, (dq = x.q, dk = x.q, dv = x.q, dg = x.g, dbeta = x.g)) for x in mine]
    d_initial_found = similar(d_initial)
    for rank in 0:RANKS-1
        x, y = mine[rank+1], found[rank+1]
        LASP.apply_backward!(stages[rank+1], y.dq, y.dk, y.dv, x.d_o, x.q, x.k, x.v; decay = x.g, d_decay = y.dg,
                             beta = x.beta, d_beta = delta ? y.dbeta : nothing, initial_state = first_state(rank), d_final_state = last_gradient(rank),
                             d_initial_state = rank == 0 ? d_initial_found : nothing,
                             incoming = LASP.incoming(stages[rank+1], maps; backward = true))
    end
    @test close_to(cat((y.dq for y in found)...; dims = 3), dq) && close_to(cat((y.dk for y in found)...; dims = 3), dk)
    @test close_to(cat((y.dv for y in found)...; dims = 3), dv) && close_to(cat((y.dg for y in found)...; dims = 2), dg)
    @test close_to(d_initial_found, d_initial)
    delta && @test close_to(cat((y.dbeta for y in found)...; dims = 2), dbeta)

    x, s = mine[1], stages[1]
    @test complains(() -> LASP.apply_backward!(LASP.Stages(s.plan), x.q, x.q, x.q, x.d_o, x.q, x.k, x.v), ArgumentError,
                    "apply! comes first")
    @test complains(() -> LASP.summarize(s, x.q, x.k[:, :, 2:end, :], x.v; decay = x.g), DimensionMismatch, "k: size")
    @test complains(() -> LASP.apply!(s, x.q, x.q, x.k, x.v; incoming = zeros(Float32, 8, 8, 2, 1)), DimensionMismatch,
                    "incoming: size")
    @test complains(() -> LASP.incoming(s, 5), ArgumentError, "maps: a Int64")
    @test complains(() -> LASP.incoming(s, maps; backward = 1), ArgumentError, "backward = 1")
    @test complains(() -> LASP.new_maps(s, 0), ArgumentError, "count = 0")
    @test refused(() -> LASP.incoming(s, one(0)), 104, "maps holds")
    @test refused(() -> LASP.summarize(s, x.q, x.k, x.v), 100, "decay")
    @test refused(() -> forward!(s.plan, similar(x.q), x.q, x.k, x.v; decay = x.g), 200, "its comm is detached")
    @test refused(() -> LASP.detached_comm(3, 3), 100, "rank = 3")
    bidirectional = Plan(Context(Comm(); cpu_threads = 1), q, k, v; mask = :bidirectional)
    @test refused(() -> LASP.Stages(bidirectional), 200, "no stages")
end

@testset "halos" begin
    tokens, channels = (4, 1, 3), 5
    ends = cumsum([0; collect(tokens)])
    whole = reshape(Float32.(1:channels*sum(tokens)), channels, :, 1)
    results = LASP.on_ranks(3) do comm
        local plan, x, halo, before  # each rank's own, not those further down
        rank = comm.rank + 1
        plan = Plan(Context(comm; cpu_threads = 1); tokens = tokens[rank], heads = 1, head_dim = 8)
        x = whole[:, ends[rank]+1:ends[rank+1], :]
        @test refused(() -> LASP.Halo(plan, 65, channels), 100, "rows = 65")
        @test complains(() -> LASP.Halo(plan, 2.0, channels), ArgumentError, "rows = 2.0")
        halo = LASP.Halo(plan, 2, channels)
        before = forward!(halo, fill(-1.0f0, channels, 2, 1), x)
        d_x = backward!(halo, zero(x), fill(10.0f0^comm.rank, channels, 2, 1))
        close(halo)
        @test refused(() -> forward!(halo, before, x), 101, "it was closed")
        return before[1, :, 1], d_x[1, :, 1]
    end
    @test first.(results) == [[0, 0], [whole[1, 3, 1], whole[1, 4, 1]], [whole[1, 4, 1], whole[1, 5, 1]]]
    # Tokens 2 and 3 are wanted by rank 1, tokens 3 and 4 by rank 2.
    @test last.(results) == [[0, 0, 10, 110], [100], [0, 0, 0]]

    plan = Plan(Context(Comm(); cpu_threads = 1); tokens = 3, heads = 1, head_dim = 8)
    halo, x, before = LASP.Halo(plan, 2, 4), zeros(Float32, 4, 3, 1), zeros(Float32, 4, 2, 1)
    @test complains(() -> forward!(halo, before, x[:, 1:2, :]), DimensionMismatch, "x: size")
    @test complains(() -> forward!(halo, before, Float64.(x)), ArgumentError, "x: elements of Float64")
    @test complains(() -> backward!(halo, x, before[1:2, :, :]), DimensionMismatch, "d_before: size")
    @test refused(() -> close(plan), 106, "still use it")
    @test all(iszero, forward!(halo, before, x))
end
