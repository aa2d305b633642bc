"""The public implementations that bench/peers.py measures, and how one is timed. Needs PyTorch with CUDA."""
import dataclasses
import importlib
import importlib.util
import os
import statistics
import sys
import types
import typing

import torch


WRONG = 0.1  # relative error from which on a result is another function's


@dataclasses.dataclass
class Peer:
    """What make(shape, device) gives: the function of q, k, v, and what it computes.

    A shape has batch, tokens, heads, heads_qk, head_dim_k, head_dim_v, decay, decay_dtype, write, ranks."""
    function: typing.Callable
    head_major: bool = False  # tensors [B, H, T, D], else [B, T, H, D]
    g: typing.Any = None  # log decay: [H], [B, T, H] or [B, T, H, K]
    beta: typing.Any = None  # [B, T, H]
    weight: typing.Any = None  # of v: [B, T, H]
    learned: tuple = ()  # inputs beside q, k, v whose gradients the backward pass finds too


def slopes(heads, device):
    return torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], device=device)


def log_decay(shape, device):
    """As lasp-bench's: a slope of each head; per token and channel, between nothing and twice the slope."""
    s = slopes(shape.heads, device)
    if shape.decay == "none":
        return None
    if shape.decay == "head":
        return -s
    rows = (shape.batch, shape.tokens, shape.heads)
    if shape.decay == "scalar":
        return -2.0 * s * torch.rand(rows, device=device)
    noise = torch.rand(*rows, shape.head_dim_k, device=device)
    return noise.mul_(-2.0 * s[:, None]).to(getattr(torch, shape.decay_dtype))


def betas(shape, device):
    return torch.rand(shape.batch, shape.tokens, shape.heads, device=device).requires_grad_()


class Inputs:
    """q, k [B, T, H, K], v and do [B, T, H, V], bfloat16 (or head-major), enough sets of them to outgrow the L2 cache four
    times. Keys of the delta rule have length 1."""

    def __init__(self, shape, device, head_major):
        generator = torch.Generator(device).manual_seed(7 + torch.cuda.current_device())

        def make(heads, dim):
            rows = (shape.batch, heads, shape.tokens) if head_major else (shape.batch, shape.tokens, heads)
            return torch.randn((*rows, dim), generator=generator, device=device, dtype=torch.bfloat16)

        def keys():
            k = make(shape.heads_qk, shape.head_dim_k)
            return torch.nn.functional.normalize(k, dim=-1) if shape.write == "delta" else k

        set_bytes = 4 * shape.batch * shape.tokens * (shape.heads_qk * shape.head_dim_k + shape.heads * shape.head_dim_v)
        count = min(16, 4 * torch.cuda.get_device_properties(device).L2_cache_size // set_bytes + 1)
        self.sets = [[make(shape.heads_qk, shape.head_dim_k).requires_grad_(), keys().requires_grad_(),
                      make(shape.heads, shape.head_dim_v).requires_grad_(), make(shape.heads, shape.head_dim_v)]
                     for _ in range(count)]
        self.head_major = head_major


def simple_gla(shape, device):
    from fla.ops.simple_gla import chunk_simple_gla
    g, options, learned = log_decay(shape, device), {}, ()
    if shape.decay == "head":
        options["g_gamma"] = g
    elif shape.decay == "scalar":
        options["g"] = g.requires_grad_()
        learned = (g,)

    def function(q, k, v):
        if shape.heads_qk < shape.heads:  # it wants a head of q and k for each of v
            q, k = (x.repeat_interleave(shape.heads // shape.heads_qk, 2) for x in (q, k))
        return chunk_simple_gla(q, k, v, scale=1.0, **options)[0]
    return Peer(function, g=g, learned=learned)


def retention(shape, device):
    from fla.ops.retention import chunk_retention
    g = (1 - 2.0 ** (-5.0 - torch.arange(shape.heads, dtype=torch.float, device=device))).log()  # its own
    return Peer(lambda q, k, v: chunk_retention(q, k, v, scale=1.0)[0], g=g)


def gla(shape, device):
    from fla.ops.gla import chunk_gla
    g = log_decay(shape, device).requires_grad_()
    return Peer(lambda q, k, v: chunk_gla(q, k, v, g, scale=1.0)[0], g=g, learned=(g,))


def delta_rule(shape, device):
    from fla.ops.delta_rule import chunk_delta_rule
    beta = betas(shape, device)
    return Peer(lambda q, k, v: chunk_delta_rule(q, k, v, beta, scale=1.0)[0], beta=beta, learned=(beta,))


def gated_delta_rule(shape, device):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    g, beta = log_decay(shape, device).requires_grad_(), betas(shape, device)
    return Peer(lambda q, k, v: chunk_gated_delta_rule(q, k, v, g, beta, scale=1.0)[0], g=g, beta=beta, learned=(g, beta))


def kda(shape, device):
    from fla.ops.kda import chunk_kda
    g, beta = log_decay(shape, device).requires_grad_(), betas(shape, device)
    return Peer(lambda q, k, v: chunk_kda(q, k, v, g, beta, scale=1.0)[0], g=g, beta=beta, learned=(g, beta))


def mamba2(shape, device):
    if "mamba_ssm" not in sys.modules:  # the package itself wants its compiled extension; the scan is Triton alone
        file = os.path.join("mamba_ssm", "ops", "triton", "ssd_combined.py")
        folder = next((each for each in sys.path if os.path.exists(os.path.join(each, file))), None)
        if folder is None:
            raise ImportError(f"no {file} on PYTHONPATH")
        package = sys.modules["mamba_ssm"] = types.ModuleType("mamba_ssm")
        package.__path__ = [os.path.join(folder, "mamba_ssm")]
    scan = importlib.import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    # Its decay is a head's rate times a token's step, and the step weighs what the token writes, too.
    rate = (-2.0 * slopes(shape.heads, device)).requires_grad_()
    step = torch.rand(shape.batch, shape.tokens, shape.heads, device=device).requires_grad_()
    return Peer(lambda q, k, v: scan(v, step, rate, k, q, chunk_size=256), g=(rate * step).detach(), weight=step, learned=(rate, step))


def lightning2(shape, device):
    module = importlib.import_module("lightning_attn.ops")
    s = slopes(shape.heads, device)
    return Peer(lambda q, k, v: module.lightning_attn_func(q, k, v, s.reshape(-1, 1, 1)), head_major=True, g=-s)


def module_of_lasp():
    """LASP's package, under another name than its own, which liblasp's has too."""
    if "lasp_of_opennlplab" not in sys.modules:
        for folder in sys.path:
            path = os.path.join(folder, "lasp", "__init__.py")
            if os.path.exists(os.path.join(folder, "lasp", "lasp_naive.py")):
                break
        else:
            raise ImportError("no lasp/lasp_naive.py on PYTHONPATH")
        spec = importlib.util.spec_from_file_location("lasp_of_opennlplab", path,
                                                      submodule_search_locations=[os.path.dirname(path)])
        module = sys.modules["lasp_of_opennlplab"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["lasp_of_opennlplab"]


def lasp(variant):
    def make(shape, device):
        module = module_of_lasp()
        if shape.decay != "head":
            raise RuntimeError("has per-head decay only")
        if not module.utils.sequence_parallel_is_initialized():
            module.utils.initialize_lasp(1, shape.ranks)
        s = slopes(shape.heads, device).reshape(-1, 1, 1)
        state = lambda: torch.empty(shape.batch, shape.heads, shape.head_dim_k, shape.head_dim_v, device=device)
        kv, dkv = state(), state()
        function = getattr(module, variant)
        if variant == "lasp_naive":
            return Peer(lambda q, k, v: function(q, k, v, s), head_major=True)
        return Peer(lambda q, k, v: function(q, k, v, s, kv, dkv), head_major=True)
    return make


def lasp2(shape, device):
    if shape.decay != "none":
        raise RuntimeError("has no decay")
    if "megatron" not in sys.modules and importlib.util.find_spec("megatron") is None:
        # All that its kernels ask of Megatron: where this rank is in its group.
        for name in ("megatron", "megatron.core", "megatron.core.parallel_state"):
            sys.modules[name] = types.ModuleType(name)
        state = sys.modules["megatron.core.parallel_state"]
        state.get_context_parallel_rank = torch.distributed.get_rank
        state.get_context_parallel_world_size = torch.distributed.get_world_size
    for folder in sys.path:
        path = os.path.join(folder, "lasp2", "lasp2_with_mask_triton_op.py")
        if os.path.exists(path):
            spec = importlib.util.spec_from_file_location("lasp2_with_mask", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            world = torch.distributed.group.WORLD
            return Peer(lambda q, k, v: module.lasp2_with_mask_triton_op(q, k, v, world), head_major=True)
    raise ImportError("no lasp2/lasp2_with_mask_triton_op.py on PYTHONPATH")


ONE_GPU = {"fla simple GLA": simple_gla, "fla KDA": kda, "fla delta rule": delta_rule,
           "fla gated delta rule": gated_delta_rule, "mamba_ssm chunk scan": mamba2, "Lightning Attention-2": lightning2,
           "fla GLA": gla, "fla retention": retention}
MANY_GPUS = {"LASP fuse": lasp("lasp_fuse"), "LASP fuse_parallel": lasp("lasp_fuse_parallel"),
             "LASP naive": lasp("lasp_naive"), "LASP-2": lasp2}


def recurrence(q, k, v, g=None, beta=None):
    """Of one head: q, k [T, K], v [T, V], g [T] or [T, K], beta [T]."""
    state, outputs = q.new_zeros(k.shape[1], v.shape[1]), []
    for t in range(len(q)):
        if g is not None:
            state = state * g[t].exp().reshape(-1, 1)
        write = v[t] if beta is None else beta[t] * (v[t] - state.T @ k[t])
        state = state + torch.outer(k[t], write)
        outputs.append(state.T @ q[t])
    return torch.stack(outputs)


def error_of_first_tokens(peer, inputs):
    """Of the first 128 tokens of head 0 against the recurrence in float64: that it computes the same function at all."""
    q, k, v, _ = inputs.sets[0]
    with torch.no_grad():
        o = peer.function(q, k, v)
        pick = (lambda x: x[0, 0, :128].double().cpu()) if peer.head_major else (lambda x: x[0, :128, 0].double().cpu())
        q, k, v, o = map(pick, (q, k, v, o))
        of_token = lambda x: None if x is None else x[0, :128, 0].double().cpu()
        g = peer.g[:1].double().cpu().expand(len(q)) if peer.g is not None and peer.g.dim() == 1 else of_token(peer.g)
        if peer.weight is not None:
            v = v * of_token(peer.weight)[:, None]
        expected = recurrence(q, k, v, g, of_token(peer.beta))
    return ((o - expected).norm() / expected.norm()).item()


def times_of(calls, repeats, prepare=lambda call: call):
    """Milliseconds of each call by events, calls enqueued one after another. The first round over them warms up. What is
    timed is prepare(call), made right before it."""
    for call in calls:
        prepare(call)()
    for call in calls[:2] * 2:
        prepare(call)()
    torch.cuda.synchronize()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for i, (begin, end) in enumerate(events):
        call = prepare(calls[i % len(calls)])
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = torch.tensor([begin.elapsed_time(end) for begin, end in events], device="cuda")
    if torch.distributed.is_initialized():  # of the slowest rank
        torch.distributed.all_reduce(times, torch.distributed.ReduceOp.MAX)
    return times.tolist()


def copy_gbs():
    source = torch.full((1 << 28,), 1.0, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / statistics.median(times_of([lambda: target.copy_(source)], 15)) * 1e-6


def summary(times):
    """Median, and the interquartile range over it."""
    low, median, high = statistics.quantiles(times, n=4)
    return median, (high - low) / median


def reason(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def measure(make, shape, repeats, device, tell=lambda row: None):
    """What make(shape, device) takes forward and backward. tell() gets what is known after the forward pass."""
    row, step = {}, "missing"
    try:
        row["copy_gbs"] = copy_gbs()
        peer = make(shape, device)
        inputs = Inputs(shape, device, peer.head_major)
        if shape.ranks == 1:
            row["error"] = error_of_first_tokens(peer, inputs)
            if not row["error"] <= WRONG:
                raise RuntimeError(f"is wrong: relative error {row['error']:.2g}")
        forward = [lambda s=s: peer.function(*s[:3]) for s in inputs.sets]
        row["forward_ms"], row["forward_spread"] = summary(times_of(forward, repeats))
        step = "backward_missing"
        tell(row)

        def backward_of(tensors):  # a forward pass before each: LASP's buffers serve one backward pass at a time
            o = peer.function(*tensors[:3])
            return lambda: torch.autograd.grad(o, [*tensors[:3], *peer.learned], tensors[3])

        row["backward_ms"], row["backward_spread"] = summary(times_of(inputs.sets, repeats, backward_of))
    except Exception as error:  # whatever a peer throws: the others are measured all the same
        row[step] = reason(error)
    torch.cuda.empty_cache()
    return row


def compile_all(make, shape, device, share, shares):
    """Compiles this share of what Triton's tuning will try, into its cache, and times nothing."""
    from triton.runtime.autotuner import Autotuner
    original, original_bench = (getattr(each, "original", each) for each in (Autotuner.run, Autotuner._bench))

    def run(self, *args, **kwargs):
        self.cache_results = False  # what is found here is no result of tuning
        self.__dict__["do_bench"] = lambda call, quantiles=None: (call(), [0.0] * 3)[1]
        return original(self, *args, **kwargs)

    def bench(self, *args, config, **meta):
        if len(self.configs) > shares and self.configs.index(config) % shares != share:
            return [1e9] * 3
        return original_bench(self, *args, config=config, **meta)

    run.original, bench.original = original, original_bench
    Autotuner.run, Autotuner._bench = run, bench
    peer = make(shape, device)
    tensors = Inputs(shape, device, peer.head_major).sets[0]
    torch.autograd.grad(peer.function(*tensors[:3]), [*tensors[:3], *peer.learned], tensors[3])
    torch.cuda.synchronize()
