#!/usr/bin/env python3
"""How long a sequence a model of 1.15 billion parameters trains on, how fast, and in how much memory: liblasp's ranks and
time segments beside LASP, LASP-2 and Ulysses. One training step of examples/pytorch/long.py's model (AdamW, bfloat16 with
float32 masters, compiled blocks) at each length, as far as memory reaches.

    bench/long_sequences.py --json one.json                                              # one GPU
    for way in segments ranks lasp lasp2 ulysses; do                                     # two
        torchrun --nproc-per-node 2 bench/long_sequences.py --ways $way --json two.json
    done
    bench/plot_long_sequences.py long.svg one.json two.json                              # needs matplotlib

Ways: segments (liblasp, ranks and time segments), ranks (liblasp, whole sequence at once), lasp, lasp2, ulysses (all-to-all
by heads around flash-linear-attention's operator; on one GPU that operator alone). All but the first keep everything for
the backward pass; where that does not fit they recompute each block, and end where that does not fit either. LASP-2 has no
decay. bench/peers-carry fetches the public implementations.
"""
import argparse
import datetime
import gc
import json
import pathlib
import sys
import time
import types

import torch
import torch.distributed as dist

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "pytorch"), str(ROOT / "bench")]

import liblasp.torch.module  # noqa: E402
import long  # noqa: E402
import peer_functions  # noqa: E402
from arguments import count  # noqa: E402
from torch.distributed.nn.functional import all_to_all_single  # noqa: E402

HEADS, HEAD_DIM = 16, 128
LIBLASP = liblasp.torch.module.linear_attention


def of_peer(make, decay):
    """The operator of bench/peers.py as the model calls it."""
    shape = types.SimpleNamespace(ranks=dist.get_world_size(), batch=1, heads=HEADS, heads_qk=HEADS, head_dim_k=HEAD_DIM,
                                  head_dim_v=HEAD_DIM, decay=decay)
    peer = make(shape, torch.device("cuda", torch.cuda.current_device()))
    if not peer.head_major:
        return peer.function
    return lambda q, k, v: peer.function(*(x.transpose(1, 2).contiguous() for x in (q, k, v))).transpose(1, 2)


def ulysses():
    """All-to-all, so that a rank has all tokens of some heads; fla's operator; all-to-all."""
    from fla.ops.simple_gla import chunk_simple_gla
    ranks, rank = dist.get_world_size(), dist.get_rank()
    gamma = -peer_functions.slopes(HEADS, "cuda").chunk(ranks)[rank]

    def operator(q, k, v):
        return chunk_simple_gla(q, k, v, scale=1.0, g_gamma=gamma)[0]
    if ranks == 1:
        return operator

    def heads_of_all_tokens(x):  # [1, T / W, H, D] to [1, T, H / W, D]
        sent = x[0].unflatten(1, (ranks, -1)).transpose(0, 1).contiguous()
        return all_to_all_single(torch.empty_like(sent), sent).flatten(0, 1)[None]

    def tokens_of_all_heads(x):
        sent = x[0].unflatten(0, (ranks, -1)).contiguous()
        return all_to_all_single(torch.empty_like(sent), sent).transpose(0, 1).flatten(1, 2)[None]
    return lambda q, k, v: tokens_of_all_heads(operator(*map(heads_of_all_tokens, (q, k, v))))


OPERATORS = {"lasp": lambda: of_peer(peer_functions.MANY_GPUS["LASP fuse"], "head"),
             "lasp2": lambda: of_peer(peer_functions.MANY_GPUS["LASP-2"], "none"), "ulysses": ulysses}


def use(way):
    """Makes the model's attention that of this way."""
    if way not in OPERATORS:
        liblasp.torch.module.linear_attention = LIBLASP
        return
    of_layer = {}  # LASP has buffers of its own for each

    @torch.compiler.disable
    def attention(q, k, v, decay, **_):
        layer = decay.data_ptr()
        if layer not in of_layer:
            of_layer[layer] = OPERATORS[way]()
        return of_layer[layer](q, k, v)
    liblasp.torch.module.linear_attention = attention


def one_piece_step(model, optimizer, tokens, recomputed, autocast):
    """A step that keeps all for the backward pass, or what enters each block."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    getattr(model, "module", model).checkpointing = recomputed
    inputs, targets = liblasp.torch.shard_with_targets(tokens, rank, ranks)
    with autocast:
        loss = model(inputs, targets) * (ranks / (tokens.shape[1] - 1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss := loss.detach())
    return loss.item() / ranks


def attempts(way, tokens_of_rank):
    """Whether blocks are recomputed, in the order of trying. All of 64K tokens takes about 120 GiB, no more is tried."""
    return (None,) if way == "segments" else (False, True) if tokens_of_rank <= 1 << 16 else (True,)


def measure(way, length, model, optimizer, group, args):
    """A row: the median of the steps, or why there is none."""
    ranks, device = dist.get_world_size(), torch.device("cuda", torch.cuda.current_device())
    autocast = torch.autocast("cuda", torch.bfloat16)
    tokens = torch.randint(64000, (1, length + 1), device=device, generator=torch.Generator(device).manual_seed(1))
    row = {"way": way, "gpus": ranks, "tokens": length}
    for recomputed in attempts(way, length // ranks):
        try:
            if way == "segments":
                segment = min(args.segment, -(-length // ranks))
                step = lambda tokens: long.train_step(model, optimizer, group, tokens, segment, autocast, None)
                warm_up = tokens[:, :min(length, 2 * segment * ranks) + 1]
                row["segment"] = segment
            else:
                step = lambda tokens: one_piece_step(model, optimizer, tokens, recomputed, autocast)
                warm_up = tokens
                row["recomputed"] = recomputed
            step(warm_up)
            steps = 1 if length >= 1 << 22 else 3 if length >= 1 << 18 else 15
            found = [long.measured(lambda: step(tokens), device) for _ in range(steps)]
            row |= {"loss": found[-1][0], "seconds": sorted(f[1] for f in found)[steps // 2],
                    "all_seconds": [f[1] for f in found], "peak_GiB": max(f[2] for f in found)}
            row["tokens_per_s_per_gpu"] = length / row["seconds"] / ranks
            break
        except torch.OutOfMemoryError:
            row["missing"] = "out of memory"
        except Exception as error:  # whatever a peer throws: the others are measured all the same
            row["missing"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
        finally:
            model.zero_grad()
            gc.collect()
            torch.cuda.empty_cache()
        if row["missing"] != "out of memory":
            break
    if "seconds" in row:
        row.pop("missing", None)
    return row


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ways", default="segments,ranks,lasp,lasp2,ulysses", help="which, by commas (all)")
    add("--tokens", default="2K,16K,64K,256K,1M,4M", help="lengths of the whole sequence (2K,16K,64K,256K,1M,4M)")
    add("--segment", type=count, default=1 << 15, help="tokens of a segment on each rank (32K)")
    add("--json", help="add the rows to this file")
    add("--commit", default="", help="is written beside the rows")
    return parser.parse_args()


def main(args):
    device = long.start_process_group("cuda")
    torch._dynamo.config.cache_size_limit = 64  # a length after another
    ranks, talks = dist.get_world_size(), dist.get_rank() == 0
    rows = json.loads(pathlib.Path(args.json).read_text())["rows"] if args.json and pathlib.Path(args.json).exists() else []
    for way in args.ways.split(","):
        if ranks == 1 and way in ("ranks", "lasp", "lasp2"):
            continue  # with one rank there is nothing to send
        options = types.SimpleNamespace(model="1b", no_compile=False, parallel="ddp", lr=1e-4)
        model = optimizer = None
        try:
            use(way)
            model, optimizer, group = long.make(options, device, ranks)
        except Exception as error:
            rows.append({"way": way, "gpus": ranks, "missing": f"{type(error).__name__}: {error}"[:200]})
        for length in map(count, args.tokens.split(",")) if model is not None else ():
            began = time.perf_counter()
            rows.append(row := measure(way, length, model, optimizer, group, args))
            if talks:
                said = row.get("missing") or (f"{row['tokens_per_s_per_gpu']:,.0f} tokens/s a GPU, {row['peak_GiB']:.1f} GiB"
                                              + (", recomputed" if row.get("recomputed") else ""))
                print(f"{way:9} {length:>10,} tokens on {ranks}: {said}  ({time.perf_counter() - began:.0f} s)", flush=True)
                if args.json:
                    report = {"tool": "long_sequences.py", "commit": args.commit, "gpu": torch.cuda.get_device_name(),
                              "date_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                              "torch": torch.__version__, "rows": rows}
                    pathlib.Path(args.json).write_text(json.dumps(report, indent=1))
            if "missing" in row:
                break
        del model, optimizer
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse_arguments())
