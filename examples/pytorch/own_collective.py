#!/usr/bin/env python3
"""Linear attention over a split sequence by the program's own collective: torch.distributed's all_gather brings the
maps of the ranks together, and liblasp sends nothing.

    python own_collective.py        # three processes on the CPU, over gloo

Each rank has a place in a detached group, a plan on it, and a pass in two stages (docs/guide/own-collectives.md)."""
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import liblasp
import liblasp.torch  # noqa: F401  (tells liblasp how to read torch's tensors)

RANKS, TOKENS, HEADS, DIM = 3, 300, 4, 32


class SplitAttention(torch.autograd.Function):
    """o of this rank's tokens. `plan` is made of tensors like these, on a detached comm."""

    @staticmethod
    def forward(ctx, plan, q, k, v, decay):
        ctx.stages = stages = liblasp.Stages(plan)
        own = stages.summarize(q, k, v, decay)
        o = stages.apply(q, k, v, decay, incoming=stages.incoming(gathered(stages, own)))
        ctx.save_for_backward(q, k, v, decay)
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, decay = (tensor.detach() for tensor in ctx.saved_tensors)
        stages, d_o = ctx.stages, d_o.contiguous()
        own = stages.summarize_backward(d_o, q, decay)
        incoming = stages.incoming(gathered(stages, own), backward=True)
        gradients = stages.apply_backward(d_o, q, k, v, decay, incoming=incoming)
        return None, gradients.dq, gradients.dk, gradients.dv, gradients.d_decay


def gathered(stages, own):
    """The maps of all ranks, one after the other: the only message of a pass."""
    maps = stages.new_maps(RANKS, like=own)
    dist.all_gather(list(maps.view(RANKS, -1).unbind()), own)
    return maps


def inputs():
    torch.manual_seed(0)
    q, k, v, d_o = (torch.randn(1, TOKENS, HEADS, DIM) for _ in range(4))
    return [q, k, v, -0.1 * torch.rand(1, TOKENS, HEADS)], d_o


def rank_main(rank, file, failures):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    whole, d_o = inputs()
    mine = [liblasp.torch.shard(tensor, rank, RANKS).clone().requires_grad_() for tensor in whole]
    with liblasp.Comm.detached(rank, RANKS) as comm, liblasp.Context(comm, cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(*(x.detach() for x in mine[:3]), decay=mine[3].detach()))
        o = SplitAttention.apply(plan, *mine)
        o.backward(liblasp.torch.shard(d_o, rank, RANKS))

    alone = [tensor.clone().requires_grad_() for tensor in whole]  # the same on one rank
    expected = liblasp.torch.linear_attention(*alone)
    expected.backward(d_o)
    pairs = [("o", o.detach(), expected.detach()),
             *((f"d {name}", one.grad, all.grad) for name, one, all in zip(("q", "k", "v", "decay"), mine, alone))]
    for name, found, wanted in pairs:
        wanted = liblasp.torch.shard(wanted, rank, RANKS)
        error = float((found - wanted).norm() / wanted.norm())
        print(f"rank {rank}: {name:7s} differs from one rank's by {error:.1e}", flush=True)
        if not error <= 4e-6:  # both are right to 2e-6 by the library's own bound
            failures.value += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    failures = mp.get_context("spawn").Value("i", 0)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (f"{folder}/store", failures), RANKS)
    sys.exit(1 if failures.value else 0)
