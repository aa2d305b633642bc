"""What the tests share: the stored vectors, a float64 recurrence, groups of threads, a transport in Python, and what is
refused."""

import collections
import json
import os
import queue
import socket
import threading

import numpy as np
import pytest

import liblasp

SOURCE = os.environ.get("LASP_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
VECTORS = os.environ.get("LASP_TEST_VECTORS", os.path.join(SOURCE, "tests", "vectors"))

# Relative Frobenius errors; derived in tests/support/measure.cpp: float32 sums of these lengths, and one rounding
# to bfloat16 or float16 on top.
FLOAT32_BOUND = 2e-6
BOUNDS = {"float32": FLOAT32_BOUND, "bfloat16": FLOAT32_BOUND + 2.0 ** -9, "float16": FLOAT32_BOUND + 2.0 ** -12}


class Vector:
    """One folder of case.json and arrays."""

    def __init__(self, folder):
        with open(os.path.join(folder, "case.json"), encoding="ascii") as file:
            self.case = json.load(file)
        self.name = os.path.basename(folder)
        self.tensors = {name: np.load(os.path.join(folder, name + ".npy")) for name in self.case["tensors"]}

    def __getitem__(self, name):
        return self.tensors.get(name)


def all_vectors():
    names = sorted(os.listdir(VECTORS))
    return [Vector(os.path.join(VECTORS, name)) for name in names if os.path.isdir(os.path.join(VECTORS, name))]


def random_problem(seed, batch=1, tokens=64, heads=2, head_dim=8, decay="scalar"):
    """q, k, v, g, d_o of unit scale."""
    random = np.random.default_rng(seed)
    shape = (batch, tokens, heads, head_dim)
    q, k, v, d_o = (random.standard_normal(shape).astype(np.float32) for _ in range(4))
    g = {"none": None, "head": random.uniform(-1, 0, heads), "scalar": random.uniform(-1, 0, shape[:3]),
         "channel": random.uniform(-1, 0, shape)}[decay]
    return q, k, v, None if g is None else g.astype(np.float32), d_o


def per_head(x, heads):
    return np.repeat(np.asarray(x, np.float64), heads // x.shape[2], axis=2)


def recurrence(q, k, v, g, d_o, scale, initial_state=None, d_final_state=None, cu_seqlens=None, beta=None):
    """The definition, token by token in float64. With beta the write is the delta rule. Returns o, final_state, dq, dk,
    dv, dg, dbeta, d_initial_state by name, and dg_size: of a per-head decay the sum of its terms' sizes, which its
    error is measured against, because the terms may cancel."""
    batch, tokens, heads = q.shape[0], q.shape[1], max(q.shape[2], k.shape[2], v.shape[2])
    wide = [per_head(x, heads) for x in (q, k, v)]
    decay = np.zeros((batch, tokens, heads, 1)) if g is None else np.asarray(g, np.float64)
    decay = np.broadcast_to(decay[None, None, :, None], (batch, tokens, heads, 1)) if decay.ndim == 1 else decay
    decay = np.exp(decay[..., None] if decay.ndim == 3 else decay)
    d_o = np.asarray(d_o, np.float64)
    spans = [(b, 0, tokens) for b in range(batch)] if cu_seqlens is None else [
        (0, begin, end) for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:])]
    states = (len(spans), heads, q.shape[3], v.shape[3])
    out = {"o": np.zeros((batch, tokens, heads, v.shape[3])), "final_state": np.zeros(states),
           "d_initial_state": np.zeros(states)}
    grads = [np.zeros(x.shape) for x in wide]
    terms, d_beta = np.zeros((batch, tokens, heads, q.shape[3])), np.zeros((batch, tokens, heads))
    for n, (b, begin, end) in enumerate(spans):
        state = np.zeros(states[1:]) if initial_state is None else initial_state[n].astype(np.float64)
        before = []
        for t in range(begin, end):
            before.append(decay[b, t][:, :, None] * state)
            key, written = wide[1][b, t], wide[2][b, t]
            if beta is not None:
                written = beta[b, t][:, None] * (written - np.einsum("hk,hkv->hv", key, before[-1]))
            state = before[-1] + key[:, :, None] * written[:, None, :]
            out["o"][b, t] = scale * np.einsum("hkv,hk->hv", state, wide[0][b, t])
            grads[0][b, t] = scale * np.einsum("hkv,hv->hk", state, d_o[b, t])
        out["final_state"][n] = state
        d_state = np.zeros(states[1:]) if d_final_state is None else d_final_state[n].astype(np.float64)
        for t in reversed(range(begin, end)):
            d_state = d_state + scale * wide[0][b, t][:, :, None] * d_o[b, t][:, None, :]
            key, written = wide[1][b, t], wide[2][b, t]
            d_written = np.einsum("hkv,hk->hv", d_state, key)
            if beta is not None:
                missing = written - np.einsum("hk,hkv->hv", key, before[t - begin])
                d_beta[b, t] = (d_written * missing).sum(-1)
                written, d_written = beta[b, t][:, None] * missing, beta[b, t][:, None] * d_written
            grads[1][b, t] = np.einsum("hkv,hv->hk", d_state, written)
            grads[2][b, t] = d_written
            if beta is not None:  # the token reads the state, too
                grads[1][b, t] -= np.einsum("hkv,hv->hk", before[t - begin], d_written)
                d_state = d_state - key[:, :, None] * d_written[:, None, :]
            terms[b, t] = (d_state * before[t - begin]).sum(-1)
            d_state = d_state * decay[b, t][:, :, None]
        out["d_initial_state"][n] = d_state
    for name, grad, given in zip(("dq", "dk", "dv"), grads, (q, k, v)):
        out[name] = grad.reshape(*given.shape[:3], -1, given.shape[3]).sum(3)
    out["dbeta"] = None if beta is None else d_beta
    out["dg"] = None if g is None else terms if g.ndim == 4 else terms.sum(
        -1) if g.ndim == 3 else terms.sum((0, 1, 3))
    out["dg_size"] = np.linalg.norm(np.abs(terms.sum(-1)).sum((0, 1))) if g is not None and g.ndim == 1 else 0.0
    return out


def relative_error(actual, expected, size=0.0):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(actual - expected) / (size or np.linalg.norm(expected) or 1.0)


def split(tokens, nranks):
    """An uneven split: (begin, end) of each rank; the second of three or more holds nothing."""
    weights = [2 if rank % 2 else 3 for rank in range(nranks)]
    if nranks > 2:
        weights[1] = 0
    bounds = [tokens * sum(weights[:rank]) // sum(weights) for rank in range(nranks + 1)]
    return list(zip(bounds[:-1], bounds[1:]))


def on_threads(comms, body):
    """Runs body(rank, comm) for every rank on its own thread; returns results or exceptions in rank order."""
    results = [None] * len(comms)

    def run(rank):
        try:
            results[rank] = body(rank, comms[rank])
        except BaseException as error:  # handed to the test
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def raise_first(results):
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def refused(words, call, kind=liblasp.InvalidArgument, status=None):
    """call() raises this kind of exception, in whose sentence the words (a regular expression) stand. Returns it."""
    with pytest.raises(kind, match=words) as caught:
        call()
    assert status is None or caught.value.status == status
    assert str(caught.value)
    return caught.value


def sentence_of(call):
    """What call() was refused with, or None. A rank that is a process reports it, and the test looks."""
    try:
        call()
    except liblasp.Error as error:
        return str(error)
    return None


def free_ports(count):
    """Of this machine, each another one."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Mailboxes:
    """A transport in Python: queues between the ranks of one process. Mailboxes(n).ends() are its n ends."""

    def __init__(self, nranks):
        self.nranks = nranks
        self.boxes = collections.defaultdict(queue.Queue)
        self.lock = threading.Lock()
        self.aborted = threading.Event()

    def box(self, *key):
        with self.lock:
            return self.boxes[key]

    def ends(self, kind=None):
        return [(kind or MailboxEnd)(self, rank) for rank in range(self.nranks)]


class MailboxEnd:
    def __init__(self, group, rank):
        self.group, self.rank, self.closed, self.cancelled = group, rank, 0, 0

    def send(self, data, peer, tag, stream):
        self.group.box(self.rank, peer, tag).put(bytes(data))
        return None

    def receive(self, data, peer, tag, stream):
        return [data, self.group.box(peer, self.rank, tag), peer]

    def test(self, request):
        return request is None or not request[1].empty()

    def wait(self, request, time_limit_ms):
        if request is None:
            return
        try:
            request[0][:] = request[1].get(timeout=None if time_limit_ms < 0 else time_limit_ms / 1000)
        except queue.Empty:
            raise liblasp.PeerLost(f"rank {request[2]} did not come", rank=request[2]) from None

    def cancel(self, request):
        self.cancelled += 1

    def abort(self, lost_rank):
        self.group.aborted.set()

    def close(self):
        self.closed += 1

    def comm(self):
        return liblasp.Comm.custom(self, rank=self.rank, nranks=self.group.nranks, name="mailboxes")
