#!/usr/bin/env python3
"""Trains a small language model over bytes, with every sequence split over all ranks: the program of
docs/guide/first-training.md.

    torchrun --nproc-per-node 1 first_steps.py        # on GPUs where there are any, else on the CPU
    torchrun --nproc-per-node 2 first_steps.py        # the same numbers, half of each sequence on each rank

It writes first_steps.pt, which decode.py reads."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from liblasp.torch import LinearAttention, init_groups, shard_with_targets
from text import Text

WIDTH, HEADS, LAYERS, BYTES = 64, 4, 2, 256


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.attention = LinearAttention(WIDTH, HEADS, decay="scalar", group=group)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, attend):
        x = x + attend(self.attention, F.rms_norm(x, (WIDTH,)))
        return x + self.mlp(F.rms_norm(x, (WIDTH,)))


class Model(nn.Module):
    """`group`: the ranks that share a sequence, or None for whole sequences."""

    def __init__(self, group=None):
        super().__init__()
        self.embedding = nn.Embedding(BYTES, WIDTH)
        self.blocks = nn.ModuleList(Block(group) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, tokens, cu_seqlens=None):
        """Logits [B, T, 256] of this rank's tokens [B, T]."""
        return self.run(tokens, lambda attention, x: attention(x, cu_seqlens=cu_seqlens))

    @torch.no_grad()
    def prefill(self, tokens):
        """Logits, and each block's state after the last token of the whole sequence, the same on every rank."""
        states = []

        def attend(attention, x):
            y, state = attention(x, return_state=True)
            states.append(state)
            return y
        return self.run(tokens, attend), states

    @torch.no_grad()
    def step(self, tokens, states):
        """Logits of the next tokens [B, 1], on this rank alone; advances the states in place."""
        left = iter(states)
        return self.run(tokens, lambda attention, x: attention.step(x, next(left)))

    def run(self, tokens, attend):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, attend)
        return self.head(F.rms_norm(x, (WIDTH,)))


def start():
    """The device of this process, in the world that torchrun made."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (100)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a sequence, over all ranks (1024)")
    parser.add_argument("--text", help="a text file (default: the licences of this system)")
    parser.add_argument("--save", default="first_steps.pt", help="where the model goes (first_steps.pt)")
    args = parser.parse_args()

    device = start()
    groups = init_groups()  # one sequence group: all ranks
    torch.manual_seed(1)  # the same parameters on every rank
    model = DistributedDataParallel(Model(groups.sequence).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = Text(args.text)

    for step in range(args.steps):
        tokens = text.batch(1, step, 0, 4, args.length + 1)  # four whole sequences, the same on every rank
        inputs, targets = shard_with_targets(tokens, groups.sequence_rank, groups.sequence_ranks)
        logits = model(inputs.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten().to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach_())  # each rank has the mean over its own tokens
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1:4d}  loss {loss.item() / dist.get_world_size():.4f}", flush=True)

    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
