"""liblasp.jax on one device: results and gradients against float64, transformations of JAX, what a program calls, and wrong
uses. test_jax_shards.py has meshes."""

import os
import subprocess
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liblasp
from jax_cases import Case, errors_of
from liblasp.jax import delta_rule, gated_delta_rule, kda, linear_attention
from support import BOUNDS, SOURCE

# The delta rule's d_beta and d_decay (docs/reference/delta-rule.md); others as support.py has them.
DELTA_BOUND = 1e-5


def check(case, found):
    for name, error in errors_of(case, found).items():
        bound = BOUNDS[case.dtype]
        if case.beta is not None and name in ("dg", "d_beta"):
            bound = max(bound, DELTA_BOUND)
        assert error <= bound, f"{case.name} {name}: {error:.1e}"


CASES = [dict(decay="none"), dict(decay="head"), dict(decay="scalar"), dict(decay="channel"),
         dict(decay="scalar", dtype="bfloat16"), dict(decay="channel", dtype="float16"),
         dict(decay="none", delta=True), dict(decay="scalar", delta=True), dict(decay="channel", delta=True),
         dict(decay="scalar", cu_seqlens=(0, 0, 9, 40, 40, 60)),
         dict(decay="channel", delta=True, cu_seqlens=(0, 17, 64, 64))]


@pytest.mark.parametrize("settings", CASES, ids=lambda settings: Case(**settings, reference=False).name)
def test_results_and_gradients_are_those_of_the_recurrence(settings):
    case = Case(**settings)
    found = case.gradients(jax.jit(case.whole))
    check(case, found)
    assert found["o"].dtype == case.q.dtype and found["dk"].dtype == case.q.dtype


def test_gradients_are_finite_differences():
    """Of a loss that is a sum of o and of the final state, along one direction of all inputs. A step of 1e-2 has a
    truncation of about 1e-4 of the derivative, and float32's roundings 1e-5."""
    case = Case(decay="scalar", delta=True, tokens=24)

    whole = jax.jit(case.whole)

    def loss(arrays):
        o, state = whole(*arrays)
        return np.sum(np.asarray(o, np.float64) * case.d_o) + np.sum(np.asarray(state, np.float64) * case.d_state)

    random = np.random.default_rng(3)
    along = [random.standard_normal(x.shape).astype(np.float32) for x in case.arrays()]
    at = lambda step: loss([x + step * direction for x, direction in zip(case.arrays(), along)])
    numeric = (at(5e-3) - at(-5e-3)) / 1e-2
    found = case.gradients(whole)
    exact = sum(np.vdot(np.asarray(found[name], np.float64), direction) for name, direction in zip(
        ("dq", "dk", "dv", "dg", "d_beta", "d_initial_state"), along))
    assert abs(numeric - exact) <= 1e-3 * abs(exact)


def test_without_a_final_state_and_with_the_small_cache_gradients_are_the_same():
    case = Case(decay="channel")
    found = [jax.grad(lambda q, k, v, g: (linear_attention(q, k, v, g, **options) * case.d_o).sum(), (0, 1, 2, 3))(
        *case.arrays()[:4]) for options in ({}, {"state_cache": "incoming"})]
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_grouped_heads_are_heads_repeated():
    case = Case(decay="head", heads=4)
    grouped = lambda k: linear_attention(case.q, k, case.v, case.g)
    k = case.k[:, :, :2]
    repeat = lambda k: jnp.repeat(k, 2, axis=2)
    o, pull = jax.vjp(grouped, k)
    want, pull_repeated = jax.vjp(lambda k: linear_attention(case.q, repeat(k), case.v, case.g), k)
    np.testing.assert_array_equal(o, want)
    np.testing.assert_allclose(pull(case.d_o)[0], pull_repeated(case.d_o)[0], rtol=1e-5, atol=1e-5)


def test_bidirectional_and_scale():
    case = Case(decay="none", tokens=16, batch=1)
    o = linear_attention(case.q, case.k, case.v, causal=False, scale=0.5)
    want = 0.5 * np.einsum("bthk,bshk,bshv->bthv", *(np.asarray(x, np.float64) for x in (case.q, case.k, case.v)))
    assert np.linalg.norm(o - want) <= BOUNDS["float32"] * np.linalg.norm(want)


def test_scan_over_layers_with_checkpoint_has_the_gradients_of_a_loop():
    random = np.random.default_rng(0)
    weights, x = (random.standard_normal(shape, np.float32) / 8 for shape in ((3, 16, 48), (1, 32, 16)))

    def layer(x, w):
        q, k, v = jnp.split((x @ w).reshape(1, 32, 2, 24), 3, axis=-1)
        return x + linear_attention(q, k, v, jnp.full(2, -0.1)).reshape(x.shape), None

    def scanned(weights):
        return (jax.lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2).sum()

    def looped(weights):
        y = x
        for w in weights:
            y = layer(y, w)[0]
        return (y ** 2).sum()

    found, want = jax.jit(jax.grad(scanned))(weights), jax.jit(jax.grad(looped))(weights)
    assert np.linalg.norm(found - want) <= 1e-5 * np.linalg.norm(want) > 0


def test_vmap_is_a_loop():
    case = Case(decay="scalar", batch=1)
    many = jnp.stack([case.q, 2 * case.q, -case.q])
    f = lambda q: jax.value_and_grad(lambda q: (linear_attention(q, case.k, case.v, case.g) * case.d_o).sum())(q)
    together, alone = jax.jit(jax.vmap(f))(many), jax.jit(f)
    for at, q in enumerate(many):
        for one, other in zip(together, alone(q)):
            np.testing.assert_allclose(one[at], other, rtol=1e-6)


def test_arguments_may_be_donated_and_given_by_numpy():
    case = Case(decay="head")
    want = linear_attention(case.q, case.k, case.v, case.g)
    arrays = [jnp.array(x) for x in (case.q, case.k, case.v, case.g)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not all of them were of use
        np.testing.assert_array_equal(jax.jit(linear_attention, donate_argnums=(0, 1, 2))(*arrays), want)
    np.testing.assert_array_equal(linear_attention(*(np.asarray(x) for x in (case.q, case.k, case.v, case.g))), want)


def test_names_of_the_delta_rule():
    case = Case(decay="channel", delta=True)
    q, k, v, g, beta = case.arrays()[:5]
    np.testing.assert_array_equal(kda(q, k, v, g, beta), linear_attention(q, k, v, g, beta=beta))
    np.testing.assert_array_equal(gated_delta_rule(q, k, v, g[..., 0], beta),
                                  linear_attention(q, k, v, g[..., 0], beta=beta))
    np.testing.assert_array_equal(delta_rule(q, k, v, beta), linear_attention(q, k, v, beta=beta))


def test_a_program_has_two_custom_calls_and_no_callback():
    case = Case(decay="head", reference=False)
    gradient = jax.jit(jax.grad(lambda q: linear_attention(q, case.k, case.v, case.g).sum()))
    text = gradient.lower(case.q).as_text()
    assert text.count("@liblasp_forward(") == 1 and text.count("@liblasp_backward(") == 1
    assert text.count("custom_call @") == 2, text


def test_threads_may_call_at_the_same_time():
    case = Case(decay="scalar")
    run = jax.jit(lambda q: linear_attention(q, case.k, case.v, case.g))
    want = run(case.q)
    wrong = []

    def calls():
        for _ in range(20):
            if not np.array_equal(run(case.q), want):
                wrong.append(True)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


Q = np.zeros((1, 4, 2, 8), np.float32)
WRONG = [
    (dict(q=Q[0]), "q: has 3 dimensions, must be [B, T, Hq, K]"),
    (dict(q=[1.0]), "q = [1.0]: must be a JAX array"),
    (dict(q=Q.astype(np.int32)), "q: dtype int32 is not one of float32, bfloat16 and float16"),
    (dict(k=Q[:, :3]), "k: shape (1, 3, 2, 8), must be (1, 4, 2, 8)"),
    (dict(k=Q.astype(np.float16)), "k: dtype float16, must be float32"),
    (dict(v=Q[:, :3]), "v: shape (1, 3, 2, 8), must be (1, 4, 2, 8)"),
    (dict(decay=np.zeros(3, np.float32)), "decay: shape (3,), must be [H], [B, T, H] or [B, T, H, K] with [B, T, H, K]"),
    (dict(decay=np.zeros(2, np.float16)), "decay: dtype float16, must be float32"),
    (dict(decay=np.zeros((1, 4, 2), np.float16)), "decay: dtype float16, must be float32"),
    (dict(decay="head"), "decay = 'head': must be a JAX array"),
    (dict(beta=np.zeros((1, 4), np.float32)), "beta: shape (1, 4), must be (1, 4, 2)"),
    (dict(beta=1.0), "beta = 1.0: must be a JAX array"),
    (dict(initial_state=np.zeros((2, 2, 8, 8), np.float32)), "initial_state: shape (2, 2, 8, 8), must be (1, 2, 8, 8)"),
    (dict(initial_state=np.zeros((1, 2, 8, 8), np.float16)), "initial_state: dtype float16, must be float32"),
    (dict(cu_seqlens=np.zeros(3, np.float32)), "cu_seqlens"),
    (dict(cu_seqlens=(0,)), "cu_seqlens: is [1] of int32, must be [N + 1] of int32 or int64"),
    (dict(cu_seqlens=(0, 3, 2)), "cu_seqlens[2] = 2: is below the 3 before it"),
    (dict(cu_seqlens=(1, 3)), "cu_seqlens: goes from 1 to 3, must go from 0 to at most"),
    (dict(cu_seqlens=(0, 5)), "cu_seqlens: goes from 0 to 5, must go from 0 to at most"),
    (dict(scale="1"), "scale = '1': must be a number"),
    (dict(causal=1), "causal = 1: must be True or False"),
    (dict(output_final_state="no"), "output_final_state = 'no': must be True or False"),
    (dict(state_cache="all"), "state_cache = 'all': must be one of"),
    (dict(axis_name=3), "axis_name = 3: must be a name of a mesh axis"),
    (dict(axis_name=()), "axis_name = (): must be a name of a mesh axis"),
    (dict(axis_name="s"), "axis_name = 's': is no axis here; call inside jax.shard_map"),
]


@pytest.mark.parametrize("given, sentence", WRONG, ids=[sentence for _, sentence in WRONG])
def test_wrong_use_is_refused_by_name(given, sentence):
    with pytest.raises(liblasp.InvalidArgument) as refusal:
        linear_attention(**{"q": Q, "k": Q, "v": Q, **given})
    assert sentence in str(refusal.value)


def test_what_is_unsupported_is_refused_when_it_is_traced():
    for arguments, sentence in (((Q[..., :4], Q[..., :4], Q), "head_dim_k"), ((Q, Q, Q, np.zeros(2, np.float32)), "mask")):
        with pytest.raises(liblasp.Error, match=sentence):
            linear_attention(*arguments, causal=False)
    with pytest.raises(liblasp.InvalidArgument, match="g: has 1 dimensions"):
        kda(Q, Q, Q, np.zeros(2, np.float32), np.zeros((1, 4, 2), np.float32))
    with pytest.raises(liblasp.InvalidArgument, match=r"^g: shape"):
        kda(Q, Q, Q, np.zeros((1, 4, 2, 4), np.float32), np.zeros((1, 4, 2), np.float32))
    with pytest.raises(liblasp.InvalidArgument, match="beta: must be an array"):
        delta_rule(Q, Q, Q, None)


def test_a_refusal_when_the_program_runs_is_an_error_of_jax():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"liblasp: packing.cu_seqlens\[2\] = 2"):
        jax.block_until_ready(linear_attention(Q, Q, Q, cu_seqlens=jnp.array([0, 3, 2])))
    linear_attention(Q, Q, Q).block_until_ready()  # and what comes after is computed


def test_second_and_forward_derivatives_are_refused():
    square = lambda q: (linear_attention(q, Q, Q) ** 2).sum()
    with pytest.raises(Exception, match="cannot be differentiated"):
        jax.grad(lambda q: jax.grad(square)(q).sum())(Q + 1)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(square, (Q,), (Q,))


def test_import_without_jax_says_how_to_get_it():
    script = "import sys; sys.modules['jax'] = None; import liblasp.jax"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "liblasp.jax needs JAX 0.6 or later: pip install" in done.stderr


def test_the_layout_of_xla_structs_is_that_of_this_jaxlib(tmp_path):
    """xla/xla_ffi.h says what the module uses of XLA's interface; the compiler compares it with jaxlib's header."""
    header = os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    theirs = {"Version": "Api_Version", "Metadata": "Metadata", "Buffer": "Buffer", "Args": "Args", "Attrs": "Attrs",
              "ErrorArgs": "Error_Create_Args", "ErrorDestroyArgs": "Error_Destroy_Args", "StreamArgs": "Stream_Get_Args",
              "OrdinalArgs": "DeviceOrdinal_Get_Args", "CallFrame": "CallFrame", "Api": "Api", "Scalar": "Scalar",
              "ByteSpan": "ByteSpan"}
    fields = {"Metadata": ("version=api_version", "traits"), "Buffer": ("dtype", "data", "rank", "dims"),
              "Args": ("size", "types", "buffers=args"), "Attrs": ("size", "types", "names", "values=attrs"),
              "ErrorArgs": ("message", "code=errc"), "StreamArgs": ("context=ctx", "stream"),
              "OrdinalArgs": ("context=ctx", "ordinal=device_ordinal"), "Version": ("major_version", "minor_version"),
              "CallFrame": ("api", "context=ctx", "stage", "args", "results=rets", "attrs"), "Scalar": ("dtype", "value"),
              "ByteSpan": ("data=ptr", "size=len"), "ErrorDestroyArgs": ("error",),
              "Api": ("version=api_version", "error_create=XLA_FFI_Error_Create",
                      "error_destroy=XLA_FFI_Error_Destroy", "stream_get=XLA_FFI_Stream_Get",
                      "ordinal_get=XLA_FFI_DeviceOrdinal_Get")}
    values = {"kMetadata": "Extension_Metadata", "kBuffer": "ArgType_BUFFER", "kScalar": "AttrType_SCALAR",
              "kString": "AttrType_STRING", "kExecute": "ExecutionStage_EXECUTE", "kInt32": "DataType_S32",
              "kInt64": "DataType_S64", "kFloat32": "DataType_F32", "kInvalidArgument": "Error_Code_INVALID_ARGUMENT",
              "kUnimplemented": "Error_Code_UNIMPLEMENTED", "kInternal": "Error_Code_INTERNAL",
              "kResourceExhausted": "Error_Code_RESOURCE_EXHAUSTED", "kDataLoss": "Error_Code_DATA_LOSS"}
    lines = [f'#include "{header}"', f'#include "{SOURCE}/bindings/python/xla/xla_ffi.h"', "#include <cstddef>"]
    for ours, names in fields.items():
        for name in names:
            own, _, other = name.partition("=")
            lines.append(f"static_assert(offsetof(lasp::xla::{ours}, {own}) == "
                         f"offsetof(XLA_FFI_{theirs[ours]}, {other or own}), \"{ours}.{own}\");")
    lines += [f"static_assert(int(lasp::xla::{ours}) == int(XLA_FFI_{name}), \"{ours}\");"
              for ours, name in values.items()]
    lines.append("static_assert(lasp::xla::kMajor == XLA_FFI_API_MAJOR);")
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join(lines))
    subprocess.run(["c++", "-std=c++20", "-Wno-invalid-offsetof", "-fsyntax-only", str(source)], check=True)
