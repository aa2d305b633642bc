"""What test_torch_torchtitan.py runs on ranks: the gated delta net of torchtitan's Qwen3.5, which imports kernels of
flash-linear-attention. Stand-ins have their names; the one that is called computes by liblasp on one rank."""
import importlib.util
import sys
import types

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import liblasp
from liblasp.torch import SequenceGroup, dropins
from liblasp.torch.trainers.torchtitan import over_sequences


def stand_in(name, **names):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(names)


if importlib.util.find_spec("fla") is None:
    for each in ("fla", "fla.modules", "fla.modules.conv", "fla.modules.conv.triton", "fla.ops"):
        stand_in(each)
    for name, function in (("modules.conv.triton.ops", "CausalConv1dFunction"),
                           ("ops.gated_delta_rule.chunk", "ChunkGatedDeltaRuleFunction"),
                           ("ops.gated_delta_rule.fused_recurrent", "FusedRecurrentFunction")):
        stand_in(f"fla.{name}", **{function: type(function, (torch.autograd.Function,), {})})
    stand_in("fla.ops.gated_delta_rule", chunk_gated_delta_rule=None, fused_recurrent_gated_delta_rule=None)

from torchtitan.models import qwen3_5  # noqa: E402
from torchtitan.models.common.attention import VarlenMetadata  # noqa: E402

DIM, TOKENS = 32, 64
DOCUMENTS = (0, 5, 40, 64)


def one_rank(*inputs, cu_seqlens=None, cu_seqlens_cpu=None, **options):
    return dropins.chunk_gated_delta_rule(*(each.contiguous() for each in inputs), **options)  # as fla's does


qwen3_5.model._fla_chunk_gated_delta_rule = one_rank


def layer_of():
    torch.manual_seed(4)
    layer = qwen3_5._qwen35_deltanet_config(dim=DIM, n_key_heads=2, n_value_heads=4, key_head_dim=8, value_head_dim=8,
                                     conv_kernel_size=4, layer_id=0, fla_backend="fla_chunked").build()
    with torch.no_grad():
        for name, each in layer.named_parameters():
            if name.endswith("A_log"):
                each.uniform_(-5, -2)  # states reach over ranks
            else:
                each.normal_(mean=float(each.dim() == 1), std=0.2)
    return layer


def inputs_of():
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(1, TOKENS, DIM, generator=generator) for _ in range(2)]


def cut(tensor, balanced):
    """torchtitan's."""
    from torch.distributed.tensor.experimental._attention import _context_parallel_shard
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    balancer = _HeadTailLoadBalancer(TOKENS, dist.get_world_size(), "cpu") if balanced else None
    return _context_parallel_shard(mesh, (tensor.detach(),), (1,), balancer)[0]


def apart(balanced, documents=False):
    """How far outputs and gradients are from one rank's, in parts of the largest number."""
    x, d_y = inputs_of()
    whole, offsets = layer_of(), DOCUMENTS if documents else (0, TOKENS)
    wanted = torch.cat([whole(x[:, begin:end]) for begin, end in zip(offsets, offsets[1:])], 1)
    wanted.backward(d_y)
    layer = layer_of()
    group = SequenceGroup(dist.new_group(), ownership="zigzag" if balanced else "contiguous")
    assert over_sequences(torch.nn.ModuleDict({"mixer": layer}), group) == ("mixer",)
    y = layer(cut(x, balanced), metadata(DOCUMENTS) if documents else None)
    y.backward(cut(d_y, balanced))
    found = {"y": float((y - cut(wanted, balanced)).abs().max() / wanted.abs().max())}
    for (name, each), other in zip(layer.named_parameters(), whole.parameters()):
        dist.all_reduce(each.grad)
        found[name] = float((each.grad - other.grad).abs().max() / other.grad.abs().max())
    return found


def metadata(offsets):
    tensor = torch.tensor(offsets, dtype=torch.int32)
    return VarlenMetadata(tensor, tensor, TOKENS, TOKENS, tuple(offsets))


def refusals():
    found = {}

    def refused(name, call):
        try:
            call()
            found[name] = None
        except liblasp.Error as error:
            found[name] = str(error)
    group = SequenceGroup(dist.new_group())
    layer = layer_of()
    refused("no model", lambda: over_sequences(layer.forward, group))
    refused("no layer", lambda: over_sequences(torch.nn.Linear(2, 2), group))
    refused("no group", lambda: over_sequences(layer, None))
    over_sequences(layer, group)
    refused("twice", lambda: over_sequences(layer, group))
    refused("rows", lambda: layer(torch.zeros(2, 8, DIM)))
    return found
