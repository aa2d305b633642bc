# The C interface in Julia against what the C compiler says of lasp.h: every constant, size, offset, type and
# signature; and raw.jl against what its generator makes of it today.
include(joinpath(ROOT, "bindings", "julia", "gen", "generate.jl"))

const Raw = LASP.Raw
read_rows() = [split(line, '\t') for line in readlines(ENV["LASP_LAYOUT"])]
field_size(T, i) = sizeof(fieldtype(T, i))
raw_type(c_type) = Core.eval(Raw, Meta.parse(julia_type(c_type)))

# What differs, in words; empty where nothing does.
function differences(rows)
    wrong = String[]
    expect(what, here, there) = here == there || push!(wrong, "$what: $here here, $there in C")
    defined(name) = isdefined(Raw, Symbol(name)) || (push!(wrong, "$name is missing"); false)
    of(kind) = (row for row in rows if row[1] == kind)
    for (_, name, value, _) in of("constant")
        defined(name) && expect(name, string(getfield(Raw, Symbol(name))), value)
    end
    here = filter(name -> startswith(string(name), "LASP_"), names(Raw, all = true))
    expect("the constants' names", sort(string.(here)), sort([row[2] for row in of("constant")]))
    for (_, name, _, bytes) in of("alias")
        defined(name) && expect("$name's size", sizeof(getfield(Raw, Symbol(name))), parse(Int, bytes))
    end
    for (_, name, bytes, alignment, init) in of("struct")
        defined(name) || continue
        T = getfield(Raw, Symbol(name))
        expect("$name's size", sizeof(T), parse(Int, bytes))
        expect("$name's alignment", Base.datatype_alignment(T), parse(Int, alignment))
        init == "-" || expect("$name's first values", bytes2hex(reinterpret(UInt8, [T()])), init)
        fields = [row for row in rows if row[1] == "field" && row[2] == name]
        expect("$name's fields", collect(string.(fieldnames(T))), julia_name.([row[3] for row in fields]))
        fieldcount(T) == length(fields) || continue
        for (i, (_, _, field, type, offset, size)) in enumerate(fields)
            expect("$name.$field's offset", Int(fieldoffset(T, i)), parse(Int, offset))
            expect("$name.$field's size", field_size(T, i), parse(Int, size))
            expect("$name.$field's type", fieldtype(T, i), raw_type(type))
        end
    end
    expect("the functions", [string(entry.name) for entry in Raw.ENTRIES], [row[2] for row in of("function")])
    for entry in Raw.ENTRIES, (_, name, returns) in of("function")
        name == string(entry.name) || continue
        expect("$name's result", entry.returns, raw_type(returns))
        expect("$name's parameters", collect(entry.arguments),
               [raw_type(row[4]) for row in rows if row[1] == "parameter" && row[2] == name])
    end
    return wrong
end

@testset "layout" begin
    rows = read_rows()
    @test length(rows) > 300
    @test differences(rows) == []

    # The same with one thing wrong in it at a time, each of which must be noticed.
    changes = [(2, "constant", "LASP_ERROR_PEER_LOST", 3 => "501"), (2, "struct", "lasp_problem", 3 => "999"),
               (3, "field", "scale", 5 => "84"), (3, "field", "scale", 4 => "double"), (3, "field", "q", 6 => "16"),
               (3, "parameter", "capacity", 4 => "int32_t"), (2, "function", "lasp_last_error", 3 => "lasp_status"),
               (2, "struct", "lasp_groups", 5 => "00"^32), (3, "field", "pieces", 3 => "parts"),
               (2, "function", "lasp_step", 2 => "lasp_stride"), (2, "alias", "lasp_status", 4 => "8")]
    for (column, kind, name, (at, value)) in changes
        changed = copy.(rows)
        row = changed[findfirst(row -> row[1] == kind && row[column] == name, changed)]
        @test row[at] != value
        row[at] = value
        @test differences(changed) != []
    end
    for kind in ("constant", "field", "function", "parameter")
        at = findlast(row -> row[1] == kind, rows)
        @test differences(rows[setdiff(1:end, at)]) != []
    end

    made = sprint(generate, readlines(ENV["LASP_LAYOUT"]))
    @test made == read(joinpath(ROOT, "bindings", "julia", "src", "raw.jl"), String)
    @test LASP.version() == LASP.HEADER_VERSION
end

@testset "Project.toml is read by this Julia's Pkg, and states the library's version" begin
    Pkg = Base.require(Base.PkgId(Base.UUID("44cfe95a-1eb2-52ea-b672-e2afdf69b78f"), "Pkg"))
    project = Base.invokelatest(Pkg.Types.read_project, joinpath(ROOT, "bindings", "julia", "Project.toml"))
    @test project.version == LASP.version()
end
