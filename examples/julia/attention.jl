# Linear attention whose sequence is split over four ranks, here threads of this process: a forward and a backward
# pass as training has them, compared with the same on one rank.
#
#     julia -t 4 --project=bindings/julia examples/julia/attention.jl      (LASP_LIBRARY: where liblasp.so is)
#
# Arrays are (dim, heads, tokens, batch). Every rank works on views of its own run of tokens of the global arrays,
# which are not copied; the ranks have 100, 400, 0 and 500 tokens. Only states of (dim, dim) per head travel between
# them.
using LASP

const TOKENS_OF_RANK = [100, 400, 0, 500]
const DIM, HEADS, TOKENS = 32, 4, sum(TOKENS_OF_RANK)
const DECAY = Float32[-0.001, -0.01, -0.1, -0.5]  # log of what a token leaves of the state

wave(frequency, phase) = Float32[sin(frequency * i + phase) for i in 0:DIM*HEADS*TOKENS-1]
global_array(values) = reshape(values, DIM, HEADS, TOKENS, 1)
const q, k, v = global_array.((wave(0.37, 0), wave(0.73, 1), wave(0.11, 2)))
const target = global_array(wave(0.05, 0))

results() = (o = similar(q), dq = similar(q), dk = similar(q), dv = similar(q), d_decay = zeros(Float32, HEADS))

# One rank: plan, forward, the gradient of half the squared distance to the target, backward.
function run_rank(comm, tokens, out)
    mine(array) = view(array, :, :, tokens, :)
    context = Context(comm; time_limit = 60)
    plan = Plan(context, mine(q), mine(k), mine(v); decay = DECAY)
    forward!(plan, mine(out.o), mine(q), mine(k), mine(v); decay = DECAY)
    d_o = mine(out.o) .- mine(target)
    d_decay = zeros(Float32, HEADS)
    backward!(plan, mine(out.dq), mine(out.dk), mine(out.dv), d_o, mine(q), mine(k), mine(v); decay = DECAY,
              d_decay = d_decay)
    return d_decay  # this rank's share of a parameter's gradient
end

one = results()
one.d_decay .= run_rank(Comm(), 1:TOKENS, one)

ends = cumsum(TOKENS_OF_RANK)
four = results()
shares = LASP.on_ranks(4) do comm
    last = ends[comm.rank+1]
    run_rank(comm, last-TOKENS_OF_RANK[comm.rank+1]+1:last, four)
end
four.d_decay .= sum(shares)

# Both are right to 2e-6 by the library's own bound; gradients inherit the error of o, and d_decay is a sum that
# cancels.
norm(x) = sqrt(sum(abs2, Float64.(x)))
differences = map((a, b) -> norm(a .- b) / norm(a), one, four)
for (name, difference) in pairs(differences)
    println(rpad(name, 8), " one rank and four differ by ", round(difference, sigdigits = 2))
end
right = all(difference <= 1e-5 for difference in differences)  # not a number fails too
println(right ? "the split sequence gives what one rank gives" : "FAILED")
exit(right ? 0 : 1)
