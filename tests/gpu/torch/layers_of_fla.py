"""Layers of flash-linear-attention with its own kernels: split over two ranks, which may share a GPU, and over as many
GPUs as there are, beside the unsplit layer, in float32 where fla's kernels take it. A backward pass that fla refuses there is compared with that of
the layer split over one rank."""

import importlib
import importlib.util

import torch
import torch.distributed as dist

import several_gpus
from problems import skip

WIDTH, TOKENS = 128, 500
# The layers' products are PyTorch's in full precision, those of fla's kernels in TF32, of ten bits. In bfloat16 a value
# is rounded a dozen times from the layer's input to its output, by 2^-9 at most each, and as often on the way back.
BOUNDS = {torch.float32: 4e-3, torch.bfloat16: 24**0.5 * 2**-9}

LAYERS = {
    "SimpleGLA": ("simple_gla", {"num_heads": 2, "use_short_conv": True}),
    "GLA": ("gla", {"num_heads": 2, "expand_k": 1.0}),
    "RetNet": ("multiscale_retention", {"num_heads": 2}),
    "GatedDeltaNet": ("gated_deltanet", {"num_heads": 2, "head_dim": 64, "expand_v": 1}),
    "DeltaNet": ("delta_net", {"num_heads": 2}),
}
TYPES = {"DeltaNet": torch.bfloat16}  # what fla's kernels refuse in float32


def make(name):
    module, options = LAYERS[name]
    package = importlib.import_module(f"fla.layers.{module}")
    kind = next(each for each in vars(package).values() if isinstance(each, type) and each.__module__ == package.__name__)
    torch.manual_seed(3)
    return kind(hidden_size=WIDTH, layer_idx=0, **options).cuda().to(TYPES.get(name, torch.float32))


def passes(layer, x, d_y):
    """Output, gradient of the input and those of the parameters."""
    x = x.clone().requires_grad_()
    y = layer(x)[0]
    y.backward(d_y)
    return {"y": y.detach(), "dx": x.grad, **{name: each.grad for name, each in layer.named_parameters()}}


def without_tuning():
    """Kernels take the first of their configurations: here is no time to be found, and tuning takes minutes."""
    from triton.runtime import autotuner

    whole = autotuner.Autotuner.__init__

    def first_alone(self, fn, arg_names, configs, *others, **options):
        whole(self, fn, arg_names, configs[:1], *others, **options)

    autotuner.Autotuner.__init__ = first_alone


def prepared(ranks, device):
    without_tuning()
    import liblasp.torch as lt
    from liblasp.torch import fla as sp

    alone = [dist.new_group([rank]) for rank in range(ranks)][dist.get_rank()]

    def distance(one, other):
        return float((one - other).float().norm() / other.float().norm())

    def judge(name):
        torch.manual_seed(5)
        dtype = TYPES.get(name, torch.float32)
        x, d_y = (torch.randn(2, TOKENS, WIDTH, device=device, dtype=dtype) for _ in range(2))
        begin, end = lt.shard_bounds(TOKENS, dist.get_rank(), ranks)
        many = make(name)
        sp.parallelize(many, dist.group.WORLD)
        found = passes(many, x[:, begin:end], d_y[:, begin:end])
        for key in found:
            if key not in ("y", "dx"):
                dist.all_reduce(found[key])
        with torch.no_grad():
            y = make(name)(x)[0]
        far = distance(found["y"], y[:, begin:end])
        try:
            whole, beside = passes(make(name), x, d_y), "fla's"
        except Exception:
            torch.cuda.synchronize()
            one = make(name)
            sp.parallelize(one, alone)
            whole, beside = passes(one, x, d_y), "those of one rank"
        apart = max(distance(found[key], whole[key][:, begin:end] if key == "dx" else whole[key])
                    for key in found if key != "y")
        return max(far, apart) <= BOUNDS[dtype], f"output {far:.1e} from fla's, gradients {apart:.1e} from {beside}"

    return judge


def check_fla():
    if importlib.util.find_spec("fla") is None:
        return skip("no flash-linear-attention")
    for ranks in sorted({2, max(2, torch.cuda.device_count())}):
        several_gpus.by_case(ranks, prepared, list(LAYERS), "cuda")
