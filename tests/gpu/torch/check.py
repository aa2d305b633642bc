#!/usr/bin/env python3
"""lasp.torch on a GPU machine: what the tests on the CPU cannot show.

    python3 check.py                 # every check that this machine's GPUs allow
    python3 check.py stream speed    # some of them

Needs torch with CUDA, and the lasp package (PYTHONPATH) with a liblasp.so that has the CUDA backend: `carry` beside this
file makes one on a machine with a compiler. Checks:
  attention   forward and backward on CUDA tensors against the CPU in float64: decays, dtypes, layouts, packed, states
  stream      the caller's current stream is respected, nothing waits for the device
  graph       a forward pass captured into a CUDA graph
  arrays      CuPy, JAX and torch arrays through the base package, without a copy
  module      LinearAttention under autocast, checkpointing, against float32 on the CPU
  refusals    tensors on the wrong device, a closed group
  training    examples/pytorch/train.py by DDP, FSDP and FSDP2 over NCCL, with 1, 2 and 4 GPUs, against one
  exchange    NCCL: by torch's communicator and by one of our own; messages; a rank that does not come
  speed       microseconds of a call, and a training step at a real size
Each prints its numbers. Exit status 0: all passed (what the machine lacks is said and skipped)."""

import argparse
import datetime
import os
import pathlib
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import lasp
import lasp.torch as lt

HERE = pathlib.Path(__file__).resolve()
EXAMPLE = next(
    (folder / "examples" / "pytorch" for folder in HERE.parents if (folder / "examples" / "pytorch").is_dir()), None
)
# Errors against float64, relative Frobenius norm. bfloat16 on tensor cores: the project's target, 4e-3; float32 by general
# kernels: sums of at most 2,000 terms in float32 and the roundings of exp, 2e-6 on the CPU, four times that for
# the GPU's sums in more pieces.
BOUNDS = {torch.float32: 8e-6, torch.bfloat16: 4e-3, torch.float16: 4e-3}


def need(condition, text):
    if not condition:
        raise AssertionError(text)


def error(actual, expected):
    expected = expected.detach().double().cpu()
    return float((actual.detach().double().cpu() - expected).norm() / expected.norm().clamp_min(1e-30))


def problem(decay, batch=2, tokens=300, heads=(4, 4, 4), dim=64, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    shape = {
        "none": None,
        "head": (max(heads),),
        "scalar": (batch, tokens, max(heads)),
        "channel": (batch, tokens, max(heads), dim),
    }[decay]
    return {
        "q": normal(batch, tokens, heads[0], dim),
        "k": normal(batch, tokens, heads[1], dim),
        "v": normal(batch, tokens, heads[2], dim),
        "decay": None if shape is None else -0.1 * torch.rand(shape, generator=generator),
        "initial_state": torch.randn(batch, max(heads), dim, dim, generator=generator),
    }, normal(batch, tokens, max(heads), dim)


def recurrence(q, k, v, decay, initial_state, scale=None):
    heads = max(q.shape[2], k.shape[2], v.shape[2])
    q, k, v = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k, v))
    state, outputs = initial_state, []
    for t in range(q.shape[1]):
        if decay is not None:
            g = (decay if decay.dim() == 1 else decay[:, t]).exp()
            state = (
                g.view(1, -1, 1, 1)
                if decay.dim() == 1
                else g[..., None, None]
                if decay.dim() == 3
                else g[..., None]
            ) * state
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((scale or q.shape[-1] ** -0.5) * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1), state


def run(function, x, d_o, device, double=False):
    leaves = {
        name: None if value is None else (value.double() if double else value).to(device).detach().requires_grad_()
        for name, value in x.items()
    }
    o, final = function(leaves)
    torch.autograd.backward([o, final], [d_o.to(o), torch.ones_like(final)])
    return {"o": o, "final_state": final, **{f"d {n}": v.grad for n, v in leaves.items() if v is not None}}


def on_gpu(leaves, **options):
    return lt.linear_attention(
        leaves["q"],
        leaves["k"],
        leaves["v"],
        leaves["decay"],
        output_final_state=True,
        initial_state=leaves["initial_state"],
        **options,
    )


def check_attention():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for decay in ("none", "head", "scalar", "channel"):
            for heads, dim in (((4, 4, 4), 64), ((4, 2, 2), 128), ((2, 2, 2), 24)):
                x, d_o = problem(decay, heads=heads, dim=dim, dtype=dtype, tokens=150)
                expected = run(lambda leaves: recurrence(**leaves), x, d_o, "cpu", double=True)
                actual = run(on_gpu, x, d_o, "cuda")
                worst = {name: error(actual[name], expected[name]) for name in expected}
                # A per-head decay's gradient is a sum over all tokens whose terms cancel.
                limit = {
                    name: BOUNDS[dtype] * (300**0.5 if name == "d decay" and decay == "head" else 1)
                    for name in worst
                }
                bad = {name: f"{value:.2g}" for name, value in worst.items() if not value <= limit[name]}
                print(
                    f"  {str(dtype)[6:]:9s} {decay:8s} {heads} dim {dim:3d}: worst {max(worst.values()):.2g} {bad or ''}"
                )
                need(not bad, f"errors beyond {BOUNDS[dtype]:.1g}: {bad}")
    x, d_o = problem("scalar", dtype=torch.bfloat16)
    packed = torch.cat([x[name].flatten(2) for name in "qkv"], -1).cuda()
    q, k, v = (part.unflatten(-1, (4, 64)) for part in packed.chunk(3, -1))
    strided = lt.linear_attention(q, k, v, x["decay"].cuda())
    dense = lt.linear_attention(q.contiguous(), k.contiguous(), v.contiguous(), x["decay"].cuda())
    need(torch.equal(strided, dense), "a packed qkv gives other bits than contiguous tensors")
    again = lt.linear_attention(q, k, v, x["decay"].cuda())
    need(torch.equal(strided, again), "two runs differ")


def check_stream():
    x, _ = problem("scalar", dtype=torch.bfloat16, tokens=512)
    x = {name: value.cuda() for name, value in x.items()}
    expected = lt.linear_attention(x["q"], x["k"], x["v"], x["decay"])
    side, q = torch.cuda.Stream(), torch.zeros_like(x["q"])
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # about 0.1 s: what comes without the stream's order reads zeros
        q.copy_(x["q"])
        began = time.perf_counter()
        o = lt.linear_attention(q, x["k"], x["v"], x["decay"])
        seconds = time.perf_counter() - began
        busy = not side.query()
    side.synchronize()
    print(f"  the call returned after {seconds * 1e6:.0f} us, the stream was {'busy' if busy else 'done'}")
    need(torch.equal(o, expected), "the result was made before the stream's earlier work")
    need(busy and seconds < 0.05, "the call waited for the device")
    # The backward pass runs on autograd's thread, on the stream of the forward pass.
    leaf = torch.zeros_like(x["q"]).requires_grad_()
    plain = x["q"].detach().requires_grad_()
    lt.linear_attention(plain, x["k"], x["v"], x["decay"]).sum().backward()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        with torch.no_grad():
            leaf.copy_(x["q"])
        lt.linear_attention(leaf, x["k"], x["v"], x["decay"]).sum().backward()
    side.synchronize()
    need(torch.equal(leaf.grad, plain.grad), "the gradient was made before the stream's earlier work")


def check_graph():
    x, _ = problem("head", dtype=torch.bfloat16, tokens=256)
    q, k, v, decay = (x[name].cuda() for name in ("q", "k", "v", "decay"))
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                expected = lt.linear_attention(q, k, v, decay)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = lt.linear_attention(q, k, v, decay)
        o.zero_()
        graph.replay()
        torch.cuda.synchronize()
    need(torch.equal(o, expected), "the graph's replay gives another result")


def as_torch(array):
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(array.get() if hasattr(array, "get") else __import__("numpy").array(array))


def check_arrays():
    """The base package's own interface; the arrays' memory is used as it is."""
    x, _ = problem("head", batch=1, tokens=64, dtype=torch.float32)
    expected = lt.linear_attention(x["q"], x["k"], x["v"], x["decay"])
    seen = []
    for library in ("torch", "cupy", "jax"):
        try:
            if library == "torch":
                convert = lambda t: t.cuda()  # noqa: E731
            elif library == "cupy":
                import cupy
                convert = lambda t: cupy.asarray(t.numpy())  # noqa: E731
            else:
                os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
                import jax
                convert = lambda t: jax.device_put(t.numpy(), jax.devices("gpu")[0]).block_until_ready()  # noqa: E731
            q, k, v, decay = (convert(x[name]) for name in ("q", "k", "v", "decay"))
        except Exception as reason:
            print(f"  {library}: SKIPPED: {reason}")
            continue
        out = torch.zeros(expected.shape, device="cuda")
        with lasp.Context(device="cuda:0") as context:
            plan = context.plan(tokens=64, heads=4, head_dim=64, decay="head", backward=False)
            plan.forward(q, k, v, decay, out=out)
            returned = plan.forward(q, k, v, decay)
            torch.cuda.synchronize()
        found = error(as_torch(returned), expected)
        print(f"  {library}: errors {error(out, expected):.2g} into torch's memory, {found:.2g} returned "
              f"({type(returned).__module__})")
        need(error(out, expected) < BOUNDS[torch.float32] and found < BOUNDS[torch.float32], library)
        seen.append(library)
    need("torch" in seen, "torch tensors")


def check_module():
    torch.manual_seed(0)
    for decay in ("none", "head", "scalar", "channel"):
        module = lt.LinearAttention(256, 4, decay=decay)
        x = torch.randn(2, 256, 256)
        weights = torch.randn(2, 256, 256)  # of the loss; the mean square hardly depends on what is before the norm
        y = module(x)
        (y * weights).mean().backward()
        expected = {name: p.grad.clone() for name, p in module.named_parameters()}
        module.zero_grad()
        module.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            actual = lt.checkpoint(module, x.cuda())
        (actual.float() * weights.cuda()).mean().backward()
        errors = {name: error(p.grad, expected[name]) for name, p in module.named_parameters()}
        print(f"  {decay:8s} output {error(actual, y):.2g}, parameter gradients at most {max(errors.values()):.2g}")
        # Ten roundings to bfloat16 in a chain, of 2^-9 each, and the products of two such.
        need(error(actual, y) < 0.02 and max(errors.values()) < 0.05, f"{decay}: {errors}")


def check_refusals():
    x, _ = problem("none", tokens=16)
    for args in ((x["q"].cuda(), x["k"], x["v"].cuda()), (x["q"], x["k"].cuda(), x["v"])):
        try:
            lt.linear_attention(*args)
        except lasp.InvalidArgument as sentence:
            print(f"  {sentence}")
        else:
            need(False, "tensors on two devices were taken")
    group = lt.SequenceGroup()
    lt.linear_attention(*(x[name].cuda() for name in "qkv"), group=group)
    group.close()
    try:
        lt.linear_attention(*(x[name].cuda() for name in "qkv"), group=group)
    except lasp.Error as sentence:
        print(f"  {sentence}")
    else:
        need(False, "a closed group was used")


# ---- Several processes, a GPU each ------------------------------------------------------------------------------


def spawn(function, ranks, *args):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(entry, (function, ranks, port, args), ranks)


def entry(rank, function, ranks, port, args):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.cuda.set_device(rank)
    function(rank, ranks, *args)


def train_rank(rank, ranks, arguments):
    sys.path.insert(0, str(EXAMPLE))
    import train

    train.train(train.parse_arguments(arguments))


def read_curve(path):
    return [float(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]


def check_training():
    import tempfile

    folder = pathlib.Path(tempfile.mkdtemp())
    steps = 20
    common = [
        "--steps",
        str(steps),
        "--seq-len",
        "4096",
        "--batch",
        "4",
        "--log-every",
        str(steps),
        "--dtype",
        "float32",
        "--text",
        str(HERE),
    ]
    runs = [("one", 1, []), ("one fsdp2", 1, ["--parallel", "fsdp2"]), ("checkpointed", 1, ["--checkpoint"])]
    for ranks in (2, 4):
        if torch.cuda.device_count() >= ranks:
            runs += [(f"{ranks} sequence", ranks, ["--sequence-ranks", "0", "--checkpoint"])]
    if torch.cuda.device_count() >= 4:
        runs += [
            (f"2 x 2 {how}", 4, ["--sequence-ranks", "2", "--parallel", how]) for how in ("ddp", "fsdp", "fsdp2")
        ]
    curves = {}
    for name, ranks, extra in runs:
        spawn(train_rank, ranks, [*common, *extra, "--loss-csv", str(folder / "curve.csv")])
        curves[name] = read_curve(folder / "curve.csv")
        difference = max(abs(a - b) for a, b in zip(curves["one"], curves[name]))
        print(
            f"  {name}: loss {curves[name][0]:.4f} to {curves[name][-1]:.4f}, from one rank's at most {difference:.2g}"
        )
        # Gradients agree to about 1e-5; Adam's first steps can turn that into a step of the learning rate where a
        # gradient is next to zero. In bfloat16 curves part by some hundredths within twenty steps.
        need(difference < 5e-3 and curves[name][-1] < curves[name][0] - 0.2, name)


def exchange_rank(rank, ranks, own):
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    if own:
        from lasp.torch import nccl

        nccl.communicator = nccl._new_communicator
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    if rank == 0:
        print(
            f"  torch hands out its communicator: {hasattr(backend, '_comm_ptr')}; used here: {not own}", flush=True
        )
    tokens = 1024
    x, d_o = problem("scalar", batch=1, tokens=tokens, dtype=torch.bfloat16)
    one = run(on_gpu, x, d_o, f"cuda:{rank}")
    begin, end = lt.shard_bounds(tokens, rank, ranks)
    mine = {n: v if n == "initial_state" else v[:, begin:end] for n, v in x.items()}
    group = lt.sequence_group(dist.group.WORLD)
    many = run(lambda leaves: on_gpu(leaves, group=dist.group.WORLD), mine, d_o[:, begin:end], f"cuda:{rank}")
    for name in ("o", "d q", "d k", "d v", "d decay"):
        found = error(many[name], one[name][:, begin:end])
        need(found < BOUNDS[torch.bfloat16], f"{name} on rank {rank}: {found}")
    module = lt.LinearAttention(256, 4, group=dist.group.WORLD).cuda().bfloat16()
    y = torch.randn(1, 512, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    counts = []
    for how in (lambda f, a: f(a), lt.checkpoint):
        how(module, y).sum().backward()
        before = group.traffic()["messages_sent"]
        how(module, y).sum().backward()
        torch.cuda.synchronize()
        counts.append(group.traffic()["messages_sent"] - before)
    need(counts[0] == counts[1], f"checkpointing sends {counts[1]} messages, plain runs {counts[0]}")
    if rank == 0:
        print(
            f"  {ranks} ranks agree with one; {counts[0]} messages a pass with and without checkpointing",
            flush=True,
        )
    dist.barrier()
    group.close()
    dist.destroy_process_group()


def lost_rank(rank, ranks):
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    group = lt.SequenceGroup(dist.new_group(list(range(ranks))), time_limit=3.0)
    x, _ = problem("none", batch=1, tokens=64)
    q, k, v = (x[name].cuda() for name in "qkv")
    lt.linear_attention(q, k, v, group=group)
    torch.cuda.synchronize()
    if rank == 0:
        began = time.perf_counter()
        try:
            while time.perf_counter() - began < 20:
                lt.linear_attention(q, k, v, group=group, scale=2.0)
                time.sleep(0.2)
            need(False, "a rank that does not come was not noticed")
        except lasp.CommFailed as sentence:
            print(f"  after {time.perf_counter() - began:.1f} s: {sentence}", flush=True)
    else:
        time.sleep(8)
    os._exit(0)  # the communicator cannot be ended in order any more


def check_exchange():
    ranks = min(4, torch.cuda.device_count())
    if ranks < 2:
        print("  SKIPPED: one GPU")
        return
    for own in (False, True):
        spawn(exchange_rank, ranks, own)
    spawn(lost_rank, 2)


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
    empty = [torch.zeros(1, 0, 1, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    with torch.no_grad():
        lt.linear_attention(*empty)
        times = []
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(100):
                lt.linear_attention(*empty)
            times.append((time.perf_counter() - began) / 100)
    print(f"  a call of linear_attention without tokens: {sorted(times)[10] * 1e6:.1f} us on the host")
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


CHECKS = {name[6:]: function for name, function in list(globals().items()) if name.startswith("check_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="check", help="which; default: all")
    names = parser.parse_args().checks or list(CHECKS)
    if not torch.cuda.is_available():
        print("SKIPPED: no CUDA device")
        return 77
    print(
        f"torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}, "
        f"{datetime.date.today()}"
    )
    failed = []
    for name in names:
        print(f"{name}:", flush=True)
        began = time.perf_counter()
        try:
            CHECKS[name]()
        except BaseException as problem_found:
            traceback.print_exc()
            failed.append(name)
            if isinstance(problem_found, KeyboardInterrupt):
                break
        print(f"  {'FAILED' if failed[-1:] == [name] else 'ok'} ({time.perf_counter() - began:.1f} s)", flush=True)
    print(
        f"{len(names) - len(failed)} of {len(names)} checks passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
