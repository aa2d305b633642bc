"""What each rank of convergence.py does: one world trains every setup of a plan after the other with
examples/pytorch/train.py, so that its processes start once.

    torchrun --nproc-per-node 2 convergence_rank.py PLAN ROWS

PLAN is a JSON list of {"name", "title", "arguments": words for train.py, "head_norm", "cut", "perturb"}. Rank 0
appends a line of JSON to ROWS after each setup: its losses, the seconds it took and, of a world of one, what
convergence_bound.py needs of each step. "cut" takes the exchange of states away, "perturb" changes each first
parameter by one unit in the last place."""
import json
import pathlib
import platform
import sys
import time

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

import liblasp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples" / "pytorch"))
import train  # noqa: E402


def observe_steps(steps):
    """Appends to `steps` what each optimizer step is about to use: its rate r, and of the parameters p and their
    gradient g the sums of |g| and of |g p|."""
    def before_step(optimizer, *_):
        pairs = [(p.grad, p.detach()) for group in optimizer.param_groups for p in group["params"]]
        steps.append([optimizer.param_groups[0]["lr"],
                      sum(g.abs().sum(dtype=torch.float64) for g, _ in pairs).item(),
                      sum((g * p).abs().sum(dtype=torch.float64) for g, p in pairs).item()])
    return register_optimizer_step_pre_hook(before_step)


@torch.no_grad()
def change_last_places(model):
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        away = torch.where(torch.rand(parameter.shape, generator=generator) < 0.5, -torch.inf, torch.inf)
        parameter.copy_(torch.nextafter(parameter, away))


def make_model(setup, args, groups):
    model = train.make_model(args, groups)
    for block in model.blocks:
        block.attention.norm = setup["head_norm"]
        if setup["cut"]:  # each rank starts from a zero state, as if there were no tokens before its own
            block.attention.group = None
    if setup["perturb"]:
        change_last_places(model)
    return model


def run(setup, args, groups, device):
    steps, began = [], time.perf_counter()
    hook = observe_steps(steps) if dist.get_world_size() == 1 else None
    losses = train.train(args, make_model(setup, args, groups), groups, device)
    if hook:
        hook.remove()
    return {"name": setup["name"], "loss": losses, "steps": steps, "seconds": time.perf_counter() - began,
            "environment": environment(device)}


def environment(device):
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {"device": machine, "python": platform.python_version(), "torch": torch.__version__,
            "lasp": liblasp.__version__}


def main():
    plan, rows = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    parsed = [train.parse_arguments(setup["arguments"]) for setup in plan]
    device, groups = train.start_process_group(parsed[0].device), {}
    torch.backends.cuda.matmul.allow_tf32 = False
    for setup, args in zip(plan, parsed):
        if dist.get_rank() == 0:
            print(f"\n{setup['title']}", flush=True)
        if args.sequence_ranks not in groups:
            groups[args.sequence_ranks] = train.make_groups(args)
        row = run(setup, args, groups[args.sequence_ranks], device)
        if dist.get_rank() == 0:
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
