# The given test vectors: a folder each, of case.json and .npy files.

struct Vector_
    name::String
    case::Dict{String, Any}
    tensors::Dict{String, Array{Float32}}
end
Base.show(io::IO, vector::Vector_) = print(io, vector.name)
tensor(vector, name) = get(vector.tensors, name, nothing)

# case.json is one flat object of numbers, words, and lists of them.
function read_case(path)
    case = Dict{String, Any}()
    for m in eachmatch(r"\"(\w+)\":\s*(\[[^\]]*\]|[^,}\s]+)", read(path, String))
        name, value = m[1], m[2]
        case[name] = value == "null" ? nothing : value == "true" ? true : value == "false" ? false :
                     value[1] == '"' ? Symbol(strip(value, '"')) :
                     value[1] == '[' ? [m[1] for m in eachmatch(r"\"?([\w]+)\"?", value)] :
                     occursin('.', value) ? parse(Float64, value) : parse(Int, value)
    end
    case["cu_seqlens"] === nothing || (case["cu_seqlens"] = parse.(Int, case["cu_seqlens"]))
    return case
end

# C order with the last dimension fastest is Julia's order with the dimensions reversed.
function read_npy(path)
    open(path) do io
        read(io, 8) == UInt8[0x93, b"NUMPY"..., 1, 0] || error("$path: not a version 1 .npy file")
        header = String(read(io, Int(ltoh(read(io, UInt16)))))
        occursin("'descr': '<f4'", header) || error("$path: not little-endian float32")
        occursin("'fortran_order': False", header) || error("$path: not in C order")
        shape = parse.(Int, [m.match for m in eachmatch(r"\d+", match(r"'shape': \(([^)]*)\)", header)[1])])
        array = read!(io, Array{Float32}(undef, reverse(shape)...))
        eof(io) || error("$path: size and shape disagree")
        return array
    end
end

function read_vectors(folder)
    return map(filter(isdir, readdir(folder, join = true))) do path
        case = read_case(joinpath(path, "case.json"))
        tensors = Dict(String(name) => read_npy(joinpath(path, "$name.npy")) for name in case["tensors"])
        Vector_(basename(path), case, tensors)
    end
end
