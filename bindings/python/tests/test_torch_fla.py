"""liblasp.torch.fla: layers of flash-linear-attention on LASP_HF_RANKS ranks (2 where that is not set), against the
unsplit layers, with what are kernels of Triton in both written out (fla_layers)."""
import os
import statistics
import warnings

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import dropin_cases  # noqa: E402
import fla_layers  # noqa: E402
import hf_ranks  # noqa: E402
from fla_layers import LAYERS, WIDTH, make  # noqa: E402
from support import sentence_of  # noqa: E402

RANKS = [int(each) for each in os.environ.get("LASP_HF_RANKS", "2").split()]
STEPS, WORDS = 30, 31
PACKED = (0, 3, 4, 17, 23, 26)  # of 29 tokens: the last three are padding


def normal(*shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def part(value):
    from liblasp.torch import shard
    return shard(value, dist.get_rank(), dist.get_world_size())


def parallel(module):
    from liblasp.torch import fla
    fla.parallelize(module, dist.group.WORLD)
    return module


def step(layer, x, d_y, **options):
    x = x.detach().clone().requires_grad_()
    y = layer(x, **options)[0]
    y.backward(d_y)
    return y.detach(), x.grad, {name: each.grad for name, each in layer.named_parameters() if each.grad is not None}


def summed(gradients):
    wide = {name: each.double() for name, each in gradients.items()}
    for each in wide.values():
        dist.all_reduce(each)
    return wide


def distances(found, y, d_x, gradients):
    """Of a split step from an unsplit one: at the own tokens, and of parameters over all ranks."""
    ours = summed(found[2])
    pairs = {"y": (found[0], part(y)), "x": (found[1], part(d_x)),
             **{key: (ours[key], gradients[key]) for key in gradients}}
    return {key: float((one.double() - other).norm() / other.norm()) for key, (one, other) in pairs.items()}


def compared(name, tokens):
    """How far a split layer's output, its input's gradient and its parameters' are from the unsplit one's."""
    x, d_y = normal(2, tokens, WIDTH), normal(2, tokens, WIDTH, seed=6)
    y, d_x, gradients = step(make(name, torch.float64), x.double(), d_y.double())
    layer = parallel(make(name))
    far = distances(step(layer, part(x), part(d_y)), y, d_x, gradients)
    with torch.no_grad():
        far["without gradients"] = float((layer(part(x))[0].double() - part(y)).norm() / part(y).norm())
    return far


def packed(name):
    """The same of sequences in one row, each of which the unsplit layer has for itself. Nothing comes of padding."""
    x, d_y = normal(1, 29, WIDTH), normal(1, 29, WIDTH, seed=6)
    layer, ys, d_xs = make(name, torch.float64), [], []
    for begin, end in zip(PACKED, PACKED[1:]):
        y, d_x, gradients = step(layer, x[:, begin:end].double(), d_y[:, begin:end].double())  # which add up
        ys.append(y)
        d_xs.append(d_x)
    padding = torch.zeros(1, 29 - PACKED[-1], WIDTH, dtype=torch.float64)
    return distances(step(parallel(make(name)), part(x), part(d_y), cu_seqlens=torch.tensor(PACKED)),
                     torch.cat([*ys, padding], 1), torch.cat([*d_xs, padding], 1), gradients)


def in_bfloat16(name):
    """How far outputs and gradients in bfloat16 are from float32's with the same weights, unsplit and split: medians over
    some inputs."""
    own, made, reference = make(name, torch.bfloat16), parallel(make(name, torch.bfloat16)), make(name)
    reference.load_state_dict(own.state_dict())
    found = []
    for seed in (1, 3, 5):
        x, d_y = (normal(2, 23, WIDTH, seed=seed + at).bfloat16() for at in range(2))
        for each in (own, made, reference):
            each.zero_grad()
        y, d_x, gradients = step(reference, x.float(), d_y.float())
        one, many = step(own, x, d_y), step(made, part(x), part(d_y))
        pairs = [(one[0], y, many[0]), (one[1], d_x, many[1])]
        far = [(over_tokens(ours, whole), over_tokens(part(unsplit), whole)) for unsplit, whole, ours in pairs]
        ours = summed(many[2])
        far.append(tuple(hf_ranks.whole_distance({key: each.double() for key, each in whole.items()}, gradients)
                         for whole in (ours, one[2])))
        found.append([each for pair in far for each in pair])
    return [statistics.median(each) for each in zip(*found)]


def over_tokens(own, whole):
    """The distance of all ranks' tokens from a whole tensor's."""
    far = (own.double() - part(whole).double()).square().sum()
    dist.all_reduce(far)
    return float(far.sqrt() / whole.double().norm())


class Model(nn.Module):
    """A layer of each kind, over words."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(make(name, layer_idx=at) for at, name in enumerate(LAYERS))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(nn.functional.layer_norm(x, (WIDTH,)))[0]
        return self.head(x)


def trained(model, split):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=2e-3), []
    for at in range(STEPS):
        ids = torch.randint(WORDS, (2, 24), generator=torch.Generator().manual_seed(at % 3))
        inputs, targets = ids[:, :-1], ids[:, 1:]
        if split:
            inputs, targets = part(inputs), part(targets)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum") / (2 * 23)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if split:
            for each in (total, *(each.grad for each in model.parameters() if each.grad is not None)):
                dist.all_reduce(each)
        optimizer.step()
        losses.append(float(total))
    return losses


def training():
    return trained(Model(), False), trained(parallel(Model()), True), trained(hf_ranks.nudged(Model()), False)


@torch.no_grad()
def decoded(name):
    """How far a layer's outputs for some tokens are from the unsplit layer's, from the cache that a split prompt of 19 has
    left, and the token counts of the caches."""
    from fla.models.utils import Cache
    x, layer = normal(2, 24, WIDTH), parallel(make(name).eval())
    wanted = make(name, torch.float64).eval()(x.double())[0]
    cache = Cache()
    y, _, given = layer(part(x[:, :19]), past_key_values=cache, use_cache=True)
    far = [float((y.double() - part(wanted[:, :19])).norm() / wanted.norm())]
    for at in range(19, 24):
        y, _, _ = layer(x[:, at:at + 1], past_key_values=cache, use_cache=True)
        far.append(float((y[:, 0].double() - wanted[:, at]).norm() / wanted[:, at].norm()))
    again = parallel(make("SimpleGLA"))  # another's layer still splits
    return {"far": max(far), "tokens": cache.get_seq_length(0), "given": given is cache,
            "split": "forward" in again.q_conv1d.__dict__}


@torch.no_grad()
def by_parallel_retention():
    """RetNet's own way for long sequences without gradients."""
    x, layer = normal(1, 65 * dist.get_world_size(), WIDTH), make("RetNet")
    wanted = make("RetNet", torch.float64)(x.double())[0]
    layer.mode = "parallel"
    return over_tokens(parallel(layer)(part(x))[0], wanted)


def lightning():
    """The function that fla has for Lightning attention, with the decays that fla gives it, over the ranks."""
    from fla.ops.lightning_attn import chunk

    from liblasp.torch import dropins
    chunk.chunk_simple_gla = lambda q, k, v, g_gamma, **options: fla_layers.attend(q, k, v, g_gamma.double())
    q, k, v = (normal(2, 23, 4, 8, seed=seed) for seed in range(3))
    wanted = chunk.chunk_lightning_attn(q.double(), k.double(), v.double(), 1, 4)[0]
    o = dropins.chunk_lightning_attn(*(part(each) for each in (q, k, v)), 1, 4, group=dist.group.WORLD)[0]
    return over_tokens(o, wanted)


def refusals():
    from fla.models.utils import Cache

    from liblasp.torch import SequenceGroup, fla
    found, layer, x = {}, make("GLA"), torch.zeros(1, 4, WIDTH)

    def refused(name, call):
        found[name] = sentence_of(call)
    refused("no layer", lambda: fla.parallelize(nn.Linear(2, 2), dist.group.WORLD))
    refused("no group", lambda: fla.parallelize(layer, None))
    zigzag = SequenceGroup(dist.group.WORLD, ownership="zigzag")
    refused("zigzag", lambda: fla.parallelize(layer, zigzag))
    other = type("HGRNAttention", (nn.Module,), {"__module__": "fla.layers.hgrn", "forward": lambda self, x: x})()
    refused("another", lambda: fla.parallelize(nn.Sequential(layer, other), dist.group.WORLD))
    found["as it was"] = "" if "forward" not in layer.__dict__ else "replaced"
    fla.parallelize(layer, dist.group.WORLD)
    refused("again", lambda: fla.parallelize(layer, dist.group.WORLD))
    refused("mask", lambda: layer(x, torch.ones(1, 4)))
    refused("no cache", lambda: layer(x, use_cache=True))
    refused("cache not used", lambda: layer(x, past_key_values=Cache()))
    refused("packed cache", lambda: layer(x, past_key_values=Cache(), use_cache=True, cu_seqlens=torch.tensor([0, 4])))
    cache = Cache()
    layer(x, past_key_values=cache, use_cache=True)
    refused("a second prompt", lambda: layer(x, past_key_values=cache, use_cache=True))
    retention = parallel(make("RetNet"))
    refused("offsets", lambda: retention(x, cu_seqlens=torch.tensor([0, 4 * dist.get_world_size() + 1])))
    return found


SENTENCES = {"no layer": "model (Linear): has no layer of flash-linear-attention", "no group": "group", "zigzag": "zigzag",
             "another": "model.1 (HGRNAttention): mixes tokens by an operation", "as it was": "",
             "again": "model (GatedLinearAttention): is parallelized already",
             "mask": "model (GatedLinearAttention): attention_mask, which a split layer",
             "no cache": "use_cache and past_key_values go together", "cache not used": "go together",
             "packed cache": "past_key_values with cu_seqlens", "a second prompt": "has seen tokens, and 4 come: give one",
             "offsets": "cu_seqlens: goes from 0 to"}


def prepared(check, *arguments):
    warnings.filterwarnings("ignore")
    fla_layers.in_torch()
    return check(*arguments)


CHECKS = [*((("float32", name, tokens), compared, (name, tokens)) for name in LAYERS for tokens in (23, 4)),
          *((("packed", name), packed, (name,)) for name in LAYERS),
          *((("bfloat16", name), in_bfloat16, (name,)) for name in LAYERS),
          *((("decoded", name), decoded, (name,)) for name in LAYERS),
          ("parallel", by_parallel_retention, ()), ("lightning", lightning, ()), ("dropins", dropin_cases.on_ranks, ()),
          ("training", training, ()), ("refusals", refusals, ())]
# Float32 against float64: the bound of test_torch_support through some products. A wrong border: hundredths.
BOUND = 16 * 2e-6


@pytest.fixture(scope="module", params=RANKS)
def reports(request, tmp_path_factory):
    pytest.importorskip("triton")
    pytest.importorskip("fla")
    checks = [(key, prepared, (check, *arguments)) for key, check, arguments in CHECKS]
    return hf_ranks.run(tmp_path_factory.mktemp("ranks"), request.param, checks)


@pytest.mark.parametrize("tokens", (23, 4))
@pytest.mark.parametrize("name", LAYERS)
def test_full_float32(reports, name, tokens):
    for far in hf_ranks.found(reports, ("float32", name, tokens)):
        assert len(far) > 5 and max(far.values()) <= BOUND, (name, far)


@pytest.mark.parametrize("name", LAYERS)
def test_full_packed_sequences(reports, name):
    for far in hf_ranks.found(reports, ("packed", name)):
        assert len(far) > 5 and max(far.values()) <= BOUND, (name, far)


@pytest.mark.parametrize("name", LAYERS)
def test_full_bfloat16(reports, name):
    """As test_torch_hf_full judges: rounding elsewhere may carry as far as the unsplit layer's own, and half again."""
    for far in hf_ranks.found(reports, ("bfloat16", name)):
        for what, ours, own in zip(("output", "input", "parameters"), far[::2], far[1::2]):
            assert 0 < ours <= 1.5 * own, (name, what, ours, own)


@pytest.mark.parametrize("name", LAYERS)
def test_full_decoding_after_a_split_prompt(reports, name):
    for found in hf_ranks.found(reports, ("decoded", name)):
        assert found.pop("far") <= BOUND
        assert found == {"tokens": 24, "given": True, "split": True}


def test_full_parallel_retention(reports):
    for far in hf_ranks.found(reports, "parallel"):
        assert far <= BOUND


def test_full_lightning_attention(reports):
    for far in hf_ranks.found(reports, "lightning"):
        assert 0 < far <= BOUND


def test_full_functions(reports):
    for report in hf_ranks.found(reports, "dropins"):
        for case, errors in report.items():
            assert max(errors.values()) <= dropin_cases.BOUND, (case, errors)


def test_full_thirty_steps(reports):
    for one, many, moved in hf_ranks.found(reports, "training"):
        assert one[-1] < one[0] - 0.5
        for at in range(STEPS):
            noise = max(abs(a - b) for a, b in zip(one[:at + 1], moved))
            assert abs(many[at] - one[at]) <= 32 * max(noise, 2.0**-20), (at, one[at], many[at], noise)


def test_full_refusals(reports):
    for sentences in hf_ranks.found(reports, "refusals"):
        assert sentences.keys() == SENTENCES.keys()
        for name, words in SENTENCES.items():
            assert sentences[name] is not None and words in sentences[name], (name, sentences[name])
