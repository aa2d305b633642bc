#!/usr/bin/env python3
"""Trains one small language model in many setups and shows that all converge alike: one rank, and 2 and 4 ranks under
DDP, FSDP2, torch's ZeroRedundancyOptimizer and DeepSpeed's ZeRO 1, 2 and 3, each with whole sequences on every rank
(4 x 1: data x sequence ranks), with every sequence over all ranks (1 x 4), and with both (2 x 2).

    bench/convergence.py                                     # on the CPU, 13 minutes on two cores
    bench/convergence.py --device cuda --ranks 1,2
    bench/convergence.py --only 'fsdp2|cut' --steps 100

Every setup's loss curve must stay within a bound of the one-rank curve that follows from float32 rounding
(convergence_bound.py derives it). Two controls show what the bound is worth: first parameters off by one unit in the
last place must stay inside it, and ranks that do not exchange their states must leave it by far. The model, the text
and the trainer are those of examples/pytorch, the model without the norm of each head unless --head-norm is given.
Exit status: 0; 1 when a setup is not as it must be or fails; 2 for a mistake on the command line."""
import argparse
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from convergence_bound import compare, curve_bound, holds

HERE = pathlib.Path(__file__).resolve().parent
MODEL = {"layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "seq_len": 512, "batch": 4}
PARALLEL = ("ddp", "fsdp2", "zero", "deepspeed-1", "deepspeed-2", "deepspeed-3")
ONE_RANK = "one rank"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where all setups run, always in float32 (cpu)")
    add("--ranks", default="1,2,4", help="numbers of ranks, of 1, 2 and 4; one rank is always run (1,2,4)")
    add("--steps", type=int, default=400, help="optimizer steps (400)")
    add("--only", default="", metavar="PATTERN", help="setups whose name this regular expression finds, and one rank")
    add("--text", help="a text file (default: the licences of this system)")
    add("--head-norm", action="store_true", help="keep the norm of each head: differences then grow without a bound")
    add("--json", type=pathlib.Path, default=HERE.parent / "build" / "convergence.json", metavar="FILE",
        help="rows go here, the figure beside it as .svg (build/convergence.json)")
    args = parser.parse_args()
    try:
        args.ranks = sorted({1, *map(int, args.ranks.split(","))})
        args.only = re.compile(args.only)
    except (ValueError, re.error) as reason:
        parser.error(f"--ranks or --only: {reason}")
    if not set(args.ranks) <= {1, 2, 4}:
        parser.error("--ranks: only 1, 2 and 4 divide the batch and the sequence")
    if args.steps < 1:
        parser.error(f"--steps: must be at least 1, not {args.steps}")
    if args.device == "cuda":
        import torch
        if torch.cuda.device_count() < max(args.ranks):
            parser.error(f"--ranks: {max(args.ranks)} ranks need as many GPUs, here are {torch.cuda.device_count()}")
    return args


def make_setup(name, ranks, parallel="ddp", sequence_ranks=1, cut=False, perturb=False):
    return {"name": name, "ranks": ranks, "parallel": parallel, "sequence_ranks": sequence_ranks, "cut": cut,
            "perturb": perturb}


def all_setups(ranks):
    setups = [make_setup(ONE_RANK, 1), make_setup("one rank, last places changed", 1, perturb=True)]
    for count in ranks[1:]:
        setups += [make_setup(f"{parallel}, {count // sequence} x {sequence}", count, parallel, sequence)
                   for parallel in PARALLEL for sequence in (1, 2, 4) if sequence <= count]
        setups.append(make_setup(f"ddp, 1 x {count}, exchange cut", count, sequence_ranks=count, cut=True))
    return setups


def installed(package):
    """The package's version, None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def chosen_setups(args):
    """The setups to run, and a reason for each that cannot."""
    setups = [s for s in all_setups(args.ranks) if s["name"] == ONE_RANK or args.only.search(s["name"])]
    absent = {} if installed("deepspeed") else {
        s["name"]: "DeepSpeed is not installed" for s in setups if s["parallel"].startswith("deepspeed")}
    return [s for s in setups if s["name"] not in absent], absent


def trainer_arguments(setup, args):
    words = [f"--{key.replace('_', '-')}={value}" for key, value in MODEL.items()]
    words += [f"--{key}={value}" for key, value in (("steps", args.steps), ("device", args.device), ("text", args.text))
              if value is not None]
    return [*words, f"--log-every={math.ceil(args.steps / 4)}", "--dtype=float32", f"--parallel={setup['parallel']}",
            f"--sequence-ranks={setup['sequence_ranks']}"]


def start_world(ranks, plan, rows, device):
    """Runs the plan in one world of processes; rows are appended as setups end."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::FutureWarning", **os.environ}
    if device == "cpu":
        environment = {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu", **environment}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
               str(HERE / "convergence_rank.py"), str(plan), str(rows)]
    return subprocess.run(command, env=environment).returncode


def run_setups(setups, args):
    """{name: row} of what ended, and {name: reason} of what failed. A world that breaks is started again after the
    setup that broke it."""
    ended, failed, numbers = {}, {}, {s["name"]: i for i, s in enumerate(setups, 1)}
    with tempfile.TemporaryDirectory() as folder:
        plan, rows = pathlib.Path(folder, "plan.json"), pathlib.Path(folder, "rows.jsonl")
        rows.touch()
        for ranks in args.ranks:
            left = [s for s in setups if s["ranks"] == ranks]
            while left:
                plan.write_text(json.dumps([
                    s | {"title": f"{numbers[s['name']]} of {len(setups)}: {s['name']}", "head_norm": args.head_norm,
                         "arguments": trainer_arguments(s, args)} for s in left]))
                status = start_world(ranks, plan, rows, args.device)
                ended = {row["name"]: row for row in map(json.loads, rows.read_text().splitlines())}
                left = [s for s in left if s["name"] not in ended]
                if left:
                    failed[left.pop(0)["name"]] = f"torchrun ended with {status}"
    return ended, failed


def make_report(args, setups, ended, failed, absent):
    one = ended[ONE_RANK]
    bound = curve_bound(MODEL, one["steps"])
    rounded = lambda values, digits: [float(f"{value:.{digits}g}") for value in values]
    rows = [s | compare(ended[s["name"]]["loss"], one["loss"], bound)
            | {"seconds": round(ended[s["name"]]["seconds"], 1), "loss": rounded(ended[s["name"]]["loss"], 9)}
            for s in setups if s["name"] in ended]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    environment = one["environment"] | {"deepspeed": installed("deepspeed")}
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"tool": "convergence.py", "date_utc": now.isoformat("T", "seconds"), "arguments": sys.argv[1:],
            "commit": commit.stdout.strip() or "unknown", "environment": environment, "model": MODEL,
            "steps": args.steps, "head_norm": args.head_norm, "bound": rounded(bound, 5),
            "setups": rows, "failed": failed, "left_out": absent}


def table(report):
    lines = ["| setup | ranks | final loss | largest difference | at step | share of the bound | |",
             "|---|---:|---:|---:|---:|---:|---|"]
    for row in report["setups"]:
        verdict = "" if row["name"] == ONE_RANK else "outside" if row["share"] > 1 else "inside"
        if row["cut"]:
            verdict += ", as it must be" if holds(row) else ": THE BOUND IS TOO WIDE"
        apart = f"{row['largest']:.2g} | {row['step']} | {row['share']:.2g}" if verdict else "- | - | -"
        lines.append(f"| {row['name']} | {row['ranks']} | {row['loss'][-1]:.5f} | {apart} | {verdict} |")
    return "\n".join(lines)


def write(report, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    setups = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in report["setups"])
    head = json.dumps(report | {"setups": []}, separators=(",", ":"))
    path.write_text(head.replace('"setups":[]', f'"setups":[\n  {setups}]') + "\n")
    print(f"\nrows:   {path}")
    if installed("matplotlib"):
        from convergence_figure import draw
        draw(report, path.with_suffix(".svg"))
        print(f"figure: {path.with_suffix('.svg')}")
    else:
        print("figure: not drawn, matplotlib is not installed; bench/plot.py draws it from the rows elsewhere")


def main():
    args, began = parse_arguments(), time.perf_counter()
    setups, absent = chosen_setups(args)
    ended, failed = run_setups(setups, args)
    if ONE_RANK not in ended:
        sys.exit(f"one rank: {failed[ONE_RANK]}; there is nothing to compare with")
    report = make_report(args, setups, ended, failed, absent)
    print(f"\n{len(ended)} setups, {args.steps} steps each, {time.perf_counter() - began:.0f} s\n\n{table(report)}")
    for reason in dict.fromkeys((failed | absent).values()):
        print(f"not run, {reason}: {'; '.join(n for n, why in (failed | absent).items() if why == reason)}")
    write(report, args.json)
    wrong = [row["name"] for row in report["setups"] if not holds(row)] + list(failed)
    if wrong:
        sys.exit("NOT AS IT MUST BE: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
