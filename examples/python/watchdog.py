"""A watchdog: a thread of the program's own that ends a job whose peer has stopped.

    python3 watchdog.py

Two ranks, which are threads of this process, train without a time limit. Rank 0 stops after a few steps, and rank 1
would wait for it for ever. The watchdog sees that no step has ended for a second and aborts the group. A program of
processes has one watchdog in each.
"""

import sys
import threading
import time

import numpy as np

import liblasp

RANKS, STEPS, PATIENCE, LOOK_EVERY = 2, 20, 1.0, 0.1


class Rank:
    """What a rank's thread and the watchdog share."""

    def __init__(self, comm):
        self.context = liblasp.Context(comm, cpu_threads=1, time_limit=float("inf"))
        self.steps, self.error = 0, None
        self.goes_home = threading.Event()

    def train(self, stops_at):
        """Steps, until the group breaks. The rank that stops waits here for something that never comes of itself."""
        q = np.ones((1, 64, 2, 16), np.float32)
        try:
            plan = self.context.plan(liblasp.Problem.like(q, q, q, backward=False))
            for step in range(STEPS):
                if step == stops_at:
                    self.goes_home.wait()
                plan.forward(q, q, q)
                self.steps += 1
        except liblasp.Error as error:
            self.error = error


def watch(rank):
    """Aborts the group once the rank has not got on for a while. Whether it had to."""
    steps, since = rank.steps, time.monotonic()
    while time.monotonic() - since < PATIENCE:
        time.sleep(LOOK_EVERY)
        try:
            rank.context.check()
        except liblasp.Error as error:  # the call that waits raises it too
            print(f"watchdog: {error}")
            return False
        if rank.steps == STEPS:
            return False
        if rank.steps != steps:
            steps, since = rank.steps, time.monotonic()
    print(f"watchdog: no step for {PATIENCE} s, {steps} have ended: the job is over")
    rank.context.abort()
    return True


def main():
    ranks = [Rank(comm) for comm in liblasp.Comm.threads(RANKS)]
    threads = [threading.Thread(target=rank.train, args=(STEPS // 2 if i == 0 else None,))
               for i, rank in enumerate(ranks)]
    for thread in threads:
        thread.start()
    ended = watch(ranks[1])
    threads[1].join()
    ranks[0].goes_home.set()
    threads[0].join()
    for i, rank in enumerate(ranks):
        print(f"rank {i}, after {rank.steps} steps: {rank.error}")
        rank.context.close()
    return 0 if ended and all(isinstance(rank.error, liblasp.Aborted) for rank in ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
