"""Ranks as processes with gloo for the tests of liblasp.torch: one start runs many checks, and tests look at what they
gave."""
import datetime
import os
import pickle
import time
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_checks(rank, ranks, folder, checks, wait=60):
    """In a group of all ranks, which waits so many seconds: by its key what each check (key, function, arguments)
    gave, or its traceback; by (key, "seconds") how long it took."""
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=wait))
    report = {}
    for key, check, arguments in checks:
        began = time.monotonic()
        try:
            report[key] = check(*arguments)
        except BaseException:
            report[key] = traceback.format_exc()
        report[key, "seconds"] = time.monotonic() - began
        dist.barrier()
    dist.destroy_process_group()
    return report


def _keep(rank, folder, body, arguments):
    (folder / f"report-{rank}").write_bytes(pickle.dumps(body(rank, *arguments)))


def on_processes(folder, ranks, body, *arguments, seconds=240, meanwhile=None):
    """What body(rank, *arguments) gave in each rank's process. This process does `meanwhile` in the meantime."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = mp.spawn(_keep, (folder, body, arguments), ranks, join=False)
    if meanwhile is not None:
        meanwhile()
    deadline = time.monotonic() + seconds
    while not context.join(5):
        if time.monotonic() > deadline:
            for each in context.processes:
                each.kill()
            pytest.fail("the ranks did not end in time")
    return [pickle.loads((folder / f"report-{rank}").read_bytes()) for rank in range(ranks)]


def found(reports, key):
    """What a check gave on each rank, where it gave something on all."""
    parts = [report[key] for report in reports]
    for each in parts:
        assert not (isinstance(each, str) and "Traceback" in each), each
    return parts
