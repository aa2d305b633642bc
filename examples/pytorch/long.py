#!/usr/bin/env python3
"""Trains a language model on sequences of any length: as long as you have patience for, in memory that does not grow.

    python long.py                                                  # a small model on the CPU; 1b at 1M tokens on a GPU
    python long.py --model 1b --tokens 4M                           # a 1.15B model at 4,194,304 tokens, on one GPU of 80 GB
    torchrun --nproc-per-node 4 long.py --model 1b --tokens 32M     # every GPU holds a quarter of each segment

The sequence is cut into segments in time (liblasp.torch.time_segments), and each segment is split over the ranks. A
first pass without gradients finds the state at each cut; then the segments go forward and backward one by one, the last
one first. Memory is that of one segment, and 1 MiB for each block and cut with the 1b model, which takes 64 GiB at 1M
tokens in segments of 32K. Shorter segments are for smaller GPUs: `lasp-bench --fit 1b --segment 16k` counts their
memory."""
import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist

from arguments import count
from liblasp.torch import init_groups, time_segments
from model import LanguageModel
from text import Text
from train import adamw_options, distribute, start_process_group

# TransNormerLLM-1B's shape (arXiv 2404.02882), and one for a CPU.
MODELS = {"1b": {"d_model": 2048, "layers": 16, "heads": 16, "d_ff": 5632, "vocabulary": 64000},
          "small": {"d_model": 256, "layers": 4, "heads": 4, "d_ff": 512, "vocabulary": 256}}


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, help="1b: 1.15B parameters; small: 3M (1b on GPUs, small on the CPU)")
    add("--tokens", type=count, help="of the sequence, K and M are 1024 and 1024^2 (1M on GPUs, 64K on the CPU)")
    add("--segment", type=count, help="tokens of a segment on each rank (32K on GPUs, 8K on the CPU)")
    add("--steps", type=int, default=3, help="optimizer steps, after a short one to warm up (3)")
    add("--lr", type=float, default=3e-4, help="learning rate (3e-4)")
    add("--parallel", choices=("ddp", "fsdp", "fsdp2", "zero"), default="ddp",
        help="how several ranks keep parameters, as in train.py (ddp)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPUs where there are any")
    add("--no-compile", action="store_true", help="leave out torch.compile, which GPUs otherwise get")
    add("--text", help="a text file (default: the licences of this system)")
    add("--json", help="write what was measured here")
    return parser.parse_args(argv)


def make(args, device, ranks):
    """The model as trained, its optimizer, and the group of its sequences."""
    group = init_groups().sequence if ranks > 1 else None
    torch.manual_seed(1)
    with device:
        model = LanguageModel(**MODELS[args.model], group=group)
    if device.type == "cuda" and not args.no_compile:
        for block in model.blocks:
            block.compile(dynamic=False)
    if ranks > 1:
        return *distribute(model, args, device, autocast=device.type == "cuda"), group
    return model, torch.optim.AdamW(model.parameters(), **adamw_options(args, device)), None


def train_step(model, optimizer, group, tokens, segment, autocast, progress):
    """The mean loss of a step over tokens [1, T + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    # DDP and FSDP give the mean of the ranks' gradients; the sum is wanted.
    ranks = dist.get_world_size()
    with autocast:
        loss = time_segments(model, (inputs, targets), targets, lambda part, _: part * (ranks / targets.numel()),
                             segment=segment * ranks, group=group, progress=progress)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss)
    return loss.item() / ranks


class Lines:
    """How far a step has come, every few seconds."""

    def __init__(self):
        self.began = self.told = time.perf_counter()

    def __call__(self, done, passes):
        now = time.perf_counter()
        if now - self.told > 5:
            self.told = now
            left = (now - self.began) * (passes - done) / done
            print(f"  {done} of {passes} passes, about {left:.0f} s to go", flush=True)


def measured(function, device):
    """What `function` gives, its seconds, and the peak of device memory in GiB."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2 ** 30 if device.type == "cuda" else None
    return result, time.perf_counter() - began, peak


def main(args):
    device = start_process_group(args.device)
    gpu, ranks, talks = device.type == "cuda", dist.get_world_size(), dist.get_rank() == 0
    args.model = args.model or ("1b" if gpu else "small")
    args.tokens = args.tokens or (1 << 20 if gpu else 1 << 16)
    args.segment = min(args.segment or (1 << 15 if gpu else 1 << 13), -(-args.tokens // ranks))
    model, optimizer, group = make(args, device, ranks)
    autocast = torch.autocast("cuda", torch.bfloat16) if gpu else contextlib.nullcontext()
    text, rows = Text(args.text), []
    if talks:
        print(f"{args.tokens:,} tokens in segments of {ranks} x {args.segment:,} on {device.type}; "
              f"{sum(p.numel() for p in model.parameters()):,} parameters on this rank", flush=True)
    for step in range(-1, args.steps):
        length = args.tokens if step >= 0 else min(args.tokens, 2 * ranks * args.segment)
        tokens = text.batch(1, max(step, 0), 0, 1, length + 1).to(device)
        progress = Lines() if talks else None
        loss, seconds, peak = measured(lambda: train_step(model, optimizer, group, tokens, args.segment, autocast,
                                                          progress), device)
        rows.append({"step": step, "tokens": length, "loss": loss, "seconds": seconds, "peak_GiB": peak})
        if talks:
            print(f"{'warm-up' if step < 0 else f'step {step + 1}'}: loss {loss:.4f}, {seconds:.1f} s, "
                  f"{length / seconds / ranks:,.0f} tokens/s on each of {ranks}"
                  + (f", {peak:.1f} GiB" if gpu else ""), flush=True)
    if args.json and talks:
        name = torch.cuda.get_device_name() if gpu else "CPU"
        with open(args.json, "w") as file:
            json.dump({"device": name, "ranks": ranks, "torch": torch.__version__, **vars(args), "rows": rows}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse_arguments())
