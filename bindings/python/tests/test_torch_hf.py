"""liblasp.torch.hf on two ranks: every model's loss and gradients against the unsplit model, padding, packing,
wrappers, and what is refused."""
import inspect
import types
from contextlib import nullcontext

import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention.bias import CausalBias  # noqa: E402

import hf_models  # noqa: E402
import hf_ranks  # noqa: E402
import test_torch_hf_functions  # noqa: E402
from hf_ranks import LENGTHS, apart, assert_near, by_document, gradients_of, in_segments, moved  # noqa: E402
from hf_ranks import sequence_group, split, unsplit  # noqa: E402
from support import sentence_of  # noqa: E402

RANKS = 2


def parallel(name, dtype=torch.float32, ownership="contiguous", **changes):
    from liblasp.torch import hf as sp
    return sp.parallelize(hf_models.make(name, dtype, **changes), sequence_group(ownership))


def model(name):
    from liblasp.torch import hf as sp
    batch = hf_models.batch_of()
    reference = unsplit(hf_models.make(name), batch)
    made = parallel(name)
    step = split(made, batch)
    operations = [operation for each in sp.replaced(made) for operation in each.operations]
    taken = list(inspect.signature(made.forward).parameters)  # a trainer hands on what of a batch has a name there
    restored = unsplit(sp.restore(made), batch)
    return {"far": apart(step, reference), "noise": apart(moved(name, batch), reference), "operations": operations,
            "taken": taken == list(inspect.signature(made.forward).parameters),
            "restored": restored[0] == reference[0] and not any(
                "forward" in each.__dict__ for each in made.modules())}


def autocast(name):
    """How far gradients in bfloat16 by autocast are from float32's, unsplit and split."""
    changes, batch = hf_models.ALL_EXPERTS.get(name, {}), hf_models.batch_of()
    reference = unsplit(hf_models.make(name, **changes), batch)[1]
    with torch.autocast("cpu", torch.bfloat16):
        steps = unsplit(hf_models.make(name, **changes), batch), split(parallel(name, **changes), batch)
    return [hf_ranks.whole_distance(step[1], reference) for step in steps]


def zigzag(name):
    batch = hf_models.batch_of(tokens=LENGTHS["zigzag"])
    return apart(split(parallel(name, ownership="zigzag"), batch), unsplit(hf_models.make(name), batch))


def pairs(ownership):
    """How many keys all queries of this rank see, in a softmax layer."""
    from liblasp.torch import softmax
    counted = []

    def counting(q, k, v, mask, **options):
        assert isinstance(mask, CausalBias)  # the last query sees all keys, each before it one less
        counted.append(q.shape[2] * (k.shape[2] - q.shape[2]) + q.shape[2] * (q.shape[2] + 1) // 2)
        return F.scaled_dot_product_attention(q, k, v, mask, **options)
    made, own = parallel("MiniMax", ownership=ownership), softmax.F
    softmax.F = types.SimpleNamespace(scaled_dot_product_attention=counting)
    try:
        split(made, hf_models.batch_of(tokens=LENGTHS["zigzag"]))
    finally:
        softmax.F = own
    return sum(counted)


def one_rank():
    """A group of one, whose zigzag is its sequence in two parts."""
    from liblasp.torch import SequenceGroup
    from liblasp.torch import hf as sp
    alone = [dist.new_group([each]) for each in range(RANKS)][dist.get_rank()]
    made = sp.parallelize(hf_models.make("Qwen3Next"), SequenceGroup(alone, ownership="zigzag"))
    batch = hf_models.batch_of(tokens=38)
    found = apart(split(made, batch), unsplit(hf_models.make("Qwen3Next"), batch))
    prompt = {"input_ids": batch["input_ids"]}
    logits = sp.prefill(made.eval(), prompt)[0]
    with sp.whole(made), torch.no_grad():
        return found, float((logits - made(**prompt, use_cache=False).logits[:, -1]).norm() / logits.norm())


def packed(name, how, ownership="contiguous"):
    batch, ends = hf_models.batch_of(rows=1, tokens=LENGTHS["zigzag"]), (11, 32, 34, LENGTHS["zigzag"])
    for end in ends[:-1]:
        batch["labels"][0, end] = -100  # as DataCollatorWithFlattening has it
    reference = by_document(hf_models.make(name), batch, ends)
    if how == "offsets":
        batch["cu_seq_lens_q"] = torch.tensor((0, *ends), dtype=torch.int32)
    else:
        batch["position_ids"] = torch.cat([torch.arange(end - begin) for begin, end in zip((0, *ends), ends)])[None]
    return apart(split(parallel(name, ownership=ownership), batch), reference)


def wrapped(how, changes):
    """`how`: a wrapper, and what it is called with; `changes`: of MiniMax."""
    from liblasp.torch import hf as sp
    ownership = "zigzag" if "zigzag" in how else "contiguous"
    batch = hf_models.batch_of(tokens=LENGTHS[ownership])
    reference = unsplit(hf_models.make("MiniMax", **changes), batch)
    made = parallel("MiniMax", ownership=ownership, **changes)
    if how.startswith("ddp"):
        outer = nn.parallel.DistributedDataParallel(made)
    elif how == "fsdp":
        outer = FullyShardedDataParallel(made, use_orig_params=True, device_id=torch.device("cpu"))
    else:
        from torch.distributed.fsdp import fully_shard
        mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
        for layer in made.model.layers:
            fully_shard(layer, mesh=mesh)
        outer = fully_shard(made, mesh=mesh)
    if "segments" in how:
        loss = sp.time_segments(outer, batch, segment=8)
    else:
        with sp.shard(made if "inner" in how else outer, batch) as local:
            loss = outer(**local).loss
            sp.backward(loss)
    gathered = FullyShardedDataParallel.summon_full_params(outer, with_grads=True) if how == "fsdp" else nullcontext()
    with gathered:
        found = {name.replace("_fsdp_wrapped_module.", ""): whole_gradient(each) for name, each in made.named_parameters()}
    return apart((float(loss.detach()), found), reference), apart(moved("MiniMax", batch, **changes), reference)


def whole_gradient(parameter):
    gradient = parameter.grad
    return (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).double()


def accumulated():
    """Two batches into one gradient, activations recomputed."""
    from liblasp.torch import hf as sp
    reference, made = hf_models.make("MiniMax"), parallel("MiniMax")
    made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for seed in (1, 2):
        batch = hf_models.batch_of(seed=seed)
        (reference(**batch, use_cache=False).loss / 2).backward()
        with sp.shard(made, batch) as local:
            sp.backward(made(**local).loss / 2)
    return apart((0.0, gradients_of(made)), (0.0, gradients_of(reference)))


def segmented(name):
    """In pieces of 10 tokens: a batch of padded rows, packed sequences, and the loss alone."""
    changes, batch = hf_models.WITHOUT_SOFTMAX[name], hf_models.batch_of()
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, :12], batch["labels"][1, :12] = 0, -100
    reference, made = unsplit(hf_models.make(name, **changes), batch), parallel(name, **changes)
    found = [apart(in_segments(made, batch), reference)]
    with torch.no_grad():
        alone, gradients = in_segments(made, batch)
    packed_batch, ends = hf_models.batch_of(rows=1), (3, 21, 37)
    packed_batch["labels"][0, list(ends[:-1])] = -100
    packed_batch["cu_seq_lens_q"] = torch.tensor((0, *ends), dtype=torch.int32)
    whole = {key: value for key, value in packed_batch.items() if key != "cu_seq_lens_q"}
    found.append(apart(in_segments(made, packed_batch), by_document(hf_models.make(name, **changes), whole, ends)))
    return found, apart(moved(name, batch, **changes), reference), abs(alone - reference[0]), gradients


def functions(name):
    return test_torch_hf_functions.errors(name, sequence_group(), dist.get_rank(), RANKS)


def balanced(ownership):
    batch = hf_models.batch_of(tokens=LENGTHS[ownership])
    changes = {"output_router_logits": True, "router_aux_loss_coef": 1.0}
    step = split(parallel("MiniMax", ownership=ownership, **changes), batch)
    return [apart(step, unsplit(hf_models.make("MiniMax", **own), batch)) for own in (changes, {})]


def refusals():
    """A sentence for each wrong use, on each rank."""
    import transformers
    from liblasp.torch import hf as sp
    rank, found = dist.get_rank(), {}

    def refused(name, call):
        found[name] = sentence_of(call)

    def step(made, batch):
        with sp.shard(made, batch) as local:
            return made(**local).loss

    made, batch = parallel("Mamba2"), hf_models.batch_of()
    refused("again", lambda: sp.parallelize(made, sequence_group()))
    for how, wrap in WRAPPERS.items():
        wrapped_before = wrap(hf_models.make("Mamba2"))
        refused(f"wrapped, {how}", lambda: sp.parallelize(wrapped_before, sequence_group()))
    refused("no group", lambda: sp.shard(hf_models.make("Mamba2"), batch).__enter__())
    refused("outside", lambda: made(**batch))
    refused("backward outside", lambda: sp.backward(torch.ones(())))
    refused("batches", lambda: step(made, hf_models.batch_of(seed=rank)))
    refused("one rank's", lambda: step(made, batch if rank == 0 else {**batch, "labels": batch["labels"][:, 1:]}))
    refused("short", lambda: step(made, hf_models.batch_of(tokens=RANKS - 1)))
    refused("unknown key", lambda: step(made, {**batch, "token_type_ids": batch["labels"]}))
    positions = torch.arange(37).remainder(20).expand(2, 37)
    refused("packed rows", lambda: step(made, {**batch, "position_ids": positions}))
    whole = {**batch, "shift_labels": batch["labels"]}

    def not_local():
        with sp.shard(made, batch):
            made(**whole)
    refused("the whole batch", not_local)

    def over_the_data_group():
        alone = [dist.new_group([each]) for each in range(RANKS)][rank]
        outer = nn.parallel.DistributedDataParallel(made, process_group=alone)
        with sp.shard(outer, batch) as local:
            sp.backward(outer(**local).loss)
    refused("data group", over_the_data_group)
    made.train(rank == 0)
    refused("mode", lambda: step(made, batch))
    hybrid = parallel("MiniMax")
    for name, holder, what in (("dropout of attention", hybrid.model.layers[1].self_attn, "attention_dropout"),
                               ("dropout of a module", hybrid.model.layers[0].mlp, "extra"),
                               ("dropout of a configuration", hybrid.config, "attention_dropout")):
        setattr(holder, what, nn.Dropout(0.25 + rank / 4) if what == "extra" else 0.25 + rank / 4)
        refused(name, lambda: step(hybrid, batch))
        setattr(holder, what, nn.Dropout(0.0) if what == "extra" else 0.0)
    found["no dropout"] = "" if step(hybrid, batch) is not None else None
    mamba = transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1))
    refused("unknown layer", lambda: sp.parallelize(mamba, sequence_group()))
    shifted = hf_models.make("Mamba2")
    shifted.backbone.layers[1].norm = _Shift()
    refused("a layer of one's own", lambda: sp.parallelize(shifted, sequence_group()))
    found["as it was"] = not any("forward" in each.__dict__ for each in shifted.modules())
    torch.manual_seed(rank)
    other = hf_models.make("Mamba2")
    nn.init.normal_(other.lm_head.weight, generator=torch.Generator().manual_seed(rank))
    refused("weights", lambda: sp.parallelize(other, sequence_group()))
    refused("softmax", lambda: sp.time_segments(parallel("MiniMax"), batch, segment=10))
    refused("short pieces", lambda: sp.time_segments(made.train(), batch, segment=18))
    refused("no labels", lambda: sp.time_segments(made, {"input_ids": batch["input_ids"]}, segment=10))
    engine = type("DeepSpeedEngine", (nn.Sequential,), {"__module__": "deepspeed.runtime.engine"})(made)
    refused("an engine", lambda: sp.time_segments(engine, batch, segment=10))
    made.gradient_checkpointing_enable()
    refused("recomputed", lambda: sp.time_segments(made, batch, segment=10))
    growing = hf_models.make("MiniMax")
    growing.model.layers[0].self_attn.slope_rate.neg_()
    refused("decays", lambda: sp.parallelize(growing, sequence_group()))
    scaled = hf_models.make("MiniMax", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    refused("positions", lambda: sp.parallelize(scaled, sequence_group()))
    zigzagged = parallel("Mamba2", ownership="zigzag")
    refused("unequal parts", lambda: step(zigzagged, batch))
    refused("a prompt of unequal parts", lambda: sp.prefill(zigzagged.eval(), {"input_ids": batch["input_ids"]}))
    refused("segments of a zigzag", lambda: sp.time_segments(zigzagged, batch, segment=8))
    refused("each zigzag", lambda: parallel("Mamba2", ownership="zigzag_each"))
    refused("ownerships", lambda: parallel("Mamba2", ownership="zigzag" if rank == 0 else "contiguous"))
    refused("no model", lambda: sp.parallelize(nn.Linear(2, 2), sequence_group()))
    return found


def _fsdp2(model):
    from torch.distributed.fsdp import fully_shard
    fully_shard(model.backbone.layers[1], mesh=dist.device_mesh.init_device_mesh("cpu", (RANKS,)))
    return model


def _compiled_in_place(model):
    model.backbone.layers[1].compile()
    return model


WRAPPERS = {"ddp": nn.parallel.DistributedDataParallel, "fsdp2": _fsdp2, "compiled": torch.compile,
            "fsdp": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
            "compiled in place": _compiled_in_place}


class _Shift(nn.Module):
    """A token shift, as RWKV has it."""

    def forward(self, x):
        return x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)

    weight = torch.zeros(1)


SENTENCES = {
    "again": "parallelized already",
    "wrapped, ddp": "model: is wrapped already (DistributedDataParallel): parallelize first, then wrap",
    "wrapped, fsdp": "model: is wrapped already (FullyShardedDataParallel)",
    "wrapped, fsdp2": "model.backbone.layers.1: is wrapped already (FSDPMamba2Block)",
    "wrapped, compiled": "model: is compiled already (OptimizedModule): parallelize first, then compile",
    "wrapped, compiled in place": "model.backbone.layers.1: is compiled already (Mamba2Block)",
    "dropout of attention": "model.model.layers.1.self_attn (MiniMaxAttention).attention_dropout = 0.5 on rank 1 and 0.25 on",
    "dropout of a module": "model.model.layers.0.mlp.extra (Dropout).p = 0.5 on rank 1 and 0.25 on rank 0",
    "dropout of a configuration": "model (MiniMaxForCausalLM).config.attention_dropout = 0.5 on rank 1", "no dropout": "",
    "no group": "not parallelized", "outside": "outside of `with shard(model, batch)`",
    "backward outside": "backward: outside", "batches": "batch: rank 1 has something else",
    "short": "has 1 tokens, the sequence group 2 ranks", "unknown key": "token_type_ids",
    "packed rows": "packed sequences are one row", "the whole batch": "was given 37 tokens, this rank's share has",
    "data group": "wrap it over all ranks", "mode": "model.train() or model.eval()",
    "unknown layer": "transformers.models.mamba.modeling_mamba.MambaMixer",
    "a layer of one's own": "model.backbone.layers.1.norm (test_torch_hf._Shift)", "weights": "weights: rank 1",
    "softmax": "model.model.layers.1.self_attn (MiniMaxAttention): is a softmax layer",
    "short pieces": "the last has 1, and the sequence group has 2 ranks", "no labels": "batch: has no labels",
    "an engine": "an engine of DeepSpeed", "recomputed": "recomputes activations",
    "decays": "model.model.layers.0.self_attn (MiniMaxLightningAttention): slope_rate of head 0 = -",
    "positions": "model.rotary_emb (MiniMaxRotaryEmbedding): its rotary factors",
    "unequal parts": "has 37 tokens, and the sequence group's zigzag cuts them into 4 equal parts: pad the batch to 40",
    "a prompt of unequal parts": "pad the batch to 40", "ownerships": "group: rank 1 has something else",
    "segments of a zigzag": "time_segments: not with ownership = 'zigzag'",
    "each zigzag": "parallelize: not with ownership = 'zigzag_each'",
    "no model": "must be a model of transformers"}

ZIGZAG = ("Mamba2", "Qwen3Next", "Bamba")
PADDED = [*((name, side) for name in ("MiniMax", "Mamba2", "Qwen3Next") for side in ("left", "right")),
          ("MiniMax", "left", "zigzag"), ("Bamba", "right", "zigzag")]
PACKED = [("MiniMax", "positions"), ("Mamba2", "positions"), ("Qwen3Next", "offsets"), ("KimiLinear", "positions"),
          ("Qwen3Next", "offsets", "zigzag")]
SEGMENTED = ("Mamba2", "Qwen3.5")
DECODED = [("MiniMax", False), ("Mamba2", True), ("Qwen3Next", True), ("Bamba", True, "cpu", "zigzag")]
WRAPPED = ("ddp", "ddp, zigzag", "ddp, the inner model given", "fsdp", "fsdp2", "ddp, segments", "fsdp2, segments")
CHECKS = [*((("model", name), model, (name,)) for name in hf_models.MODELS),
          *((("autocast", name), autocast, (name,)) for name in hf_models.MODELS),
          *((("padded", *each), hf_ranks.padded, each) for each in PADDED),
          *((("packed", *each), packed, each) for each in PACKED),
          *((("wrapped", how), wrapped, (how, hf_models.WITHOUT_SOFTMAX["MiniMax"] if "segments" in how else {}))
            for how in WRAPPED),
          *((("segmented", name), segmented, (name,)) for name in SEGMENTED),
          *((("zigzag", name), zigzag, (name,)) for name in ZIGZAG),
          *((("pairs", ownership), pairs, (ownership,)) for ownership in LENGTHS),
          *((("balanced", ownership), balanced, (ownership,)) for ownership in LENGTHS),
          *((("functions", name), functions, (name,)) for name in test_torch_hf_functions.CASES),
          ("one rank", one_rank, ()), ("accumulated", accumulated, ()), ("refusals", refusals, ()),
          *((("decoded", *each), hf_ranks.decoded, each) for each in DECODED)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return hf_ranks.run(tmp_path_factory.mktemp("ranks"), RANKS, CHECKS)


@pytest.mark.parametrize("name", hf_models.MODELS)
def test_models(reports, name):
    for each in hf_ranks.found(reports, ("model", name)):
        assert_near(each["far"], each["noise"])
        assert each["operations"] and each["taken"] and each["restored"]


@pytest.mark.parametrize("name", hf_models.MODELS)
def test_autocast(reports, name):
    for own, far in hf_ranks.found(reports, ("autocast", name)):
        assert far <= 2 * own, (own, far)  # of one batch; medians of three are within 1.5 (test_torch_hf_full)


@pytest.mark.parametrize("case", PADDED)
def test_padding(reports, case):
    for far, noise in hf_ranks.found(reports, ("padded", *case)):
        assert_near(far, noise)


def noise_of(reports, name):
    return hf_ranks.found(reports, ("model", name))[0]["noise"]


@pytest.mark.parametrize("case", PACKED)
def test_packed_sequences(reports, case):
    for far in hf_ranks.found(reports, ("packed", *case)):
        assert_near(far, noise_of(reports, case[0]))


@pytest.mark.parametrize("name", ZIGZAG)
def test_zigzag(reports, name):
    for far in hf_ranks.found(reports, ("zigzag", name)):
        assert_near(far, noise_of(reports, name))


def test_a_zigzag_balances_softmax_layers(reports):
    first, last = hf_ranks.found(reports, ("pairs", "zigzag"))
    every = LENGTHS["zigzag"] * (LENGTHS["zigzag"] + 1) // 2
    assert first == last == every // RANKS
    first, last = hf_ranks.found(reports, ("pairs", "contiguous"))
    assert first < last and first + last == every


def test_a_zigzag_of_one_rank(reports):
    for far, logits in hf_ranks.found(reports, "one rank"):
        assert_near(far, noise_of(reports, "Qwen3Next"))
        assert logits <= 2.0**-18


@pytest.mark.parametrize("name", SEGMENTED)
def test_time_segments(reports, name):
    for steps, noise, loss, gradients in hf_ranks.found(reports, ("segmented", name)):
        for far in steps:
            assert_near(far, noise)
        assert loss <= hf_ranks.LOSS_BOUND and not gradients


@pytest.mark.parametrize("name", test_torch_hf_functions.CASES)
def test_functions_over_ranks(reports, name):
    for far in hf_ranks.found(reports, ("functions", name)):
        assert len(far) > 3 and max(far.values()) <= test_torch_hf_functions.BOUND, far


@pytest.mark.parametrize("how", WRAPPED)
def test_wrappers(reports, how):
    for far, noise in hf_ranks.found(reports, ("wrapped", how)):
        assert_near(far, noise)


def test_accumulation_and_checkpointing(reports):
    for far in hf_ranks.found(reports, "accumulated"):
        assert_near(far, noise_of(reports, "MiniMax"))


@pytest.mark.parametrize("ownership", LENGTHS)
def test_loss_of_routers(reports, ownership):
    for far, without in hf_ranks.found(reports, ("balanced", ownership)):
        assert_near(far, noise_of(reports, "MiniMax"))
        assert without["loss"] > 0.1


@pytest.mark.parametrize("case", DECODED)
def test_decoding_after_a_split_prefill(reports, case):
    for found in hf_ranks.found(reports, ("decoded", *case)):
        hf_ranks.assert_decoded(*found)


def test_refusals(reports):
    for rank, sentences in enumerate(hf_ranks.found(reports, "refusals")):
        assert sentences.pop("as it was")
        own = sentences.pop("one rank's")
        assert ("rank 1 refused" if rank == 0 else "does not go with input_ids") in own
        assert sentences.keys() == SENTENCES.keys()
        for name, words in SENTENCES.items():
            assert sentences[name] is not None and words in sentences[name], (name, sentences[name])
