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
    """o of this rank's tokens. `plan` is made of tensors like these, on a detached comm. With beta, the delta rule."""

    @staticmethod
    def forward(ctx, plan, q, k, v, decay, beta=None):
        ctx.stages = stages = liblasp.Stages(plan)
        own = stages.summarize(q, k, v, decay, beta=beta)
        o = stages.apply(q, k, v, decay, beta=beta, incoming=stages.incoming(gathered(stages, own)))
        ctx.save_for_backward(q, k, v, decay, beta)
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, decay, beta = (tensor if tensor is None else tensor.detach() for tensor in ctx.saved_tensors)
        stages, d_o = ctx.stages, d_o.contiguous()
        own = stages.summarize_backward(d_o, q, decay, k=k, beta=beta)
        incoming = stages.incoming(gathered(stages, own), backward=True)
        found = stages.apply_backward(d_o, q, k, v, decay, beta=beta, incoming=incoming)
        return None, found.dq, found.dk, found.dv, found.d_decay, found.d_beta


def gathered(stages, own):
    """The maps of all ranks, one after the other: the only message of a pass."""
    maps = stages.new_maps(RANKS, like=own)
    dist.all_gather(list(maps.view(RANKS, -1).unbind()), own)
    return maps


def inputs(delta):
    torch.manual_seed(0)
    q, k, v, d_o = (torch.randn(1, TOKENS, HEADS, DIM) for _ in range(4))
    whole = [q, k, v, -0.1 * torch.rand(1, TOKENS, HEADS)]
    if delta:
        whole[1] = torch.nn.functional.normalize(k, dim=-1)
        whole.append(torch.rand(1, TOKENS, HEADS))
    return whole, d_o


def compare(rank, delta):
    """How many results differ from those of one rank."""
    whole, d_o = inputs(delta)
    mine = [liblasp.torch.shard(tensor, rank, RANKS).clone().requires_grad_() for tensor in whole]
    with liblasp.Comm.detached(rank, RANKS) as comm, liblasp.Context(comm, cpu_threads=1) as context:
        like = dict(zip(("q", "k", "v", "decay", "beta"), (x.detach() for x in mine)))
        plan = context.plan(liblasp.Problem.like(**like))
        o = SplitAttention.apply(plan, *mine)
        o.backward(liblasp.torch.shard(d_o, rank, RANKS))

    alone = [tensor.clone().requires_grad_() for tensor in whole]  # the same on one rank
    function = liblasp.torch.gated_delta_rule if delta else liblasp.torch.linear_attention
    expected = function(*alone)
    expected.backward(d_o)
    names = ("q", "k", "v", "decay", "beta")
    pairs = [("o", o.detach(), expected.detach()),
             *((f"d {name}", one.grad, all.grad) for name, one, all in zip(names, mine, alone))]
    failures = 0
    for name, found, wanted in pairs:
        wanted = liblasp.torch.shard(wanted, rank, RANKS)
        error = float((found - wanted).norm() / wanted.norm())
        print(f"rank {rank}{', delta rule' if delta else ''}: {name:7s} differs from one rank's by {error:.1e}",
              flush=True)
        if not error <= (2e-5 if delta else 4e-6):  # both are right to half of it, by the library's own bounds
            failures += 1
    return failures


def rank_main(rank, file, failures):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    for delta in (False, True):
        failures.value += compare(rank, delta)
    dist.destroy_process_group()


if __name__ == "__main__":
    failures = mp.get_context("spawn").Value("i", 0)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (f"{folder}/store", failures), RANKS)
    sys.exit(1 if failures.value else 0)
