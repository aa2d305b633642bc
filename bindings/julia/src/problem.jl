# The problem: what is to be computed, from keywords or from arrays.

const DECAYS = (none = Raw.LASP_DECAY_NONE, head = Raw.LASP_DECAY_HEAD, scalar = Raw.LASP_DECAY_SCALAR,
                channel = Raw.LASP_DECAY_CHANNEL)
const WRITES = (additive = Raw.LASP_WRITE_ADDITIVE, delta = Raw.LASP_WRITE_DELTA)
const MASKS = (causal = Raw.LASP_MASK_CAUSAL, bidirectional = Raw.LASP_MASK_BIDIRECTIONAL)
const OWNERSHIPS = (contiguous = Raw.LASP_OWN_CONTIGUOUS, zigzag = Raw.LASP_OWN_ZIGZAG,
                    zigzag_each = Raw.LASP_OWN_ZIGZAG_EACH, runs = Raw.LASP_OWN_RUNS)
const SCHEDULES = (auto = Raw.LASP_SCHEDULE_AUTO, ring = Raw.LASP_SCHEDULE_RING,
                   all_gather = Raw.LASP_SCHEDULE_ALL_GATHER, all_scan = Raw.LASP_SCHEDULE_ALL_SCAN,
                   doubling = Raw.LASP_SCHEDULE_DOUBLING, head_scatter = Raw.LASP_SCHEDULE_HEAD_SCATTER,
                   relay = Raw.LASP_SCHEDULE_RELAY)
const CACHES = (incoming = Raw.LASP_CACHE_INCOMING, chunks = Raw.LASP_CACHE_CHUNKS)

const GRADIENTS = (:dq, :dk, :dv, :d_decay, :d_beta)
const TENSORS = (:q, :k, :v, :o, :decay, :beta, :dq, :dk, :dv, :d_o, :d_decay, :d_beta)

# A list of (tokens, rank) as C has it.
function listed_runs(runs)
    runs isa AbstractVector || refuse_argument("runs", runs, "a vector of (tokens, rank)")
    return map(collect(runs)) do run
        run isa Union{Tuple, Pair} && length(run) == 2 || refuse_argument("runs", run, "(tokens, rank) of each run")
        Raw.lasp_run(whole(Int64, "runs", run[1]), whole(Int32, "runs", run[2]), Int32(0))
    end |> made -> convert(Vector{Raw.lasp_run}, made)
end

# The names of a problem's layouts in lasp.h.
layout_name(name) = name in (:decay, :beta, :d_decay, :d_beta) ? Symbol(name, :_layout) : name

# Which tensors there are, with their types and sizes; a layout is dense unless an array in `like` has another.
function tensors_of(; batch, tokens, heads_q, heads_k, heads_v, head_dim_k, head_dim_v, dtype, decay, decay_dtype,
                    write, beta_dtype, gradient_types, like, device)
    heads = max(heads_q, heads_k, heads_v)
    shape(dim, heads) = (Int(dim), Int(heads), Int(tokens), Int(batch))
    q, k, v = shape(head_dim_k, heads_q), shape(head_dim_k, heads_k), shape(head_dim_v, heads_v)
    o, per_head = shape(head_dim_v, heads), (Int(heads), Int(tokens), Int(batch))
    function tensor(name, usual, size)
        type = get(gradient_types, name, usual)
        haskey(like, name) || return Tensor(string(name), type, size, dense_strides(size), device)
        array = like[name]
        array isa AbstractArray || throw(ArgumentError("$name: a $(typeof(array)), must be an array"))
        eltype(array) === type ||
            throw(ArgumentError("$name: elements of $(eltype(array)), the problem has $type"))
        Base.size(array) == size ||
            throw(DimensionMismatch("$name: size $(Base.size(array)), the problem has $size"))
        return Tensor(string(name), type, size, strides_of(name, array, length(size) == 4), device)
    end
    unknown = setdiff(keys(like), TENSORS)
    isempty(unknown) || throw(ArgumentError("like: no tensor is called $(first(unknown))"))
    # One that has no layout cannot be like an array, and has no type to choose.
    function without(name, reason)
        haskey(gradient_types, name) &&
            throw(ArgumentError("gradient_types: $name has no type to choose, since $reason"))
        haskey(like, name) && throw(ArgumentError("like: $name has no layout here, since $reason"))
        return nothing
    end
    function of_decay(name)
        decay == :scalar && return tensor(name, decay_dtype, per_head)
        decay == :channel && return tensor(name, decay_dtype, shape(head_dim_k, heads))
        without(name, "decay = :$decay")
        return decay == :none ? nothing : Tensor(string(name), Float32, (Int(heads),), (1,), device)
    end
    of_beta(name) = write == :delta ? tensor(name, beta_dtype, per_head) : without(name, "write = :$write")
    return (q = tensor(:q, dtype, q), k = tensor(:k, dtype, k), v = tensor(:v, dtype, v), o = tensor(:o, dtype, o),
            decay = of_decay(:decay), beta = of_beta(:beta), dq = tensor(:dq, dtype, q), dk = tensor(:dk, dtype, k),
            dv = tensor(:dv, dtype, v), d_o = tensor(:d_o, dtype, o), d_decay = of_decay(:d_decay),
            d_beta = of_beta(:d_beta))
end

# A layout as C has it: type and strides, without strides where it is the dense one.
c_layout(::Nothing) = Raw.lasp_layout()
c_layout(tensor::Tensor{1}) = Raw.lasp_layout()
function c_layout(tensor::Tensor{N}) where {N}
    dtype = dtype_code(tensor.type)
    same_layout(tensor.size, tensor.strides, dense_strides(tensor.size)) && return Raw.lasp_layout(dtype = dtype)
    head, token, batch = tensor.strides[N-2:N]
    return Raw.lasp_layout(dtype = dtype, flags = Raw.LASP_LAYOUT_STRIDED, batch = batch, token = token, head = head)
end

# What arrays say of a problem. Only the shapes are taken here; forward! looks at each array again.
function shapes_of(q, k, v, decay, beta)
    for (name, array) in ((:q, q), (:k, k), (:v, v))
        ndims(array) == 4 ||
            throw(DimensionMismatch("$name: $(ndims(array)) dimensions, must be (dim, heads, tokens, batch)"))
        size(array)[3:4] == size(q)[3:4] || throw(DimensionMismatch(
            "$name: (tokens, batch) = $(size(array)[3:4]), those of q are $(size(q)[3:4])"))
    end
    size(q, 1) == size(k, 1) ||
        throw(DimensionMismatch("k: first dimension $(size(k, 1)), that of q is $(size(q, 1))"))
    decay === nothing || ndims(decay) != 1 || check_head_decay(decay, max(size(q, 2), size(k, 2), size(v, 2)))
    kinds = (:head, nothing, :scalar, :channel)
    kind = decay === nothing ? :none : ndims(decay) in (1, 3, 4) ? kinds[ndims(decay)] :
           throw(DimensionMismatch("decay: $(ndims(decay)) dimensions, must be (heads,), (heads, tokens, batch) " *
                                   "or (dim, heads, tokens, batch)"))
    return (batch = size(q, 4), tokens = size(q, 3), heads_q = size(q, 2), heads_k = size(k, 2), heads_v = size(v, 2),
            head_dim_k = size(q, 1), head_dim_v = size(v, 1), dtype = eltype(q), decay = kind,
            decay_dtype = kind in (:scalar, :channel) ? eltype(decay) : Float32,
            write = beta === nothing ? :additive : :delta, beta_dtype = beta === nothing ? Float32 : eltype(beta))
end

function check_head_decay(decay, heads)
    length(decay) == heads ||
        throw(DimensionMismatch("decay: size $(size(decay)), must be ($heads,), one of each head"))
    eltype(decay) === Float32 ||
        throw(ArgumentError("decay: elements of $(eltype(decay)), one of each head must be Float32"))
    return nothing
end
