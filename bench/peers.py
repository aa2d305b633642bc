#!/usr/bin/env python3
"""Measures public implementations of linear attention beside lasp-bench: one run, the same shapes and decays, inputs of the
same kind, each beside the copy rate. What cannot be imported, does not run or does not end is named with its reason.

    bench/peers.py --shapes models --limit 540 --json peers.json       # lasp-bench's table of shapes of models, on one GPU
    bench/peers.py --sizes 1x32x16384,8x32x2048x64x128 --decay scalar --json peers.json                 # sizes of your own
    bench/peers.py --sizes 1x16x16384x256x256 --decay none,scalar --write delta --json peers.json       # the delta rule
    bench/peers.py --ranks 4 --sizes 1x32x2048,1x32x16384 --decay head,none --json peers.json           # several GPUs

One GPU: operators of flash-linear-attention, mamba_ssm's chunk scan, Lightning Attention-2, each at the shapes that it
serves. Several: LASP, LASP-2, one process per GPU. bench/peers-carry fetches them all. Sizes are BxHxT, T per rank, with
K = V = 128, or BxHxTxKxV.

Backward gives the gradients of q, k, v, of a decay per token or channel and of beta; a decay per head is a constant, on
both sides. "head" has lasp-bench's slopes; retention has its own.

On one GPU, public code runs in a process that is stopped at its limit. What its tuning will try is compiled first, in many
processes at once, into Triton's cache. The report is written after each measurement, and --continue goes on with one.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types

import peer_jobs

LASP_BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "release", "bench", "lasp-bench")


def lasp_bench(args, words, seconds):
    """Its results, or an exit with what it said."""
    command = [args.lasp_bench, "--device", "cuda", "--dtype", "bfloat16", "--no-sgemm", "--repeats", str(args.repeats),
               "--min-time", "0", *([] if args.check else ["--no-check"]), *words, "--json", "-"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds)
        return json.loads(done.stdout)["results"]
    except subprocess.TimeoutExpired:
        sys.exit(f"peers.py: lasp-bench did not end within {seconds:.0f} s")
    except (OSError, json.JSONDecodeError, KeyError) as error:
        said = done.stderr.strip().splitlines() if "done" in locals() else []
        sys.exit(f"peers.py: {' '.join(command)}: {said[-1] if said else error}")


def words_of(config):
    words = []
    for option in ("batch", "tokens", "heads_q", "heads_k", "heads_v", "head_dim_k", "head_dim_v", "decay", "write", "cache"):
        words += ["--" + option.replace("_", "-"), str(config[option])]
    return words


def dims_of(size):
    dims = [int(dim) for dim in size.split("x")]
    return dims + [128, 128] if len(dims) == 3 else dims


def liblasp_results(args, begun):
    """lasp-bench's results: of its own table, or of --sizes. A decay per head is measured as a constant."""
    left = lambda: max(1, args.limit - (time.monotonic() - begun))
    if args.shapes:
        results = lasp_bench(args, ["--shapes", args.shapes], left())
        for i, result in enumerate(results):
            config = result["config"]
            if config["decay"] == "head":
                again = lasp_bench(args, [*words_of(config), "--no-decay-gradient"], left())[0]
                again["config"]["name"] = config["name"]
                results[i] = again
        return results
    results = []
    for size in args.sizes.split(","):
        dims = dict(zip(("batch", "heads", "tokens-per-rank", "head-dim-k", "head-dim-v"), dims_of(size)))
        words = [word for name, dim in dims.items() for word in (f"--{name}", str(dim))]
        words += ["--ranks", str(args.ranks)] + (["--transport", "nccl"] if args.ranks > 1 else [])
        for decay in args.decay.split(","):
            constant = [] if decay in ("scalar", "channel") else ["--no-decay-gradient"]
            for result in lasp_bench(args, [*words, "--decay", decay, "--write", args.write, *constant], left()):
                name = f"{size}, {decay}" + (", delta rule" if args.write == "delta" else "")
                result["config"] |= {"name": name, "tokens": dims["tokens-per-rank"]}
                results.append(result)
    return results


class Report:
    """What is known so far, written to its file after each addition."""

    def __init__(self, args, earlier=None):
        self.file = args.json
        self.head = {"tool": "peers.py", "date_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                     "commit": args.commit, "arguments": sys.argv[1:], "gpu": "", "gpus": args.ranks, "torch": "", "triton": ""}
        self.shapes, self.rows = [], {}
        if earlier:
            for name in self.head:
                self.head[name] = earlier[name] if name != "arguments" else earlier[name] + ["and"] + sys.argv[1:]
            self.shapes = earlier["shapes"]
            self.rows = {(row["name"], row["shape"]): row for row in earlier["results"]}

    def add_liblasp(self, results):
        for result in results:
            self.shapes.append(peer_jobs.shape_of(result))
            self.rows["liblasp", result["config"]["name"]] = peer_jobs.row_of_liblasp(result)
            self.head["gpu"] = result.get("gpu", self.head["gpu"])
        self.save()

    def add(self, name, shape, measured):
        """Of every shape that has the problem of this one."""
        for each in self.shapes:
            if peer_jobs.problem_of(each) == peer_jobs.problem_of(shape):
                self.rows[name, each["shape"]] = peer_jobs.row_of(each, name, measured)
        self.save()

    def measured(self, name, shape):
        row = self.rows.get((name, shape["shape"]))
        return row is not None and not row.get("stopped")

    def whole(self):
        copies = [row["copy_gbs"] for row in self.rows.values() if row.get("copy_gbs")]
        order = {shape["shape"]: place for place, shape in enumerate(self.shapes)}
        rows = sorted(self.rows.values(), key=lambda row: order[row["shape"]])
        return {**self.head, "copy_gbs": statistics.median(copies) if copies else None, "shapes": self.shapes, "results": rows}

    def save(self):
        if self.file:
            with open(self.file + ".new", "w") as file:
                file.write(json.dumps(self.whole()))
            os.replace(self.file + ".new", self.file)

    def show(self):
        whole = self.whole()
        print(f"\n{whole['gpus']} x {whole['gpu']}, torch {whole['torch']}, triton {whole['triton']}, copy "
              f"{whole['copy_gbs'] or 0:.0f} GB/s; bfloat16, medians in ms and their spread; % of the copy floor")
        before = None
        for row in whole["results"]:
            if row["shape"] != before:
                before = row["shape"]
                print(f"{before}: B{row['batch']} T{row['tokens']} H{row['heads']}"
                      + (f" ({row['heads_qk']} of q and k)" if row["heads_qk"] != row["heads"] else "")
                      + f" K{row['head_dim_k']} V{row['head_dim_v']}")
            cells = []
            for step in ("forward", "backward"):
                if f"{step}_ms" in row:
                    share = f" {100 * row[f'{step}_share']:3.0f}%" if f"{step}_share" in row else ""
                    cells.append(f"{step} {row[f'{step}_ms']:8.3f} ±{100 * row[f'{step}_spread']:.0f}%{share}")
            cells += [row[key] for key in ("missing", "backward_missing") if key in row]
            error = f"  error {row['error']:.1e}" if row.get("error") is not None else ""
            print(f"    {row['name']:24}{'  '.join(cells)}{error}")


def of_one_gpu(args, report, begun):
    names = args.peers.split(",") if args.peers else list(peer_jobs.SERVES)
    jobs = [job for job in peer_jobs.jobs_of(report.shapes, names) if not report.measured(*job)]
    left = args.limit - (time.monotonic() - begun)
    if args.compilers and jobs and left > 0:
        done, total = peer_jobs.compile_ahead(jobs, args.compilers, min(args.compile_limit, left / 2))
        print(f"compiled ahead: {done} of {total} parts, {time.monotonic() - begun:.0f} s since the start", file=sys.stderr)
    worker = peer_jobs.Worker()

    def add(name, shape, row):
        if args.earlier and worker.about.get("gpu", report.head["gpu"]) != report.head["gpu"]:
            worker.stop()
            sys.exit(f"peers.py: {args.earlier} is of a {report.head['gpu']}, this is a {worker.about['gpu']}")
        report.head |= {key: worker.about[key] for key in ("gpu", "torch", "triton") if key in worker.about}
        report.add(name, shape, row)

    limits = types.SimpleNamespace(whole=args.limit, each=args.each_limit, peer=args.peer_limit)
    peer_jobs.run_jobs(jobs, limits, begun, worker, args.repeats, add)
    worker.stop()


def rank_of_peers(rank, shapes, args, port, file):
    """One rank of LASP and LASP-2; rank 0 writes (peer, shape, what was measured) after each."""
    import torch

    import peer_functions
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    torch.distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks,
                                         device_id=device)
    rows = []
    for shape in shapes:
        for name, make in peer_functions.MANY_GPUS.items():
            begin = time.monotonic()
            rows.append((name, shape, peer_functions.measure(make, types.SimpleNamespace(**shape), args.repeats, device)))
            if rank == 0:
                print(f"measured {name}, {shape['shape']}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
                with open(file + ".new", "w") as to:
                    json.dump(rows, to)
                os.replace(file + ".new", file)
    torch.distributed.destroy_process_group()


def of_ranks(args, report, begun):
    import torch
    report.head |= {"torch": torch.__version__, "triton": __import__("triton").__version__}
    with tempfile.TemporaryDirectory() as folder:
        file, port = os.path.join(folder, "rows"), 20000 + os.getpid() % 20000
        group = torch.multiprocessing.spawn(rank_of_peers, (report.shapes, args, port, file), nprocs=args.ranks, join=False)
        while not group.join(1):
            if time.monotonic() - begun > args.limit:
                print(f"peers.py: ended after {args.limit:.0f} s; what was measured until then follows", file=sys.stderr)
                for process in group.processes:
                    process.kill()
                break
        if os.path.exists(file):
            with open(file) as stream:
                for name, shape, row in json.load(stream):
                    report.add(name, shape, row)


def main():
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=["models"], help="lasp-bench's table of that name")
    parser.add_argument("--sizes", help="in place of --shapes")
    parser.add_argument("--decay", default="head,none", help="of --sizes: none, head, scalar, channel")
    parser.add_argument("--write", choices=["additive", "delta"], default="additive", help="of --sizes")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--peers", default="", help=f"some of: {', '.join(peer_jobs.SERVES)}")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--lasp-bench", default=LASP_BENCH, help="measured in the same run")
    parser.add_argument("--check", action="store_true", help="lasp-bench compares with its reference too")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for all; what is known then is in the report")
    parser.add_argument("--each-limit", type=float, default=120, help="seconds for one implementation at one shape, tuning included")
    parser.add_argument("--peer-limit", type=float, default=400, help="seconds for one implementation at all shapes")
    parser.add_argument("--compilers", type=int, default=max(0, (os.cpu_count() or 1) - 2), help="processes that compile ahead; 0: none")
    parser.add_argument("--compile-limit", type=float, default=180, help="seconds for that; at most half of what is left")
    parser.add_argument("--json", default="")
    parser.add_argument("--continue", dest="earlier", default="", metavar="REPORT",
                        help="keep what that report has, liblasp's times too; measure what it has not, or what was stopped")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    if bool(args.shapes) + bool(args.sizes) + bool(args.earlier) != 1 or args.ranks > 1 and not args.sizes:
        parser.error("give --shapes, --sizes or --continue; --ranks goes with --sizes")
    for size in args.sizes.split(",") if args.sizes else ():
        if not re.fullmatch(r"\d+(x\d+){2}|\d+(x\d+){4}", size):
            parser.error(f"size {size} is neither BxHxT nor BxHxTxKxV")
    for name in args.peers.split(",") if args.peers else ():
        if name not in peer_jobs.SERVES:
            parser.error(f"--peers: {name} is none of {', '.join(peer_jobs.SERVES)}")

    earlier = None
    if args.earlier:
        with open(args.earlier) as file:
            earlier = json.load(file)
    report = Report(args, earlier)
    if not earlier:
        report.add_liblasp(liblasp_results(args, begun))
        print(f"measured liblasp: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    (of_one_gpu if args.ranks == 1 else of_ranks)(args, report, begun)
    report.save()
    report.show()


if __name__ == "__main__":
    main()
