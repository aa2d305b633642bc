"""Gated delta nets of Megatron-Core over its context-parallel group.

    config = ContextParallelConfig(context_parallel_size=4, experimental_attention_variant="gated_delta_net", ...)
    spec = over_sequences(get_transformer_block_with_experimental_attention_variant_spec(config))
    model = GPTModel(config, spec, ...)

A batch is cut as Megatron cuts it, by get_batch_on_this_cp_rank: of 2W equal parts rank r of W has parts r and 2W-1-r.
"""
from __future__ import annotations

import copy
import dataclasses
from typing import Any, Dict, Optional, Tuple

import torch
import torch.distributed as dist

import liblasp
from liblasp.arguments import describe

try:
    from megatron.core.ssm import gated_delta_net as theirs
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import ModuleSpec
except ImportError as reason:
    raise ImportError("liblasp.torch.trainers.megatron needs Megatron-Core 0.16: pip install megatron-core "
                      f"({reason})") from None

from ..attention import linear_attention
from ..convolution import WIDEST, causal_conv1d
from ..delta_layers import unit_length
from ..hf.rebinding import rebound
from ..problem import invalid_argument
from ..sequence_group import SequenceGroup, sequence_group

_Output = Tuple[torch.Tensor, Optional[torch.Tensor]]
_GATED_DELTA_NETS = ("gated_delta_net", "gdn")


@dataclasses.dataclass
class ContextParallelConfig(TransformerConfig):
    """A TransformerConfig that may have context_parallel_size > 1 beside experimental_attention_variant =
    "gated_delta_net", which Megatron-Core 0.16 refuses for its own layer. With Megatron's training scripts:
    core_transformer_config_from_args(args, config_class=ContextParallelConfig), which takes the options below from args.

    dataloader_inter_document_masking, sft: as Megatron's options. With the first alone a packed row is cut as a whole, else
    each of its sequences by itself.
    """

    dataloader_inter_document_masking: bool = False
    sft: bool = False

    def __post_init__(self) -> None:
        if self.experimental_attention_variant not in _GATED_DELTA_NETS or self.context_parallel_size == 1:
            super().__post_init__()
            return
        unsplit = copy.copy(self)  # for what else it asks of a gated delta net
        unsplit.context_parallel_size, unsplit.hierarchical_context_parallel_sizes = 1, None
        TransformerConfig.__post_init__(unsplit)
        self.experimental_attention_variant = None  # for what it asks of context parallelism
        super().__post_init__()
        self.experimental_attention_variant = unsplit.experimental_attention_variant


class GatedDeltaNet(theirs.GatedDeltaNet):
    """megatron.core.ssm.gated_delta_net.GatedDeltaNet over the context-parallel group of its pg_collection: the same
    parameters, initial values and checkpoints. hidden_states [T of this rank, B, hidden], of a zigzag cut, or with
    PackedSeqParams of the format "thd" [T of this rank, 1, hidden], each sequence cut so by itself, or the row as the
    config says (ContextParallelConfig). Tensor and sequence parallelism as in Megatron's layer. Does not need flash-linear-attention.

    The layers of a context-parallel group share a process group of the same ranks, which the first one makes; so every
    rank of it makes them in one order. Collective, forward and backward. Raises liblasp.InvalidArgument (a ValueError) and
    liblasp.Unsupported.
    """

    def __init__(self, config: TransformerConfig, submodules: Any, *arguments: Any, cp_comm_type: Any = None,
                 **options: Any):
        _initialize(self, config, submodules, *arguments, **options)
        if self.conv_kernel_dim > WIDEST:
            raise liblasp.Unsupported(f"linear_conv_kernel_dim = {self.conv_kernel_dim}: must be at most {WIDEST}")
        if getattr(self, "recompute_norm_out", False):
            raise liblasp.Unsupported("recompute_modules: 'gdn_norm_out' is not recomputed by itself over a split sequence")
        self._heads = (self.num_key_heads // self.tp_size, self.num_value_heads // self.tp_size)
        with liblasp.Context(cpu_threads=1) as context:  # refuses what cannot be computed
            context.plan(tokens=0, heads_q=self._heads[0], heads_k=self._heads[0], heads_v=self._heads[1], write="delta",
                         head_dim_k=self.key_head_dim, head_dim_v=self.value_head_dim, decay="head")
        self._whole_row = (getattr(config, "dataloader_inter_document_masking", False)
                           and not getattr(config, "sft", False))
        self._ranks = _group_beside(self.pg_collection.cp)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Any = None, key_value_states: Any = None,
                inference_context: Any = None, attention_bias: Any = None, packed_seq_params: Any = None,
                sequence_len_offset: Any = None, *, inference_params: Any = None, **others: Any) -> _Output:
        """Output [T of this rank, B, hidden] and bias. attention_mask is not looked at, as in Megatron's layer: it is
        causal. packed_seq_params: offsets of all ranks' tokens, the padded ones where there are. 2W divides each
        sequence's tokens, and a part has linear_conv_kernel_dim - 1 at least; of a row cut as a whole, 2W divides the
        row's."""
        for name, given in (("key_value_states", key_value_states), ("inference_context", inference_context),
                            ("inference_params", inference_params), ("attention_bias", attention_bias),
                            ("sequence_len_offset", sequence_len_offset)):
            if given is not None:
                raise liblasp.Unsupported(f"{name}: a gated delta net over a split sequence has no use for it")
        projected, _ = self.in_proj(hidden_states)
        projected = projected.transpose(0, 1)  # [B, T, C]
        ranks, where = self._where(packed_seq_params, projected)

        widths = [each // self.tp_size for each in (self.qk_dim, self.qk_dim, self.v_dim)]
        qkv, gate, beta, alpha = projected.split([sum(widths), widths[2], self._heads[1], self._heads[1]], -1)
        silu = self.activation in ("silu", "swish")
        qkv = causal_conv1d(qkv, self.conv1d.weight[:, 0], self.conv1d.bias, activation="silu" if silu else None,
                            group=ranks, **where)
        q, k, v = (qkv if silu else self.act_fn(qkv)).split(widths, -1)
        q, k = (each.unflatten(-1, (self._heads[0], self.key_head_dim)) for each in (q, k))
        if self.use_qk_l2norm:
            q, k = unit_length(q), unit_length(k)
        g = -self.A_log.float().exp() * torch.nn.functional.softplus(alpha.float() + self.dt_bias)
        o = linear_attention(q, k, v.unflatten(-1, (self._heads[1], self.value_head_dim)), g, beta=beta.sigmoid(),
                             group=ranks, **where)
        o = self._apply_gated_norm(o, gate.unflatten(-1, o.shape[-2:]).contiguous()).reshape(gate.shape)
        return self.out_proj(o.transpose(0, 1).contiguous())

    def _where(self, packed: Any, x: torch.Tensor) -> Tuple[SequenceGroup, Dict[str, Any]]:
        """The group as it holds the tokens of x, and what the calls are told of them."""
        ranks = self._ranks
        total = x.shape[1] * ranks.size
        try:
            offsets = _offsets(packed, x.shape[0], total, ranks, self.conv_kernel_dim - 1, self._whole_row)
        except liblasp.Error:
            ranks.give_up(x.device)
            raise
        if ranks.size > 1:
            ranks = ranks.owned("zigzag" if offsets is None or self._whole_row else "zigzag_each")
        return ranks, {"cu_seqlens": offsets, "total_tokens": total}


# Theirs asks for kernels that are not used here.
_initialize = rebound(theirs.GatedDeltaNet.__init__, {"HAVE_FLA": True})


def over_sequences(spec: Any) -> Any:
    """A copy of a spec of Megatron-Core (a ModuleSpec, or the TransformerBlockSubmodules of a whole block) in which each
    GatedDeltaNet is this module's. Raises liblasp.InvalidArgument (a ValueError) where it has none."""
    if not dataclasses.is_dataclass(spec) or isinstance(spec, type):
        raise invalid_argument(f"spec = {describe(spec)}: must be a ModuleSpec or submodules of Megatron-Core")
    found: list = []
    made = _with_ours(spec, found)
    if not found:
        raise invalid_argument(f"spec ({type(spec).__name__}): has no GatedDeltaNet of Megatron-Core")
    return made


def _with_ours(part: Any, found: list) -> Any:
    if part is theirs.GatedDeltaNet:
        found.append(part)
        return GatedDeltaNet
    if isinstance(part, (list, tuple)) and type(part) in (list, tuple):
        return type(part)(_with_ours(each, found) for each in part)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        if isinstance(part, ModuleSpec) and part.module is theirs.GatedDeltaNet:
            found.append(part)
            return dataclasses.replace(part, module=GatedDeltaNet)
        return dataclasses.replace(part, **{each.name: _with_ours(getattr(part, each.name), found)
                                            for each in dataclasses.fields(part) if each.init})
    return part


_groups: Dict[int, Tuple[dist.ProcessGroup, SequenceGroup]] = {}  # by the context-parallel group's id; it is held


def _group_beside(process_group: Optional[dist.ProcessGroup]) -> SequenceGroup:
    """Of the same ranks, with messages that meet nobody else's: attention layers use Megatron's group. Its ranks alone
    make it, since other stages of a pipeline may have no such layers."""
    if process_group is None or dist.get_world_size(process_group) == 1:
        return sequence_group(None)
    known = _groups.get(id(process_group))
    if known is None or known[1]._closed:
        ranks = dist.get_process_group_ranks(process_group)
        own = dist.new_group(ranks, backend=dist.get_backend(process_group), use_local_synchronization=True)
        known = _groups[id(process_group)] = (process_group, SequenceGroup(own))
    return known[1]


def _offsets(packed: Any, rows: int, total: int, ranks: SequenceGroup, before: int,
             whole_row: bool) -> Optional[Tuple[int, ...]]:
    """Those of packed sequences, on the host: read once for all layers of a step. before: tokens that each part of a
    sequence takes from the part in front of it. whole_row: sequences lie in a row that was cut as one."""
    parts = 2 * ranks.size
    is_packed = packed is not None and packed.qkv_format == "thd"
    if ranks.size > 1 and total % parts and (whole_row or not is_packed):
        raise invalid_argument(f"hidden_states: {total // ranks.size} tokens a rank cannot be two equal parts")
    if not is_packed:
        return None
    if packed.local_cp_size is not None or packed.cp_group is not None:
        raise liblasp.Unsupported("packed_seq_params.cp_group and local_cp_size: a group for each batch is not served")
    if rows != 1:
        raise invalid_argument(f"hidden_states: {rows} rows; packed sequences are one")
    name = "cu_seqlens_q" if packed.cu_seqlens_q_padded is None else "cu_seqlens_q_padded"
    offsets = _read(getattr(packed, name))
    if offsets is None:
        raise invalid_argument(f"packed_seq_params.{name}: is None")
    if offsets[-1] != total:
        raise invalid_argument(f"packed_seq_params.{name}: ends at {offsets[-1]}, the ranks hold {total} tokens")
    for sequence, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        tokens = end - begin
        if ranks.size > 1 and not whole_row and (tokens % parts or 0 < tokens < parts * before):
            raise invalid_argument(f"packed_seq_params.{name}: sequence {sequence} has {tokens} tokens, must be cut into "
                                   f"{parts} equal parts of at least {max(before, 1)}: pad it, or cut the row as a whole "
                                   "(--dataloader-inter-document-masking)")
    return offsets


_latest: Tuple[Optional[torch.Tensor], int, Optional[Tuple[int, ...]]] = (None, 0, None)


def _read(offsets: Optional[torch.Tensor]) -> Optional[Tuple[int, ...]]:
    """A tensor's numbers. Those on a GPU wait for it, once a batch."""
    global _latest
    if offsets is None:
        return None
    if _latest[0] is not offsets or _latest[1] != offsets._version:
        _latest = (offsets, offsets._version, tuple(offsets.tolist()))
    return _latest[2]
