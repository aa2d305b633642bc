#!/usr/bin/env python3
"""A watchdog: a thread in each rank that ends its process when a peer has stopped, wherever the rank waits for it.

    python watchdog.py                                # two processes on the CPU, over gloo
    python watchdog.py --stop-before all-reduce       # the rank waits in torch, not in liblasp
    python watchdog.py --device cuda                  # over NCCL: the host sits in a stream synchronisation

Rank 1 stops itself after a few steps (SIGSTOP), as a machine that swaps or a process in a debugger does. Rank 0 is to
be gone within the limit, so that whoever started the job can start it anew. The program measures that."""
import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

import liblasp
from liblasp.torch import LinearAttention, SequenceGroup

RANKS, STEPS, TOKENS, WIDTH = 2, 1000, 256, 64
LOOK_EVERY = 0.2  # seconds
ENDED = 3         # exit status of a rank that was ended


class Watchdog(threading.Thread):
    """Ends the process once `group` has failed, or no step has ended for `limit` seconds after the first."""

    def __init__(self, group, limit):
        super().__init__(name="watchdog", daemon=True)
        self.group, self.limit, self.latest = group, limit, None

    def step(self):
        """A step has ended. Call it where the host knows that, after loss.item() say."""
        self.latest = time.monotonic()

    def run(self):
        while True:
            time.sleep(LOOK_EVERY)
            try:
                self.group.check()  # an exchange on a GPU that does not end within the group's time limit, too
            except liblasp.Error as error:
                self.end(str(error))
            if self.latest is not None and time.monotonic() - self.latest > self.limit:
                self.end(f"no step for {self.limit:g} s")

    @staticmethod
    def end(why):
        """At once and from any thread: nothing can be ended in order while another thread waits for a GPU."""
        print(f"watchdog: {why}: the job is over", flush=True)
        os._exit(ENDED)


def rank_main(rank, file, arguments, stops):
    cuda = arguments.device == "cuda"
    if cuda and torch.cuda.device_count() < RANKS:  # NCCL lets a GPU be used by two machines, not by one twice
        os.environ.update(NCCL_HOSTID=f"watchdog-{rank}", NCCL_SOCKET_IFNAME="lo")
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    group = SequenceGroup(dist.new_group(list(range(RANKS))), time_limit=arguments.limit)
    torch.manual_seed(0)
    attention = LinearAttention(WIDTH, 4, decay="scalar", group=group).to(device)
    x = torch.randn(1, TOKENS, WIDTH, device=device)
    watchdog = Watchdog(group, arguments.limit)
    watchdog.start()

    def stop_here(where, step):
        if (rank, step, where) == (1, 5, arguments.stop_before):
            stops.put(time.monotonic())
            stops.close()
            stops.join_thread()
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        for step in range(STEPS):
            stop_here("exchange", step)
            loss = attention(x).square().mean()
            loss.backward()
            stop_here("all-reduce", step)
            for parameter in attention.parameters():
                dist.all_reduce(parameter.grad)  # as DDP does
                parameter.grad = None
            if cuda:
                torch.cuda.synchronize()  # here the host sits, and hears of nothing
            watchdog.step()
    except liblasp.CommFailed as error:  # on the CPU a call that waits finds it out itself
        watchdog.end(str(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--limit", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--stop-before", choices=["exchange", "all-reduce"], default="exchange",
                        help="what the stopped rank does not come to")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    stops = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_main, args=(rank, f"{folder}/store", arguments, stops))
                 for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        try:
            stopped = stops.get(timeout=60)
            ranks[0].join(arguments.limit + 20)
            seconds = time.monotonic() - stopped
        finally:
            for rank in ranks:
                rank.kill()  # ends a stopped process too
    ended = ranks[0].exitcode == ENDED and seconds < arguments.limit + 2
    print(f"rank 0 {'was gone' if ended else 'was NOT gone in time'} {seconds:.1f} s after rank 1 had stopped")
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
