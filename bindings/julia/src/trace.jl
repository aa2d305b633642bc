# What a rank did when.

"""
    LASP.trace(body, context, path; max_records = 0)

Calls `body()` and records meanwhile what this rank does: calls, the phases of passes, messages, waits, and on a GPU when
it did each part. Then writes it to the file `path`, which Perfetto opens; also where `body` throws. On a GPU the file has
what the device has done by then: let `body` synchronise it. `max_records` are kept, of 64 bytes each, and older ones give
way; 0: 65,536. Returns what `body` returns.

    LASP.trace(context, "trace-\$(comm.rank).json") do
        ...
    end
"""
function trace(body, context::Context, path::AbstractString; max_records = 0)
    options = Ref(Raw.lasp_trace_options(max_records = whole(Int64, "max_records", max_records)))
    occursin('\0', path) && throw(ArgumentError("path = $(repr(path)): a zero byte in it"))
    call(() -> Raw.lasp_trace_start(live(context), options), context)
    try
        return body()
    finally
        if isopen(context)
            call(() -> Raw.lasp_trace_stop(live(context)), context)
            call(() -> Raw.lasp_trace_write(live(context), String(path)), context)
        end
    end
end
