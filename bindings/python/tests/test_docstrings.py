"""Every public name has a docstring and annotations, every parameter is in its docstring, and the shapes that
docstrings give are those of arrays."""

import inspect
import re

import numpy as np
import pytest

import liblasp

PUBLIC = {name: getattr(liblasp, name) for name in liblasp.__all__ if not inspect.ismodule(getattr(liblasp, name))}
CALLED = (liblasp.Problem, liblasp.Context, liblasp.Plan, liblasp.Comm, liblasp.Halo, liblasp.Stages)  # classes whose methods take arguments


def members_of(kind):
    """Public functions and properties that a class, or one that it is derived from in the package, defines."""
    for name, value in inspect.getmembers(kind, lambda value: inspect.isroutine(value) or isinstance(value, property)):
        function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        if not name.startswith("_") and (getattr(function, "__module__", None) or "").startswith("liblasp"):
            yield name, function


def functions():
    for name, thing in PUBLIC.items():
        if inspect.isfunction(thing):
            yield name, thing
        else:
            for member, function in members_of(thing):
                yield f"{name}.{member}", function


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_of_its_own(name):
    assert (PUBLIC[name].__doc__ or "").strip()
    assert not PUBLIC[name].__doc__.startswith(f"{name}("), "what NamedTuple makes is no docstring"


@pytest.mark.parametrize("name,function", list(functions()))
def test_functions(name, function):
    assert (function.__doc__ or "").strip()
    signature = inspect.signature(function)
    parameters = [p for key, p in signature.parameters.items() if key not in ("self", "cls")]
    assert all(p.annotation is not p.empty for p in parameters), function
    assert signature.return_annotation is not signature.empty


# These take what the function takes that they bind, and say so.
BOUND = ("Plan.bind_forward", "Plan.bind_backward", "Plan.bind_step")
DOCUMENTED = [*((name, function, function.__doc__) for name, function in functions()
                if name not in BOUND and not name.startswith("Transport")),
              *((kind.__name__, kind.__init__, kind.__doc__) for kind in CALLED)]


@pytest.mark.parametrize("name,function,text", DOCUMENTED, ids=lambda value: value if isinstance(value, str) else "")
def test_parameters_are_documented(name, function, text):
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in ("self", "cls", "keep") and parameter.kind is not parameter.VAR_KEYWORD:
            assert re.search(rf"\b{parameter.name}\b", text), parameter.name


@pytest.mark.parametrize("kind", [kind for kind in PUBLIC.values() if hasattr(kind, "_fields")])
def test_fields_are_documented(kind):
    for field in kind._fields:
        assert re.search(rf"\b{field}\b", kind.__doc__), field


# ---- Shapes ----

SIZES = {"B": 2, "T": 5, "Hq": 6, "Hk": 3, "Hv": 2, "H": 6, "K": 8, "V": 16, "N": 2}
KINDS = {"head": ("H",), "scalar": ("B", "T", "H"), "channel": ("B", "T", "H", "K")}
SHAPED = re.compile(r'["`]*\b(\w+)["`]* \[([BTNHKVqkv, ]+)\]')


def sized(dims):
    return tuple(SIZES[dim.strip()] for dim in dims.split(","))


def problem_of(decay, write="additive"):
    return liblasp.Problem(SIZES["T"], batch=SIZES["B"], heads_q=SIZES["Hq"], heads_k=SIZES["Hk"], heads_v=SIZES["Hv"],
                           head_dim_k=SIZES["K"], head_dim_v=SIZES["V"], decay=decay, write=write)


TENSORS = {*liblasp.problem.LAYOUTS, *liblasp.problem.STATES, "states"}


def shapes_in(text):
    return [(name, sized(dims)) for name, dims in SHAPED.findall(" ".join(text.split()))
            if name.lower() in KINDS or name in TENSORS]


# What a text calls a tensor, and the tensor whose shape it gives there.
SAID = [(name, text) for name, text in (
    ("Problem", liblasp.Problem.__doc__), ("Problem.like", liblasp.Problem.like.__doc__),
    ("Plan.forward", liblasp.Plan.forward.__doc__), ("Plan.backward", liblasp.Plan.backward.__doc__),
    ("Plan.step", liblasp.Plan.step.__doc__), ("Gradients", liblasp.Gradients.__doc__),
    ("Decay", liblasp.Decay.__doc__), ("Write", liblasp.Write.__doc__))]


@pytest.mark.parametrize("name,text", SAID, ids=[name for name, _ in SAID])
def test_documented_shapes(name, text):
    """Each "tensor [dimensions]" of the docstrings is what a problem says of that tensor."""
    found = 0
    for tensor, shape in shapes_in(text):
        kind = tensor.lower()
        if kind in KINDS:
            assert problem_of(kind).shape_of("decay") == shape == sized(",".join(KINDS[kind])), tensor
        elif tensor in ("states", "state"):
            assert problem_of("none").shape_of("state") == shape
        elif tensor == "decay" or tensor == "d_decay":
            assert shape in [problem_of(kind).shape_of(tensor) for kind in KINDS]
        else:
            assert problem_of("none", "delta").shape_of(tensor) == shape, tensor
        found += 1
    assert found, "the pattern finds no shape any more"


@pytest.mark.parametrize("decay", ["none", *KINDS])
def test_the_shapes_of_arrays(decay):
    """What a problem says of each tensor is what calls take and give."""
    problem = problem_of(decay)
    made = {name: None if problem.shape_of(name) is None else np.zeros(problem.shape_of(name), np.float32)
            for name in ("q", "k", "v", "decay", "d_o", "d_final_state", "initial_state", "state")}
    inputs = [made[name] for name in ("q", "k", "v", "decay")]
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(problem)
        o, final_state = plan.forward(*inputs, initial_state=made["initial_state"], final_state=True)
        grads = plan.backward(made["d_o"], *inputs, d_final_state=made["d_final_state"], d_initial_state=True)
        assert plan.step(*inputs, state=made["state"]).shape == problem.shape_of("o") == o.shape
        assert (plan.info.num_sequences, plan.info.heads) == (problem.num_sequences, problem.heads)
    assert final_state.shape == problem.shape_of("final_state") and final_state.dtype == np.float32
    for name, gradient in grads._asdict().items():
        assert (None if gradient is None else gradient.shape) == problem.shape_of(name), name


def test_repr():
    """Shows the shapes; a problem's makes the same problem again."""
    for problem in (problem_of("channel"),
                    liblasp.Problem(7, head_dim=8, scale=0.5, max_sequences=2, dtype="bfloat16"),
                    liblasp.Problem(7, heads=2, head_dim=8, strides={"q": (0, 32, 8)}, segment=128, backward=False)):
        text = repr(problem)
        assert f"tokens={problem.tokens}" in text and "head" in text
        assert eval(text, {"Problem": liblasp.Problem}) == problem
    assert repr(liblasp.Problem(7, head_dim=8)) == "Problem(tokens=7, batch=1, heads=1, head_dim=8)"
    with liblasp.Comm.self_() as comm, liblasp.Context(comm, cpu_threads=1) as context:
        plan = context.plan(problem_of("head"))
        assert "q [2, 5, 6, 8], k [2, 5, 3, 8], v [2, 5, 2, 16], o [2, 5, 6, 16], decay [6], float32" in repr(plan)
        assert "rank 0 of 1" in repr(plan) and "tokens 0 to 5 of 5" in repr(plan)
        assert repr(context) == "<liblasp.Context on cpu, rank 0 of 1, 1 plan>"
        assert repr(comm) == "<liblasp.Comm rank 0 of 1>"
