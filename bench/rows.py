#!/usr/bin/env python3
"""Compresses a report to rows, a row for each measurement, and adds them to a file of bench/results.

usage: rows.py REPORT RUN FILE.csv [--commit HASH]     the report of lasp-bench --json, peers.py, convergence.py or recall.py
       rows.py --time OUTPUT RUN FILE.csv --commit HASH --device GPU     what a kernel's test program printed with --time
       rows.py --packed OUTPUT RUN FILE.csv --commit HASH                what one run of packed_passes printed

RUN names the measurement in the column `run`. Each row carries its date, commit and device. FILE.csv is created if it
does not exist, else rows are added at its end; rows of the same run are replaced. bench/results/README.md describes the
columns.
"""
import argparse
import csv
import datetime
import json
import os
import re

MIB = 2.0 ** 20


def figures(value):
    """Six figures are more than a measurement has."""
    return f"{value:.6g}" if isinstance(value, float) else value


def source(report, device):
    return {"date": report["date_utc"][:10], "commit": report["commit"], "device": device}


def of_lasp_bench(report):
    for result in report["results"]:
        config, device = result["config"], result.get("gpu", report["machine"]["cpu"])
        for name in ("forward", "backward", "layer"):
            if name not in result:
                continue
            measured, errors = result[name], result.get("relative_error", {})
            mine = [error for tensor, error in errors.items() if (tensor in ("o", "final_state")) == (name == "forward")]
            gradient = config["decay"] != "none" and config.get("decay_gradient", True)
            yield {**source(report, device), "ranks": config["ranks"], "threads": config["threads"],
                   "graph": int(config.get("graph", False)), "schedule": result["schedule_used"], "batch": config["batch"],
                   "tokens": config["tokens"], "heads": config["heads_q"], "heads_kv": config["heads_k"],
                   "head_dim_k": config["head_dim_k"], "head_dim_v": config["head_dim_v"], "dtype": config["dtype"],
                   "decay": config["decay"], "d_decay": int(gradient), "mask": config["mask"],
                   "write": config.get("write", "additive"),
                   "segment": config.get("segment", 0), "pass": name, "calls": measured["calls"],
                   "median_ms": 1e3 * measured["median_s"], "min_ms": 1e3 * measured["min_s"],
                   "p99_ms": 1e3 * measured["p99_s"], "spread": measured["spread"],
                   "share": measured.get("share_of_floor", measured.get("share_of_sgemm", "")),
                   "copy_gbs": result.get("copy_gbs", ""), "sgemm_gflops": result["sgemm_gflops"] or "",
                   "wait_share": max(measured["wait_share"]), "workspace_mib": measured["workspace_bytes"] / MIB,
                   "cache_mib": result["state_cache_bytes"] / MIB, "error": max(mine, default="")}


def of_peers(report):
    names = ("name", "ranks", "batch", "tokens", "heads", "decay", "forward_ms", "backward_ms", "forward_share", "backward_share",
             "error", "shape", "heads_qk", "head_dim_k", "head_dim_v", "write", "d_decay", "forward_spread", "backward_spread")
    for row in report["results"]:
        if "forward_ms" in row:
            cells = {name: "" if row.get(name) is None else row[name] for name in names}
            yield {**source(report, report["gpu"]), "copy_gbs": row["copy_gbs"], **cells}


def of_convergence(report):
    for row in report["setups"]:
        yield {**source(report, report["environment"]["device"]), "steps": report["steps"], "parallel": row["parallel"],
               "ranks": row["ranks"], "sequence_ranks": row["sequence_ranks"], "cut": int(row["cut"]),
               "perturb": int(row["perturb"]), "last_loss": f"{row['loss'][-1]:.8g}", "distance": row["largest"],
               "at_step": row["step"], "share_of_bound": row["share"]}


def of_recall(rows):
    for row in rows:
        asked, right = (sum(place[i] for place in row["by_distance"]) for i in (1, 2))
        yield {"date": "", "commit": "", "device": row["device"], "cut": row["cut"], "tokens": row["tokens"],
               "segment": row["segment"], "ranks": row["ranks"], "dtype": row["dtype"],
               "seconds_per_step": row["seconds_per_step"], "asked": asked, "recall": right / asked,
               "segment_asked": row["beyond_segment"][0], "segment_recall": row["beyond_segment"][1] / row["beyond_segment"][0],
               "rank_asked": row["beyond_rank"][0], "rank_recall": row["beyond_rank"][1] / row["beyond_rank"][0]}


def of_times(text):
    """Lines such as `  slice 32 cluster 1 (132 fit):  none 0.255 (71%)  head 0.234 (78%)`, under one that begins with B."""
    shape = ""
    for line in text.splitlines():
        if re.match(r"B\d+ H\d+ ", line):
            shape = line.split(":")[0]
            continue
        head, _, rest = line.rpartition(":  ")
        for case, ms, share in re.findall(r"([A-Za-z][\w ,]*?) (\d+\.\d+)(?: ms)? \((\d+)%", rest or line):
            yield {"shape": shape, "variant": re.sub(r" \(.*", "", head.strip()), "case": case.strip(), "ms": ms, "share": int(share) / 100}


def of_packed(text):
    """Lines such as `head  rows  forward ms 0.1 [0.1, 0.1], backward ms 0.2 [0.2, 0.2]`, under one with the problem."""
    device, command, number = "", "", r"\s*([\d.]+) \[([\d.]+), ([\d.]+)\]"
    for line in text.splitlines():
        found = re.match(rf"(\w+)\s+(.+?)\s+forward ms{number}, backward ms{number}$", line)
        if not found:
            shape = re.match(r"(.+): (\d+) sequences of (64 to 4,096, in all )?(\d+) tokens, (\d+) heads, K = V = (\d+)", line)
            if shape:
                device, count, mixed, tokens, *rest = shape.groups()
                command = " ".join(["packed_passes", *(("mixed", count) if mixed else (count, tokens)), *rest])
            continue
        decay, kind, *times = found.groups()
        names = ("forward_ms", "forward_p10", "forward_p90", "backward_ms", "backward_p10", "backward_p90")
        short = kind.replace(", ", "-").replace(" offsets", "").replace(" ", "-")
        yield {"date": "", "device": device, "commit": "", "command": command, "decay": decay, "kind": short,
               **dict(zip(names, times))}


def rows_of(report):
    if isinstance(report, list):
        return of_recall(report)
    tools = {"lasp-bench": of_lasp_bench, "peers.py": of_peers, "convergence.py": of_convergence}
    return tools[report["tool"]](report)


def add(file, run, rows):
    """Puts the run's rows at the end of the file, in place of those it had."""
    kept = []
    if os.path.exists(file):
        with open(file, newline="") as stream:
            kept = [row for row in csv.DictReader(stream) if row["run"] != run]
    rows = [{"run": run, **{name: figures(value) for name, value in row.items()}} for row in rows]
    if not rows:
        raise SystemExit(f"{run}: the report has no measurement")
    if kept and list(kept[0]) != list(rows[0]):
        raise SystemExit(f"{file} has other columns than this report gives")
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept + rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("run")
    parser.add_argument("file")
    parser.add_argument("--time", action="store_true", help="the report is what a kernel's test program printed")
    parser.add_argument("--packed", action="store_true", help="the report is what packed_passes printed")
    parser.add_argument("--commit", help="of the program that was measured, where the report does not know it")
    parser.add_argument("--device", help="its name, where the report does not know it")
    parser.add_argument("--date", help="of the measurement, where the report does not know it (default: today)")
    arguments = parser.parse_args()
    with open(arguments.report) as stream:
        text = stream.read()
    known = {"date": arguments.date, "commit": arguments.commit, "device": arguments.device}
    if arguments.packed:
        rows = list(of_packed(text))
    elif arguments.time:
        rows = [{"date": "", "commit": "", "device": "", **row} for row in of_times(text)]
    else:
        rows = list(rows_of(json.loads(text)))
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    for row in rows:
        row.update({name: value for name, value in known.items() if value})
        row["date"] = row["date"] or today
        if not row["commit"] or not row["device"]:
            raise SystemExit("say --commit and --device: the report does not")
    add(arguments.file, arguments.run, rows)


if __name__ == "__main__":
    main()
