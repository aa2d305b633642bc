"""What test_torch_megatron.py runs on ranks: a small GPT of Megatron-Core with gated delta nets on the CPU. What Megatron
asks CUDA for is answered by stand-ins."""
import contextlib
import dataclasses
import inspect
import os
import types

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron's fused norm would be compiled for a minute

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import gated_delta_net as theirs
from megatron.core.tensor_parallel import random
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.utils import get_batch_on_this_cp_rank

from liblasp.torch.delta_layers import unit_length
from liblasp.torch.trainers.megatron import ContextParallelConfig, GatedDeltaNet, over_sequences
from support import sentence_of

torch.cuda.current_device = lambda: "cpu"
random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
theirs.GatedDeltaNet.__init__.__globals__.update(HAVE_FLA=True, l2norm=unit_length)  # of Megatron's layer, the reference
# Later versions ask whether groups change from batch to batch.
CUT = {"is_hybrid_cp": False} if "is_hybrid_cp" in inspect.signature(get_batch_on_this_cp_rank).parameters else {}

WORDS, HIDDEN, TOKENS = 48, 32, 96
PACKED = (0, 24, 24, 64, 96)  # of all ranks' tokens
ROW = (0, 5, 24, 25, 63, 96)  # in a row that is cut as a whole
SECTIONS = {"in_proj.weight": (16, 16, 32, 32, 4, 4), "conv1d.weight": (16, 16, 32)}  # q, k, v, gate, beta, alpha


def config_of(cp=1, tp=1, **changes):
    return ContextParallelConfig(**{**dict(
        num_layers=2, hidden_size=HIDDEN, num_attention_heads=4, ffn_hidden_size=48, use_cpu_initialization=True,
        normalization="RMSNorm", add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
        context_parallel_size=cp, tensor_model_parallel_size=tp, deterministic_mode=True,
        experimental_attention_variant="gated_delta_net", linear_attention_freq=[1, 1], linear_conv_kernel_dim=4,
        linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4), **changes})


class Norm(torch.nn.RMSNorm):
    """Megatron's own for the CPU refuses sequence parallelism."""

    def __init__(self, config, hidden_size, eps=1e-5):
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel


def spec_of():
    """What Megatron makes with Transformer Engine, of its local layers."""
    mixer = ModuleSpec(module=theirs.GatedDeltaNet, submodules=theirs.GatedDeltaNetSubmodules(
        in_proj=ColumnParallelLinear, out_norm=Norm, out_proj=RowParallelLinear))
    mlp = ModuleSpec(module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear,
                                                          linear_fc2=RowParallelLinear))
    layer = ModuleSpec(module=TransformerLayer, submodules=TransformerLayerSubmodules(
        input_layernorm=Norm, self_attention=mixer, self_attn_bda=get_bias_dropout_add,
        pre_mlp_layernorm=Norm, mlp=mlp, mlp_bda=get_bias_dropout_add))
    return TransformerBlockSubmodules(layer_specs=[layer, layer], layer_norm=Norm)


@contextlib.contextmanager
def parallel(cp=1, tp=1):
    """Megatron's groups."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp, context_parallel_size=cp)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


def own_rows(name, whole, like, tp, rank):
    """This tensor-parallel rank's part of a parameter."""
    if whole.shape == like.shape:
        return whole
    dim = next(at for at, (all_, own) in enumerate(zip(whole.shape, like.shape)) if all_ != own)
    sections = next((each for end, each in SECTIONS.items() if name.endswith(end)), (whole.shape[dim],))
    return torch.cat([part.chunk(tp, dim)[rank] for part in whole.split(sections, dim)], dim)


def model_of(config, spec, whole=None):
    """With the parameters of `whole`, a model of one rank, or its own."""
    torch.manual_seed(3)
    model = GPTModel(config, spec, WORDS, TOKENS, parallel_output=True, share_embeddings_and_output_weights=False,
                     position_embedding_type="learned_absolute")
    tp, rank = config.tensor_model_parallel_size, parallel_state.get_tensor_model_parallel_rank()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if whole is not None:
                each.copy_(own_rows(name, whole[name], each, tp, rank))
            elif name.endswith("A_log"):
                each.uniform_(-5, -2)  # states reach over ranks
            elif each.dim() > 1:
                each.normal_(std=0.1)
            else:
                each.add_(0.2 * torch.randn_like(each))
    return model


def batch_of(rows, packed=None):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(WORDS, (rows, TOKENS + 1), generator=generator)
    positions = torch.arange(TOKENS).expand(rows, -1)
    if packed is not None:
        positions = torch.cat([torch.arange(end - begin) for begin, end in zip(packed, packed[1:])])[None]
    return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "position_ids": positions,
            "loss_mask": (torch.rand(rows, TOKENS, generator=generator) > 0.2).float()}


def cut_of_each(batch, offsets, rank, ranks):
    """As thd_get_partitioned_indices of Transformer Engine: 2W parts of each sequence, two of them this rank's."""
    own = []
    for begin, end in zip(offsets, offsets[1:]):
        part = (end - begin) // (2 * ranks)
        for at in (rank, 2 * ranks - 1 - rank):
            own += range(begin + at * part, begin + (at + 1) * part)
    return {name: value[:, own] for name, value in batch.items()}


def step(model, batch, count, packed=None):
    """Loss and gradients, summed over the context-parallel group as Megatron's DDP does."""
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], packed_seq_params=packed)
    loss = (losses * batch["loss_mask"]).sum() / count
    loss.backward()
    found = {"loss": loss.detach().clone(), **{name: each.grad for name, each in model.named_parameters()}}
    for name, each in found.items():
        dist.all_reduce(each, group=parallel_state.get_context_parallel_group())
    return found


def alone(batch, offsets=None):
    """Parameters, and what a step of Megatron's own layers gives on one rank; packed sequences one by one, since Megatron
    does not serve them."""
    with parallel():
        model = model_of(config_of(), spec_of())
        count = batch["loss_mask"].sum()
        if offsets is None:
            found = step(model, batch, count)
        else:
            found = {"loss": 0.0}
            for begin, end in zip(offsets, offsets[1:]):
                if begin < end:  # gradients go on from part to part
                    part = step(model, {name: value[:, begin:end] for name, value in batch.items()}, count)
                    found = {**part, "loss": found["loss"] + part["loss"]}
        return {name: each.detach() for name, each in model.named_parameters()}, found


def apart(cp, tp=1, rows=2, packed=False, **changes):
    """How far a split step's loss, and each parameter's gradient, are from one rank's, in parts of the largest number."""
    offsets = {"row": ROW, True: PACKED}.get(packed)
    batch = batch_of(1 if packed else rows, offsets)
    whole, wanted = alone(batch, offsets)
    count = batch["loss_mask"].sum()
    with parallel(cp, tp):
        model = model_of(config_of(cp, tp, **changes), over_sequences(spec_of()), whole)
        assert sum(type(each) is GatedDeltaNet for each in model.modules()) == 2
        told = params_of(offsets) if packed else None
        if packed is True:
            own = cut_of_each(batch, PACKED, parallel_state.get_context_parallel_rank(), cp)
        else:
            own = get_batch_on_this_cp_rank(dict(batch), cp_group=parallel_state.get_context_parallel_group(), **CUT)
        found = step(model, own, count, told)
        rank = parallel_state.get_tensor_model_parallel_rank()
        # Norms see a part of the tokens, or of the heads; Megatron's finalize_model_grads adds their gradients up.
        for name, each in model.named_parameters():
            if getattr(each, "sequence_parallel", False) or (tp > 1 and "out_norm" in name):
                dist.all_reduce(found[name], group=parallel_state.get_tensor_model_parallel_group())
    return {name: float((own_rows(name, wanted[name], each, tp, rank) - each).abs().max() /
                        wanted[name].abs().max()) for name, each in found.items()}


def params_of(offsets, padded=False, **changes):
    tensor = torch.tensor(offsets, dtype=torch.int32)
    if padded:  # the true ends come before the padded ones
        return PackedSeqParams(qkv_format="thd", cu_seqlens_q=tensor - 1, cu_seqlens_q_padded=tensor, **changes)
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=tensor, cu_seqlens_kv=tensor, **changes)


def mixer_of(config, **changes):
    spec = spec_of().layer_specs[0].submodules.self_attention
    return GatedDeltaNet(config, spec.submodules, layer_number=1, **{
        "pg_collection": ProcessGroupCollection.use_mpu_process_groups(), **changes})


def same_when_padded():
    """Whether true ends inside of padded ones change nothing."""
    with parallel(2):
        layer = mixer_of(config_of(2))
        x = torch.randn(TOKENS // 2, 1, HIDDEN, generator=torch.Generator().manual_seed(2))
        one, other = (layer(x, None, packed_seq_params=params_of(PACKED, padded))[0] for padded in (False, True))
        return torch.equal(one, other)


def groups_made():
    """One group beside Megatron's, however many layers there are."""
    with parallel(2):
        layers = [mixer_of(config_of(2)) for _ in range(2)]
        group = layers[0]._ranks.process_group
        return (layers[0]._ranks is layers[1]._ranks, group is not parallel_state.get_context_parallel_group(),
                dist.get_process_group_ranks(group) == dist.get_process_group_ranks(
                    parallel_state.get_context_parallel_group()))


def configuration():
    """Megatron's checks of the variant beside those of context parallelism."""
    made = config_of(2)
    try:
        config_of(2, linear_key_head_dim=None)
        told = None
    except AssertionError as error:
        told = str(error)
    return made.experimental_attention_variant in ("gated_delta_net", "gdn"), made.context_parallel_size, told


def refusals():
    """A sentence for each wrong use."""
    found = {}

    def refused(name, call):
        found[name] = sentence_of(call)
    with parallel(2):
        layer, x = mixer_of(config_of(2)), torch.zeros(TOKENS // 2, 1, HIDDEN)

        def forward(x=x, packed=None, **options):
            return lambda: layer(x, None, packed_seq_params=packed, **options)
        refused("wide", lambda: mixer_of(config_of(2, linear_conv_kernel_dim=9)))
        refused("head dim", lambda: mixer_of(config_of(2, linear_key_head_dim=12)))
        refused("spec", lambda: over_sequences(dataclasses.replace(spec_of(), layer_specs=[])))
        refused("no spec", lambda: over_sequences(TransformerLayer))
        refused("cross", forward(key_value_states=x))
        refused("inference", forward(inference_context=types.SimpleNamespace()))
        refused("dynamic", forward(packed=params_of(PACKED, local_cp_size=1)))
        refused("no offsets", forward(packed=PackedSeqParams(qkv_format="thd")))
    # What a call finds on one rank breaks the group, as anywhere else: a group for each.
    for name, options in (("odd", {"x": x[:5]}), ("rows", {"x": x.repeat(1, 2, 1), "packed": params_of(PACKED)}),
                          ("end", {"packed": params_of((0, 16, 48))}), ("parts", {"packed": params_of((0, 18, 96))}),
                          ("short", {"packed": params_of((0, 8, 96))})):
        with parallel(2):
            layer = mixer_of(config_of(2))
            refused(name, forward(**options))
    with parallel(2):
        layer = mixer_of(config_of(2, dataloader_inter_document_masking=True))
        refused("odd row", forward(x=x[:5], packed=params_of((0, 3, 10))))
    return found
