"""What a pass and a training step take at a real size."""

import sys

import torch

import liblasp.torch as lt
from problems import problem
from several_gpus import EXAMPLE


def seconds_of(function, repeats=20):
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(5):
        begin.record()
        for _ in range(repeats):
            function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / repeats / 1e3)
    return sorted(times)[2]


def check_speed():
    for decay in ("none", "head", "scalar"):
        batch, tokens, heads, dim = 1, 65536, 16, 128
        x, d_o = problem(decay, batch=batch, tokens=tokens, heads=(heads,) * 3, dim=dim, dtype=torch.bfloat16)
        leaves = {n: None if v is None else v.cuda().requires_grad_() for n, v in x.items() if n != "initial_state"}
        d_o = d_o.cuda()
        inputs = [v for v in leaves.values() if v is not None]

        def forward():
            return lt.linear_attention(*leaves.values())

        def both():
            torch.autograd.grad(forward(), inputs, d_o)

        with torch.no_grad():
            ahead = seconds_of(forward)
        print(
            f"  {decay:7s} T {tokens}, {heads} heads of {dim}, bfloat16: forward {ahead * 1e6:.0f} us, "
            f"forward and backward {seconds_of(both) * 1e6:.0f} us"
        )
    torch.manual_seed(0)
    sys.path.insert(0, str(EXAMPLE))
    from model import LanguageModel

    for checkpointing in (False, True):
        model = LanguageModel(2048, 12, 16, 5632, checkpointing=checkpointing).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens = torch.randint(0, 256, (1, 16384), device="cuda")

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(tokens)
            torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

        torch.cuda.reset_peak_memory_stats()
        spent = seconds_of(step, 3)
        parameters = sum(p.numel() for p in model.parameters())
        flops = (8 if checkpointing else 6) * parameters * tokens.numel()
        print(
            f"  training step, {parameters / 1e6:.0f}M parameters, 16,384 tokens, checkpointing {checkpointing}: "
            f"{spent * 1e3:.0f} ms, {tokens.numel() / spent:,.0f} tokens/s, {flops / spent / 1e12:.0f} TFLOP/s, "
            f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        )
        del model, optimizer
