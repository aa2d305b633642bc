"""liblasp.torch.verify: silent where a split step is right, and names each of the usual mistakes, planted here."""
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import hf_models  # noqa: E402
import hf_ranks  # noqa: E402
import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from hf_ranks import LENGTHS, sequence_group  # noqa: E402
from liblasp.torch.ownership import runs_of  # noqa: E402

RANKS = 2


def parallel(name, ownership="contiguous", **changes):
    from liblasp.torch import hf as sp
    return sp.parallelize(hf_models.make(name, **changes), sequence_group(ownership))


def findings(model, batch=None, ownership="contiguous", group=None, **options):
    batch = batch or hf_models.batch_of(tokens=LENGTHS[ownership])
    report = lt.verify(model, batch, group or sequence_group(), **options)
    assert all(line in str(report) for each in report.findings for line in (each.where, each.kind, each.sentence))
    return [(each.where, each.kind) for each in report.findings]


# ---- Steps with one mistake each ----

def summed(model, loss):
    """What a trainer does that has no wrapper."""
    loss.backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)


def by_hand(model, batch, change=None, ranks=1):
    """A step of one's own, in which `change` may spoil what the model is given."""
    from liblasp.torch import hf as sp
    with sp.shard(model, batch) as local:
        if change is not None:
            change(local)
        loss = model(**local).loss
        sp.backward(loss * ranks)
    return loss


def mean_per_rank(model, batch):
    from liblasp.torch import hf as sp
    with sp.shard(model, batch) as local:
        loss = F.cross_entropy(model(**local).logits.flatten(0, 1), local["shift_labels"].flatten())
        summed(model, loss / RANKS)
    return loss


def local_labels(model, batch):
    def change(local):
        own = local["shift_labels"].clone()
        own[:, -1] = -100
        local["shift_labels"] = own
    return by_hand(model, batch, change)


def local_labels_and_means(model, batch):
    from liblasp.torch import hf as sp
    with sp.shard(model, batch) as local:
        logits, labels = model(**local).logits, local["input_ids"]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        summed(model, loss / RANKS)
    return loss


def no_positions(model, batch):
    return by_hand(model, batch, lambda local: local.pop("position_ids"))


def counted_twice(model, batch):
    return by_hand(model, batch, ranks=RANKS)


class patched:
    """A module's function that forgets some of its arguments."""

    def __init__(self, module, name, **forgotten):
        self.module, self.name, self.own, self.forgotten = module, name, getattr(module, name), forgotten

    def __enter__(self):
        setattr(self.module, self.name, lambda *arguments, **options: self.own(
            *arguments, **{**options, **self.forgotten}))

    def __exit__(self, *exception):
        setattr(self.module, self.name, self.own)


def forgotten(name, module, function, packed=False, changes=(), ownership="contiguous", **arguments):
    import importlib
    with patched(importlib.import_module(module), function, **arguments):
        return findings(parallel(name, ownership, **dict(changes)), ownership=ownership, packed=packed)


def hidden_by_fast_decays(name, module, slowly):
    """What is found of a recurrence without its group where decays are so fast that nothing of a state is left after a
    token; `slowly`: as verify does it, or with these decays."""
    import contextlib
    from liblasp.torch import verifying
    model = parallel(name)
    with torch.no_grad():
        for each in model.modules():
            if hasattr(each, "A_log"):
                each.A_log.fill_(10.0)
            if hasattr(each, "slope_rate"):
                each.slope_rate.mul_(1e6)
                for name, factors in zip(("query_decay", "key_decay", "diagonal_decay"),
                                         each.decay_factors(each.slope_rate)):
                    getattr(each, name).copy_(factors)
    own = verifying.slow_decays
    try:
        if not slowly:
            verifying.slow_decays = lambda model: contextlib.nullcontext(0)
        import importlib
        with patched(importlib.import_module(module), "linear_attention", **ALONE):
            return findings(model, packed=False)
    finally:
        verifying.slow_decays = own


def scaled_softmax(ownership):
    """Which gives twice what it should, in the layer that has it."""
    from liblasp.torch.hf import operations
    own = operations.softmax_attention
    operations.softmax_attention = lambda *arguments, **options: RANKS * own(*arguments, **options)
    try:
        return findings(parallel("MiniMax", ownership), ownership=ownership, packed=False)
    finally:
        operations.softmax_attention = own


# ---- A model of one's own ----

class Own(nn.Module):
    def __init__(self, group, forget=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(hf_models.WORDS, 32)
        self.layers = nn.ModuleList(lt.LinearAttention(32, 2, group=None if forget and at else group) for at in range(2))
        self.head = nn.Linear(32, hf_models.WORDS)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def own(mistake, ownership="contiguous"):
    ids = hf_models.batch_of()["input_ids"]
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}

    def loss_of(model, batch):
        logits = model(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum") / ids[:, 1:].numel()

    def split(model, batch):
        loss = loss_of(model, {name: lt.shard(each, dist.get_rank(), RANKS, ownership=ownership)
                               for name, each in batch.items()})
        summed(model, loss)
        if mistake == "gradients twice":
            for each in model.layers[1].parameters():
                dist.all_reduce(each.grad)
        dist.all_reduce(total := loss.detach().clone())
        return total

    def whole(model, batch):
        for layer in model.layers:
            layer.kept, layer.group = layer.group, None
        loss = loss_of(model, batch)
        loss.backward()
        for layer in model.layers:
            layer.group = layer.kept
        return loss

    group = sequence_group(ownership)
    made = Own(group, mistake == "no group")
    if mistake == "outputs twice":  # as a sum over ranks of what each of them has whole
        layer = made.layers[1]
        forward = layer.forward
        layer.forward = lambda x: forward(x) * (1 if layer.group is None else RANKS)
    return findings(made, batch, group=group, split=split, whole=whole)


def undisturbed():
    """Gradients, training mode and decays are as they were."""
    model = parallel("MiniMax")
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    findings(model)
    return (all(torch.equal(each, before[name]) for name, each in model.state_dict().items()) and model.training
            and all(bool((each.grad == 1).all()) for each in model.parameters()))


def refusals():
    found = []
    model, batch, group = hf_models.make("Mamba2"), hf_models.batch_of(), sequence_group()
    for arguments, options in (((model, batch, group), {}), ((5, batch, group), {}), ((model, {}, group), {}),
                               ((model, batch, group), {"split": 5}), ((model, batch, None), {"split": no_positions}),
                               ((model, batch, sequence_group("zigzag")), {"split": no_positions}),
                               ((model, batch, sequence_group("zigzag_each")), {"split": no_positions}),
                               ((model, hf_models.batch_of(tokens=1), group), {"split": no_positions})):
        try:
            lt.verify(*arguments, **options)
            found.append(None)
        except liblasp.Error as error:
            found.append(str(error))
    return found


LIGHTNING, OPERATIONS, ATTENTION = "model.layers.0.self_attn", "liblasp.torch.hf.operations", "model.layers.1.self_attn"
FUNCTIONS = "liblasp.torch.hf.functions"
ALONE = {"group": None, "total_tokens": None, "cu_seqlens": None}
# name: how, and what is to be found
MISTAKES = {
    "no group, Lightning": (forgotten, ("MiniMax", "liblasp.torch.hf.lightning", "linear_attention"), ALONE,
                            [(LIGHTNING, "restarts")]),
    "no group, convolution": (forgotten, ("Mamba2", FUNCTIONS, "causal_conv1d"), {"group": None, "total_tokens": None},
                              [(f"backbone.layers.{at}.mixer", "restarts") for at in range(2)]),
    # The norm behind it takes the scale away again, but for its epsilon, which counts where weights are as small as at
    # the beginning of training.
    "default scale": (forgotten, ("MiniMax", "liblasp.torch.hf.lightning", "linear_attention", False,
                                  (("initializer_range", 0.02),)), {"scale": None}, [(LIGHTNING, "differs")]),
    "default scale of the delta rule": (forgotten, ("Qwen3Next", "liblasp.torch.dropins", "linear_attention"),
                                        {"scale": 1.0}, [("model.layers.0.linear_attn", "differs")]),
    "default scale of softmax": (forgotten, ("MiniMax", OPERATIONS, "softmax_attention"), {"scale": 1.0},
                                 [(ATTENTION, "differs")]),
    "leaks, Lightning": (forgotten, ("MiniMax", "liblasp.torch.hf.lightning", "linear_attention", True),
                         {"cu_seqlens": None}, [(LIGHTNING, "leaks")]),
    "leaks, softmax": (forgotten, ("MiniMax", OPERATIONS, "softmax_attention", True), {"cu_seqlens": None},
                       [(ATTENTION, "leaks")]),
    "leaks, delta rule": (forgotten, ("Qwen3Next", "liblasp.torch.dropins", "linear_attention", True), {"cu_seqlens": None},
                          [("model.layers.0.linear_attn", "leaks")]),
    "leaks, convolution of the delta rule": (forgotten, ("Qwen3Next", FUNCTIONS, "causal_conv1d", True),
                                             {"cu_seqlens": None}, [("model.layers.0.linear_attn", "leaks")]),
    "leaks, convolution": (forgotten, ("Mamba2", FUNCTIONS, "causal_conv1d", True), {"cu_seqlens": None},
                           [(f"backbone.layers.{at}.mixer", "leaks") for at in range(2)]),
    "scaled": (scaled_softmax, (), {}, [(ATTENTION, "scaled")]),
}
FAST = {"MiniMax": ("liblasp.torch.hf.lightning", [(LIGHTNING, "restarts")]),
        "Mamba2": ("liblasp.torch.dropins", [(f"backbone.layers.{at}.mixer", "restarts") for at in range(2)])}
OWN = {None: [], "no group": [("layers.1", "restarts")], "outputs twice": [("layers.1", "scaled")],
       "gradients twice": [("gradients of layers.1", "double counts")]}
STEPS = {"mean per rank": (mean_per_rank, ("loss", "mean per rank")),
         "local labels": (local_labels, ("loss", "local labels")),
         "local labels and means": (local_labels_and_means, ("loss", "local labels")),
         "no positions": (no_positions, ("model.rotary_emb", "positions")),
         "counted twice": (counted_twice, ("gradients", "double counts"))}


# With the ownership of the group that a model is parallelized for; verify is given the process group.
IN_OPERATIONS = [*((name, "contiguous") for name in MISTAKES), ("no group, Lightning", "zigzag"),
                 ("leaks, softmax", "zigzag")]
IN_STEPS = [*((name, "contiguous") for name in STEPS), ("local labels and means", "zigzag"), ("no positions", "zigzag")]
RIGHT = [("MiniMax", "contiguous"), ("Mamba2", "contiguous"), ("Qwen3Next", "contiguous"), ("Qwen3Next", "zigzag")]


def mistake(name, ownership):
    how, arguments, options, _ = MISTAKES[name]
    return how(*arguments, ownership=ownership, **options)


def step(name, ownership):
    return findings(parallel("MiniMax", ownership), ownership=ownership, split=STEPS[name][0])


def right(name, ownership):
    return findings(parallel(name, ownership), ownership=ownership)


CHECKS = [*((("mistake", *each), mistake, each) for each in IN_OPERATIONS),
          *((("step", *each), step, each) for each in IN_STEPS), *((("right", *each), right, each) for each in RIGHT),
          *((("fast", name, slowly), hidden_by_fast_decays, (name, FAST[name][0], slowly)) for name in FAST
            for slowly in (True, False)),
          *((("own", mistake), own, (mistake,)) for mistake in OWN), ("own zigzag", own, (None, "zigzag")),
          ("undisturbed", undisturbed, ()), ("refusals", refusals, ())]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return hf_ranks.run(tmp_path_factory.mktemp("ranks"), RANKS, CHECKS)


def found(reports, key):
    one, *others = hf_ranks.found(reports, key)
    assert all(each == one for each in others)
    return one


@pytest.mark.parametrize("name, ownership", IN_OPERATIONS)
def test_mistakes_in_operations(reports, name, ownership):
    assert [each for each in found(reports, ("mistake", name, ownership)) if each[0] != "gradients"] == MISTAKES[name][-1]


@pytest.mark.parametrize("name, ownership", IN_STEPS)
def test_mistakes_in_steps(reports, name, ownership):
    assert STEPS[name][1] in found(reports, ("step", name, ownership))


@pytest.mark.parametrize("name, ownership", RIGHT)
def test_nothing_is_found_where_nothing_is_wrong(reports, name, ownership):
    assert found(reports, ("right", name, ownership)) == []


@pytest.mark.parametrize("wrong, leaks", ((6, True), (4, False)))
def test_leaks_of_a_zigzag(wrong, leaks):
    """A sequence that begins in a rank's second run, and one that came to it from another rank."""
    from liblasp.torch.verifying.diagnosis import _leaks
    place, split = runs_of("zigzag", 16, 0, RANKS), torch.ones(1, 8, 1)
    split[:, wrong] = 2
    assert _leaks(split, torch.ones(1, 8, 1), 1e-4, place, (0, 14, 16)) == leaks


@pytest.mark.parametrize("name", FAST)
def test_fast_decays_hide_nothing(reports, name):
    assert found(reports, ("fast", name, True)) == FAST[name][1]
    assert found(reports, ("fast", name, False)) == []  # so it is the slow decays that show it


@pytest.mark.parametrize("mistake", OWN)
def test_models_of_ones_own(reports, mistake):
    assert found(reports, ("own", mistake)) == OWN[mistake]


def test_a_model_of_ones_own_over_a_zigzag(reports):
    assert found(reports, "own zigzag") == []


def test_the_model_is_as_it_was(reports):
    assert found(reports, "undisturbed")


def test_refusals(reports):
    for sentence, words in zip(found(reports, "refusals"), (
            "split: is needed", "model = 5", "batch: has no tensor", "split = 5", "no process group",
            "the 37 tokens cannot be cut into 4 equal parts", "verify: not with ownership = 'zigzag_each'",
            "batch: has 1 tokens")):
        assert sentence is not None and words in sentence, (words, sentence)


CASE = """
import hf_models, test_torch_verify as steps
from liblasp.torch import hf

def right(group):
    return hf.parallelize(hf_models.make("Mamba2"), group), hf_models.batch_of()

def wrong(group):
    return hf.parallelize(hf_models.make("MiniMax"), group), hf_models.batch_of(), {"split": steps.no_positions}

def failing(group):
    return 1 / 0
"""


def run_command(folder, case):
    path = folder / "case.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n{CASE}")
    run = subprocess.run([sys.executable, "-m", "liblasp.torch.verify", f"{folder}/{case}", "--seconds", "100"],
                         capture_output=True, text=True, timeout=150)
    return run.returncode, run.stdout + run.stderr


def test_the_command(tmp_path):
    status, said = run_command(tmp_path, "case.py:wrong")
    assert status == 1 and "model.rotary_emb: positions" in said, said


@pytest.mark.parametrize("case, status, words", (
    ("case.py:right", 0, "the same numbers"), ("case.py:failing", 2, "ZeroDivisionError"),
    ("other.py:right", 2, "must be a file of Python"), ("case.py", 2, "must be a file of Python")))
def test_the_command_in_full(tmp_path, case, status, words):
    found, said = run_command(tmp_path, case)
    assert found == status and words in said, said
