"""Linear attention over a sequence that is split over four ranks, which are threads of this process, and the same
on one rank: outputs and gradients agree.

    python3 four_ranks.py [tokens]
"""

import sys
import threading

import numpy as np

import liblasp

RANKS, HEADS, HEAD_DIM = 4, 4, 64


def attention(comm, q, k, v, decay, d_o):
    """Forward and backward of the tokens that this rank holds. Every rank of the group calls it."""
    with liblasp.Context(comm, cpu_threads=1, time_limit=60) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=decay))
        o = plan.forward(q, k, v, decay)
        gradients = plan.backward(d_o, q, k, v, decay)
    return o, gradients.dq, gradients.dk, gradients.dv, gradients.d_decay


def on_four_ranks(q, k, v, decay, d_o):
    """Each rank's thread takes a quarter of the tokens: views, nothing is copied."""
    comms, results = liblasp.Comm.threads(RANKS), [None] * RANKS
    bounds = [q.shape[1] * rank // RANKS for rank in range(RANKS + 1)]

    def run(rank):
        mine = slice(bounds[rank], bounds[rank + 1])
        try:
            results[rank] = attention(comms[rank], q[:, mine], k[:, mine], v[:, mine], decay, d_o[:, mine])
        except liblasp.Error as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, liblasp.Error):
            raise result
    print(f"rank 1 sent {comms[1].traffic().bytes_sent:,} bytes in {comms[1].traffic().messages_sent} messages")
    parts = [np.concatenate(part, 1) for part in list(zip(*results))[:4]]
    # a decay per head is a parameter: its gradients are summed
    return (*parts, sum(result[4] for result in results))


def main():
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    random = np.random.default_rng(0)
    q, k, v, d_o = (random.standard_normal((1, tokens, HEADS, HEAD_DIM), np.float32) for _ in range(4))
    decay = np.log(1 - 2.0 ** -np.arange(5, 5 + HEADS)).astype(np.float32)  # RetNet's
    one = attention(liblasp.Comm.self_(), q, k, v, decay, d_o)
    four = on_four_ranks(q, k, v, decay, d_o)
    worst = 0.0
    for name, a, b in zip(("o", "dq", "dk", "dv", "d_decay"), one, four):
        error = np.linalg.norm(a - b) / np.linalg.norm(a)
        worst = max(worst, error)
        print(f"{name:8} {str(a.shape):20} four ranks against one: relative difference {error:.1e}")
    # Both are float32 sums in another order: see docs/reference/numerics.md.
    return 0 if worst < 2e-5 else "four ranks differ from one"


if __name__ == "__main__":
    sys.exit(main())
