#!/usr/bin/env python3
"""A module over a sequence that is split over four ranks, forward and backward, beside the same on one rank.

    python four_ranks.py        # four processes on the CPU, over gloo

With GPUs it reads the same: backend "nccl", and model and tensors on the rank's device."""
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from liblasp.torch import LinearAttention, init_groups, shard

RANKS, TOKENS, WIDTH, HEADS = 4, 1000, 64, 4


def run(x, group=None):
    """The output and the gradients of the mean square of all outputs, of this rank's tokens."""
    torch.manual_seed(0)
    module = LinearAttention(WIDTH, HEADS, decay="scalar", group=group)
    x = x.clone().requires_grad_()
    y = module(x)
    (y.square().sum() / (TOKENS * WIDTH)).backward()
    return y.detach(), x.grad, module.qkvg.weight.grad


def rank_main(rank, file, failures):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    groups = init_groups(sequence_ranks=RANKS)  # one sequence group: the whole world
    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))

    y, dx, dw = run(shard(x, groups.sequence_rank, groups.sequence_ranks), groups.sequence)
    dist.all_reduce(dw)  # a parameter's gradient is the sum over the ranks, as DDP and FSDP make it

    whole_y, whole_dx, whole_dw = run(x)
    for name, mine, whole in (("y", y, shard(whole_y, rank, RANKS)), ("dx", dx, shard(whole_dx, rank, RANKS)),
                              ("dW", dw, whole_dw)):
        error = float((mine - whole).norm() / whole.norm())
        print(f"rank {rank}: {name:2s} differs from one rank's by {error:.1e}", flush=True)
        if not error < 1e-5:  # float32 sums of up to a thousand terms, in another order
            failures.value += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    failures = mp.get_context("spawn").Value("i", 0)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (f"{folder}/store", failures), RANKS)
    sys.exit(1 if failures.value else 0)
