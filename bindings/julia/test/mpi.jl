# Ranks that are processes, over MPI: every rank checks its own tokens of a few vectors.
#     mpiexec -n 2 run-tests BUILD_DIR LIBRARY mpi.jl MPI_LIBRARY
# (A program would use MPI.jl; here MPI is called directly, since the tests have no other packages.)
using LASP, Libdl, Test
include("vector_files.jl")

const FOLDER = get(ENV, "LASP_TEST_VECTORS", joinpath(@__DIR__, "..", "..", "..", "tests", "vectors"))
const MPI_LIBRARY = ARGS[1]
const HANDLE = dlopen(MPI_LIBRARY, RTLD_LAZY | RTLD_GLOBAL)
norm(x) = sqrt(sum(abs2, Float64.(x)))

function check_vector(comm, name)
    vector = only(filter(v -> v.name == name, read_vectors(FOLDER)))
    case, r, n = vector.case, comm.rank, comm.nranks
    tokens = (r * case["T"] ÷ n + 1):((r + 1) * case["T"] ÷ n)
    mine(x) = x === nothing || ndims(x) == 1 ? x : selectdim(x, ndims(x) - 1, tokens)
    q, k, v, d_o, g = (mine(tensor(vector, x)) for x in ("q", "k", "v", "do", "g"))
    context = Context(comm; cpu_threads = 1, time_limit = 60)
    plan = Plan(context, q, k, v; decay = g, scale = case["scale"], like = (d_o = d_o,))
    o, dq, dk, dv = similar(mine(vector.tensors["o"])), similar(q), similar(k), similar(v)
    forward!(plan, o, q, k, v; decay = g, initial_state = tensor(vector, "initial_state"))
    backward!(plan, dq, dk, dv, d_o, q, k, v; decay = g, initial_state = tensor(vector, "initial_state"),
              d_final_state = tensor(vector, "d_final_state"))
    for (name, actual) in (("o", o), ("dq", dq), ("dk", dk), ("dv", dv))
        expected = vector.tensors[name]
        @test norm(actual .- mine(expected)) <= 2e-6 * norm(expected)
    end
    close(plan)
    close(context)
end

@testset "MPI" begin
    comm_world = dlsym_e(HANDLE, :ompi_mpi_comm_world)
    if comm_world == C_NULL
        println("SKIPPED: the MPI here is not Open MPI, whose symbols this test knows")
        exit(77)
    end
    before = @test_throws LASPError LASP.mpi_comm(Ptr{Cvoid}(comm_world); library = MPI_LIBRARY)
    @test before.value.status == LASP.Raw.LASP_ERROR_INVALID_ARGUMENT  # MPI is not initialised yet
    ccall(dlsym(HANDLE, :MPI_Init), Cint, (Ptr{Cvoid}, Ptr{Cvoid}), C_NULL, C_NULL)
    comm = LASP.mpi_comm(Ptr{Cvoid}(comm_world); library = MPI_LIBRARY)
    for name in ("none_basic", "head_odd_length", "scalar_basic", "channel_grouped_values")
        check_vector(comm, name)
    end
    close(comm)
    ccall(dlsym(HANDLE, :MPI_Finalize), Cint, ())
end
