# Ctrl-C while a call waits for another rank, and what the others learn of a call that this layer refuses.

# In a process of its own. An interrupt that comes outside the call leaves the group as it was, and the next call waits
# again; one that comes inside ends it, which the next call says. They come until one has: not faster than each second,
# since Julia throws those that come too fast wherever it is.
const FOLDER_OF_PACKAGE = dirname(@__DIR__)
const WAITING = """
using LASP
ccall(:jl_exit_on_sigint, Cvoid, (Cint,), 0)  # as in the REPL; a script would end at once
comms = LASP.thread_comms(2)  # the other rank never comes
context = Context(comms[1]; cpu_threads = 1, time_limit = 20)
function interrupted()
    interrupts = 0
    while true
        try
            reenable_sigint(() -> Plan(context; tokens = 4, heads = 1, head_dim = 8))
        catch error
            error isa InterruptException || return interrupts, sprint(showerror, error)
            interrupts += 1
        end
    end
end
disable_sigint() do  # but around the call
    begun = time()
    signals = run(`sh -c "while kill -INT \$(getpid()) 2> /dev/null; do sleep 1; done"`; wait = false)
    count, said = interrupted()
    kill(signals)
    println("interrupts: ", count > 0, ", in time: ", time() - begun < 15, ", then: ", said)
end
"""

@testset "Ctrl-C" begin
    program = `$(Base.julia_cmd()) --startup-file=no --project=$(FOLDER_OF_PACKAGE) -e $WAITING`
    said = read(pipeline(ignorestatus(program); stderr = devnull), String)
    @test occursin("interrupts: true, in time: true, then: LASP_ERROR_ABORTED", said)
end

@testset "telling" begin
    q, k, v, d_o = (randn(Float32, 16, 2, 24, 1) for _ in 1:4)
    o, dq, dk, dv = (similar(q) for _ in 1:4)
    forward(plan; options...) = forward!(plan, similar(o), q, k, v; options...)
    backward(plan; options...) = backward!(plan, similar(dq), similar(dk), similar(dv), d_o, q, k, v; options...)
    # The call that rank 1 cannot make, and what rank 0 makes meanwhile.
    for (refused, right) in ((plan -> forward!(plan, o, q[:, :, 1:5, :], k, v), forward),
                             (plan -> forward(plan; cache = 5), forward), (plan -> forward(plan; stream = 5), forward),
                             (plan -> backward(plan; d_decay = 5), backward),
                             (plan -> (plan.latest = :none; backward(plan)), backward))
        both, begun = Threads.Atomic{Int}(0), time()
        comms = LASP.thread_comms(2)
        errors = Vector{Any}(nothing, 2)
        Threads.@threads :static for i in 1:Threads.nthreads()
            i <= 2 || continue
            plan = Plan(Context(comms[i]; cpu_threads = 1, time_limit = 20), q, k, v; schedule = :all_gather)
            forward(plan)
            Threads.atomic_add!(both, 1)
            while both[] < 2 && time() - begun < 60
                GC.safepoint()  # no rank is still in its forward when the group breaks
            end
            errors[i] = thrown(() -> i == 2 ? refused(plan) : while true; right(plan); end)
        end
        @test errors[1] isa LASPError && errors[1].status == LASP.Raw.LASP_ERROR_PEER_LOST
        @test occursin("rank 1", errors[1].sentence) && errors[2] isa Union{ArgumentError, DimensionMismatch}
        @test time() - begun < 15
    end
end
