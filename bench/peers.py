#!/usr/bin/env python3
"""Measures public implementations of linear attention beside lasp-bench: one run, the same sizes and decays, inputs of
the same kind, one copy floor. What cannot be imported or does not run is named with its reason.

One GPU: flash-linear-attention's simple GLA and, for decay "channel", GLA; Lightning Attention-2. Several (--ranks):
LASP, LASP-2, one process per GPU. bench/peers-carry fetches them. Decay "head" has lasp-bench's slopes, LASP-2 and decay
"none" have none. GLA's backward pass always finds the gradient of the decay: give --decay-gradient with "channel".

    bench/peers.py --lasp-bench build/release/bench/lasp-bench --sizes 1x32x16384,1x8x131072 --json peers.json
    bench/peers.py --ranks 4 --sizes 1x32x2048,1x32x16384 --lasp-bench ...
    bench/peers.py --sizes 1x4x16384x128x256 --decay channel --decay-gradient --lasp-bench ...

Sizes: BxHxT, T per rank, with K = V = 128, or BxHxTxKxV.
"""
import argparse
import datetime
import importlib
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types

import torch


def slopes(heads, device):
    return torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], device=device)


class Inputs:
    """q, k [B, T, H, K], v and do [B, T, H, V], bfloat16 (or head-major), enough sets of them to outgrow the L2 cache four
    times."""

    def __init__(self, args, device, head_major):
        rows = (args.batch, args.heads, args.tokens) if head_major else (args.batch, args.tokens, args.heads)
        set_bytes = 4 * args.batch * args.heads * args.tokens * (args.dim_k + args.dim_v)
        count = min(16, 4 * torch.cuda.get_device_properties(device).L2_cache_size // set_bytes + 1)
        generator = torch.Generator(device).manual_seed(7 + torch.cuda.current_device())
        make = lambda dim: torch.randn((*rows, dim), generator=generator, device=device, dtype=torch.bfloat16)
        k, v = args.dim_k, args.dim_v
        self.sets = [[make(k).requires_grad_(), make(k).requires_grad_(), make(v).requires_grad_(), make(v)] for _ in range(count)]
        self.head_major = head_major


def simple_gla(args, decay, device):
    from fla.ops.simple_gla import chunk_simple_gla
    s, options = slopes(args.heads, device), {}
    if decay == "head":
        options["g_gamma"] = -s
    elif decay == "scalar":
        noise = torch.rand(args.batch, args.tokens, args.heads, device=device)
        options["g"] = trained(args, -2.0 * s * noise)
    elif decay == "channel":
        raise RuntimeError("has no decay per channel")
    return False, lambda q, k, v: chunk_simple_gla(q, k, v, scale=1.0, **options)[0]


def gla(args, decay, device):
    from fla.ops.gla import chunk_gla
    if decay != "channel":
        raise RuntimeError("is for a decay per channel")
    if not args.decay_gradient:
        raise RuntimeError("always finds the gradient of the decay: --decay-gradient")
    noise = torch.rand(args.batch, args.tokens, args.heads, args.dim_k, device=device)
    g = trained(args, -2.0 * slopes(args.heads, device)[:, None] * noise)
    return False, lambda q, k, v: chunk_gla(q, k, v, g, scale=1.0)[0]


def trained(args, g):
    """A decay whose gradient the backward pass finds, where that is asked for."""
    if args.decay_gradient:
        args.of_decay = [g.requires_grad_()]
    return g


def lightning2(args, decay, device):
    module = importlib.import_module("lightning_attn.ops")
    if decay != "head":
        raise RuntimeError("has per-head decay only")
    s = slopes(args.heads, device).reshape(-1, 1, 1)
    return True, lambda q, k, v: module.lightning_attn_func(q, k, v, s)


def module_of_lasp():
    """LASP's package, under another name than its own, which liblasp's has too."""
    if "lasp_of_opennlplab" not in sys.modules:
        for folder in sys.path:
            path = os.path.join(folder, "lasp", "__init__.py")
            if os.path.exists(os.path.join(folder, "lasp", "lasp_naive.py")):
                break
        else:
            raise ImportError("no lasp/lasp_naive.py on PYTHONPATH")
        spec = importlib.util.spec_from_file_location("lasp_of_opennlplab", path,
                                                      submodule_search_locations=[os.path.dirname(path)])
        module = sys.modules["lasp_of_opennlplab"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["lasp_of_opennlplab"]


def lasp(variant):
    def make(args, decay, device):
        module = module_of_lasp()
        if decay != "head":
            raise RuntimeError("has per-head decay only")
        if not module.utils.sequence_parallel_is_initialized():
            module.utils.initialize_lasp(1, args.ranks)
        s = slopes(args.heads, device).reshape(-1, 1, 1)
        state = lambda: torch.empty(args.batch, args.heads, args.dim_k, args.dim_v, device=device)
        kv, dkv = state(), state()
        function = getattr(module, variant)
        if variant == "lasp_naive":
            return True, lambda q, k, v: function(q, k, v, s)
        return True, lambda q, k, v: function(q, k, v, s, kv, dkv)
    return make


def lasp2(args, decay, device):
    if decay != "none":
        raise RuntimeError("has no decay")
    if "megatron" not in sys.modules and importlib.util.find_spec("megatron") is None:
        # All that its kernels ask of Megatron: where this rank is in its group.
        for name in ("megatron", "megatron.core", "megatron.core.parallel_state"):
            sys.modules[name] = types.ModuleType(name)
        state = sys.modules["megatron.core.parallel_state"]
        state.get_context_parallel_rank = torch.distributed.get_rank
        state.get_context_parallel_world_size = torch.distributed.get_world_size
    for folder in sys.path:
        path = os.path.join(folder, "lasp2", "lasp2_with_mask_triton_op.py")
        if os.path.exists(path):
            spec = importlib.util.spec_from_file_location("lasp2_with_mask", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return True, lambda q, k, v: module.lasp2_with_mask_triton_op(q, k, v, torch.distributed.group.WORLD)
    raise ImportError("no lasp2/lasp2_with_mask_triton_op.py on PYTHONPATH")


ONE_GPU = {"fla simple GLA": simple_gla, "fla GLA": gla, "Lightning Attention-2": lightning2}
MANY_GPUS = {"LASP fuse": lasp("lasp_fuse"), "LASP fuse_parallel": lasp("lasp_fuse_parallel"),
             "LASP naive": lasp("lasp_naive"), "LASP-2": lasp2}


def error_of_first_tokens(function, inputs, decay, heads):
    """Of the first 128 tokens of head 0 against the recurrence in float64: that it computes the same function at all."""
    q, k, v, _ = inputs.sets[0]
    with torch.no_grad():
        o = function(q, k, v)
    pick = (lambda x: x[0, 0, :128].double()) if inputs.head_major else (lambda x: x[0, :128, 0].double())
    q, k, v, o = map(pick, (q, k, v, o))
    slope = 0.0 if decay == "none" else 2.0 ** (-8.0 / heads)
    t = torch.arange(128, device=q.device, dtype=torch.float64)
    weights = torch.exp(-slope * (t[:, None] - t[None, :]).clamp(min=0)).tril()
    expected = (q @ k.T * weights) @ v
    return ((o - expected).norm() / expected.norm()).item()


def times_of(calls, repeats, prepare=lambda call: call):
    """Milliseconds of each call by events, calls enqueued one after another. The first round over them warms up. What is
    timed is prepare(call), made right before it."""
    for call in calls:
        prepare(call)()
    for call in calls[:2] * 2:
        prepare(call)()
    torch.cuda.synchronize()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for i, (begin, end) in enumerate(events):
        call = prepare(calls[i % len(calls)])
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = torch.tensor([begin.elapsed_time(end) for begin, end in events], device="cuda")
    if torch.distributed.is_initialized():  # of the slowest rank
        torch.distributed.all_reduce(times, torch.distributed.ReduceOp.MAX)
    return times.tolist()


def copy_gbs():
    source = torch.full((1 << 28,), 1.0, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / statistics.median(times_of([lambda: target.copy_(source)], 15)) * 1e-6


def measure(name, make, args, decay, device):
    row = {"name": name, "batch": args.batch, "heads": args.heads, "tokens": args.tokens, "head_dim_k": args.dim_k,
           "head_dim_v": args.dim_v, "decay": decay, "ranks": args.ranks}
    args.of_decay = []
    try:
        head_major, function = make(args, decay, device)
        if args.decay_gradient and decay != "none" and not args.of_decay:
            raise RuntimeError("does not find the gradient of this decay")
        inputs = Inputs(args, device, head_major)
        if args.ranks == 1 and decay in ("none", "head"):
            row["error"] = error_of_first_tokens(function, inputs, decay, args.heads)
        forward = [lambda s=s: function(*s[:3]) for s in inputs.sets]
        row["forward_ms"] = statistics.median(times_of(forward, args.repeats))

        def backward_of(tensors):  # a forward pass before each: LASP's buffers serve one backward pass at a time
            o = function(*tensors[:3])
            return lambda: torch.autograd.grad(o, tensors[:3] + args.of_decay, tensors[3])

        row["backward_ms"] = statistics.median(times_of(inputs.sets, args.repeats, backward_of))
    except Exception as error:  # whatever a peer throws: the others are measured all the same
        row["missing"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    torch.cuda.empty_cache()
    return row


def dims_of(size):
    dims = [int(dim) for dim in size.split("x")]
    return dims + [128, 128] if len(dims) == 3 else dims


def save(rows, result_file):
    with open(result_file + ".new", "w") as file:
        json.dump(rows, file)
    os.replace(result_file + ".new", result_file)


def run_peers(rank, args, port, result_file):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    if args.ranks > 1:
        torch.distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks,
                                             device_id=device)
    rows = [{"copy_gbs": copy_gbs()}]
    for size in args.sizes.split(","):
        args.batch, args.heads, args.tokens, args.dim_k, args.dim_v = dims_of(size)
        for decay in args.decay.split(","):
            for name, make in (ONE_GPU if args.ranks == 1 else MANY_GPUS).items():
                begin = time.monotonic()
                rows.append(measure(name, make, args, decay, device))
                if rank == 0:
                    print(f"measured {name}, {size}, decay {decay}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
                    save(rows, result_file)
    rows.append({"copy_gbs": copy_gbs()})
    if rank == 0:
        save(rows, result_file)
    if args.ranks > 1:
        torch.distributed.destroy_process_group()


def run_lasp_bench(args):
    rows = []
    for size in args.sizes.split(","):
        batch, heads, tokens, dim_k, dim_v = dims_of(size)
        command = [args.lasp_bench, "--device", "cuda", "--dtype", "bfloat16", "--batch", str(batch), "--heads", str(heads),
                   "--tokens-per-rank", str(tokens), "--head-dim-k", str(dim_k), "--head-dim-v", str(dim_v), "--decay", args.decay,
                   "--ranks", str(args.ranks), "--repeats", str(args.repeats), "--min-time", "0", "--json", "-"]
        command += (["--transport", "nccl"] if args.ranks > 1 else []) + ([] if args.check else ["--no-check"])
        command += [] if args.decay_gradient else ["--no-decay-gradient"]
        size_row = {"name": "liblasp", "batch": batch, "heads": heads, "tokens": tokens, "head_dim_k": dim_k, "head_dim_v": dim_v,
                    "ranks": args.ranks}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            results = json.loads(done.stdout)["results"]
        except (json.JSONDecodeError, KeyError):
            rows.append(size_row | {"decay": args.decay, "missing": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"})
            continue
        for r in results:
            row = size_row | {"decay": r["config"]["decay"], "kernels": r.get("kernels"), "copy_gbs": r.get("copy_gbs")}
            if "forward" in r:
                row |= {f"{p}_ms": r[p]["median_s"] * 1e3 for p in ("forward", "backward")}
                row["error"] = max(r["relative_error"].values()) if "relative_error" in r else None
            else:
                row["missing"] = "; ".join(r["problems"])
            rows.append(row)
    return rows


def floors_ms(row, decay_gradient, copy):
    """The bytes that any implementation moves, at the rate of a copy: bfloat16, a decay in float32."""
    tokens = row["batch"] * row["heads"] * row["tokens"]
    of_k, of_v = 2 * row["head_dim_k"], 2 * row["head_dim_v"]
    g = {"scalar": 4, "channel": 2 * of_k}.get(row["decay"], 0)
    forward = 2 * of_k + 2 * of_v + g
    backward = 4 * of_k + 3 * of_v + g * (2 if decay_gradient else 1)
    return tokens * forward / copy * 1e-6, tokens * backward / copy * 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1x32x16384,1x8x131072,8x32x2048")
    parser.add_argument("--decay", default="head,none")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--decay-gradient", action="store_true", help="backward finds the gradient of the decay, too")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--lasp-bench", default="", help="measured in the same run")
    parser.add_argument("--check", action="store_true", help="lasp-bench compares with its reference too")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for the peers, their compilation and autotuning included")
    parser.add_argument("--json", default="")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    for size in args.sizes.split(","):
        if not re.fullmatch(r"\d+(x\d+){2}|\d+(x\d+){4}", size):
            parser.error(f"size {size} is neither BxHxT nor BxHxTxKxV")
    if not torch.cuda.is_available():
        sys.exit("peers.py: PyTorch sees no CUDA device")

    rows = run_lasp_bench(args) if args.lasp_bench else []
    with tempfile.TemporaryDirectory() as folder:
        result_file, port = os.path.join(folder, "rows"), 20000 + os.getpid() % 20000
        group = torch.multiprocessing.spawn(run_peers, (args, port, result_file), nprocs=args.ranks, join=False)
        deadline = time.monotonic() + args.time_limit
        while not group.join(1):
            if time.monotonic() > deadline:
                print(f"peers.py: ended after {args.time_limit} s; what was measured until then follows", file=sys.stderr)
                for process in group.processes:
                    process.kill()
                break
        with open(result_file) as file:
            peers = json.load(file)
    copy = statistics.mean(row["copy_gbs"] for row in peers if set(row) == {"copy_gbs"})
    rows += [row for row in peers if "name" in row]

    print(f"\n{args.ranks} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}, copy {copy:.0f} GB/s; bfloat16, medians in ms; "
          "% of the copy floor, each input read and each result written once" + (", with d_decay" if args.decay_gradient else ""))
    print(f"{'':24}{'B x H x T per rank x K x V':>30} {'decay':>7} {'forward':>9} {'%':>4} {'backward':>9} {'%':>4} {'both':>9}  error")
    for row in sorted(rows, key=lambda r: (r["batch"], r["heads"], r["tokens"], r["head_dim_k"], r["head_dim_v"], r["decay"])):
        size = "{batch} x {heads} x {tokens} x {head_dim_k} x {head_dim_v}".format(**row)
        head = f"{row['name']:24}{size:>30} {row['decay']:>7}"
        if "missing" in row:
            print(f"{head} not measured: {row['missing']}")
            continue
        forward_ms, backward_ms = floors_ms(row, args.decay_gradient, copy)
        row["forward_share"], row["backward_share"] = forward_ms / row["forward_ms"], backward_ms / row["backward_ms"]
        print(f"{head} {row['forward_ms']:9.3f} {row['forward_share'] * 100:4.0f} {row['backward_ms']:9.3f} "
              f"{row['backward_share'] * 100:4.0f} {row['forward_ms'] + row['backward_ms']:9.3f}  "
              f"{'-' if row.get('error') is None else format(row['error'], '.1e')}")
    if args.json:
        report = {"tool": "peers.py", "date_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                  "commit": args.commit, "arguments": sys.argv[1:], "gpu": torch.cuda.get_device_name(0), "gpus": args.ranks,
                  "torch": torch.__version__, "copy_gbs": copy, "results": rows}
        with open(args.json, "w") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
