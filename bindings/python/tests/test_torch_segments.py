"""time_segments: a step in pieces of time gives what one piece gives, and refuses what cannot be cut."""
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
import support  # noqa: E402
from liblasp.torch import segments  # noqa: E402
from liblasp.torch.walking import Walk  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

TOKENS, WORDS = 4096, 64


class Block(nn.Module):
    def __init__(self, width, heads, decay, dropout=0.0, mixer=None, norm=True):
        super().__init__()
        self.attention = lt.LinearAttention(width, heads, decay=decay, norm=norm)
        self.mixer = mixer
        self.drop = nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.drop(self.attention(F.rms_norm(x, x.shape[-1:])))
        if self.mixer is not None:
            x = x + self.mixer(x)
        return x + self.down(F.silu(self.up(F.rms_norm(x, x.shape[-1:]))))


class Model(nn.Module):
    def __init__(self, decay="scalar", dropout=0.0, mixer=None, norm=True, width=32, heads=4):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList([Block(width, heads, decay, dropout, each, norm) for each in (None, mixer)])
        self.head = nn.Linear(width, WORDS)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(tokens=TOKENS, rows=2):
    ids = torch.randint(WORDS, (rows, tokens + 1), generator=torch.Generator().manual_seed(7))
    return ids[:, :-1], ids[:, 1:]


def mean_loss(count):
    return lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum") / count


def step(model, segment, tokens=TOKENS, **options):
    inputs, targets = batch(tokens)
    for parameter in model.parameters():
        parameter.grad = None
    loss = lt.time_segments(model, inputs, targets, mean_loss(targets.numel()), segment=segment, **options)
    return float(loss), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def largest_error(some, others):
    return max(float((some[name] - others[name]).norm() / others[name].norm()) for name in others)


# A gradient is a sum over 8,192 tokens of float32 products, behind two attentions and six other layers. One piece and
# several add the same terms in another order. A term goes through at most log2(8192) = 13 sums of a tree, whose
# roundings, u = 2^-24 each, differ in sign: sqrt(13) u = 2.2e-7 for each layer, and eight layers one after the other.
BOUND = 8 * 2.2e-7


@pytest.mark.parametrize("decay", ("none", "head", "scalar", "channel"))
def test_gradients_are_those_of_one_piece(decay):
    model = Model(decay)
    inputs, targets = batch()
    whole = mean_loss(targets.numel())(model(inputs), targets)
    whole.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    for segment in (TOKENS, 1500, 600):  # one, three and seven pieces, the last ones shorter
        loss, gradients = step(model, segment)
        assert loss == pytest.approx(float(whole.detach()), rel=4e-7)
        assert largest_error(gradients, expected) <= BOUND, segment
    assert all(torch.equal(again, gradients[name]) for name, again in step(model, 600)[1].items())


def test_dropout_is_the_same_in_both_passes():
    """Beside the same segments in one graph, whose random numbers come in the same order."""
    model = Model(dropout=0.3)
    inputs, targets = batch(100)
    torch.manual_seed(11)
    total, states = 0.0, None
    for begin in (0, 40, 80):
        with Walk(states, 40) as walk:
            total = total + mean_loss(targets.numel())(model(inputs[:, begin:begin + 40]), targets[:, begin:begin + 40])
        states = walk.leaving
    after = torch.get_rng_state()
    total.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    torch.manual_seed(11)
    loss, gradients = step(model, 40, 100)
    assert loss == pytest.approx(float(total.detach()), rel=4e-7)
    assert largest_error(gradients, expected) <= BOUND
    assert torch.equal(torch.get_rng_state(), after)


def test_gradients_are_added():
    model = Model()
    inputs, targets = batch(64)
    _, once = step(model, 20, 64)
    lt.time_segments(model, inputs, targets, mean_loss(targets.numel()), segment=20)
    twice = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert largest_error(twice, {name: 2 * gradient for name, gradient in once.items()}) <= BOUND


def test_gradients_of_the_states_are_those_of_one_graph(monkeypatch):
    """Each state at each cut, beside the same segments in one graph."""
    model = Model()
    inputs, targets = batch()
    total, states, at_cuts = 0.0, None, []
    for begin in range(0, TOKENS, 600):
        end = min(begin + 600, TOKENS)
        with Walk(states, end - begin) as walk:
            total = total + mean_loss(targets.numel())(model(inputs[:, begin:end]), targets[:, begin:end])
        states = walk.leaving
        at_cuts.append(states)
        for state in states:
            state.retain_grad()
    total.backward()
    found, gradient_of = [], segments._gradient_of
    monkeypatch.setattr(segments, "_gradient_of", lambda state: found.append(gradient_of(state)) or found[-1])
    step(model, 600)
    expected = [state.grad for states in reversed(at_cuts[:-1]) for state in states]
    assert len(found) == len(expected) == 2 * 6
    for one, other in zip(found, expected):
        assert float((one - other).norm() / other.norm()) <= BOUND


def test_progress_is_told():
    told = []
    step(Model(), 40, 100, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 5) for done in range(1, 6)]


class Bar:
    """As much of tqdm as is asked for."""

    def __init__(self, total, desc, unit):
        self.left = total

    def __enter__(self):
        Bar.last = self
        return self

    def __exit__(self, *exception):
        self.closed = True

    def update(self):
        self.left -= 1


def test_a_bar_is_drawn(monkeypatch):
    for name, module in (("tqdm", types.ModuleType("tqdm")), ("tqdm.auto", types.ModuleType("tqdm.auto"))):
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["tqdm.auto"].tqdm = Bar
    step(Model(), 40, 100, progress=True)
    assert Bar.last.left == 0 and Bar.last.closed
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(liblasp.InvalidArgument, match="^progress = True: the bar needs the package tqdm"):
        step(Model(), 40, 100, progress=True)


def test_the_first_pass_ends_with_the_last_state():
    """What follows is computed in the first segment, where nobody knows how many states there are, and in the second
    passes; everywhere, where random numbers are drawn or a hook waits for the end."""
    def heads_run(**options):
        model, runs = Model(**options), []
        model.head.forward = lambda x, forward=model.head.forward: runs.append(1) or forward(x)
        step(model, 20, 100, check=False)
        return len(runs)
    assert heads_run() == 1 + 5
    assert heads_run(dropout=0.5) == 4 + 5
    model, ends = Model(), []
    model.register_forward_hook(lambda *_: ends.append(1))
    step(model, 20, 100, check=False)
    assert len(ends) == 4 + 5


def test_autocast():
    """In bfloat16 one piece and three are two roundings of one gradient: each is about as far from float32's as the
    other. Twice as far is allowed, for the spread. A parameter whose cast outlived a pass would have no gradient."""
    model = Model()
    inputs, targets = batch(300)
    wanted = step(model, 300, 300)[1]
    with torch.autocast("cpu", torch.bfloat16):
        one = step(model, 300, 300)[1]
        three = step(model, 130, 300)[1]
    for name in wanted:
        rounding = float((one[name] - wanted[name]).norm())
        assert float((three[name] - wanted[name]).norm()) <= 2 * rounding, name


def test_compiled_blocks():
    """By TorchDynamo, whose graphs break at the attention."""
    model = Model()
    _, expected = step(model, 30, 100)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    _, gradients = step(model, 30, 100)
    assert largest_error(gradients, expected) <= BOUND


@pytest.mark.parametrize("offsets", ([0, 100], [0, 30, 60, 100], [0, 1, 2, 29, 29, 31, 95, 100], [0, 0, 77, 100]))
def test_packed_sequences_are_cut_anywhere(offsets):
    """Beside each sequence alone, in one piece. Without the norm of each head, which magnifies the rounding of a
    sequence's first outputs, where they are nearly zero."""
    model = Model(mixer=lt.ShortConvolution(32, 4, activation="silu"), norm=False)
    inputs, targets = batch(100, rows=1)
    total = sum(mean_loss(100)(model(inputs[:, begin:end]), targets[:, begin:end])
                for begin, end in zip(offsets, offsets[1:]) if begin < end)
    total.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    for segment in (100, 30, 7):
        for parameter in model.parameters():
            parameter.grad = None
        loss = lt.time_segments(model, inputs, targets, mean_loss(100), segment=segment, cu_seqlens=offsets)
        assert float(loss) == pytest.approx(float(total.detach()), rel=4e-7)
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        assert largest_error(found, expected) <= BOUND, segment


def test_short_convolutions_are_carried():
    """Also by segments that are shorter than the convolution is wide."""
    model = Model(mixer=lt.ShortConvolution(32, 8, bias=True), norm=False)
    _, expected = step(model, 100, 100)
    for segment in (40, 5):
        assert largest_error(step(model, segment, 100)[1], expected) <= BOUND


class Shift(nn.Module):
    """Token shift, as in RWKV."""

    def forward(self, x):
        return F.pad(x, (0, 0, 1, 0))[:, :-1]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.short = nn.Conv1d(32, 32, 4, padding=3, groups=32)

    def forward(self, x):
        return self.short(x.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2)


class Softmax(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4096, 32)

    def forward(self, x):
        return 0.02 * self.table(torch.arange(x.shape[1])).expand_as(x)


class Silent(nn.Module):
    """Softmax attention whose last layer begins at zero, as is usual: it shows in nothing that leaves it."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(32, 32)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        return self.out(F.scaled_dot_product_attention(x, x, x, is_causal=True))


class Flattened(nn.Module):
    """Acts on tokens alone, on a matrix whose second dimension is as long as what is tried out."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x):
        return self.inner(x.flatten(0, 1)).view_as(x)


@pytest.mark.parametrize("mixer, named", [(Shift, r"mixer \(Shift\)"), (Convolution, r"mixer \(Convolution\)"),
                                          (Softmax, r"mixer \(Softmax\)"),
                                          (Positions, r"mixer \(Positions\)"), (Silent, r"mixer \(Silent\)"),
                                          (lambda: nn.BatchNorm1d(64), r"mixer \(BatchNorm1d\)")])
def test_what_mixes_tokens_is_named(mixer, named):
    model = Model(mixer=mixer())
    with pytest.raises(liblasp.Unsupported, match=rf"^model\.blocks\.1\.{named} mixes tokens"):
        step(model, 64, 128)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


def test_what_acts_on_tokens_alone_is_taken():
    step(Model(mixer=Flattened()), 64, 128)
    step(Model(mixer=Flattened()), 8, 20)


def test_what_a_model_does_between_its_modules_is_seen():
    class Averaging(Model):
        def forward(self, ids):
            return self.head(self.blocks[0](self.embedding(ids)).cumsum(1))
    with pytest.raises(liblasp.Unsupported, match=r"^model \(Averaging\) mixes tokens"):
        step(Averaging(), 64, 128)


def test_the_loss_alone():
    """Without gradients: the same loss, by one pass."""
    model, told = Model(mixer=lt.ShortConvolution(32, 4)), []
    inputs, targets = batch(100)
    trained, _ = step(model, 30, 100)
    for parameter in model.parameters():
        parameter.grad = None
    with torch.no_grad():
        loss = lt.time_segments(model, inputs, targets, mean_loss(targets.numel()), segment=30,
                                progress=lambda *of: told.append(of))
    assert float(loss) == pytest.approx(trained, rel=4e-7) and told[-1] == (4, 4) and len(told) == 4
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_short_sequence_does_not_stand_for_a_long_one():
    model = Model(mixer=Shift())
    step(model, 1, 1)  # too short to tell
    with pytest.raises(liblasp.Unsupported, match="mixer"):
        step(model, 64, 128)


class Uneven(nn.Module):
    """Calls its attention twice in pieces of one length."""

    def __init__(self, tokens):
        super().__init__()
        self.model, self.tokens = Model(), tokens

    def forward(self, ids):
        out = self.model(ids)
        return out + self.model(ids) if ids.shape[1] == self.tokens else out


class Reshaped(nn.Module):
    """Has four heads in pieces of one length, and two in others."""

    def __init__(self):
        super().__init__()
        self.x = nn.Embedding(WORDS, 32)

    def forward(self, ids):
        x = self.x(ids).unflatten(-1, (4, 8) if ids.shape[1] == 64 else (2, 16))
        return lt.linear_attention(x, x, x).flatten(2)


class Checkpointed(Model):
    def __init__(self, checkpoint, **options):
        super().__init__()
        self.checkpoint, self.options = checkpoint, options

    def forward(self, ids):
        return self.head(self.checkpoint(self.blocks[0], self.embedding(ids), **self.options))


def test_bad_input():
    model, (inputs, targets) = Model(), batch(100)

    def refused(words, kind=liblasp.InvalidArgument, **changed):
        given = {"model": model, "inputs": inputs, "targets": targets, "loss": mean_loss(1), "segment": 64, **changed}
        support.refused(words, lambda: lt.time_segments(**given), kind)

    refused("segment = 0: must be", segment=0)
    refused("segment = 2.5: must be", segment=2.5)
    refused("model = .*: must be a torch.nn.Module", model=5)
    engine = type("DeepSpeedEngine", (Model,), {"__module__": "deepspeed.runtime.engine"})
    refused("model: an engine of DeepSpeed", liblasp.Unsupported, model=engine())
    refused(r"targets: a tensor has 99 tokens, inputs\[0\] has 100", targets=targets[:, :-1])
    refused(r"inputs: must be a tensor \[B, T, ...\]", inputs=inputs[0])
    refused(r"loss: must return a scalar tensor, not a tensor \[2, 36, 64\]", loss=lambda output, targets: output)
    refused("loss: must return a scalar tensor, not None", loss=lambda output, targets: None)
    refused("check = 'no'", check="no")
    refused("cu_seqlens: goes from 0 to 99, must go from 0 to the 100 tokens", cu_seqlens=[0, 50, 99])
    refused(r"cu_seqlens\[2\] = 20: is below the 50", cu_seqlens=[0, 50, 20, 100])
    refused("model: no linear attention of liblasp.torch was called", model=nn.Embedding(WORDS, 64))
    refused("model: carries more than the 2 states", model=Uneven(36))
    refused("model: carries 2 states in this segment and 4 in the one before", model=Uneven(64))
    refused(r"initial_state: shape \(2, 4, 8, 8\), must be \(2, 2, 16, 16\)", model=Reshaped(), check=False)
    refused("causal=False in time_segments", liblasp.Unsupported,
            model=lt.LinearAttention(32, 4, decay="none", causal=False), inputs=torch.randn(1, 100, 32),
            targets=torch.zeros(1, 100))
    assert all(parameter.grad is None for parameter in model.parameters())
    refused("^liblasp.torch.checkpoint inside of time_segments", liblasp.Unsupported, model=Checkpointed(lt.checkpoint))
    for reentrant in (False, True):
        model = Checkpointed(torch.utils.checkpoint.checkpoint, use_reentrant=reentrant)
        refused("^torch.utils.checkpoint inside of time_segments", liblasp.Unsupported, model=model)
    with lt.SequenceGroup(liblasp.Comm.threads(2)[1]) as group:
        refused("group: a linear_attention of the model is rank 0 of 1, time_segments is rank 1 of 2", group=group)
        given = Model(mixer=lt.ShortConvolution(32, 4, group=group))
        refused("group: a ShortConvolution of the model is rank 1 of 2, time_segments is rank 0 of 1", model=given)
    x = torch.randn(1, 8, 2, 8)
    with pytest.raises(liblasp.Unsupported, match="^cu_seqlens in a model"), Walk(None, 8):
        lt.linear_attention(x, x, x, cu_seqlens=[0, 4, 8])
    assert lt.linear_attention(x, x, x).shape == x.shape  # no walk is left behind
