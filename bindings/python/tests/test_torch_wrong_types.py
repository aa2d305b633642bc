"""As test_wrong_types.py, of liblasp.torch: every parameter with values of the wrong type."""

import copy
import inspect
import math
import pickle
import re

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from test_torch_support import make_problem  # noqa: E402

X, DELTA = make_problem("scalar")[0], make_problem("delta_channel")[0]
INPUTS = {name: X[name] for name in ("q", "k", "v", "decay")}
STATE = X["initial_state"]
MODULE = lt.LinearAttention(32, 2)
CONVOLUTION = lt.ShortConvolution(4, 3)
TOKENS = torch.zeros(1, 5, dtype=torch.int64)


def squared_error(output, targets):
    return (output - targets).square().mean()


INTEGERS = (True, 2.0, 1.5, math.nan, "2", None, [2])
COUNTS = (*INTEGERS, -1)
REALS = (True, "1", [1.0], 1j, math.nan, math.inf, torch.ones(1), torch.ones(2))
SCALES = (*REALS, 1e-50, 1e39)
FLAGS = (0, 1, "no", None, 0.5, [])
NAMES = (0, True, 1.0, "heda", "", "CHUNKS", ["head"], liblasp.LogLevel.INFO)
TENSORS = (3.5, "x", [[1.0]], True, object())
GROUPS = (0, 1.0, "x", [], object(), True)
OFFSETS = ([0, 2.5, 37], [0.0, 37.0], torch.tensor([0.0, 37.0]), torch.tensor([[0, 37]]), torch.tensor([False, True]),
           [False, True], "037", 37, [], [0, math.nan], {0, 37}, [-1, 37])


def given(values):
    return tuple(value for value in values if value is not None)


PACKED = {name: tensor[:1] for name, tensor in INPUTS.items()}
NO_VECTORS = {name: (*TENSORS, None) for name in "qkv"}
NO_INPUTS = {**NO_VECTORS, "decay": TENSORS}
GATED = {name: DELTA[name] for name in ("q", "k", "v", "beta")}
NO_BETA = (*TENSORS, DELTA["beta"][..., None], DELTA["beta"].double(), DELTA["beta"][:, 1:])
OWNERSHIPS = ("zagzig", "", 5, True, None, [], [5], [(1,)], [(1, 0, 0)], [(-1, 0)], [(1, -1)], [(1.0, 0)], [("1", 0)])
CASES = {
    "linear_attention": (lt.linear_attention, INPUTS, {
        **NO_INPUTS, "beta": NO_BETA, "initial_state": (*TENSORS, STATE[:, :1], STATE.double(), STATE[None]),
        "scale": SCALES, "causal": FLAGS, "group": GROUPS, "output_final_state": FLAGS,
        "broadcast_final_state": (*FLAGS[1:3], True), "total_tokens": given(COUNTS), "state_cache": NAMES,
        "ownership": given(OWNERSHIPS)}),
    "linear_attention, packed": (lt.linear_attention, PACKED, {"cu_seqlens": OFFSETS}),
    "linear_attention_step": (lt.linear_attention_step, {**INPUTS, "state": STATE.clone()}, {
        **NO_INPUTS, "beta": NO_BETA, "state": (*TENSORS, None, STATE[:, :1], STATE.double()), "scale": SCALES}),
    "delta_rule": (lt.delta_rule, GATED, {**NO_VECTORS, "beta": (*NO_BETA, None)}),
    "gated_delta_rule": (lt.gated_delta_rule, {**GATED, "g": DELTA["decay"][..., 0]}, {
        **NO_VECTORS, "g": (*TENSORS, None, *NO_BETA[-3:], DELTA["decay"]), "beta": (*NO_BETA, None)}),
    "kda": (lt.kda, {**GATED, "g": DELTA["decay"]}, {
        **NO_VECTORS, "g": (*TENSORS, None, DELTA["decay"][..., 0], DELTA["decay"].double(), DELTA["decay"][:, 1:]),
        "beta": (*NO_BETA, None)}),
    "LinearAttention": (lt.LinearAttention, {"d_model": 32, "heads": 2}, {
        "d_model": (*COUNTS, 0, 31), "heads": (*COUNTS, 0, 3, 8), "head_dim_k": given((*COUNTS, 0, 4, 12, 520)),
        "head_dim_v": given((*COUNTS, 0, 4, 12, 520)), "kv_heads": given((*COUNTS, 0, 3, 4)), "decay": (*NAMES, None),
        "slopes": (5, "x", True, [-1.0], [0.5, 0.5], [math.nan, -1.0], [[-1.0, -1.0]]), "learn_decay": FLAGS,
        "feature_map": (0, True, "relu", ""), "gate": FLAGS, "norm": FLAGS, "bias": FLAGS, "causal": (*FLAGS, False),
        "scale": SCALES, "group": GROUPS, "state_cache": NAMES}),
    "LinearAttention.forward": (MODULE.forward, {"x": torch.zeros(1, 4, 32)}, {
        "state": (*TENSORS, STATE), "total_tokens": given(COUNTS), "return_state": FLAGS, "cu_seqlens": OFFSETS}),
    "LinearAttention.step": (MODULE.step, {"x": torch.zeros(1, 1, 32), "state": MODULE.zero_state(1)}, {
        "state": (*TENSORS, None, STATE)}),
    "LinearAttention.zero_state": (MODULE.zero_state, {"sequences": 1}, {"sequences": COUNTS}),
    "SequenceGroup": (lt.SequenceGroup, {}, {
        "source": GROUPS, "time_limit": (True, "1", [1.0], math.nan, 0, -1.0), "cpu_threads": COUNTS,
        "schedule": (*NAMES, None), "pieces": COUNTS, "chunk": COUNTS, "segment": COUNTS, "verify_messages": FLAGS, "check_values": FLAGS,
        "plan_limit": (*COUNTS, 0), "ownership": OWNERSHIPS}),
    "SequenceGroup.owned": (lt.SequenceGroup().owned, {"ownership": "zigzag"}, {"ownership": OWNERSHIPS}),
    "time_segments": (lt.time_segments, {"model": MODULE, "inputs": torch.zeros(1, 4, 32), "loss": squared_error,
                                         "targets": torch.zeros(1, 4, 32), "segment": 3}, {
        "model": (5, "x", None, torch.nn.Linear), "inputs": (*TENSORS, None, [], (), torch.zeros(4), [X["q"], 5]),
        "targets": (*TENSORS, None, [], torch.zeros(4), torch.zeros(1, 3, 32)), "loss": (5, "x", None, TOKENS),
        "segment": (*COUNTS, 0), "group": GROUPS, "check": FLAGS, "progress": (5, "x", []),
        "cu_seqlens": (*OFFSETS, [0, 3], [1, 4], [0, 3, 2, 4])}),
    "ShortConvolution": (lt.ShortConvolution, {"channels": 4}, {
        "channels": (*COUNTS, 0), "width": (*COUNTS, 0, 9), "activation": NAMES, "bias": FLAGS, "group": GROUPS}),
    "ShortConvolution.forward": (CONVOLUTION.forward, {"x": torch.zeros(1, 5, 4)}, {
        "x": (*TENSORS, None, torch.zeros(5, 4), torch.zeros(1, 5, 3)), "cu_seqlens": (*OFFSETS, [0, 6], [0, 3, 2, 4]),
        "total_tokens": given(COUNTS)}),
    "linear_cross_entropy": (lt.linear_cross_entropy, {
        "hidden": torch.zeros(1, 5, 4), "weight": torch.zeros(7, 4), "targets": TOKENS}, {
        "hidden": (*TENSORS, None), "weight": (*TENSORS, None, torch.zeros(4, 7), torch.zeros(4)),
        "targets": (*TENSORS, None, TOKENS[0], TOKENS.float(), TOKENS.int()), "reduction": ("none", 0, True, None, []),
        "tile": (*COUNTS, 0)}),
    "causal_conv1d": (lt.causal_conv1d, {"x": torch.zeros(1, 5, 4), "weight": torch.zeros(4, 3)}, {
        "x": (*TENSORS, None, torch.zeros(5, 4), torch.zeros(1, 5, 3)), "bias": (*TENSORS, torch.zeros(3)),
        "weight": (*TENSORS, None, torch.zeros(4), torch.zeros(3, 3), torch.zeros(4, 9), torch.zeros(4, 0)),
        "activation": NAMES, "group": GROUPS, "cu_seqlens": (*OFFSETS, [0, 6]), "total_tokens": given(COUNTS),
        "ownership": given(OWNERSHIPS)}),
    "softmax_attention": (lt.softmax_attention, {name: X[name] for name in "qkv"}, {
        **{name: (*TENSORS, None, X[name][0], X[name][:, 1:], X[name].double()) for name in "qkv"}, "group": GROUPS,
        "scale": REALS, "cu_seqlens": (*OFFSETS, [0, 37]),  # of two rows
        "key_mask": (*TENSORS, torch.ones(2, 37), torch.ones(2, 36, dtype=torch.bool)), "window": given((*COUNTS, 0)),
        "dropout": (*REALS, None, -0.1, 1.0), "total_tokens": given((*COUNTS, 0, 36))}),
    "cross_entropy": (lt.cross_entropy, {
        "hidden": torch.zeros(1, 5, 4), "weight": torch.zeros(7, 4), "labels": TOKENS}, {
        "hidden": (*TENSORS, None), "weight": (*TENSORS, None, torch.zeros(4, 7), torch.zeros(4)),
        "labels": (*TENSORS, None, TOKENS[0], TOKENS.float(), TOKENS.int()), "group": GROUPS, "shifted": FLAGS,
        "tile": (*COUNTS, 0)}),
    "shift": (lt.shift, {"tensor": torch.zeros(1, 5, 4)}, {
        "tensor": (*TENSORS, None, torch.zeros(5)), "by": INTEGERS, "group": GROUPS}),
    "sequence_group": (lt.sequence_group, {"group": None}, {"group": GROUPS}),
    "alibi_slopes": (lt.alibi_slopes, {"heads": 2}, {"heads": (*COUNTS, 0), "scale": REALS}),
    "shard_bounds": (lt.shard_bounds, {"total": 4, "rank": 0, "ranks": 2}, {
        "total": COUNTS, "rank": (*COUNTS, 2), "ranks": (*COUNTS, 0)}),
    "shard": (lt.shard, {"tensor": TOKENS, "rank": 0, "ranks": 2}, {
        "rank": (*COUNTS, 2), "ranks": (*COUNTS, 0), "ownership": OWNERSHIPS}),
    "shard_with_targets": (lt.shard_with_targets, {"tokens": TOKENS, "rank": 0, "ranks": 2}, {
        "rank": (*COUNTS, 2), "ranks": (*COUNTS, 0)}),
}
# What the sentence may name instead.
ALIASES = {"state": {"initial_state", "states"}, "initial_state": {"states"}, "decay": {"states"}, "beta": {"states"}, "g": {"states"},
           "k": {"q"}, "broadcast_final_state": {"output_final_state"}, "heads": {"head_dim_k"}, "d_model": {"heads"},
           "q": {"k", "v"}, "causal": {"mask"}, "group": {"source"}, "labels": {"targets"}, "return_state": {"output_final_state"}, "x": {"q"}}
# Handed to torch as they are, which says what is wrong with them; a process group's are in test_torch_ranks and test_torch_verify.
TORCHS = {"LinearAttention": {"device", "dtype"}, "LinearAttention.forward": {"x"}, "LinearAttention.step": {"x"},
          "LinearAttention.zero_state": {"device"}, "ShortConvolution": {"device", "dtype"}, "checkpoint": {"function", "args", "kwargs"},
          "shard": {"tensor", "dim"}, "shard_with_targets": {"tokens"},
          "gather": {"tensor", "group", "total", "dim"},
          "verify": {"model", "batch", "group", "split", "whole", "packed"},
          "init_groups": {"world", "sequence_ranks", "stride", "new_group_options"}}
WIDTHS = (*COUNTS, 0, 4, 12, 520)
for name, kind in (("DeltaNet", lt.DeltaNet), ("GatedDeltaNet", lt.GatedDeltaNet),
                   ("KimiDeltaAttention", lt.KimiDeltaAttention)):
    layer = kind(32, 2)
    state, other = layer.zero_state(1), layer.zero_state(2)
    states = (*TENSORS, STATE, tuple(state), other, lt.DeltaState(state.recurrent, None),
              lt.DeltaState(state.rows, state.recurrent), state._replace(recurrent=state.recurrent.double()))
    CASES[name] = (kind, {"d_model": 32, "heads": 2}, {
        "d_model": (*COUNTS, 0, 31), "heads": (*COUNTS, 0, 3, 8), "head_dim_k": given(WIDTHS),
        "head_dim_v": given(WIDTHS), "conv_width": given((*COUNTS, 0, 9)), "conv_bias": FLAGS,
        "negative_eigenvalues": FLAGS, "norm_eps": (*REALS, -1.0), "scale": SCALES, "group": GROUPS,
        "state_cache": NAMES, **({} if kind is lt.DeltaNet else {"v_heads": given((*COUNTS, 0, 3))}),
        **({} if kind is lt.KimiDeltaAttention else {"gate": FLAGS})})
    CASES[f"{name}.forward"] = (layer.forward, {"x": torch.zeros(1, 4, 32)}, {
        "state": states, "total_tokens": given(COUNTS), "return_state": FLAGS, "cu_seqlens": OFFSETS})
    CASES[f"{name}.step"] = (layer.step, {"x": torch.zeros(1, 1, 32), "state": state}, {"state": (*states, None)})
    CASES[f"{name}.zero_state"] = (layer.zero_state, {"sequences": 1}, {"sequences": COUNTS})
    TORCHS.update({name: {"device", "dtype"}, f"{name}.forward": {"x"}, f"{name}.step": {"x"},
                   f"{name}.zero_state": {"device", "dtype"}})
TRIED = [(case, parameter) for case, (_, _, wrong) in CASES.items() for parameter in wrong]


@pytest.mark.parametrize("case", CASES)
def test_the_arguments_are_right_otherwise(case):
    function, right, _ = CASES[case]
    function(**right)


@pytest.mark.parametrize("case,parameter", TRIED)
def test_wrong_types(case, parameter):
    function, right, wrong = CASES[case]
    taken = []
    for value in wrong[parameter]:
        try:
            function(**{**right, parameter: value})
        except (liblasp.InvalidArgument, liblasp.Unsupported, TypeError) as error:
            names = {parameter, *ALIASES.get(parameter, ())}
            assert any(re.search(rf"\b{name}\b", str(error)) for name in names), (value, str(error))
            assert isinstance(error, liblasp.Error) or parameter in ("group", "source"), (value, error)
        else:
            taken.append(value)
    assert not taken


def parameters_of(function):
    """But for **options, which are linear_attention's."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "options")]


# Methods of a SequenceGroup that the package's functions call, and no program.
INSIDE = {"plan", "recent_plan", "keep_recent", "give_up", "workspace", "sum", "require_contiguous"}


def public_functions():
    for name in lt.__all__:
        thing = getattr(lt, name)
        if inspect.isclass(thing) and not hasattr(thing, "_fields"):
            yield name, thing.__init__, thing.__doc__
            own = [vars(base) for base in reversed(thing.__mro__) if base.__module__.startswith("liblasp.torch")]
            for member, function in {name: each for members in own for name, each in members.items()}.items():
                if not member.startswith("_") and inspect.isfunction(function) and member not in INSIDE:
                    yield f"{name}.{member}", inspect.unwrap(function), function.__doc__
        elif inspect.isfunction(thing):
            yield name, thing, thing.__doc__


FUNCTIONS = list(public_functions())


@pytest.mark.parametrize("name,function,text", FUNCTIONS, ids=[each[0] for each in FUNCTIONS])
def test_docstrings(name, function, text):
    assert (text or "").strip()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        assert parameter.annotation is not parameter.empty, parameter.name
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            assert re.search(rf"\b{parameter.name}\b", text), parameter.name


def test_every_parameter_is_tried():
    wanted = {(name, parameter) for name, function, _ in FUNCTIONS for parameter in parameters_of(function)
              if parameter not in TORCHS.get(name, ())}
    assert {(case.partition(",")[0], parameter) for case, parameter in TRIED} == wanted


def test_groups_are_not_pickled():
    group = lt.SequenceGroup()
    assert copy.copy(group) is group and copy.deepcopy(group) is group
    for thing in (group, lt.LinearAttention(32, 2, group=group)):
        with pytest.raises(TypeError, match=r"^a SequenceGroup cannot be pickled, .* state_dict\(\)"):
            pickle.dumps(thing)
    group.close()
