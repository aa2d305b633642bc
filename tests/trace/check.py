"""Reads back traces that trace_ranks wrote, and what lasp-trace makes of them: the files are JSON, spans of a thread nest,
each message has both halves, waits name the rank that was slow.    check.py TRACE_RANKS LASP_TRACE FOLDER [nccl RANKS]

nccl: in place of that, ranks that have a GPU each. The files stay in FOLDER, for `lasp-trace svg`."""
import contextlib
import io
import json
import pathlib
import runpy
import shutil
import subprocess
import sys

RANKS, SLOW, SLEEP_MS = 4, 1, 100
ranks_program, tool, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
lasp_trace = runpy.run_path(tool)


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def make(name, *words, ranks=RANKS):
    """The files of one run, read."""
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run([ranks_program, folder, *words], check=True, timeout=60)
    return [json.loads((folder / f"trace-{rank}.json").read_text()) for rank in range(ranks)]


def files(name, ranks=RANKS):
    return [str(work / name / f"trace-{rank}.json") for rank in range(ranks)]


def spans(trace, category):
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


def duration_ms(events):
    return sum(event["dur"] for event in events) / 1e3


def nest(trace):
    by_thread = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            by_thread.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for spans_of_thread in by_thread.values():
        around = []
        for begin, end, name in sorted(spans_of_thread, key=lambda span: (span[0], -span[1])):
            while around and around[-1][1] <= begin + 2e-3:
                around.pop()
            require(end >= begin, f"{name} ends before it begins")
            require(not around or end <= around[-1][1] + 2e-3, f"{name} ends after {around[-1:]}, in which it began")
            around.append((begin, end, name))


def halves(traces):
    """Each message's two halves, by flow id: sent, received."""
    sent, received = {}, {}
    for trace in traces:
        for event in trace["traceEvents"]:
            if event["ph"] in "sf":
                ends = sent if event["ph"] == "s" else received
                require(event["id"] not in ends, "two messages have one id")
                ends[event["id"]] = event["ts"]
    require(sent.keys() == received.keys(), f"{len(sent.keys() ^ received.keys())} messages have one half")
    for flow, at in sent.items():
        require(received[flow] > at, "a message arrived before it was sent")
    return sent


def tool_says(status, *words):
    out, sys.argv = io.StringIO(), [tool, *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            ended = lasp_trace["main"]()
        except SystemExit as end:
            ended = end.code
    require(ended == status, f"lasp-trace {words[0]} ended with {ended}: {out.getvalue()}")
    return out.getvalue()


def slow_rank():
    for schedule, messages_of_a_pass in (("ring", 3), ("all-gather", 6)):
        traces = make(schedule, "--schedule", schedule, "--slow", str(SLOW), str(SLEEP_MS))
        for rank, trace in enumerate(traces):
            about = trace["otherData"]
            require((about["rank"], about["ranks"], about["dropped"]) == (rank, RANKS, 0), about)
            nest(trace)
            calls = [event["name"] for event in spans(trace, "call")]
            require(calls == ["lasp_plan_create"] + 2 * ["lasp_forward", "lasp_backward"], calls)
            require(len(spans(trace, "phase")) == 4 * 3, "each pass has three phases")
        flows = halves(traces)
        passes = [event for trace in traces for event in trace["traceEvents"]
                  if event["ph"] == "b" and event["cat"] == "send" and event["args"]["operation"] > 0]
        require(len(passes) == 4 * messages_of_a_pass, f"{len(passes)} messages of passes")
        require(len(flows) > len(passes), "messages of the plan's creation")
        # It slept before each of two passes; the next rank may itself have been late by half of that.
        numbers = {event["args"]["call"] for event in spans(traces[SLOW + 1], "call") if event["name"] == "lasp_forward"}
        forward = [event for event in spans(traces[SLOW + 1], "wait")
                   if event["args"]["call"] in numbers and event["args"]["why"] == "waiting for a state"]
        for_slow = [event for event in forward if event["args"]["peer"] == SLOW]
        require(duration_ms(for_slow) > SLEEP_MS, f"rank {SLOW + 1} waited {duration_ms(for_slow)} ms for rank {SLOW}")
        peers = {event["args"]["peer"] for event in forward}
        require(peers == ({SLOW} if schedule == "ring" else set(range(SLOW + 1))), f"it waited for {peers}")
        require(all(event["name"] == f"wait for rank {event['args']['peer']}" for event in forward), "names of waits")
        table = tool_says(0, "summary", *files(schedule)).splitlines()
        require(f"rank {SLOW} " in table[1 + SLOW + 1].split("  ")[-1], table)


def tool_joins():
    merged = json.loads(tool_says(0, "merge", *files("ring")))
    require({event["pid"] for event in merged["traceEvents"]} == set(range(RANKS)), "a process for each rank")
    halves([merged])
    # As if rank 2 were on another machine, whose clock is two minutes ahead: the messages tell.
    trace = json.loads(pathlib.Path(files("ring")[2]).read_text())
    trace["otherData"]["host_clock"] = "another"
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += 120e6
    other = work / "other.json"
    other.write_text(json.dumps(trace))
    paths = [*files("ring")[:2], str(other), files("ring")[3]]
    ahead = json.loads(tool_says(0, "merge", *paths))
    halves([ahead])
    at = {key: [event["ts"] for event in whole["traceEvents"] if event["pid"] == 2 and event["ph"] == "X"]
          for key, whole in (("one", merged), ("two", ahead))}
    moved = max(abs(one - two) for one, two in zip(at["one"], at["two"]))
    require(moved < 10e3, f"rank 2's clock is {moved} us off")
    picture = tool_says(0, "svg", *files("ring"))
    require(picture.startswith("<svg") and "url(#wait)" in picture and "marker-end" in picture, picture[:200])
    require("of a group of 4" not in tool_says(2, "merge"), "")
    require("both of rank 1" in tool_says(1, "merge", files("ring")[1], files("ring")[1]), "one rank twice")
    require("different runs" in tool_says(1, "merge", files("ring")[0], files("all-gather")[1]), "two runs")
    require("not a whole trace" in tool_says(1, "summary", __file__), "no trace")


def relay():
    """A pass of a rank is one phase, between the message that comes and the one that goes."""
    traces = make("relay", "--schedule", "relay")
    for rank, trace in enumerate(traces):
        nest(trace)
        phases = [event["name"] for event in spans(trace, "phase")]
        require(phases == 4 * ["finish"], f"rank {rank}: {phases}")
    halves(traces)


def full():
    traces = make("full", "--records", "64", "--passes", "30")
    for trace in traces:
        require(trace["otherData"]["dropped"] > 0, "some gave way")
        kept = [event for event in trace["traceEvents"] if event["ph"] in "Xb"]
        require(len(kept) == 64, f"{len(kept)} records were kept")
        require(spans(trace, "call")[-1]["name"] == "lasp_backward", "the last are kept")
    require("gave way" in tool_says(0, "summary", *files("full")), "the summary tells")


def lost():
    traces = make("lost", "--slow", str(SLOW), "1000", "--limit", "200", "--passes", "1")
    for rank in (2, 3):
        call = spans(traces[rank], "call")[-1]
        require(call["name"] == "lasp_forward" and call["args"].get("failed") is True, call)
        wait = spans(traces[rank], "wait")[-1]
        require(wait["args"].get("failed") is True and wait["args"]["peer"] == rank - 1, wait)
    for trace in traces:
        require("failed" not in spans(trace, "call")[0]["args"], "the plan was made")


def nccl(ranks):
    """What each GPU did: phases within passes, messages between them; work goes on while messages are on their way."""
    for schedule, phases in (("ring", ["states", "ahead", "finish"]), ("all-gather", ["states", "ahead", "finish"]),
                             ("relay", ["finish"])):
        traces = make(schedule, "--nccl", "--ranks", str(ranks), "--schedule", schedule, "--tokens", "16384", "--heads",
                      "32", "--dim", "128", "--warmup", "5", ranks=ranks)
        overlap = 0.0
        for rank, trace in enumerate(traces):
            about = trace["otherData"]
            require((about["dropped"], about["device_unfinished"], about["device_left_out"]) == (0, 0, 0), about)
            names = [event["name"] for event in spans(trace, "device") if not event["name"].startswith("lasp ")]
            require([name for name in names if name in ("states", "ahead", "finish")] == 4 * phases, names)
            messages = spans(trace, "messages")
            require(messages, f"{schedule}: no messages of rank {rank}")
            busy = [event for event in spans(trace, "device") if event["name"] in phases]
            overlap += sum(max(0.0, min(one["ts"] + one["dur"], two["ts"] + two["dur"]) - max(one["ts"], two["ts"]))
                           for one in busy for two in messages)
        require(schedule == "relay" or overlap > 0, f"{schedule}: nothing was computed while messages travelled")
        tool_says(0, "svg", "-o", str(work / f"{schedule}.svg"), *files(schedule, ranks))
        print(f"{schedule} over {ranks} GPUs: {overlap:.0f} us of work beside messages")


if sys.argv[4:5] == ["nccl"]:
    nccl(int(sys.argv[5]))
else:
    for case in (slow_rank, tool_joins, relay, full, lost):
        case()
        print(f"{case.__name__}: as it should be")
