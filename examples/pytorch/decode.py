#!/usr/bin/env python3
"""Reads a long prompt with its tokens split over all ranks, then goes on with it on rank 0 alone, byte by byte: the
program of docs/guide/split-prefill.md. first_steps.py trains the model.

    torchrun --nproc-per-node 2 decode.py --prompt-bytes 20000 --bytes 200"""
import argparse

import torch
import torch.distributed as dist

from first_steps import Model, start
from liblasp.torch import init_groups, shard
from text import Text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="first_steps.pt", help="what first_steps.py saved (first_steps.pt)")
    parser.add_argument("--prompt-bytes", type=int, default=20000, help="length of the prompt (20000)")
    parser.add_argument("--bytes", type=int, default=200, help="how many to add (200)")
    parser.add_argument("--text", help="where the prompt is from (default: the licences of this system)")
    args = parser.parse_args()

    device = start()
    groups = init_groups()
    model = Model(groups.sequence).to(device)
    model.load_state_dict(torch.load(args.model, map_location=device, weights_only=True))
    prompt = Text(args.text).bytes[:args.prompt_bytes].long()[None]

    # Prefill: each rank reads its own tokens. The last one has the last token's logits, and hands them to the others.
    mine = shard(prompt, groups.sequence_rank, groups.sequence_ranks).to(device)
    logits, states = model.prefill(mine)
    last = logits[:, -1].contiguous()
    dist.broadcast(last, src=dist.get_world_size() - 1)

    if dist.get_rank() == 0:
        added, every, dice = [], [last], torch.Generator(device).manual_seed(1)
        for _ in range(args.bytes):
            token = torch.multinomial(every[-1].softmax(-1), 1, generator=dice)
            added.append(token)
            every.append(model.step(token, states)[:, -1])
        added = torch.cat(added, 1)
        print(bytes(added[0].tolist()).decode("latin-1"))

        # The same without a split and without states: prompt and answer in one piece, on this rank.
        whole = Model().to(device)
        whole.load_state_dict(model.state_dict())
        with torch.no_grad():
            expected = whole(torch.cat([prompt.to(device), added], 1))[:, -args.bytes - 1:]
        error = float((torch.stack(every, 1) - expected).norm() / expected.norm())
        print(f"\nprompt of {prompt.shape[1]:,} bytes on {dist.get_world_size()} ranks, {args.bytes} more from its state: "
              f"logits differ by {error:.1e} from those of the whole sequence", flush=True)
        assert error < 1e-4, error  # float32, summed in another order, through two layers
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
