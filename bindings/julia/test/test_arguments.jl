# Every keyword is tried with values of the wrong type: each is refused by a sentence that names it, and none is
# converted or passed over.

const WHOLE = (true, 2.0, 1.5, NaN, "2", nothing, [2], big(2)^70)
const REAL = (true, "1", nothing, [1.0], NaN, Inf, 1im)
const FLAG = (0, 1, "no", nothing, 0.5, Symbol("true"))
const NAME = (0, true, nothing, :heda, "head", :HEAD)
const TYPE = (0, nothing, Float64, Int32, "Float32", :Float32, Float32(1))
optional(values) = filter(!isnothing, values)
unlike(array) = (3.5, "x", true, Float64.(array), array[:, :, 1:1, :], vec(array))
const BLOCK = (3.5, "x", true, view(zeros(UInt8, 2^20), 1:2:2^20), Any[1])

const Q = zeros(Float32, 16, 2, 24, 1)
const STATES = zeros(Float32, 16, 16, 2, 1)
const FIELDS = (
    batch = WHOLE, tokens = WHOLE, heads = optional(WHOLE), heads_q = optional(WHOLE), heads_k = optional(WHOLE),
    heads_v = optional(WHOLE), head_dim = optional(WHOLE), head_dim_k = optional(WHOLE), head_dim_v = optional(WHOLE),
    dtype = TYPE, decay = NAME, decay_dtype = (TYPE..., Float16), write = NAME, beta_dtype = (TYPE..., Float16),
    mask = NAME, ownership = NAME, scale = (optional(REAL)..., 1e-50, 1e39), max_sequences = WHOLE,
    schedule = NAME, pieces = WHOLE, cache = NAME, chunk = WHOLE, segment = WHOLE, backward = FLAG,
    gradient_types = (nothing, Float32, 5, (q = Float32,), (dk = 5,), (dk = Float64,), (d_decay = Float32,),
                      (d_beta = Float32,)),
    broadcast_final_state = FLAG, runs = (5, "x", [5], [(1, 2.5)], [(1, 2, 3)], [(1, 2^31)]),
    like = (nothing, Q, 5, (p = Q,), (q = 5,), (q = Float64.(Q),), (q = Q[:, :, 1:5, :],), (decay = Q,), (d_beta = Q,)))
const SETTINGS = (
    device = NAME, device_index = optional(WHOLE), time_limit = (true, "1", nothing, [1.0], NaN, 0, 0.0, -1.0, -Inf),
    cpu_threads = WHOLE, log = (5, "x", true, (level) -> nothing), log_level = optional(NAME), latency_us = REAL,
    bandwidth_gbs = REAL, profiler_ranges = FLAG, verify_messages = FLAG, check_values = FLAG)
const CALL = (decay = (zeros(Float32, 2), 5, "x"), beta = (zeros(Float32, 2), 5), stream = (5, true, "x"))
const STEP = merge(CALL, (tokens = WHOLE,))
const OFFSETS = (24, "024", [0.0, 24.0], [0, 2.5, 24], [0, NaN, 24], [false, true], [0 24], (0, 24.0), Set([0, 24]),
                 [0, big(2)^70], ["0", "24"])
const FORWARD = merge(CALL, (
    cu_seqlens = OFFSETS,
    initial_state = unlike(STATES), final_state = unlike(STATES), cache = BLOCK, workspace = BLOCK, reuse_cache = FLAG))
const BACKWARD = merge(CALL, (
    d_decay = CALL.decay, d_beta = CALL.beta, initial_state = unlike(STATES), d_initial_state = unlike(STATES),
    d_final_state = unlike(STATES), cache = BLOCK, workspace = BLOCK, cu_seqlens = OFFSETS,
    add = (5, "dk", true, :dk, nothing, (:q,), ("dk",), (1,), [:dk, :x], (:d_decay,), (:d_initial_state,))))

complaint(name, value, said) =
    println("  $name = ", value isa AbstractArray ? summary(value) : repr(value), ": ", said)

# Whether all values of all keywords are refused by name.
function all_refused(call, wrong; aliases = NamedTuple())
    for (name, values) in pairs(wrong), value in values
        error = thrown(() -> call(; NamedTuple{(name,)}((value,))...))
        names = (name, get(aliases, name, ())...)
        said = error === nothing ? "" : sprint(showerror, error)
        refused = error isa Union{ArgumentError, DimensionMismatch} ||
                  error isa LASPError && error.status in (100, 104)
        refused && any(occursin(Regex("\\b$each\\b"), said) for each in names) ||
            (complaint(name, value, error === nothing ? "was taken" : said); return false)
    end
    return true
end

keywords_of(f, types) = Set(filter(name -> !endswith(string(name), "..."), Base.kwarg_decl(which(f, types))))

@testset "arguments" begin
    comm = Comm()
    context = Context(comm; cpu_threads = 1)
    problem(given) = merge((tokens = 24, heads = 2, head_dim = 16), given)
    @test all_refused((; given...) -> Plan(context; problem(values(given))...), FIELDS;
                      aliases = (dtype = (:elements,), gradient_types = (:elements,), decay_dtype = (:elements,), beta_dtype = (:elements,),
                                 like = (:p, :q, :decay, :d_beta)))
    @test keywords_of(LASP.read_problem, Tuple{Int32}) == Set(keys(FIELDS))
    @test all_refused((; given...) -> Context(Comm(); given...), SETTINGS)
    @test keywords_of(Context, Tuple{Comm}) == Set(keys(SETTINGS))
    @test all(Context(Comm(); device = where).device == LASP.Raw.LASP_DEVICE_CPU for where in (:auto, :cpu))

    plan = Plan(context, Q, Q, Q)
    o = similar(Q)
    forward!(plan, o, Q, Q, Q)
    missing_decay = (decay = (:array,), beta = (:array,), d_decay = (:array, :decay), d_beta = (:array,))
    @test all_refused((; given...) -> forward!(plan, o, Q, Q, Q; given...), FORWARD; aliases = missing_decay)
    @test keywords_of(forward!, Tuple{Plan, Any, Any, Any, Any}) == Set(keys(FORWARD))
    dq, dk, dv = (similar(Q) for _ in 1:3)
    @test all_refused((; given...) -> backward!(plan, dq, dk, dv, o, Q, Q, Q; given...), BACKWARD;
                      aliases = missing_decay)
    @test keywords_of(backward!, Tuple{Plan, Any, Any, Any, Any, Any, Any, Any}) == Set(keys(BACKWARD))
    @test all_refused((; given...) -> step!(plan, o, STATES, Q, Q, Q; given...), STEP; aliases = missing_decay)
    @test keywords_of(step!, Tuple{Plan, Any, Any, Any, Any, Any}) == Set(keys(STEP))
    for wrong in (5, "x", true, Float64.(Q), Q[:, :, 1:5, :])
        @test complains(() -> forward!(plan, o, wrong, Q, Q), Union{ArgumentError, DimensionMismatch}, "q: ")
        @test complains(() -> forward!(plan, wrong, Q, Q, Q), Union{ArgumentError, DimensionMismatch}, "o: ")
    end
    predict(arguments...; latency_us = 1) =
        LASP.predict_exchange(arguments...; latency_us = latency_us, bandwidth_gbs = 1)
    for wrong in WHOLE
        @test complains(() -> LASP.thread_comms(wrong), ArgumentError, "nranks")
        @test complains(() -> LASP.owners(plan, wrong, 1), ArgumentError, "from = ")
        @test complains(() -> LASP.groups_of_rank(wrong, 2, 0), ArgumentError, "world_size")
        @test complains(() -> LASP.world_rank(4, 2, 0, wrong), ArgumentError, "sequence_rank")
        @test complains(() -> predict(:ring, wrong, 8), ArgumentError, "nranks")
    end
    @test complains(() -> predict(:fast, 2, 8), ArgumentError, "schedule")
    @test complains(() -> predict(:ring, 2, -8), ArgumentError, "payload_bytes")
    @test complains(() -> predict(:ring, 2, 8; latency_us = true), ArgumentError, "latency_us")

    # Arrays are compared with each other where the plan is made.
    k = zeros(Float32, 16, 2, 24, 1)
    decayed(decay) = Plan(context, Q, k, k; decay = decay)
    @test complains(() -> decayed(zeros(Float32, 3)), DimensionMismatch, "decay: size (3,), must be (2,)")
    @test complains(() -> decayed(zeros(Float64, 2)), ArgumentError, "decay: elements of Float64")
    @test complains(() -> decayed(zeros(Float32, 2, 24, 2)), DimensionMismatch, "decay: size")
    @test complains(() -> Plan(context, Q, Float16.(k), k), ArgumentError, "k: elements of Float16")
    @test complains(() -> Plan(context, Q, k, k; tokens = 5), ArgumentError, "tokens: is read from the arrays")
    @test complains(() -> Plan(context, Q, k, k; heads = 2), ArgumentError, "heads = 2: sets nothing, because heads_q")
    @test complains(() -> Plan(context, Q, k, k; head_dim = 16), ArgumentError, "head_dim = 16: sets nothing")

    # A rank whose keywords are refused here still comes to the library, so that the others do not wait for it.
    begun = time()
    comms = LASP.thread_comms(2)
    seen = Vector{Any}(nothing, 2)
    Threads.@threads :static for i in 1:Threads.nthreads()
        i <= 2 || continue
        waiting = Context(comms[i]; cpu_threads = 1, time_limit = 60)
        seen[i] = thrown(() -> Plan(waiting; tokens = 4, heads = 1, head_dim = 8, scale = i == 2 ? 1e-50 : nothing))
    end
    @test seen[1] isa LASPError && seen[1].status == LASP.Raw.LASP_ERROR_PEER_REFUSED
    @test seen[2] isa ArgumentError && time() - begun < 30

    # What is shown: shapes, and no pointer.
    @test sprint(show, context) == "LASP.Context(cpu, rank 0 of 1)"
    @test sprint(show, comm) == "LASP.Comm(rank 0 of 1)"
    shown = sprint(show, Plan(context, Q, Q, Q; decay = zeros(Float32, 2)))
    @test occursin("q (16, 2, 24, 1), k (16, 2, 24, 1)", shown) && occursin("decay (2,)", shown)
    close(plan)
    @test occursin("closed", sprint(show, plan)) && !occursin("Ptr", sprint(show, [context, plan, comm]))
end

const PACKAGE = dirname(@__DIR__)

# What a Julia says that loads the package with these settings, in a process of its own.
function loading(code, settings...)
    said = IOBuffer()
    program = `$(Base.julia_cmd()) --startup-file=no --project=$PACKAGE -e $code`
    run(pipeline(ignorestatus(addenv_(program, settings...)); stdout = said, stderr = said))
    return String(take!(said))
end
addenv_(program, settings...) = setenv(program, merge(Dict(ENV), Dict(settings...)))  # addenv is of Julia 1.6

@testset "libraries" begin
    said = loading("using LASP", "LASP_LIBRARY" => "/nowhere/liblasp.so")
    @test occursin("liblasp cannot be loaded: LASP_LIBRARY = /nowhere/liblasp.so; tried /nowhere/liblasp.so (", said)
    @test occursin("Set LASP_LIBRARY to the path of liblasp.so", said)
    said = loading("using LASP; LASP.mpi_comm(0)", "LASP_MPI_LIBRARY" => "/nowhere/mpi.so")
    @test occursin("liblasp_mpi cannot be loaded: LASP_MPI_LIBRARY = /nowhere/mpi.so", said)
    beside = joinpath(dirname(LASP.LIBRARY_PATH[]), "liblasp_mpi.so.$(LASP.Raw.LASP_ABI)")
    said = loading("""using LASP; LASP.LIBRARY_PATH[] = "/nowhere/liblasp.so"; LASP.mpi_comm(0)""",
                   "LASP_MPI_LIBRARY" => "")
    @test occursin("LASP_MPI_LIBRARY is not set; tried /nowhere/$(basename(beside)) (", said)
    # The first library of the system that is no liblasp at all.
    said = loading("using LASP", "LASP_LIBRARY" => "libc.so.6")
    @test occursin("is of another version than this package, it has no lasp_", said)
end
