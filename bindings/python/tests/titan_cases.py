"""What test_torch_torchtitan.py runs on ranks: torchtitan's Qwen3.5 and its gated delta net, which imports kernels of
flash-linear-attention. Stand-ins have their names; the one that is called computes by liblasp on one rank."""
import importlib.util
import sys
import types

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import hf_ranks
from liblasp.torch import SequenceGroup, dropins
from liblasp.torch.trainers.torchtitan import over_sequences, prepare_context_parallel_input
from support import sentence_of


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

from torchtitan.distributed.utils import set_spmd_backend  # noqa: E402
from torchtitan.models import qwen3_5  # noqa: E402
from torchtitan.components.loss import cross_entropy_loss  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention, VarlenMetadata  # noqa: E402

DIM, TOKENS, WORDS = 32, 96, 61
DOCUMENTS = (0, 5, 40, 41, 96)


def one_rank(*inputs, cu_seqlens=None, cu_seqlens_cpu=None, **options):
    return dropins.chunk_gated_delta_rule(*(each.contiguous() for each in inputs), **options)  # as fla's does


qwen3_5.model._fla_chunk_gated_delta_rule = one_rank
set_spmd_backend("partial_dtensor")  # the other asks for its Trainer's mesh


def layer_of():
    torch.manual_seed(4)
    layer = qwen3_5._qwen35_deltanet_config(dim=DIM, n_key_heads=2, n_value_heads=4, key_head_dim=8, value_head_dim=8,
                                     conv_kernel_size=4, layer_id=0, fla_backend="fla_chunked").build()
    return with_weights(layer)


def with_weights(module):
    with torch.no_grad():
        for name, each in module.named_parameters():
            if name.endswith("A_log"):
                each.uniform_(-5, -2)  # states reach over ranks
            else:
                each.normal_(mean=float(each.dim() == 1), std=0.2)
    return module


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


# ---- The whole model ----

def model_of(backend=None):
    """Two gated delta nets around a softmax layer of torchtitan's `backend`, or one that computes on the CPU."""
    config = qwen3_5._debugmodel("varlen")
    config.dim, config.vocab_size, config.norm = DIM, WORDS, qwen3_5._offset_norm(DIM)
    config.tok_embeddings.num_embeddings, config.tok_embeddings.embedding_dim = WORDS, DIM
    config.lm_head.in_features, config.lm_head.out_features = DIM, WORDS
    config.layers = qwen3_5._build_qwen35_layers(
        rope=config.layers[3].attention.rope, attn_backend=backend or "varlen", n_layers=3, dim=DIM, n_heads=4,
        n_kv_heads=2, head_dim=32, rotary_dim=16, hidden_dim=48, n_key_heads=2, n_value_heads=4, key_head_dim=8,
        value_head_dim=8, full_attention_interval=2)
    if backend is None:
        config.layers[1].attention.inner_attention = ScaledDotProductAttention.Config()
    config.vision_encoder = qwen3_5._qwen35_vision_encoder_config(
        dim=16, ffn_dim=16, num_layers=1, num_heads=2, patch_size=2, temporal_patch_size=1, spatial_merge_size=1,
        out_hidden_size=DIM, num_position_embeddings=4)
    torch.manual_seed(4)
    return with_weights(config.build())


def loss_of(model, tokens, labels, **told):
    """The sum over targets, as torchtitan's."""
    words = {"image_id": -1, "video_id": -1}
    return cross_entropy_loss(model(tokens, special_tokens=words, **told), labels)


def whole_step(model, tokens, labels, positions, offsets):
    """The loss of an unsplit model and its gradients, documents one by one."""
    loss = sum(loss_of(model, tokens[:, begin:end], labels[:, begin:end], positions=positions[:, begin:end])
               for begin, end in zip(offsets, offsets[1:])) / TOKENS
    loss.backward()
    return float(loss.detach()), hf_ranks.gradients_of(model)


def model_apart(balanced, documents):
    """How far a split model's loss and gradients are from one rank's, and how far rounding carries."""
    generator = torch.Generator().manual_seed(6)
    tokens, labels = torch.randint(WORDS, (2, 1, TOKENS), generator=generator)
    offsets = DOCUMENTS if documents else (0, TOKENS)
    positions = torch.cat([torch.arange(end - begin) for begin, end in zip(offsets, offsets[1:])])[None]
    wanted = whole_step(model_of(), tokens, labels, positions, offsets)
    noise = hf_ranks.apart(whole_step(hf_ranks.nudged(model_of()), tokens, labels, positions, offsets), wanted)
    model, mesh = model_of("varlen"), init_device_mesh("cpu", (dist.get_world_size(),))
    group = SequenceGroup(dist.new_group(), ownership="zigzag" if balanced else "contiguous")
    assert over_sequences(model, group) == ("layers.0.attn", "layers.1.attn", "layers.2.attn")
    own, targets, told = prepare_context_parallel_input(
        tokens, labels, {"positions": positions, "attention_masks": model.get_attention_masks(positions)}, mesh,
        torch.device("cpu"), "headtail" if balanced else None)
    loss = loss_of(model, own, targets, **told) / TOKENS
    loss.backward()
    loss, found = loss.detach(), hf_ranks.gradients_of(model)
    for each in (loss, *found.values()):
        dist.all_reduce(each)
    return hf_ranks.apart((float(loss), found), wanted), noise


def metadata(offsets):
    tensor = torch.tensor(offsets, dtype=torch.int32)
    return VarlenMetadata(tensor, tensor, TOKENS, TOKENS, tuple(offsets))


def refusals():
    found = {}

    def refused(name, call):
        found[name] = sentence_of(call)
    group = SequenceGroup(dist.new_group())
    layer = layer_of()
    refused("no model", lambda: over_sequences(layer.forward, group))
    refused("no layer", lambda: over_sequences(torch.nn.Linear(2, 2), group))
    refused("no group", lambda: over_sequences(layer, None))
    over_sequences(layer, group)
    refused("twice", lambda: over_sequences(layer, group))
    refused("rows", lambda: layer(torch.zeros(2, 8, DIM)))
    model = model_of("varlen")
    over_sequences(model, group)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    refused("pictures", lambda: model(tokens, positions=tokens, pixel_values=torch.zeros(1)))
    attention, q = model.layers["1"].attn.inner_attention, torch.zeros(1, 8, 2, 8)
    refused("masks", lambda: attention(q, q, q, attention_masks=torch.ones(8, 8)))
    refused("transformed", lambda: attention(q, q, q, out_transform=abs))
    windowed = model_of("varlen")
    windowed.layers["1"].attn.inner_attention.window_size = (4, 0)
    refused("window", lambda: over_sequences(windowed, group))
    found["as it was"] = not any("forward" in each.__dict__ for each in windowed.modules())
    return found
