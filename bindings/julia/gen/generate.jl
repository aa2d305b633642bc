# Writes src/raw.jl, the C interface in Julia, out of what the compiler says of lasp.h.
#
#     lasp-layout --tsv | julia gen/generate.jl > src/raw.jl

const SCALARS = Dict("size_t" => "Csize_t", "int32_t" => "Int32", "int64_t" => "Int64", "uint64_t" => "UInt64",
                     "float" => "Float32", "double" => "Float64", "void" => "Cvoid", "const char *" => "Cstring")

# "const lasp_problem *" as Ptr{lasp_problem}; function pointers are plain pointers here.
function julia_type(c::AbstractString)
    haskey(SCALARS, c) && return SCALARS[c]
    occursin("(*)", c) && return "Ptr{Cvoid}"
    array = match(r"^(.*)\[(\d+)\]$", c)
    array === nothing || return "NTuple{$(array[2]), $(julia_type(array[1]))}"
    c = replace(replace(c, r"^const " => ""), r"^struct " => "")
    c == "char *" && return "Ptr{UInt8}"
    if endswith(c, "*")
        inner = rstrip(chop(c))
        return "Ptr{$(julia_type(inner))}"
    end
    return get(SCALARS, c, String(c))
end

# The value that a struct's INIT macro gives a field, from the macro's bytes.
function initial_value(type, bytes)
    bits(T) = only_value(reinterpret(T, bytes))
    type in ("size_t", "uint64_t") && return string(Int(bits(UInt64)))
    type == "int64_t" && return string(bits(Int64))
    type == "int32_t" && return string(bits(Int32))
    type == "float" && return string(Float64(bits(Float32)))
    type == "double" && return string(bits(Float64))
    type == "const char *" && return "Cstring(C_NULL)"
    array = match(r"^(double|int64_t)\[(\d+)\]$", type)
    array === nothing || return "ntuple(_ -> zero($(julia_type(array[1]))), $(array[2]))"
    (endswith(type, "*") || occursin("(*)", type) || type in ("lasp_function", "lasp_log_function", "lasp_interrupted_function")) && return "C_NULL"
    return "$type()"
end
only_value(values) = length(values) == 1 ? values[1] : error("$(length(values)) values where one was expected")

julia_name(name) = name in ("begin", "end") ? "$(name)_" : String(name)  # Julia's own words

function print_struct(io, name, init, fields)
    println(io, "\nstruct $name")
    for (field, type, _, _) in fields
        println(io, "    $field::$(julia_type(type))")
    end
    println(io, "end")
    arguments = join(("$field = $(initial_value(type, init[offset+1:offset+bytes]))"
                      for (field, type, offset, bytes) in fields), ",\n    ")
    println(io, "$name(;\n    $arguments) =\n    $name($(join(first.(fields), ", ")))")
end

function generate(io, lines)
    rows = [split(line, '\t') for line in lines]
    of(kind) = (row for row in rows if row[1] == kind)
    println(io, "# lasp.h as the C compiler sees it. Made by gen/generate.jl from lasp-layout; not edited by hand.")
    println(io, "# A struct's keyword constructor starts from its INIT macro's values, as a C program would.\n")
    for (_, name, value, group) in of("constant")
        println(io, "const $name = Int32($value)")
    end
    println(io, "\n# Types that only C looks into.")
    tags = sort!(unique!([String(m[1]) for row in rows for word in row for m in eachmatch(r"struct (\w+) \*", word)]))
    for name in vcat(tags, [row[2] for row in of("handle")])
        println(io, "struct $name end")
    end
    println(io)
    for (_, name, type, _) in of("alias")
        println(io, "const $name = $(julia_type(type))")
    end
    for (_, name, bytes, _, hex) in of("struct")
        init = hex == "-" ? zeros(UInt8, parse(Int, bytes)) : hex2bytes(hex)
        fields = [(julia_name(row[3]), row[4], parse(Int, row[5]), parse(Int, row[6])) for row in of("field") if row[2] == name]
        print_struct(io, name, init, fields)
    end
    println(io)
    for (_, name, returns) in of("function")
        parameters = join(("$(julia_name(row[3]))::$(julia_type(row[4]))" for row in of("parameter") if row[2] == name), ", ")
        println(io, "@entry $name($parameters)::$(julia_type(returns))")
    end
end

if abspath(PROGRAM_FILE) == @__FILE__
    generate(stdout, readlines(stdin))
end
