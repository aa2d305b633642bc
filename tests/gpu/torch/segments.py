"""liblasp.torch.time_segments on one GPU: the cases of bindings/python/tests/test_torch_segments.py that a GPU may do
differently, and a model of examples/pytorch in bfloat16, compiled."""

import pathlib
import sys

import torch
import torch.distributed as dist

import liblasp.torch as lt
import several_gpus
from problems import error, line, need, skip

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bindings" / "python" / "tests"), str(ROOT / "examples" / "pytorch")]

import test_torch_segments as on_the_cpu  # noqa: E402
from model import LanguageModel  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# The gradient of a decay goes through two more sums: over all later tokens, and over the tokens that share a weight.
BOUND_OF_DECAY = on_the_cpu.BOUND * 10 / 8


def gradients(model, inputs, targets, segment, **options):
    model.zero_grad()
    loss = lt.time_segments(model, inputs, targets, on_the_cpu.mean_loss(targets.numel()), segment=segment, **options)
    return loss, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def of_each_sequence(model, inputs, targets, offsets):
    model.zero_grad()
    sum(on_the_cpu.mean_loss(targets.numel())(model(inputs[:, b:e]), targets[:, b:e])
        for b, e in zip(offsets, offsets[1:])).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def check_segments():
    inputs, targets = (x.cuda() for x in on_the_cpu.batch())
    for decay in ("none", "head", "scalar", "channel"):
        model = on_the_cpu.Model(decay, width=128).cuda()
        _, one = gradients(model, inputs, targets, inputs.shape[1])
        errors = {}
        for segment in (1500, 600):
            _, found = gradients(model, inputs, targets, segment)
            for name, gradient in found.items():
                errors[name] = max(errors.get(name, 0.0), error(gradient, one[name]))
        bounds = {name: BOUND_OF_DECAY if "decay_proj" in name else on_the_cpu.BOUND for name in errors}
        worst = max(errors, key=lambda name: errors[name] / bounds[name])
        same = all(torch.equal(each, found[name]) for name, each in gradients(model, inputs, targets, 600)[1].items()
                   if name != "embedding.weight")  # torch sums that one in any order
        line(errors[worst] <= bounds[worst] and same, f"{decay}: three and seven segments beside one: worst {worst} "
             f"{errors[worst]:.2g}, again the same bits: {same}")
    model = on_the_cpu.Model(mixer=lt.ShortConvolution(128, 4, activation="silu"), width=128, norm=False).cuda()
    offsets = [0, 30, 31, 900, 2300, 4096]
    expected = of_each_sequence(model, inputs[:1], targets[:1], offsets)
    _, found = gradients(model, inputs[:1], targets[:1], 700, cu_seqlens=offsets)
    worst = on_the_cpu.largest_error(found, expected)
    line(worst <= on_the_cpu.BOUND, f"packed sequences and a convolution beside each sequence alone: {worst:.2g}")


def segments_of_rank(rank, ranks):
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    group, offsets = dist.group.WORLD, [0, 30, 31, 900, 2300, 4096]
    inputs, targets = (x[:1].cuda() for x in on_the_cpu.batch())
    found = []
    for of, segment in ((None, 4096), (group, 701)):
        torch.manual_seed(4)
        convolution = lt.ShortConvolution(128, 4, activation="silu", group=of)
        model = on_the_cpu.Model(mixer=convolution, width=128, norm=False).cuda()
        for block in model.blocks:
            block.attention.group = of
        found.append(gradients(model, inputs, targets, segment, cu_seqlens=offsets, group=of)[1])
    for gradient in found[1].values():
        dist.all_reduce(gradient)
    worst = on_the_cpu.largest_error(found[1], found[0])
    if rank == 0:
        print(f"  {ranks} ranks by 6 segments, packed, a convolution, beside one rank in one piece: {worst:.2g}", flush=True)
    need(worst <= on_the_cpu.BOUND, f"rank {rank}: gradients of segments over ranks: {worst}")
    dist.destroy_process_group()


def check_segments_over_gpus():
    if torch.cuda.device_count() < 2:
        skip("this machine has one GPU")
        return
    for ranks in {2, min(4, torch.cuda.device_count())}:
        several_gpus.spawn(segments_of_rank, ranks)


def check_long():
    """In bfloat16, compiled: one piece and four are two roundings of the same; twice as far from float32 is allowed."""
    torch.manual_seed(2)
    model = LanguageModel(256, 2, 4, 512).cuda()
    ids = torch.randint(256, (1, 8193), device="cuda")
    inputs, targets = ids[:, :-1], ids[:, 1:]
    model(inputs, targets).div(targets.numel()).backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    for block in model.blocks:
        block.compile(dynamic=False)

    def run(segment):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            lt.time_segments(model, (inputs, targets), targets, lambda part, _: part / targets.numel(), segment=segment)
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    one, four = run(8192), run(2048)
    for name, exact in wanted.items():
        rounding = float((one[name] - exact).norm() / exact.norm())
        found = float((four[name] - exact).norm() / exact.norm())
        line(found <= 2 * rounding, f"{name}: four segments {found:.2g} from float32, one {rounding:.2g}")
    hidden, weight = torch.randn(1, 5000, 256, device="cuda"), torch.randn(1000, 256, device="cuda")
    words = torch.randint(1000, (1, 5000), device="cuda")
    tiled = lt.linear_cross_entropy(hidden, weight, words, tile=999)
    whole = F.cross_entropy((hidden @ weight.T).flatten(0, 1), words.flatten())
    line(abs(float(tiled / whole) - 1) <= 1e-6, f"the loss in tiles: {float(tiled):.6f}, whole {float(whole):.6f}")
