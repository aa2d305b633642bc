"""Packed sequences whose offsets lie in device memory: no layer waits for the GPU, and the results are those of offsets
on the host. Ranks are processes, over NCCL, and may share a GPU."""

import torch
import torch.distributed as dist

import liblasp
import liblasp.torch as lt
import several_gpus
from problems import attempt, error, line, need

OFFSETS = [0, 100, 100, 613, 1000]  # and padding to 1,024
TICKS = 200_000_000  # of torch.cuda._sleep: about 0.1 s
# Launches differ with the place of the offsets, and with them the order of sums: two roundings to bfloat16 (2^-9 each)
# of the same.
BOUND = 2.0**-8

LAYERS = {
    "LinearAttention": lambda group: lt.LinearAttention(512, 4, decay="scalar", group=group),
    "ShortConvolution": lambda group: lt.ShortConvolution(512, 4, activation="silu", group=group),
}


def gradients(layer, x, d_y, offsets):
    x = x.detach().requires_grad_()
    y = layer(x, cu_seqlens=offsets)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], d_y)]


def without_a_wait(function):
    """What it gives, and whether the GPU was still at work when it came back: torch raises where it would wait, and
    where the library waits the sleep before is over. It has run before, so that plans and memory are there."""
    function()
    function()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(TICKS)
        result = function()
        busy = not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return result, busy


def compare(name, layer, tokens, begin=0):
    torch.manual_seed(4)
    x, d_y = (torch.randn(1, 1024, 512, device="cuda", dtype=torch.bfloat16)[:, begin:begin + tokens] for _ in range(2))
    expected = gradients(layer, x, d_y, OFFSETS)
    for dtype in (torch.int32, torch.int64):
        offsets = torch.tensor(OFFSETS, dtype=dtype, device="cuda")
        found, busy = without_a_wait(lambda: gradients(layer, x, d_y, offsets))  # noqa: B023
        worst = max(error(one, other) for one, other in zip(found, expected))
        line(worst <= BOUND and busy, f"{name}, {dtype}: {worst:.2g} from offsets on the host, forward and backward; the GPU "
             f"was {'busy' if busy else 'DONE: something waited for it'}")


def one_layer(name):
    torch.manual_seed(3)
    compare(name, LAYERS[name](None).cuda().bfloat16(), 1024)


def host_offsets_of_a_convolution():
    layer = LAYERS["ShortConvolution"](None).cuda().bfloat16()
    x = torch.randn(1, 1024, 512, device="cuda", dtype=torch.bfloat16)
    _, busy = without_a_wait(lambda: layer(x, cu_seqlens=OFFSETS))
    line(busy, "ShortConvolution, offsets on the host: no wait either")


def compiled():
    torch.manual_seed(3)
    layer = LAYERS["LinearAttention"](None).cuda().bfloat16()
    x, d_y = (torch.randn(1, 1024, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    offsets = torch.tensor(OFFSETS, device="cuda")
    call = torch.compile(layer, fullgraph=True, backend="aot_eager")

    def run():
        y = call(x, cu_seqlens=offsets)
        return [y, *torch.autograd.grad(y, list(layer.parameters()), d_y)]

    found, busy = without_a_wait(run)
    expected = gradients(layer, x, d_y, offsets)
    expected = [expected[0], *expected[2:]]
    line(busy and all(torch.equal(one, other) for one, other in zip(found, expected)),
         f"compiled: the ordinary call's bits, the GPU was {'busy' if busy else 'DONE'}")


def replayed():
    """A captured forward pass with other offsets in the same memory."""
    torch.manual_seed(3)
    layer = LAYERS["LinearAttention"](None).cuda().bfloat16()
    x = torch.randn(1, 1024, 512, device="cuda", dtype=torch.bfloat16)
    offsets = torch.tensor(OFFSETS, device="cuda")
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            layer(x, cu_seqlens=offsets)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x, cu_seqlens=offsets)
        for other in ([0, 1, 512, 513, 1024], [0, 300, 1024, 1024, 1024]):
            offsets.copy_(torch.tensor(other))
            graph.replay()
            found = error(y, layer(x, cu_seqlens=other))
            line(found <= BOUND, f"a captured pass replayed with {other}: {found:.2g} from that packing on the host")


def bad_offsets():
    layer = LAYERS["LinearAttention"](None).cuda().bfloat16()
    x = torch.randn(1, 1024, 512, device="cuda", dtype=torch.bfloat16)
    for offsets, words in ((torch.tensor([0.0, 1024.0], device="cuda"), "is a tensor [2] of torch.float32"),
                           (torch.tensor([[0, 1024]], device="cuda"), "is a tensor [1, 2] of torch.int64")):
        try:
            layer(x, cu_seqlens=offsets)
            line(False, f"{words}: was not refused")
        except liblasp.InvalidArgument as sentence:
            line(words in str(sentence), str(sentence))
    try:
        lt.linear_attention(*(x.cpu().unflatten(2, (4, 128)),) * 3, cu_seqlens=torch.tensor([0, 1024], device="cuda"))
        line(False, "offsets on a GPU, q on the CPU: was not refused")
    except liblasp.InvalidArgument as sentence:
        line("is on cuda:0, must be on q's cpu or on the CPU" in str(sentence), str(sentence))


def packed_rank(rank, ranks):
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    for name, make in LAYERS.items():
        torch.manual_seed(3)
        layer = make(dist.group.WORLD).cuda().bfloat16()
        tokens = 1024 // ranks
        x, d_y = (torch.randn(1, 1024, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        mine = slice(rank * tokens, (rank + 1) * tokens)
        offsets = torch.tensor(OFFSETS, device="cuda")
        layer.group = None
        whole = gradients(layer, x, d_y, offsets)
        layer.group = dist.group.WORLD
        part, busy = without_a_wait(lambda: gradients(layer, x[:, mine], d_y[:, mine], offsets))  # noqa: B023
        worst = max(error(one, other[:, mine]) for one, other in zip(part[:2], whole[:2]))
        need(worst <= 2 * BOUND and busy, f"{name}, rank {rank}: {worst:.2g}, the GPU was {'busy' if busy else 'DONE'}")
        if rank == 0:
            print(f"  {name} over {ranks} ranks: at most {worst:.2g} from one; nobody waited", flush=True)
    dist.barrier()
    lt.sequence_group(dist.group.WORLD).close()
    dist.destroy_process_group()


def check_packed():
    for name in LAYERS:
        attempt(name, one_layer, name)
    attempt("offsets on the host", host_offsets_of_a_convolution)
    attempt("compiled", compiled)
    attempt("captured", replayed)
    attempt("bad offsets", bad_offsets)
    attempt("over ranks", several_gpus.spawn, packed_rank, min(4, max(2, torch.cuda.device_count())))
