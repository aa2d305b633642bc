"""liblasp.jax inside jax.shard_map: sequences over a mesh axis of 2, 4 and 8 devices of the host. test_jax_programs.py has
several processes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

import liblasp
from jax_cases import Case
from liblasp.jax import linear_attention
from test_jax import check

TOKENS = P(None, "s")


def mesh(shards, *names):
    names = names or ("s",)
    shape = (shards,) if len(names) == 1 else (shards // 2, 2)
    return Mesh(np.array(jax.devices()[:shards]).reshape(shape), names)


@pytest.mark.parametrize("shards, settings", [
    (2, dict(decay="none")), (8, dict(decay="head")), (4, dict(decay="scalar", dtype="bfloat16")),
    (2, dict(decay="channel")), (4, dict(decay="scalar", delta=True)),
    (8, dict(decay="scalar", cu_seqlens=(0, 0, 9, 40, 40, 60))),   # ends, begins and padding within shards
    (4, dict(decay="none", cu_seqlens=(0, 16, 48, 64, 64))),       # and at their borders
    (2, dict(decay="channel", delta=True, cu_seqlens=(0, 17, 64, 64)))], ids=str)
def test_results_and_gradients_are_those_of_the_recurrence(shards, settings):
    case = Case(**settings)
    check(case, case.gradients(jax.jit(case.sharded(mesh(shards)))))


def test_without_check_vma_they_are_the_same():
    case = Case(decay="head")
    one, other = (case.gradients(jax.jit(case.sharded(mesh(2), check_vma=check_vma))) for check_vma in (True, False))
    for name, array in one.items():
        if array is not None:
            np.testing.assert_array_equal(array, other[name])


def test_shards_of_an_axis_of_vmap():
    case = Case(decay="none")
    check(case, jax.jit(lambda: case.by_vmap(4))())


def test_a_mesh_of_data_and_sequence_and_one_axis_of_two():
    """Both give the gradients of the whole; a decay per head is the same on all devices, and its gradient their sum."""
    case = Case(decay="head", batch=2)

    def loss(attend, *arrays):
        return (attend(*arrays) * case.d_o).sum()

    arrays = case.arrays()[:4]
    want = jax.jit(jax.grad(partial(loss, linear_attention), (0, 1, 2, 3)))(*arrays)
    for names, tokens, axis in ((("data", "s"), P("data", "s"), "s"), (("a", "b"), P(None, ("a", "b")), ("a", "b"))):
        attend = jax.shard_map(partial(linear_attention, axis_name=axis), mesh=mesh(4, *names),
                               in_specs=(tokens, tokens, tokens, P()), out_specs=tokens)
        found = jax.jit(jax.grad(partial(loss, attend), (0, 1, 2, 3)))(*arrays)
        for one, other in zip(found, want):
            assert np.linalg.norm(one - other) <= 1e-6 * np.linalg.norm(other)


def test_scan_over_layers_with_checkpoint_is_the_whole():
    random = np.random.default_rng(0)
    weights, x = (random.standard_normal(shape, np.float32) / 8 for shape in ((3, 16, 48), (1, 32, 16)))

    def network(weights, x, axis_name=None):
        @jax.checkpoint
        def layer(x, w):
            q, k, v = jnp.split((x @ w).reshape(1, -1, 2, 24), 3, axis=-1)
            return x + linear_attention(q, k, v, jnp.full(2, -0.1), axis_name=axis_name).reshape(x.shape), None
        return jax.lax.scan(layer, x, weights)[0]

    split = jax.shard_map(partial(network, axis_name="s"), mesh=mesh(2), in_specs=(P(), TOKENS), out_specs=TOKENS)
    found, want = (jax.jit(jax.grad(lambda w: (run(w, x) ** 2).sum()))(weights) for run in (split, network))
    assert 0 < np.linalg.norm(found - want) <= 1e-5 * np.linalg.norm(want)


def test_the_program_has_an_all_gather_a_pass_and_no_callback():
    case = Case(decay="scalar", reference=False)
    attend = jax.shard_map(partial(linear_attention, axis_name="s"), mesh=mesh(2), in_specs=TOKENS, out_specs=TOKENS)
    text = jax.jit(jax.grad(lambda q: attend(q, case.k, case.v, case.g).sum())).lower(case.q).as_text()
    calls = [f"liblasp_{name}" for name in ("summarize", "apply", "summarize_backward", "apply_backward")]
    assert all(text.count(f"@{call}(") == 1 for call in calls), text
    assert text.count('"stablehlo.all_gather"(') == 2 and "callback" not in text
    assert "all_reduce" not in text


@pytest.mark.parametrize("settings", [dict(decay="none"), dict(decay="none", delta=True, cu_seqlens=(0, 17, 60))], ids=str)
def test_results_that_are_not_in_place_of_their_operands(settings, monkeypatch):
    """As XLA gives them on GPUs in loops, whatever it was told."""
    whole = jax.ffi.ffi_call
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda *given, input_output_aliases, **options: whole(*given, **options))
    case = Case(**settings)
    check(case, case.gradients(jax.jit(case.sharded(mesh(2)))))


def test_what_is_refused():
    ones = jnp.ones((1, 6, 1, 8))
    attend = lambda **options: jax.jit(jax.shard_map(
        lambda q: linear_attention(q, q, q, axis_name="s", **options), mesh=mesh(4), in_specs=TOKENS, out_specs=TOKENS))
    with pytest.raises(ValueError, match="evenly divisible"):  # of JAX: shards are equal
        attend()(ones)
    with pytest.raises(liblasp.Unsupported, match="axis_name: bidirectional attention"):
        attend(causal=False)(ones[:, :4])
    with pytest.raises(liblasp.InvalidArgument, match="cu_seqlens: goes from 0 to 5, must go from 0 to at most the 4"):
        attend(cu_seqlens=(0, 5))(ones[:, :4])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"liblasp: cu_seqlens\[2\] = 2: less than"):
        attend(cu_seqlens=jnp.array([0, 3, 2]))(ones[:, :4]).block_until_ready()
