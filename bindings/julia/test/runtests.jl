# All tests, or those named: julia -t 4 --project=.. runtests.jl [NAME...], of layout, vectors, calls, arguments,
# gradients, ownership, caches, stages, interrupts and speed.
# LASP_LIBRARY is the library, LASP_TEST_VECTORS the folder of vectors, LASP_LAYOUT the output of lasp-layout --tsv;
# without them what the source tree has is looked for.
using LASP, Test

const ROOT = normpath(joinpath(@__DIR__, "..", "..", ".."))
get!(ENV, "LASP_TEST_VECTORS", joinpath(ROOT, "tests", "vectors"))
get!(ENV, "LASP_LAYOUT", joinpath(ROOT, "build", "release", "bindings", "layout", "lasp-layout.tsv"))

"The exception that a call throws; nothing where it throws none."
function thrown(f)
    try
        f()
    catch error
        return error
    end
    return nothing
end
refused(f, status, words) =
    (error = thrown(f); error isa LASPError && error.status == status && occursin(words, error.sentence))
complains(f, T, words) = (error = thrown(f); error isa T && occursin(words, sprint(showerror, error)))

println("Julia $VERSION with $(Threads.nthreads()) threads, ", LASP.LIBRARY_PATH[])
@testset "LASP" begin
    for name in (isempty(ARGS) ? ["layout", "vectors", "calls", "arguments", "gradients", "ownership", "caches", "stages",
                              "interrupts", "speed"] : ARGS)
        include("test_$name.jl")
    end
end
