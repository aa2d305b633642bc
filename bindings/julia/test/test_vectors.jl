# The library's own vectors through the binding: forward, backward, recomputed forward and step, on one rank and on
# several threads, every schedule, on views of the global arrays.
include("vector_files.jl")

const VECTORS = read_vectors(ENV["LASP_TEST_VECTORS"])
const FLOAT32_BOUND = 2e-6  # tests/support/measure.cpp derives it: 34 times float32's unit roundoff

heads(case) = max(case["Hq"], case["Hk"], case["Hv"])
sequences(case) = case["cu_seqlens"] === nothing ? case["B"] : length(case["cu_seqlens"]) - 1

# Uneven on purpose: the first rank has few tokens, one of more than two none at all.
function token_ranges(tokens, nranks)
    nranks == 1 && return [1:tokens]
    ends = nranks == 2 ? [5, tokens] : vcat(5, 5, [round(Int, tokens * i / (nranks - 2)) for i in 1:nranks-2])
    return [(r == 1 ? 1 : ends[r-1] + 1):ends[r] for r in 1:nranks]
end

# What all ranks write into: token tensors by views, states by their owners.
struct Results
    tensors::Dict{Symbol, Array{Float32}}
    shares::Vector{Vector{Float32}}  # of the per-head decay's gradient, by rank
    sent::Vector{Tuple{Int, Int}}    # bytes that plans promised and that went
end
function Results(case, nranks)
    size(dim, heads) = (case[dim], heads, case["T"], case["B"])
    H = heads(case)
    nan(dims...) = fill(NaN32, dims...)
    states() = nan(case["V"], case["K"], H, sequences(case))
    decay = case["decay"] == :channel ? size("K", H) : (H, case["T"], case["B"])
    tensors = Dict(:o => nan(size("V", H)...), :dq => nan(size("K", case["Hq"])...),
                   :dk => nan(size("K", case["Hk"])...), :dv => nan(size("V", case["Hv"])...),
                   :dg => nan(decay...), :dbeta => nan(H, case["T"], case["B"]), :final_state => states(), :d_initial_state => states())
    return Results(tensors, [nan(H) for _ in 1:nranks], fill((0, 0), nranks))
end

tokens_view(::Nothing, range) = nothing
tokens_view(array::AbstractArray{<:Any, 1}, range) = array
tokens_view(array::AbstractArray{<:Any, 3}, range) = view(array, :, range, :)
tokens_view(array::AbstractArray{<:Any, 4}, range) = view(array, :, :, range, :)

function run_rank(comm, vector, range, schedule, results)
    case, r = vector.case, results.tensors
    context = Context(comm; cpu_threads = 1, time_limit = 60)
    q, k, v, d_o, beta = (tokens_view(tensor(vector, name), range) for name in ("q", "k", "v", "do", "beta"))
    decay = tokens_view(tensor(vector, "g"), range)
    o, dq, dk, dv = (tokens_view(r[name], range) for name in (:o, :dq, :dk, :dv))
    d_decay = case["decay"] == :none ? nothing :
              case["decay"] == :head ? results.shares[comm.rank+1] : tokens_view(r[:dg], range)
    d_beta = beta === nothing ? nothing : tokens_view(r[:dbeta], range)
    layouts = (o = o, d_o = d_o, dq = dq, dk = dk, dv = dv)
    case["decay"] in (:scalar, :channel) && (layouts = merge(layouts, (d_decay = d_decay,)))
    beta === nothing || (layouts = merge(layouts, (d_beta = d_beta,)))
    offsets = case["cu_seqlens"]
    plan = Plan(context, q, k, v; decay = decay, beta = beta, scale = case["scale"], like = layouts,
                max_sequences = offsets === nothing ? 0 : length(offsets) - 1, schedule = schedule)
    initial, d_final = tensor(vector, "initial_state"), tensor(vector, "d_final_state")
    before = LASP.traffic(comm).bytes_sent
    forward!(plan, o, q, k, v; decay = decay, beta = beta, initial_state = initial, final_state = r[:final_state],
             cu_seqlens = offsets)
    kept = copy(o)
    fill!(o, NaN32)
    forward!(plan, o, q, k, v; decay = decay, beta = beta, initial_state = initial, reuse_cache = true,
             cu_seqlens = offsets)
    kept == o || error("recomputed from the state cache, o differs")
    backward!(plan, dq, dk, dv, d_o, q, k, v; decay = decay, d_decay = d_decay, beta = beta, d_beta = d_beta,
              initial_state = initial, d_initial_state = r[:d_initial_state], d_final_state = d_final,
              cu_seqlens = offsets)
    promised = plan.info.forward_bytes_sent + plan.info.backward_bytes_sent
    results.sent[comm.rank+1] = (promised, LASP.traffic(comm).bytes_sent - before)
    close(plan)
    close(context)
    return nothing
end

function run_vector(vector, nranks, schedule)
    results = Results(vector.case, nranks)
    ranges = token_ranges(vector.case["T"], nranks)
    body(comm) = run_rank(comm, vector, ranges[comm.rank+1], schedule, results)
    if nranks == 1
        comm = Comm()
        body(comm)
        close(comm)
    else
        LASP.on_ranks(body, nranks)
    end
    vector.case["decay"] == :head && (results.tensors[:dg] = sum(results.shares))
    return results
end

# A per-head gradient is one sum over tokens of terms of either sign: right to a fraction of their sizes' sum. The
# terms are what the same decay, given per token, has as its gradient.
function d_decay_size(vector)
    case = vector.case
    g = repeat(vector.tensors["g"], outer = (1, case["T"], case["B"]))
    scalar = Vector_(vector.name, merge(case, Dict("decay" => :scalar)), merge(vector.tensors, Dict("g" => g)))
    terms = run_vector(scalar, 1, :auto).tensors[:dg]
    return norm(sum(abs, Float64.(terms), dims = (2, 3)))
end
norm(x) = sqrt(sum(abs2, Float64.(x)))

function compare(vector, results)
    names = vcat([:o, :final_state, :dq, :dk, :dv, :d_initial_state], vector.case["decay"] == :none ? [] : [:dg],
                 vector.case["delta"] ? [:dbeta] : [])
    for name in names
        expected, actual = tensor(vector, String(name)), results.tensors[name]
        expected === nothing && continue
        summed = name == :dg && vector.case["decay"] == :head
        if vector.case["exact"] && !summed
            @test actual == expected
        else
            size = summed ? d_decay_size(vector) : norm(expected)
            error = norm(Float64.(actual) .- expected) / size
            error <= FLOAT32_BOUND || println("$(vector.name): $name has a relative error of $error")
            @test error <= FLOAT32_BOUND
        end
    end
end

@testset "vectors" begin
    @test length(VECTORS) >= 40
    groups = filter(<=(Threads.nthreads()), [1, 2, 3, 4])
    println("vectors on $(join(groups, ", ")) ranks")
    schedules = [:ring, :all_gather, :all_scan, :doubling, :head_scatter, :auto]
    for (i, vector) in enumerate(VECTORS), nranks in groups
        nranks in (1, 2 + i % 3, 2 + (i + 1) % 3) || continue  # one rank, and two of the other sizes in turn
        schedule = schedules[(i + nranks) % length(schedules) + 1]
        @testset "$vector, $nranks ranks, $schedule" begin
            results = run_vector(vector, nranks, schedule)
            compare(vector, results)
            @test all(promised == sent for (promised, sent) in results.sent)
        end
    end
end

# Token by token on a carried state: the same as one pass over everything.
function decode(vector)
    case = vector.case
    context = Context(Comm(); cpu_threads = 1)
    at(name, t) = tokens_view(tensor(vector, name), t)
    o = similar(vector.tensors["o"])
    given = tensor(vector, "initial_state")
    state = given === nothing ? zeros(Float32, case["V"], case["K"], heads(case), case["B"]) : copy(given)
    plan = Plan(context, at("q", 1:1), at("k", 1:1), at("v", 1:1); decay = at("g", 1:1), beta = at("beta", 1:1),
                scale = case["scale"], backward = false, like = (o = tokens_view(o, 1:1),))
    for t in 1:case["T"]
        step!(plan, tokens_view(o, t:t), state, at("q", t:t), at("k", t:t), at("v", t:t); decay = at("g", t:t),
              beta = at("beta", t:t))
    end
    return o, state
end

@testset "step" begin
    for vector in VECTORS
        vector.case["cu_seqlens"] !== nothing && continue
        o, state = decode(vector)
        # Each token multiplies the state by a factor exp(g) that is right to half a unit, 2^-25, always to the same
        # side where g is constant.
        bound = FLOAT32_BOUND + vector.case["T"] * 2.0^-25
        @test norm(o .- vector.tensors["o"]) <= bound * norm(o)
        @test norm(state .- vector.tensors["final_state"]) <= bound * norm(state)
    end
end
