"""What a type checker says of programs that use liblasp, for test_typing.py: a line that ends in "# error" must be
reported, no other may be. `right` is run as well."""

from __future__ import annotations

import sys
from typing import Any, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

import liblasp
from liblasp.results import GradientArrays

if sys.version_info >= (3, 11):
    from typing import assert_type
else:
    from typing_extensions import assert_type

Floats = NDArray[np.float32]


def right(q: Floats, k: Floats, v: Floats, d_o: Floats, decay: Floats) -> None:
    comm = liblasp.Comm.self_()
    with liblasp.Context(comm, device="cpu", time_limit=10, cpu_threads=1, log=print, log_level="warning") as context:
        problem = liblasp.Problem.like(q, k, v, decay=decay, scale=0.5, schedule="ring", cache=liblasp.Cache.CHUNKS)
        assert_type(problem.decay, liblasp.Decay)
        assert_type(problem.heads_q, int)
        assert_type(problem.shape_of("d_o"), Optional[Tuple[int, ...]])
        plan = context.plan(problem.with_(chunk=16, dtype="float32"))
        assert_type(plan, liblasp.Plan)
        assert_type(plan.info.schedule, liblasp.Schedule)
        o = plan.forward(q, k, v, decay)
        assert_type(o, Floats)
        o, made = plan.forward(q, k, v, decay, final_state=True)
        state: Floats = made
        assert_type(plan.forward(q, k, v, decay, final_state=state), Tuple[Floats, Any])
        assert_type(plan.forward(q.data, k, v, decay), Any)
        assert_type(plan.forward(q, k, v, decay, out=o), Floats)
        assert_type(plan.forward(q, k, v, decay, out=o, final_state=state), Tuple[Floats, Any])
        assert_type(plan.step(q, k, v, decay, state=state), Floats)
        plan.forward(q, k, v, decay, initial_state=state, reuse_cache=False, stream=None)
        assert_type(plan.backward(d_o, q, k, v, decay, d_decay=False), liblasp.Gradients)
        plan.backward(d_o, q, k, v, decay, out={"dq": np.empty_like(q)}, d_decay=np.empty_like(decay))
        plan.backward(d_o, q, k, v, decay, d_decay=np.empty_like(decay), add=["d_decay"])
        call = plan.bind_forward(q, k, v, decay, out=o)
        call()
        call(None)
        out: GradientArrays = {"dq": np.empty_like(q), "dk": np.empty_like(q), "dv": np.empty_like(q)}
        plan.bind_backward(d_o, q, k, v, decay, out=out)()
        context.plan(tokens=4, heads=2, head_dim_k=8, head_dim_v=16, decay="head", dtype=np.float32, write="additive",
                     max_sequences=2, strides={"q": (64, 16, 8)}, scale=None, backward=False).describe()
        empty = context.plan(tokens=0, heads=2, head_dim=8, decay=liblasp.Decay.NONE, dtype=np.dtype("float32"))
        empty.forward(None, None, None)
        assert_type(liblasp.predict_exchange("ring", 4, 1000, latency_us=1.0, bandwidth_gbs=10), float)
        assert_type(liblasp.groups_of_rank(8, 4, 3).data_rank, int)
    comm.close()


def wrong(context: liblasp.Context, plan: liblasp.Plan, q: Floats, comm: liblasp.Comm) -> None:
    liblasp.Problem(4, decay="heda")  # error
    liblasp.Problem(4, decay=liblasp.Schedule.RING)  # error
    liblasp.Problem(4, decay=1)  # error
    liblasp.Problem(4, dtype="float64")  # error
    liblasp.Problem(4, dtype=1)  # error
    liblasp.Problem(4, schedule="fastest")  # error
    liblasp.Problem(4, mask="full")  # error
    liblasp.Problem(4, cache="all")  # error
    liblasp.Problem(4, write="delta_rule")  # error
    liblasp.Problem(4.0)  # error
    liblasp.Problem(4, 2)  # error
    liblasp.Problem(4, scale="1")  # error
    liblasp.Problem(4, heads="2")  # error
    liblasp.Problem(4, head_dims=8)  # error
    liblasp.Problem(4, max_sequences=2.5)  # error
    liblasp.Problem(4, max_sequences="4")  # error
    liblasp.Problem(4, strides=[1, 2, 3])  # error
    liblasp.Problem(4, backward="no")  # error
    liblasp.Problem.like(q, q, q, decay="head")  # error
    liblasp.Problem.like(q, q, q, tokens=4)  # error
    liblasp.Problem.like(q, q, [[1.0]])  # error
    plan.problem.with_(decay="heda")  # error
    plan.problem.with_(head_dims=8)  # error
    context.plan(tokens=4, decay="heda")  # error
    context.plan(tokens=4, head_dims=8)  # error
    context.plan(decay="head")  # error
    context.plan(plan.problem, tokens=4)  # error
    context.plan("problem")  # error
    liblasp.Context("comm")  # error
    liblasp.Context(device=0)  # error
    liblasp.Context(log_level="loud")  # error
    liblasp.Context(log=lambda message: None)  # error
    liblasp.Context(time_limit="10")  # error
    liblasp.Context(verify_message=True)  # error
    plan.forward([[1.0]], q, q)  # error
    plan.forward(q, q)  # error
    plan.forward(q, q, q, final_state=1)  # error
    plan.forward(q, q, q, reuse_cache="yes")  # error
    plan.forward(q, q, q, output=q)  # error
    plan.forward(q, q, q, stream="default")  # error
    plan.forward(q, q, q, final_state=True).sum()  # error
    plan.forward(q, q, q, out=q.data, final_state=True).shape  # error
    plan.backward(q, q, q, q, out={"d_q": q})  # error
    plan.backward(q, q, q, q, out={"d_decay": q})  # error
    plan.backward(q, q, q, q, out=[q])  # error
    plan.backward(q, q, q, q, d_decay="yes")  # error
    plan.backward(q, q, q, q).d_q  # error
    plan.step(q, q, q)  # error
    plan.step(q, q, q, state=None)  # error
    plan.bind_forward(q, q, q)  # error
    plan.bind_forward(q, q, q, out=q)("stream")  # error
    plan.bind_backward(q, q, q, q)  # error
    plan.bind_step(q, q, q, state=q)  # error
    plan.run_pointers("sideways", 0, {})  # error
    plan.run_pointers("step", 0, {"q": q})  # error
    plan.owners("first", 4)  # error
    liblasp.Comm.threads("4")  # error
    liblasp.Comm.threads(4).rank  # error
    liblasp.Comm.nccl("communicator")  # error
    liblasp.Comm.custom(object(), rank=0, nranks=1)  # error
    comm.rank = 3  # error
    liblasp.predict_exchange("quick", 4, 1000, latency_us=1.0, bandwidth_gbs=10)  # error
    liblasp.groups_of_rank(8, 4, 3, strides=1)  # error
    liblasp.Plann  # error
