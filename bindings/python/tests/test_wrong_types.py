"""Every parameter of every public function is tried with values of the wrong type: each is refused by a sentence that
names it, and none is converted or passed over."""

import inspect
import math
import re

import numpy as np
import pytest

import liblasp
from support import MailboxEnd, Mailboxes, random_problem

Q, K, V, G, D_O = random_problem(31, tokens=16)
STATE = np.zeros((1, 2, 8, 8), np.float32)
OUT = np.empty_like(Q)
CONTEXT = liblasp.Context(cpu_threads=1)
PLAN = CONTEXT.plan(liblasp.Problem.like(Q, K, V, decay=G))
PLAN.forward(Q, K, V, G)  # backward may be called

INTEGERS = (True, 2.0, 1.5, math.nan, "2", None, [2], b"2", np.float64(2), np.bool_(True), 2 ** 70)
INT32 = (*INTEGERS, 2 ** 31)
REALS = (True, "1", None, [1.0], 1j, math.nan, math.inf, np.bool_(True))
FLAGS = (0, 1, 2, "no", "True", None, 0.5, [], np.int64(1))
NAMES = (0, True, 1.0, None, "heda", "", "CPU", b"head", ["head"], liblasp.LogLevel.INFO)
DTYPES = (0, True, 1.0, None, "float64", "float", "xfloat32", float, np.float64, np.dtype(">f4"), liblasp.Decay.HEAD)
ARRAYS = (3.5, "x", [[1.0]], True, False, object(), liblasp)
OBJECTS = (0, 1.0, "x", [], object())
STREAMS = (True, 1.5, "default", -1, 2 ** 70, [], 8)  # the CPU has none
TENSORS = (*OBJECTS, None, "", "d_q", "Q")


def given(values):
    """Without None, which stands for the default."""
    return tuple(value for value in values if value is not None)


def arrays_unlike(array):
    """What is no array, and arrays of another type and shape."""
    return (*ARRAYS, array.astype(np.float64), array.astype(np.int32), array[..., :-1], array[None], array.T)


def without_flags(values):
    return tuple(value for value in values if not isinstance(value, bool))


def of_decay(value):
    """Which only a problem without a decay of [B, T, H] refuses."""
    return isinstance(value, dict) and ("decay" in value or "d_decay" in value)


OFFSETS = ([0, 2.5, 16], [0.0, 16.0], [0, math.nan, 16], [False, True], [0, "16"], "016", b"\x00\x10", [-1, 16],
                   [[0, 16]], np.array([0.0, 16.0]), np.array([[0, 16]]), np.array(16), np.array([0.0, math.nan]),
                   [], {0, 16}, {0: 0, 16: 1}, 16, [0, 2 ** 63], np.array([False, True]), object())
SETTINGS = {
    "max_sequences": INTEGERS, "mask": NAMES, "ownership": NAMES, "runs": (5, None, "x", [5], [(1,)], [("1", 0)], [(1, 2 ** 31)], [(2 ** 63, 0)]),
    "schedule": NAMES, "pieces": INT32, "cache": NAMES, "chunk": INT32,
    "segment": INTEGERS, "backward": FLAGS, "broadcast_final_state": FLAGS,
    "scale": (*given(REALS), 1e-50, 1e39),
    "strides": ([1, 2, 3], "q", 5, {"w": (1, 1, 1)}, {"q": (1, 2)}, {"q": 5}, {"q": "123"}, {"q": (1.5, 8, 8)},
                {"q": (True, 8, 8)}, {"q": (0, 0, 0)}, {"q": None}, {1: (1, 2, 3)}, {"decay": (1, 1, 1)},
                {"beta": (1, 1, 1)}, {"q": (2 ** 70, 8, 8)}),
    "gradient_dtypes": ([1], "dk", 5, {"q": "float32"}, {"d_q": "float32"}, {"dk": "float64"}, {"dk": None},
                        {"dk": 1}, {1: "float32"}, {"d_decay": "float32"}, {"d_beta": "float32"})}
FIELDS = {
    **SETTINGS, "tokens": INTEGERS, "batch": INTEGERS, "dtype": DTYPES, "decay": NAMES, "write": NAMES,
    "decay_dtype": (*DTYPES, "bfloat16"), "beta_dtype": (*DTYPES, "bfloat16"),
    **{name: given(INT32) for name in (
        "heads", "heads_q", "heads_k", "heads_v", "head_dim", "head_dim_k", "head_dim_v")}}
PROBLEM = {"tokens": 16, "head_dim": 8}
INPUTS = {"q": Q, "k": K, "v": V, "decay": G}
GRADIENTS = {"dq": np.empty_like(Q), "dk": np.empty_like(Q), "dv": np.empty_like(Q)}
NO_INPUTS = {name: (*ARRAYS, None) for name in INPUTS}
NO_FORWARD = {**NO_INPUTS, "beta": ARRAYS, "cache": ARRAYS, "workspace": ARRAYS, "initial_state": arrays_unlike(STATE),
              "out": arrays_unlike(Q), "final_state": without_flags(arrays_unlike(STATE)), "reuse_cache": FLAGS,
              "cu_seqlens": OFFSETS}
NO_BACKWARD = {**NO_INPUTS, "beta": ARRAYS, "cache": ARRAYS, "workspace": ARRAYS, "initial_state": arrays_unlike(STATE),
               "d_o": (*arrays_unlike(Q), None), "d_final_state": arrays_unlike(STATE),
               "d_decay": (0, 1, *without_flags(arrays_unlike(G))),
               "d_initial_state": (0, 1, *without_flags(arrays_unlike(STATE))),
               "out": ({"d_q": Q}, {"d_decay": G}, {"d_initial_state": STATE}, {"o": Q}, {"": Q}, {0: Q}, [Q], Q, "dq",
                       5, True, *({"dq": array} for array in arrays_unlike(Q))),
               "add": ("dk", b"dk", 5, None, ["d_q"], [""], [0], [True], ["dk"], ["d_decay"], ["d_beta"],
                       {"d_initial_state"}),
               "cu_seqlens": OFFSETS}


HALO, STAGES = liblasp.Halo(PLAN, 2, 4), liblasp.Stages(PLAN)
X, BEFORE = np.zeros((1, PLAN.problem.tokens, 4), np.float32), np.zeros((1, 2, 4), np.float32)
MAPS = STAGES.new_maps(1)
APPLIED = liblasp.Stages(PLAN)
APPLIED.apply(**INPUTS)


def closing(make):
    return lambda **arguments: make(**arguments).close()


def entering(make):
    def enter(**arguments):
        with make(**arguments):
            pass
    return enter


def memory(**arrays):
    return {name: (array.ctypes.data, array.nbytes) for name, array in arrays.items()}


# A function, arguments that it takes, and for each parameter what it refuses. Of **named ones these are dicts.
CASES = {
    "Problem": (liblasp.Problem, PROBLEM, FIELDS),
    "Problem.like": (liblasp.Problem.like, INPUTS, {
        "q": (*arrays_unlike(Q), None), "k": (*arrays_unlike(K), None), "v": (*arrays_unlike(V)[:-3], V.T, None),
        "decay": (*arrays_unlike(G), np.zeros(3, np.float32), np.zeros(2, np.float16)), "beta": arrays_unlike(G),
        "settings": ({"tokens": 5}, {"heads": 2}, {"head_dim": 8}, {"dtype": "float32"}, {"decay_dtype": "float32"},
                     *({name: value} for name, values in SETTINGS.items() for value in values
                       if not of_decay(value)))}),
    "Problem.with_": (PLAN.problem.with_, {}, {"changes": [
        {name: value} for name, values in FIELDS.items() for value in values
        if not of_decay(value) and (name, str(value)) != ("decay_dtype", "bfloat16")]}),
    "Problem.shape_of": (PLAN.problem.shape_of, {"name": "q"}, {"name": TENSORS}),
    "Problem.dtype_of": (PLAN.problem.dtype_of, {"name": "q"}, {"name": TENSORS}),
    "Problem.strides_of": (PLAN.problem.strides_of, {"name": "q"}, {"name": TENSORS}),
    "Context": (closing(liblasp.Context), {"log": lambda level, message: None}, {
        "comm": OBJECTS, "device": (*NAMES, "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cpu:0:0", 1),
        "time_limit": (True, "1", [1.0], 1j, math.nan, np.bool_(True), 0, 0.0, -1.0, -math.inf), "cpu_threads": INT32,
        "log": OBJECTS, "log_level": (*given(NAMES)[:-1], liblasp.Decay.HEAD), "latency_us": REALS,
        "bandwidth_gbs": REALS, "profiler_ranges": FLAGS, "verify_messages": FLAGS,
        "check_values": FLAGS}),
    "Context.plan": (closing(CONTEXT.plan), {}, {"problem": OBJECTS}),
    "Context.plan, of fields": (closing(CONTEXT.plan), PROBLEM, {"fields": [
        {name: value} for name, values in FIELDS.items() for value in values]}),
    "Context.trace": (entering(CONTEXT.trace), {"path": "/dev/null"}, {
        "path": (0, 1.0, None, True, b"trace", ["trace"], "a\0b", object()), "max_records": (*INTEGERS, -1, 2 ** 40)}),
    "Plan": (closing(liblasp.Plan), {"context": CONTEXT, "problem": PLAN.problem}, {
        "context": (*OBJECTS, None), "problem": (*OBJECTS, None, PROBLEM)}),
    "Plan.forward": (PLAN.forward, INPUTS, {**NO_FORWARD, "stream": STREAMS}),
    "Plan.backward": (PLAN.backward, {"d_o": D_O, **INPUTS}, {**NO_BACKWARD, "stream": STREAMS}),
    "Plan.step": (PLAN.step, {**INPUTS, "state": STATE}, {
        **NO_INPUTS, "beta": ARRAYS, "state": (*arrays_unlike(STATE), None), "out": arrays_unlike(Q),
        "tokens": (*INTEGERS, -1, 2 ** 40), "stream": STREAMS}),
    "Plan.bind_forward": (PLAN.bind_forward, {**INPUTS, "out": np.empty_like(Q)}, {
        **{name: given(values) for name, values in NO_FORWARD.items()}, "reuse_cache": FLAGS,
        "final_state": arrays_unlike(STATE)}),
    "Plan.bind_backward": (PLAN.bind_backward, {"d_o": D_O, **INPUTS, "out": GRADIENTS}, {
        **{name: given(values) for name, values in NO_BACKWARD.items()}, "d_decay": arrays_unlike(G),
        "add": ("dk", b"dk", 5, None, ["d_q"], [""], [0], [True], ["d_decay"], ["d_beta"], {"d_initial_state"}),
        "d_initial_state": arrays_unlike(STATE)}),
    "Plan.bind_step": (PLAN.bind_step, {**INPUTS, "state": STATE, "out": np.empty_like(Q)}, {
        **{name: ARRAYS for name in INPUTS}, "beta": ARRAYS, "state": arrays_unlike(STATE), "out": arrays_unlike(Q),
        "tokens": (*INTEGERS, -1, 2 ** 40)}),
    "Plan.run_pointers": (PLAN.run_pointers, {
        "call": "step", "stream": 0, "arrays": memory(**INPUTS, state=STATE, o=OUT)}, {
        "call": (*OBJECTS, "", "Forward", None), "stream": STREAMS, "reuse_cache": FLAGS, "cu_seqlens": OFFSETS,
        "arrays": ({"d_q": (8, 8)}, {"Q": (8, 8)}, {"q": 8}, {"q": (8,)}, {"q": (-8, 8)}, {"q": (8, -8)},
                   {"q": (True, 8)}, {"q": (8, 2.0)}, {"q": Q}, {"q": (2 ** 70, 8)}, [("q", 8)], 5, None)}),
    "Plan.prepare": (PLAN.prepare, {}, {"stream": STREAMS}),
    "Plan.owners": (PLAN.owners, {"begin": 0, "end": 1}, {"begin": (*INTEGERS, -1, 2), "end": (*INTEGERS, -1, 2 ** 40)}),
    "Plan.new_cache": (PLAN.new_cache, {}, {"like": ARRAYS}),
    "Comm": (liblasp.Comm, {}, {"handle": (*OBJECTS, None, Q)}),
    "Comm.threads": (liblasp.Comm.threads, {"nranks": 1}, {"nranks": (*INT32, 0, -1)}),
    "Comm.nccl": (liblasp.Comm.nccl, {}, {"communicator": (*OBJECTS, True, None, -1, 2 ** 70)}),
    "Comm.nccl, of address 8": (lambda functions: liblasp.Comm.nccl(8, functions), {}, {
        "functions": ({"sendd": 8}, {"send": 0}, {"send": True}, {"send": "x"}, {"send": 1.5}, {"size": 8},
                      {"send": 2 ** 70}, [8], 5, "send")}),
    "Comm.custom": (liblasp.Comm.custom, {"transport": MailboxEnd(Mailboxes(1), 0), "rank": 0, "nranks": 1}, {
        "transport": (*OBJECTS, None), "rank": (*INT32, 1, -1), "nranks": (*INT32, 0), "local_ranks": (*INT32, -1),
        "name": (0, None, True, b"x", ["x"], "a\0b"), "memory": NAMES, "latency_us": REALS, "bandwidth_gbs": REALS}),
    "Comm.detached": (closing(liblasp.Comm.detached), {"rank": 0, "nranks": 2}, {
        "rank": (*INT32, 2, -1), "nranks": (*INT32, 0)}),
    "problem_info": (liblasp.problem_info, {"problem": PLAN.problem}, {
        "problem": (*OBJECTS, None), "rank": (*INT32, 1, -1), "nranks": (*INT32, 0)}),
    "halo_info": (liblasp.halo_info, {"problem": PLAN.problem, "rows": 2, "channels": 4}, {
        "problem": (*OBJECTS, None), "rows": (*INTEGERS, 0, 65), "channels": (*INTEGERS, 0), "dtype": given(DTYPES),
        "d_dtype": given(DTYPES), "rank": (*INT32, 1, -1), "nranks": (*INT32, 0)}),
    "Halo": (closing(liblasp.Halo), {"plan": PLAN, "rows": 2, "channels": 4}, {
        "plan": (*OBJECTS, None), "rows": (*INTEGERS, 0, 65), "channels": (*INTEGERS, 0), "dtype": given(DTYPES),
        "d_dtype": given(DTYPES)}),
    "Halo.forward": (HALO.forward, {"x": X}, {
        "x": arrays_unlike(X), "before": arrays_unlike(BEFORE), "cu_seqlens": OFFSETS,
        "stream": STREAMS}),
    "Halo.backward": (HALO.backward, {"d_before": BEFORE, "d_x": X}, {
        "d_before": (*arrays_unlike(BEFORE), None), "d_x": (*arrays_unlike(X), None), "cu_seqlens": OFFSETS,
        "stream": STREAMS}),
    "Stages": (liblasp.Stages, {"plan": PLAN}, {"plan": (*OBJECTS, None)}),
    "Stages.summarize": (STAGES.summarize, INPUTS, {
        **NO_INPUTS, "q": ARRAYS, "beta": ARRAYS, "initial_state": arrays_unlike(STATE),
        "maps": (*ARRAYS, MAPS[1:]), "cu_seqlens": OFFSETS, "stream": STREAMS}),
    "Stages.apply": (STAGES.apply, INPUTS, {
        **NO_INPUTS, "beta": ARRAYS, "incoming": arrays_unlike(STATE), "initial_state": arrays_unlike(STATE),
        "out": arrays_unlike(Q), "final_state": without_flags(arrays_unlike(STATE)), "cu_seqlens": OFFSETS, "stream": STREAMS}),
    "Stages.summarize_backward": (STAGES.summarize_backward, {"d_o": D_O, "q": Q, "decay": G}, {
        "d_o": (*arrays_unlike(Q), None), "q": (*ARRAYS, None), "decay": (*ARRAYS, None),
        "k": ARRAYS, "beta": ARRAYS, "d_final_state": arrays_unlike(STATE), "maps": (*ARRAYS, MAPS[1:]), "cu_seqlens": OFFSETS,
        "stream": STREAMS}),
    "Stages.apply_backward": (APPLIED.apply_backward, {"d_o": D_O, **INPUTS}, {
        **NO_INPUTS, "beta": ARRAYS, "d_o": (*arrays_unlike(Q), None), "incoming": arrays_unlike(STATE),
        "initial_state": arrays_unlike(STATE), "d_final_state": arrays_unlike(STATE), "cu_seqlens": OFFSETS,
        "stream": STREAMS}),
    "Stages.incoming": (STAGES.incoming, {"maps": MAPS}, {
        "maps": (*ARRAYS, MAPS[1:], None), "backward": FLAGS, "out": arrays_unlike(STATE), "stream": STREAMS}),
    "Stages.new_maps": (STAGES.new_maps, {"count": 1}, {"count": (*INT32, 0), "like": ARRAYS}),
    "Stages.compose": (STAGES.compose, {"later": MAPS, "earlier": MAPS}, {
        "later": (*ARRAYS, MAPS[1:], None), "earlier": (*ARRAYS, MAPS[1:], None), "out": (*ARRAYS, MAPS[1:]),
        "stream": STREAMS}),
    "groups_of_rank": (liblasp.groups_of_rank, {"world_size": 4, "sequence_ranks": 2, "world_rank": 1}, {
        name: INT32 for name in ("world_size", "sequence_ranks", "world_rank", "stride")}),
    "groups_world_rank": (liblasp.groups_world_rank, {
        "world_size": 4, "sequence_ranks": 2, "sequence_group": 0, "sequence_rank": 1}, {
        name: INT32 for name in ("world_size", "sequence_ranks", "sequence_group", "sequence_rank", "stride")}),
    "predict_exchange": (liblasp.predict_exchange, {
        "schedule": "ring", "nranks": 2, "payload_bytes": 8, "latency_us": 1.0, "bandwidth_gbs": 1.0}, {
        "schedule": NAMES, "nranks": (*INT32, 0), "payload_bytes": (*INTEGERS, -1), "latency_us": (*REALS, -1.0),
        "bandwidth_gbs": (*REALS, -1.0), "pieces": (*INT32, -1)}),
}
# What the sentence may name instead.
ALIASES = {"cache": {"state_cache"}, "out": {"o", "dq", "to", "incoming"}, "log": {"log_level"}, "problem": {"tokens"},
           "handle": {"comm"}, "index": {"sequence"}}
TRIED = [(case, parameter) for case, (_, _, wrong) in CASES.items() for parameter in wrong]


@pytest.mark.parametrize("case", CASES)
def test_the_arguments_are_right_otherwise(case):
    function, right, _ = CASES[case]
    if right:
        function(**right)


@pytest.mark.parametrize("case,parameter", TRIED)
def test_wrong_types(case, parameter):
    function, right, wrong = CASES[case]
    taken = []
    for value in wrong[parameter]:
        many = parameter in ("settings", "changes", "fields")
        try:
            function(**{**right, **(value if many else {parameter: value})})
        except liblasp.InvalidArgument as error:
            names = {list(value)[-1]} if many else {parameter, *ALIASES.get(parameter, ())}
            if parameter == "arrays" and isinstance(value, dict):
                names |= set(value)
            assert any(re.search(rf"\b{name}\b", str(error)) for name in names), (value, str(error))
        else:
            taken.append(value)
    assert not taken


def parameters_of(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


# Comm.mpi needs MPI (mpi_ranks.py); `keep` is what a comm's handle borrows, of any type.
NOT_TRIED = {("Comm.mpi", "communicator"), ("Comm", "keep")}


def test_every_parameter_is_tried():
    """Of functions and of classes that a program makes and calls; exceptions and results are neither."""
    public = {name: getattr(liblasp, name) for name in liblasp.__all__}
    wanted = {(name, parameter) for name, thing in public.items() if inspect.isfunction(thing)
              for parameter in parameters_of(thing)}
    for kind in (liblasp.Problem, liblasp.Context, liblasp.Plan, liblasp.Comm, liblasp.Halo, liblasp.Stages):
        wanted |= {(kind.__name__, parameter) for parameter in parameters_of(kind.__init__)}
        for name in (name for name in vars(kind) if not name.startswith("_")):
            method = getattr(kind, name)
            if callable(method):
                wanted |= {(f"{kind.__name__}.{name}", parameter) for parameter in parameters_of(method)}
    tried = {(case.partition(",")[0], parameter) for case, parameter in TRIED}
    assert tried == wanted - NOT_TRIED
