#!/usr/bin/env python3
"""Trains a TransNormerLLM-style model with data parallelism times sequence parallelism.

    python train.py                                                    # one process
    torchrun --nproc-per-node 4 train.py --sequence-ranks 4            # a sequence over four ranks
    torchrun --nproc-per-node 4 train.py --sequence-ranks 2 --parallel fsdp2
    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 train.py --parallel deepspeed-3   # DeepSpeed where there is no GPU

On GPUs where there are any (NCCL), else on the CPU (gloo). Next to an ordinary trainer two things differ: the
groups are set up by init_groups, and the model's attention is LinearAttention. Lines that know of either are marked
"# liblasp". Gradients are averaged over all ranks, as DDP, FSDP and ZeRO do on the default group, because every rank
sees tokens of its own."""
import argparse
import contextlib
import csv
import os
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

from liblasp.torch import init_groups, shard_with_targets  # liblasp
from model import LanguageModel
from text import Text

PARALLEL = ("ddp", "fsdp", "fsdp2", "zero", "deepspeed-1", "deepspeed-2", "deepspeed-3")


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=100, help="optimizer steps (100)")
    add("--batch", type=int, default=4, help="sequences in a step, over all data-parallel groups (4)")
    add("--seq-len", type=int, default=2048, help="tokens of a sequence, over all its ranks (2048)")
    add("--d-model", type=int, default=256, help="width of the model (256)")
    add("--layers", type=int, default=4, help="blocks (4)")
    add("--heads", type=int, default=4, help="attention heads (4)")
    add("--d-ff", type=int, default=512, help="width inside the gated linear unit (512)")
    add("--plain", action="store_true", help="attention without gate and feature map, as examples/train_lm has it")
    add("--lr", type=float, default=2e-3, help="peak learning rate, after a tenth of the steps (2e-3)")
    add("--seed", type=int, default=1, help="of parameters and data (1)")
    add("--sequence-ranks", type=int, default=1, help="ranks that share a sequence; 0: all (1)")  # liblasp
    add("--stride", type=int, default=1, help="distance in ranks of neighbours in a sequence group (1)")  # liblasp
    add("--parallel", choices=PARALLEL, default="ddp",
        help="what each rank keeps of parameters, gradients and optimizer state; zero is torch's "
             "ZeroRedundancyOptimizer, deepspeed-N is DeepSpeed's ZeRO stage N (ddp)")
    add("--checkpoint", action="store_true", help="recompute activations; exchanges nothing twice")
    add("--dtype", choices=("auto", "float32", "bfloat16"), default="auto",
        help="of activations; auto: bfloat16 by autocast on GPUs, float32 on the CPU")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPUs where there are any")
    add("--text", help="a text file (default: the licences of this system)")
    add("--log-every", type=int, default=10, help="steps between progress lines (10)")
    add("--loss-csv", help="write step,loss here at the end")
    return parser.parse_args(argv)


def start_process_group(device_choice):
    """The device of this process, in the world that torchrun made or in a world of one."""
    cuda = device_choice == "cuda" or (device_choice == "auto" and torch.cuda.is_available())
    if cuda and not torch.cuda.is_available():
        raise SystemExit("--device cuda: PyTorch sees no GPU here.")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    options = {"backend": "nccl" if cuda else "gloo", "device_id": device if cuda else None}
    if "RANK" not in os.environ:
        options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**options)
    return device


def adamw_options(args, device):
    return {"lr": args.lr, "betas": (0.9, 0.95), "weight_decay": 0.01, "fused": device.type == "cuda"}


def distribute(model, args, device, autocast):
    """The model as every rank keeps it, and its optimizer."""
    adamw = adamw_options(args, device)
    if args.parallel.startswith("deepspeed"):
        return deepspeed_engine(model, torch.optim.AdamW(model.parameters(), **adamw), args, autocast)
    if args.parallel in ("ddp", "zero"):
        model = torch.nn.parallel.DistributedDataParallel(model, [device] if device.type == "cuda" else None,
                                                          gradient_as_bucket_view=True)
    elif args.parallel == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        model = FullyShardedDataParallel(model, device_id=device, use_orig_params=True)
    else:
        from torch.distributed.fsdp import fully_shard
        mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if args.parallel == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **adamw)
    return model, torch.optim.AdamW(model.parameters(), **adamw)


def deepspeed_engine(model, optimizer, args, autocast):
    try:
        import deepspeed
    except ImportError as reason:
        raise SystemExit(f"--parallel {args.parallel} needs DeepSpeed (pip install deepspeed): {reason}.") from None
    config = {"zero_optimization": {"stage": int(args.parallel[-1])}, "zero_allow_untested_optimizer": True,
              "train_micro_batch_size_per_gpu": args.batch,
              "torch_autocast": {"enabled": autocast, "dtype": "bfloat16"},
              "gradient_clipping": 0.0}  # it clips to a norm of 1 unless told not to
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[:2]


def learning_rate(step, steps, peak):
    warm_up = max(1, steps // 10)
    return peak * min((step + 1) / warm_up, 1.0) * (1.0 - 0.9 * step / max(1, steps))


def make_groups(args):
    groups = init_groups(None, args.sequence_ranks, stride=args.stride)  # liblasp
    if args.batch % groups.data_ranks or args.seq_len % groups.sequence_ranks:
        raise SystemExit(f"--batch must be a multiple of the {groups.data_ranks} data-parallel groups, "
                         f"--seq-len of the {groups.sequence_ranks} ranks of a sequence.")
    return groups


def make_model(args, groups):
    torch.manual_seed(args.seed)
    return LanguageModel(args.d_model, args.layers, args.heads, args.d_ff, group=groups.sequence,  # liblasp
                         checkpointing=args.checkpoint, plain=args.plain)


def train(args, model, groups, device):
    """Trains the model, and returns each step's loss, the mean over all ranks."""
    half = args.dtype == "bfloat16" or (args.dtype == "auto" and device.type == "cuda")
    autocast = torch.autocast(device.type, torch.bfloat16) if half else contextlib.nullcontext()
    model, optimizer = distribute(model.to(device), args, device, autocast=half)
    text, local_batch = Text(args.text), args.batch // groups.data_ranks
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type}: {groups.data_ranks} x {groups.sequence_ranks} "
              f"(data x sequence), {args.parallel}, {sum(p.numel() for p in model.parameters()):,} parameters on "
              f"this rank, {args.batch} x {args.seq_len:,} tokens a step", flush=True)
    losses, began = [], time.perf_counter()
    for step in range(args.steps):
        tokens = text.batch(args.seed, step, groups.data_rank * local_batch, local_batch, args.seq_len + 1)
        inputs, targets = shard_with_targets(tokens, groups.sequence_rank, groups.sequence_ranks)  # liblasp
        for parameter_group in optimizer.param_groups:
            parameter_group["lr"] = learning_rate(step, args.steps, args.lr)
        with autocast:
            logits = model(inputs.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.to(device).flatten())
        if args.parallel.startswith("deepspeed"):
            model.backward(loss)
            model.step()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        if (step + 1) % args.log_every == 0 or step + 1 == args.steps:
            mean = mean_over_ranks(loss.detach()).item()
            if dist.get_rank() == 0:
                rate = (step + 1) * args.batch * args.seq_len / (time.perf_counter() - began)
                print(f"step {step + 1:5d}  loss {mean:.4f}  {rate:,.0f} tokens/s", flush=True)
    return mean_over_ranks(torch.stack(losses)).tolist()


def mean_over_ranks(value):
    total = value.double()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def main(argv=None):
    args = parse_arguments(argv)
    device = start_process_group(args.device)
    groups = make_groups(args)
    curve = train(args, make_model(args, groups), groups, device)
    if args.loss_csv and dist.get_rank() == 0:
        with open(args.loss_csv, "w", newline="") as file:
            csv.writer(file).writerows([("step", "loss"), *enumerate(curve)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
