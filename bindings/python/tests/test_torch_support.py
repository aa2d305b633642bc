"""What the tests of liblasp.torch share: the recurrence in float64, the given vectors, ranks as threads, error
bounds."""
import json
import os
import pathlib
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402

VECTORS = pathlib.Path(os.environ.get("LASP_TEST_VECTORS",
                                      pathlib.Path(__file__).resolve().parents[3] / "tests" / "vectors"))
# The bounds of tests/support/measure.cpp, where they are derived: sums in float32, then one rounding of the output.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 2e-6 + 2.0**-9, torch.float16: 2e-6 + 2.0**-12}
# A per-head decay's gradient is a sum over all tokens whose terms cancel; the library's own bound is against the
# sum of the terms' sizes. Against the result itself, terms of random sign leave a factor of at most sqrt(tokens).


# The promise of docs/reference/delta-rule.md, which tests/conformance/delta_test.cpp derives, over that of float32.
DELTA, DELTA_GATES = 3e-6 / 2e-6, 1e-5 / 2e-6


def recurrence(q, k, v, decay=None, *, beta=None, initial_state=None, cu_seqlens=None, scale=None, causal=True):
    """o and final states [N, H, K, V], one token at a time, differentiable; in float64 when its inputs are."""
    batch, tokens, _, dim_k = q.shape
    dim_v = v.shape[3]
    heads = max(q.shape[2], k.shape[2], v.shape[2])
    q, k, v = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k, v))
    scale = scale or dim_k ** -0.5
    sequences = ([(b, 0, tokens) for b in range(batch)] if cu_seqlens is None else
                 [(0, begin, end) for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:])])
    outputs, finals = {}, []
    for n, (b, begin, end) in enumerate(sequences):
        state = q.new_zeros(heads, dim_k, dim_v) if initial_state is None else initial_state[n]
        if not causal:
            state = state + torch.einsum("thk,thv->hkv", k[b, begin:end], v[b, begin:end])
        for t in range(begin, end):
            if decay is not None:
                g = decay if decay.dim() == 1 else decay[b, t]
                state = torch.exp(g).reshape(heads, -1, 1) * state
            if causal:
                written = v[b, t]
                if beta is not None:
                    written = beta[b, t].unsqueeze(1) * (written - torch.einsum("hk,hkv->hv", k[b, t], state))
                state = state + k[b, t].unsqueeze(2) * written.unsqueeze(1)
            outputs[b, t] = scale * torch.einsum("hk,hkv->hv", q[b, t], state)
        finals.append(state)
    o = torch.stack([torch.stack([outputs[b, t] for t in range(tokens)]) for b in range(batch)])
    return o, torch.stack(finals)


def relative_error(actual, expected):
    actual, expected = actual.detach().double(), expected.detach().double()
    size = expected.norm()
    return float((actual - expected).norm() / (size if size > 0 else 1.0))


def assert_close(name, actual, expected, dtype, factor=1.0):
    assert actual.shape == expected.shape, name
    error, bound = relative_error(actual, expected), BOUNDS[dtype] * factor
    assert error <= bound, f"{name}: relative error {error:.3g}, bound {bound:.3g}"


def vector_names():
    return sorted(path.name for path in VECTORS.iterdir() if path.is_dir())


def read_vector(name):
    folder = VECTORS / name
    case = json.loads((folder / "case.json").read_text())
    return case, {tensor: torch.from_numpy(np.load(folder / f"{tensor}.npy")) for tensor in case["tensors"]}


def run_ranks(nranks, function, time_limit=30.0, **options):
    """function(rank, group) on a thread for each rank of an in-process group; their results in rank order."""
    comms = liblasp.Comm.threads(nranks)
    groups = [lt.SequenceGroup(comm, time_limit=time_limit, cpu_threads=1, **options) for comm in comms]
    results, errors = [None] * nranks, [None] * nranks

    def run(rank):
        try:
            results[rank] = function(rank, groups[rank])
        except BaseException as error:  # raised again below, by the caller's thread
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        group.close()
    for comm in comms:
        comm.close()
    for error in errors:
        if error is not None:
            raise error
    return results


def shard_of(name, value, begin, end):
    """A rank's own leaf of an input: its tokens, or all of what has none."""
    if value is None:
        return None
    whole = name == "initial_state" or value.dim() == 1
    return (value if whole else value[:, begin:end]).detach().requires_grad_()


def make_problem(decay="scalar", batch=2, tokens=37, heads=(2, 2, 2), dim_k=16, dim_v=24, dtype=torch.float32,
                 seed=0, states=True, sequences=None):
    """Random inputs of unit scale as a dict of leaf tensors for linear_attention, with the gradients to put in.
    `decay` "delta_none" and the like: with beta, and keys of length 1."""
    generator = torch.Generator().manual_seed(seed)
    heads_all = max(heads)
    delta, decay = decay.startswith("delta_"), decay.removeprefix("delta_")

    def normal(*shape, dtype=dtype):
        return torch.randn(shape, generator=generator).to(dtype)

    x = {"q": normal(batch, tokens, heads[0], dim_k), "k": normal(batch, tokens, heads[1], dim_k),
         "v": normal(batch, tokens, heads[2], dim_v)}
    shape = {"none": None, "head": (heads_all,), "scalar": (batch, tokens, heads_all),
             "channel": (batch, tokens, heads_all, dim_k)}[decay]
    x["decay"] = None if shape is None else -torch.rand(shape, generator=generator) * 0.3
    if delta:
        x["k"] = torch.nn.functional.normalize(x["k"].float(), dim=-1).to(dtype)
        x["beta"] = torch.rand(batch, tokens, heads_all, generator=generator)
    count = sequences or batch
    x["initial_state"] = normal(count, heads_all, dim_k, dim_v, dtype=torch.float32) if states else None
    d_o = normal(batch, tokens, heads_all, dim_v)
    d_final = normal(count, heads_all, dim_k, dim_v, dtype=torch.float32)
    return x, d_o, d_final


def reference_gradients(x, d_o, d_final, **options):
    """o, final state and the gradients of all inputs, by the recurrence in float64."""
    wide = {name: None if value is None else value.detach().double().requires_grad_() for name, value in x.items()}
    o, final = recurrence(wide["q"], wide["k"], wide["v"], wide["decay"], beta=wide.get("beta"),
                          initial_state=wide["initial_state"], **options)
    torch.autograd.backward([o, final], [d_o.double(), d_final.double()])
    return o, final, {name: None if value is None else value.grad for name, value in wide.items()}
