# Pure functions of the library: version, build, hybrid groups, the model of the automatic schedule.

"""
    LASP.version() -> VersionNumber

The library's version, as it says itself. The interface here was made from the header of version
`LASP.HEADER_VERSION`.
"""
function version()
    parts = [Ref{Int32}() for _ in 1:3]
    check(Raw.lasp_version(parts..., C_NULL))
    return VersionNumber(getindex.(parts)...)
end

const HEADER_VERSION = VersionNumber(Raw.LASP_VERSION_MAJOR, Raw.LASP_VERSION_MINOR, Raw.LASP_VERSION_PATCH)

"""
    LASP.build_info() -> NamedTuple

What the library's build contains and what it found on this machine.
"""
function build_info()
    info = Ref(Raw.lasp_build_info())
    check(Raw.lasp_get_build_info(info))
    b = info[]
    return (version = unsafe_string(b.version), compiler = unsafe_string(b.compiler), flags = unsafe_string(b.flags),
            blas = unsafe_string(b.blas), cuda = unsafe_string(b.cuda), nccl = unsafe_string(b.nccl),
            has_cuda = b.has_cuda != 0, has_nccl = b.has_nccl != 0, cpu_count = Int(b.cpu_count))
end

"""
    LASP.groups_of_rank(world_size, sequence_ranks, world_rank; stride = 1) -> NamedTuple

Hybrid data-sequence parallelism: which groups a world rank belongs to. `stride` is the distance in world ranks
between neighbours of a sequence group. All ranks count from 0.
"""
function groups_of_rank(world_size, sequence_ranks, world_rank; stride = 1)
    groups = Ref(Raw.lasp_groups())
    check(Raw.lasp_groups_of_rank(whole(Int32, "world_size", world_size),
                                  whole(Int32, "sequence_ranks", sequence_ranks), whole(Int32, "stride", stride),
                                  whole(Int32, "world_rank", world_rank), groups))
    g = groups[]
    return (sequence_rank = Int(g.sequence_rank), sequence_ranks = Int(g.sequence_ranks),
            sequence_group = Int(g.sequence_group), data_rank = Int(g.data_rank), data_ranks = Int(g.data_ranks),
            data_group = Int(g.data_group))
end

"""
    LASP.world_rank(world_size, sequence_ranks, sequence_group, sequence_rank; stride = 1) -> Int

The world rank of a member: the inverse of [`LASP.groups_of_rank`](@ref).
"""
function world_rank(world_size, sequence_ranks, sequence_group, sequence_rank; stride = 1)
    rank = Ref{Int32}(0)
    check(Raw.lasp_groups_world_rank(whole(Int32, "world_size", world_size),
                                     whole(Int32, "sequence_ranks", sequence_ranks), whole(Int32, "stride", stride),
                                     whole(Int32, "sequence_group", sequence_group),
                                     whole(Int32, "sequence_rank", sequence_rank), rank))
    return Int(rank[])
end

"""
    LASP.predict_exchange(schedule, nranks, payload_bytes; pieces = 0, latency_us, bandwidth_gbs) -> Float64

The latency-bandwidth model of the automatic schedule: microseconds of one exchange.
"""
function predict_exchange(schedule, nranks, payload_bytes; pieces = 0, latency_us, bandwidth_gbs)
    predicted = Ref{Float64}(0)
    check(Raw.lasp_predict_exchange(choice("schedule", schedule, SCHEDULES), whole(Int32, "nranks", nranks),
                                    whole(UInt64, "payload_bytes", payload_bytes), whole(Int32, "pieces", pieces),
                                    finite("latency_us", latency_us), finite("bandwidth_gbs", bandwidth_gbs),
                                    predicted))
    return predicted[]
end
