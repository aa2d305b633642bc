#!/usr/bin/env python3
"""Trains on documents of all lengths that lie end to end in one row, split over all ranks wherever the cuts fall: the
program of docs/guide/long-documents.md.

    torchrun --nproc-per-node 4 documents.py --row 16384

No document sees another one, and none is cut short: what does not fit into a row comes in the next one, whole."""
import argparse

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from first_steps import Model, start
from liblasp.torch import init_groups, shard
from text import Text

IGNORED = -100  # a target that cross_entropy leaves out


def documents(text, most, generator):
    """Documents without end, of 1 to `most` bytes; most are short."""
    while True:
        length = int(most ** torch.rand((), generator=generator).item())
        begin = int(torch.randint(len(text.bytes) - length, (), generator=generator))
        yield text.bytes[begin:begin + length].long()


def rows(stream, row):
    """Whole documents end to end: tokens [1, row], targets [1, row] and offsets. Behind the last one is padding."""
    waiting = next(stream)
    while True:
        tokens, targets, offsets = torch.zeros(row, dtype=torch.long), torch.full((row,), IGNORED), [0]
        while offsets[-1] + len(waiting) <= row:
            begin, end = offsets[-1], offsets[-1] + len(waiting)
            tokens[begin:end] = waiting
            targets[begin:end - 1] = waiting[1:]  # a document's last byte has nothing to foretell
            offsets.append(end)
            waiting = next(stream)
        yield tokens[None], targets[None], torch.tensor(offsets)


def sum_of_losses(model, tokens, targets, cu_seqlens=None):
    logits = model(tokens, cu_seqlens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def check(model, device, tokens, targets, offsets, split):
    """The row's loss over all ranks is that of each document by itself, on one rank."""
    whole = Model().to(device)
    whole.load_state_dict(model.module.state_dict())
    with torch.no_grad():
        alone = sum(sum_of_losses(whole, tokens[:, begin:end], targets[:, begin:end]).double()
                    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()))
    error = abs(float(split / alone) - 1)
    print(f"the row's loss differs by {error:.1e} from its {len(offsets) - 1} documents one by one", flush=True)
    assert error < 1e-5, error  # sums of thousands of float32 losses in another order


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps (50)")
    parser.add_argument("--row", type=int, default=16384, help="tokens of a row, over all ranks (16384)")
    parser.add_argument("--text", help="a text file (default: the licences of this system)")
    args = parser.parse_args()

    device = start()
    groups = init_groups()
    rank, ranks = groups.sequence_rank, groups.sequence_ranks
    torch.manual_seed(1)
    model = DistributedDataParallel(Model(groups.sequence).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    stream = documents(Text(args.text), args.row // 2, torch.Generator().manual_seed(1))  # the same on every rank

    for step, (tokens, targets, offsets) in zip(range(args.steps), rows(stream, args.row)):
        tokens, targets = tokens.to(device), targets.to(device)
        counted = int((targets != IGNORED).sum())  # of the whole row
        loss = sum_of_losses(model, shard(tokens, rank, ranks), shard(targets, rank, ranks), offsets)
        (loss * ranks / counted).backward()  # DDP takes the mean over ranks: this makes it one over tokens
        total = loss.detach().double()
        dist.all_reduce(total)
        if step == 0 and dist.get_rank() == 0:
            check(model, device, tokens, targets, offsets, total)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1:4d}  loss {float(total) / counted:.4f}  {len(offsets) - 1} documents", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
