"""Gradients of a type of their own, gradients that are added to, a scale of zero, and check_values."""
import numpy as np
import pytest

import liblasp
from support import BOUNDS, FLOAT32_BOUND, random_problem, recurrence, relative_error


def halves(decay="scalar"):
    q, k, v, g, d_o = random_problem(3, tokens=40, decay=decay)
    return [x.astype(np.float16) for x in (q, k, v)], g, d_o.astype(np.float16)


@pytest.fixture
def context():
    with liblasp.Context(cpu_threads=1) as made:
        yield made


def test_float32_gradients_of_16_bit_tensors(context):
    """Without the rounding to float16 that the others have."""
    (q, k, v), g, d_o = halves()
    wanted = recurrence(q, k, v, g, d_o, 8 ** -0.5)
    problem = liblasp.Problem.like(q, k, v, decay=g, gradient_dtypes={"dk": "float32", "dv": np.float32})
    plan = context.plan(problem)
    plan.forward(q, k, v, g)
    found = plan.backward(d_o, q, k, v, g)
    assert (found.dq.dtype, found.dk.dtype, found.dv.dtype) == (np.float16, np.float32, np.float32)
    assert relative_error(found.dk, wanted["dk"]) <= FLOAT32_BOUND
    assert relative_error(found.dv, wanted["dv"]) <= FLOAT32_BOUND
    assert FLOAT32_BOUND < relative_error(found.dq, wanted["dq"]) <= BOUNDS["float16"]
    given = {"dk": np.empty_like(found.dk)}
    assert plan.backward(d_o, q, k, v, g, out=given).dk is given["dk"]
    assert np.array_equal(given["dk"], found.dk)
    with pytest.raises(liblasp.InvalidArgument, match="dk"):
        plan.backward(d_o, q, k, v, g, out={"dk": np.empty_like(k)})


def test_decay_and_beta_of_16_bits_have_float32_gradients(context):
    (q, k, v), g, d_o = halves()
    g, beta = g.astype(np.float16), np.full(g.shape, 0.5, np.float16)
    plan = context.plan(liblasp.Problem.like(q, k, v, decay=g, beta=beta, gradient_dtypes=dict.fromkeys(
        ("d_decay", "d_beta"), "float32")))
    plan.forward(q, k, v, g, beta=beta)
    found = plan.backward(d_o, q, k, v, g, beta=beta)
    assert found.d_decay.dtype == found.d_beta.dtype == np.float32 and found.d_decay.any() and found.d_beta.any()


def test_a_problem_tells_its_gradients_types():
    problem = liblasp.Problem(4, head_dim=8, dtype="bfloat16", gradient_dtypes={"dk": liblasp.DType.FLOAT32})
    assert problem.dtype_of("dk") == liblasp.DType.FLOAT32 and problem.dtype_of("dq") == liblasp.DType.BFLOAT16
    assert problem.with_(tokens=5).gradient_dtypes == problem.gradient_dtypes
    assert eval(repr(problem), {"Problem": liblasp.Problem}) == problem
    assert problem != problem.with_(gradient_dtypes={}) and hash(problem)


def test_gradients_are_added_to(context):
    """Twice as much after two passes, in each that is named; a sum with what was there is one float32 addition."""
    q, k, v, g, d_o = random_problem(4, tokens=40)
    state = np.ones((1, 2, 8, 8), np.float32)
    plan = context.plan(liblasp.Problem.like(q, k, v, decay=g))
    plan.forward(q, k, v, g, initial_state=state)
    once = plan.backward(d_o, q, k, v, g, initial_state=state)
    arrays = {"dq": np.full_like(q, 2.0), "dk": np.full_like(k, 2.0), "dv": np.full_like(v, 2.0)}
    d_decay, d_state = np.full_like(g, 2.0), np.full_like(state, 2.0)
    given = dict(initial_state=state, out=arrays, d_decay=d_decay, d_initial_state=d_state)
    plan.backward(d_o, q, k, v, g, add=("dk", "d_decay", "d_initial_state"), **given)
    assert np.array_equal(arrays["dq"], once.dq) and np.array_equal(arrays["dv"], once.dv)
    for found, one in ((arrays["dk"], once.dk), (d_decay, once.d_decay), (d_state, once.d_initial_state)):
        assert np.abs(found - (one + 2.0)).max() <= 4 * 2.0 ** -24 * np.abs(found).max()  # u each: the pass's sum, ours
    bound = plan.bind_backward(d_o, q, k, v, g, add=["dq"], **given)
    for passes in (2, 3):
        bound()
        assert np.allclose(arrays["dq"], passes * once.dq, rtol=0, atol=1e-6 * np.abs(once.dq).max())
    assert np.array_equal(arrays["dk"], once.dk)  # written anew


@pytest.mark.parametrize("add, words", (
    ("dk", "add = 'dk': must be names of gradients"), (5, "add = 5: must be names of gradients"),
    (["x"], "add: no gradient is called 'x'; known: dq, dk, dv, d_decay, d_beta, d_initial_state"),
    ([True], "add: no gradient is called True"), (["dk"], r"add: dk is to be added to, so give its array \(out="),
    (["d_decay"], r"add: d_decay is to be added to, so give its array \(d_decay=\.\.\.\)")))
def test_what_cannot_be_added_to(context, add, words):
    q, k, v, g, d_o = random_problem(4, tokens=20)
    plan = context.plan(liblasp.Problem.like(q, k, v, decay=g))
    plan.forward(q, k, v, g)
    with pytest.raises(liblasp.InvalidArgument, match=f"^{words}"):
        plan.backward(d_o, q, k, v, g, d_decay=True, out={"dq": np.zeros_like(q)}, add=add)


def test_a_scale_of_zero(context):
    q, k, v, g, _ = random_problem(4, tokens=20)
    plan = context.plan(liblasp.Problem.like(q, k, v, decay=g, scale=0.0))
    assert not plan.forward(q, k, v, g).any()
    assert context.plan(plan.problem.with_(scale=None)).forward(q, k, v, g).any()
    with pytest.raises(liblasp.InvalidArgument, match="^scale = 1e-60: is zero in float32"):
        liblasp.Problem(4, head_dim=8, scale=1e-60)


def test_values_are_checked():
    q, k, v, g, _ = random_problem(4, tokens=20)
    with liblasp.Context(cpu_threads=1, check_values=True) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=g))
        expected = plan.forward(q, k, v, g)
        wrong = k.copy()
        wrong[0, 7, 1, 3] = np.nan
        with pytest.raises(liblasp.WrongValues, match="^k: NaN at sequence 0, token 7, head 1"):
            plan.forward(q, wrong, v, g)
        positive = g.copy()
        positive[0, 5, 0] = 0.5
        with pytest.raises(liblasp.WrongValues, match="token 5, head 0"):
            plan.forward(q, k, v, positive)
        assert np.array_equal(plan.forward(q, k, v, g), expected)  # everything lives on
