"""The checks of liblasp.torch on one GPU: results, streams, graphs."""

import time

import torch

import liblasp.torch as lt
from problems import BOUNDS, error, need, on_gpu, problem, recurrence, run


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
