"""DeltaNet, GatedDeltaNet and KimiDeltaAttention against their formulas, written out in float64; whole and over
ranks."""
import copy

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from support import refused  # noqa: E402
from test_torch_support import BOUNDS, DELTA, recurrence, relative_error, run_ranks  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# A layer is a chain of at most ten float32 operations, each a sum of at most 64 terms of random sign, sqrt(64) u / 2 with
# u = 2^-24, around the attention, whose promise is 3e-6: together sqrt(10) 2.4e-7 + 3e-6, and half as much again,
# since what is normalised is smaller than its terms. A gradient goes through the chain there and back. Those of the
# gates have the promise 1e-5, and sum terms that cancel.
LAYER_BOUND = 1.5 * (10 ** 0.5 * 2.4e-7 + DELTA * BOUNDS[torch.float32])
GRADIENT_BOUND, GATES_BOUND = 2 * LAYER_BOUND, 2 * LAYER_BOUND + 1e-5
GATES = ("a_proj", "b_proj", "f_proj", "A_log", "dt_bias")
D_MODEL = 32
PLAIN = ("DeltaNet", "DeltaNet without convolutions", "GatedDeltaNet", "KimiDeltaAttention")
LAYERS = {
    "DeltaNet": (lt.DeltaNet, {}),
    "DeltaNet, all options": (lt.DeltaNet, {"gate": True, "conv_bias": True, "conv_width": 3, "head_dim_k": 24,
                                            "head_dim_v": 8, "negative_eigenvalues": True, "norm_eps": 1e-2,
                                            "scale": 0.5}),
    "DeltaNet without convolutions": (lt.DeltaNet, {"conv_width": None}),
    "GatedDeltaNet": (lt.GatedDeltaNet, {}),
    "GatedDeltaNet, all options": (lt.GatedDeltaNet, {"v_heads": 4, "gate": False, "conv_bias": True,
                                                      "negative_eigenvalues": True, "head_dim_v": 24}),
    "KimiDeltaAttention": (lt.KimiDeltaAttention, {}),
    "KimiDeltaAttention, all options": (lt.KimiDeltaAttention, {"v_heads": 4, "negative_eigenvalues": True,
                                                               "head_dim_v": 8, "conv_width": 8}),
}


def make(name, **more):
    kind, options = LAYERS[name]
    torch.manual_seed(3)
    layer = kind(D_MODEL, 2, **{**options, **more})
    with torch.no_grad():
        layer.o_norm.weight += 0.1 * torch.randn_like(layer.o_norm.weight)
        if isinstance(layer, lt.KimiDeltaAttention):
            layer.dt_bias += torch.randn_like(layer.dt_bias)
    return layer


# ---- The formulas of the three papers, one after the other ----


def convolved(p, name, x, options):
    """silu of the causal convolution, or of x."""
    width = options.get("conv_width", 4)
    if width is None:
        return F.silu(x)
    weight = p[f"{name}_conv1d.weight"]
    y = torch.zeros_like(x) if f"{name}_conv1d.bias" not in p else p[f"{name}_conv1d.bias"].expand_as(x)
    for back in range(width):
        shifted = torch.cat([torch.zeros_like(x[:, :back]), x[:, :x.shape[1] - back]], 1)
        y = y + shifted * weight[:, 0, width - 1 - back]
    return F.silu(y)


def formulas(name, p, x):
    """y of the layer with parameters `p` by name."""
    kind, options = LAYERS[name]
    heads, v_heads = 2, options.get("v_heads", 2)
    q, k, v = (convolved(p, each, x @ p[f"{each}_proj.weight"].T, options) for each in "qkv")
    q, k = (each.unflatten(-1, (heads, -1)) for each in (q, k))
    q, k = (each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6) for each in (q, k))
    v = v.unflatten(-1, (v_heads, -1))
    beta = torch.sigmoid(x @ p["b_proj.weight"].T) * (2 if options.get("negative_eigenvalues") else 1)
    if kind is lt.DeltaNet:
        g = None
    elif kind is lt.GatedDeltaNet:
        g = -torch.exp(p["A_log"]) * F.softplus(x @ p["a_proj.weight"].T + p["dt_bias"])
    else:
        g = F.softplus(x @ p["f_proj.0.weight"].T @ p["f_proj.1.weight"].T + p["dt_bias"])
        g = -torch.exp(p["A_log"])[:, None] * g.unflatten(-1, (heads, -1))
        g, beta = (each.repeat_interleave(v_heads // heads, 2) for each in (g, beta))
    o, _ = recurrence(q, k, v, g, beta=beta, scale=options.get("scale"))
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + options.get("norm_eps", 1e-5)) * p["o_norm.weight"]
    o = o.flatten(2)
    if kind is lt.KimiDeltaAttention:
        o = o * torch.sigmoid(x @ p["g_proj.0.weight"].T @ p["g_proj.1.weight"].T + p["g_proj.1.bias"])
    elif options.get("gate", kind is lt.GatedDeltaNet):
        o = o * F.silu(x @ p["g_proj.weight"].T)
    return o @ p["o_proj.weight"].T


def weighted(y):
    return (y * torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)).sum()


def by_the_formulas(name, layer, x):
    wide = {key: value.detach().double().requires_grad_() for key, value in layer.named_parameters()}
    x = x.double().requires_grad_()
    y = formulas(name, wide, x)
    weighted(y).backward()
    return y.detach(), {"x": x.grad, **{key: value.grad for key, value in wide.items()}}


def trained(layer, x, call=None):
    x = x.detach().requires_grad_()
    y = (layer if call is None else call)(x)
    weighted(y).backward()
    return y.detach(), {"x": x.grad, **{key: value.grad for key, value in layer.named_parameters()}}


def compare(y, gradients, expected_y, expected):
    assert relative_error(y, expected_y) <= LAYER_BOUND
    assert gradients.keys() == expected.keys()
    for key, gradient in expected.items():
        bound = GATES_BOUND if key.split(".")[0] in GATES else GRADIENT_BOUND
        error = relative_error(gradients[key], gradient)
        assert error <= bound, f"{key}: {error:.3g}, bound {bound:.3g}"


@pytest.mark.parametrize("ranks", (1, 2, 3, 4))
@pytest.mark.parametrize("name", LAYERS)
def test_the_formulas(name, ranks):
    """y, and the gradients of x and of every parameter, which sum over the ranks."""
    torch.manual_seed(1)
    x = torch.randn(2, 30, D_MODEL)
    ends = [0, *{1: (30,), 2: (17, 30), 3: (2, 21, 30), 4: (11, 13, 13, 30)}[ranks]]
    layers = [make(name) for _ in range(ranks)]
    expected = by_the_formulas(name, layers[0], x)

    def rank_function(rank, group):
        layers[rank].group = group
        return trained(layers[rank], x[:, ends[rank]:ends[rank + 1]])

    found = run_ranks(ranks, rank_function)
    gradients = {key: sum(each[1][key] for each in found) for key in found[0][1] if key != "x"}
    gradients["x"] = torch.cat([each[1]["x"] for each in found], 1)
    compare(torch.cat([each[0] for each in found], 1), gradients, *expected)


# ---- States ----


@pytest.mark.parametrize("name", LAYERS)
def test_decoding_is_the_forward_pass(name):
    """Token by token from nothing, and a few at a time after a prefill."""
    layer, x = make(name).requires_grad_(False), torch.randn(2, 21, D_MODEL, generator=torch.Generator().manual_seed(1))
    y, end = layer(x, return_state=True)
    state = layer.zero_state(2)
    steps = [layer.step(x[:, t:t + 1], state) for t in range(21)]
    assert relative_error(torch.cat(steps, 1), y) <= 2 * LAYER_BOUND
    assert all(relative_error(*pair) <= 2 * LAYER_BOUND for pair in zip(state, end))
    first, state = layer(x[:, :2], return_state=True)
    second, state = layer(x[:, 2:9], state, return_state=True)
    steps = [layer.step(part, state) for part in x[:, 9:].split([1, 2, 5, 1, 3], 1)]
    assert relative_error(torch.cat([first, second, *steps], 1), y) <= 2 * LAYER_BOUND
    assert all(relative_error(*pair) <= 2 * LAYER_BOUND for pair in zip(state, end))


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_go_through_carried_states(name):
    layer, x = make(name), torch.randn(2, 24, D_MODEL, generator=torch.Generator().manual_seed(1))
    expected = trained(layer, x)
    layer.zero_grad()

    def in_two(x):
        first, state = layer(x[:, :7], return_state=True)
        return torch.cat([first, layer(x[:, 7:], state)], 1)

    y, gradients = trained(layer, x, in_two)
    compare(y, gradients, *expected)


@pytest.mark.parametrize("name", PLAIN)
def test_packed_sequences_do_not_see_each_other(name):
    layer, x = make(name), torch.randn(1, 40, D_MODEL, generator=torch.Generator().manual_seed(1))
    offsets = [0, 2, 2, 19, 40]
    spans = [slice(*ends) for ends in zip(offsets, offsets[1:])]
    expected = trained(layer, x, lambda x: torch.cat([layer(x[:, span]) for span in spans], 1))
    layer.zero_grad()
    compare(*trained(layer, x, lambda x: layer(x, cu_seqlens=offsets)), *expected)


class Model(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.layers = torch.nn.ModuleList([make(name) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(F.rms_norm(x, x.shape[-1:]))
        return x


@pytest.mark.parametrize("name,packed", (("GatedDeltaNet", False), ("GatedDeltaNet", True),
                                         ("KimiDeltaAttention", False)))
def test_time_segments(name, packed):
    """A step in pieces of time carries states and rows."""
    offsets = {"cu_seqlens": [0, 5, 30, 90, 100]} if packed else {}
    loss = lambda y, target: (y - target).square().sum()  # noqa: E731
    x, target = torch.randn(2, 1, 100, D_MODEL, generator=torch.Generator().manual_seed(1))
    found = []
    for segment in (100, 33):
        model = Model(name)
        lt.time_segments(model, x, target, loss, segment=segment, **offsets)
        found.append({key: value.grad for key, value in model.named_parameters()})
    for key, gradient in found[0].items():  # two layers deep
        assert relative_error(found[1][key], gradient) <= 2 * GATES_BOUND, key


@pytest.mark.parametrize("name", PLAIN)
def test_checkpointing(name):
    layer, x = make(name), torch.randn(2, 24, D_MODEL, generator=torch.Generator().manual_seed(1))
    expected = trained(layer, x)
    layer.zero_grad()
    compare(*trained(layer, x, lambda x: lt.checkpoint(layer, x)), *expected)


# ---- As a module of torch ----


@pytest.mark.parametrize("name", PLAIN)
def test_an_ordinary_module(name):
    layer, x = make(name), torch.randn(2, 24, D_MODEL)
    y = layer(x)
    twin = LAYERS[name][0](D_MODEL, 2, **LAYERS[name][1])
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), y) and torch.equal(copy.deepcopy(layer)(x), y)
    layer.group = lt.SequenceGroup()
    assert copy.deepcopy(layer).group is layer.group
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x)
    assert half.dtype == torch.bfloat16 and relative_error(half, y) < 0.05
    half = twin.to(torch.bfloat16)(x.bfloat16())
    assert half.dtype == torch.bfloat16 and relative_error(half, y) < 0.05


@pytest.mark.parametrize("name", ("DeltaNet without convolutions", "GatedDeltaNet"))
def test_compiled(name):
    """Where there are no convolutions in one graph; a step is one anyway."""
    torch._dynamo.reset()
    layer, x = make(name), torch.randn(2, 24, D_MODEL)
    expected = trained(layer, x)
    layer.zero_grad()
    call = torch.compile(layer, backend="aot_eager", fullgraph=name == "DeltaNet without convolutions")
    compare(*trained(layer, x, call), *expected)
    layer.requires_grad_(False)
    one, other = layer.zero_state(2), layer.zero_state(2)
    step = torch.compile(layer.step, backend="aot_eager", fullgraph=True)
    for t in range(3):
        assert torch.equal(step(x[:, t:t + 1], one), layer.step(x[:, t:t + 1], other))
    assert all(torch.equal(*pair) for pair in zip(one, other))


def shapes(layer):
    return {key: tuple(value.shape) for key, value in layer.state_dict().items()}


def test_state_dicts_are_as_documented():
    """The names of flash-linear-attention's layers."""
    common = {"q_proj.weight": (48, 32), "k_proj.weight": (48, 32), "q_conv1d.weight": (48, 1, 4),
              "k_conv1d.weight": (48, 1, 4), "o_norm.weight": (8,)}
    dims = {"head_dim_k": 24, "head_dim_v": 8}
    of_two = {**common, "v_proj.weight": (16, 32), "v_conv1d.weight": (16, 1, 4), "o_proj.weight": (32, 16)}
    of_four = {**common, "v_proj.weight": (32, 32), "v_conv1d.weight": (32, 1, 4), "o_proj.weight": (32, 32)}
    assert shapes(lt.DeltaNet(32, 2, **dims)) == {**of_two, "b_proj.weight": (2, 32)}
    gated = lt.DeltaNet(32, 2, gate=True, conv_bias=True, **dims)
    assert shapes(gated) == {**of_two, "b_proj.weight": (2, 32), "g_proj.weight": (16, 32), "q_conv1d.bias": (48,),
                             "k_conv1d.bias": (48,), "v_conv1d.bias": (16,)}
    assert shapes(lt.GatedDeltaNet(32, 2, v_heads=4, **dims)) == {
        **of_four, "a_proj.weight": (4, 32), "b_proj.weight": (4, 32), "A_log": (4,), "dt_bias": (4,),
        "g_proj.weight": (32, 32)}
    assert shapes(lt.KimiDeltaAttention(32, 2, v_heads=4, **dims)) == {
        **of_four, "b_proj.weight": (2, 32), "f_proj.0.weight": (8, 32), "f_proj.1.weight": (48, 8), "A_log": (2,),
        "dt_bias": (48,), "g_proj.0.weight": (8, 32), "g_proj.1.weight": (32, 8), "g_proj.1.bias": (32,)}


def test_initial_gates():
    torch.manual_seed(0)
    layer = lt.GatedDeltaNet(32, 1, v_heads=500, head_dim_k=8)
    rate, steps = torch.exp(layer.A_log), F.softplus(layer.dt_bias)
    assert 0 <= rate.min() < 0.5 and 15.5 < rate.max() <= 16
    assert 0.99e-3 <= steps.min() < 1.1e-3 and 0.09 < steps.max() <= 0.101
    assert 0.4 < (steps < 0.01).float().mean() < 0.6  # even in the logarithm
    layer = lt.KimiDeltaAttention(32, 500, head_dim_k=8)
    rate = torch.exp(layer.A_log)
    assert 1 <= rate.min() < 1.5 and 15.5 < rate.max() <= 16.001 and not layer.dt_bias.any()


# ---- What is refused ----


@pytest.mark.parametrize("kind", (lt.DeltaNet, lt.GatedDeltaNet, lt.KimiDeltaAttention))
def test_wrong_layers(kind):
    refused("^heads = 3: must divide", lambda: kind(32, 3))
    refused("^conv_width = 9: must be at most 8", lambda: kind(32, 2, conv_width=9))
    refused("^conv_bias = True: goes with", lambda: kind(32, 2, conv_bias=True, conv_width=None))
    refused("^norm_eps = -1", lambda: kind(32, 2, norm_eps=-1.0))
    refused("head_dim_k", lambda: kind(32, 2, head_dim_k=12), liblasp.Unsupported)
    if kind is not lt.DeltaNet:
        refused("^v_heads = 3: must be a multiple", lambda: kind(32, 2, v_heads=3))


def test_wrong_states():
    layer, x = make("GatedDeltaNet"), torch.randn(2, 5, D_MODEL)
    recurrent, rows = layer.zero_state(2)
    refused("must be a DeltaState", lambda: layer(x, recurrent))
    refused("must be a DeltaState", lambda: layer.step(x, (recurrent, rows)))
    refused(r"^state.recurrent: shape \(1, ", lambda: layer(x, layer.zero_state(1)))
    refused(r"^state.rows: shape \(2, 2, ", lambda: layer(x, lt.DeltaState(recurrent, rows[:, 1:])))
    refused("^state.rows = None", lambda: layer.step(x, lt.DeltaState(recurrent, None)))
    refused("packed sequences are not carried", lambda: layer(x[:1], return_state=True, cu_seqlens=[0, 5]),
            liblasp.Unsupported)
    refused("in time_segments", lambda: lt.time_segments(
        Carries(), x, x, lambda y, _: y.sum(), segment=2, check=False), liblasp.Unsupported)
    layers = [make("GatedDeltaNet") for _ in range(2)]

    def rank_function(rank, group):
        layers[rank].group = group
        refused("has no process group", lambda: layers[rank](x, return_state=True), liblasp.Unsupported)

    run_ranks(2, rank_function)


class Carries(torch.nn.Module):
    """Hands a state on by itself."""

    def __init__(self):
        super().__init__()
        self.layer = make("DeltaNet")

    def forward(self, x):
        return self.layer(x, return_state=True)[0]
