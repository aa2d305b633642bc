"""python -m liblasp.torch.verify: liblasp.torch.verify on a model of your own, over ranks as processes on this CPU.

    python -m liblasp.torch.verify FILE.py:FUNCTION [--ranks 2] [--seconds 600]

FUNCTION(group) is called on each rank, with the sequence group, and gives the arguments of verify that come before and
after the group: a tuple (model, batch) or (model, batch, {"split": ..., "whole": ...}). The exit status is 0 where
everything is as on one rank, 1 where something is not, and 2 where the step itself failed or did not end in time.
"""
from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, List, Optional

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def main(arguments: Optional[List[str]] = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser("python -m liblasp.torch.verify", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("case", metavar="FILE.py:FUNCTION", help="gives (model, batch) or (model, batch, options)")
    parser.add_argument("--ranks", type=int, default=2, help="processes that share a sequence (2)")
    parser.add_argument("--seconds", type=float, default=600, help="after which the ranks are ended (600)")
    options = parser.parse_args(arguments)
    file, colon, function = options.case.rpartition(":")
    if not colon or not Path(file).is_file():
        parser.error(f"{options.case}: must be a file of Python, a colon, and the name of a function in it")
    if options.ranks < 2:
        parser.error(f"--ranks {options.ranks}: must be at least 2")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        context = multiprocessing.start_processes(
            _rank, (options.ranks, folder, file, function, options.seconds), options.ranks, join=False,
            start_method="spawn")
        ended = _wait(context, options.seconds)
        if not ended:
            print(f"The ranks did not end within {options.seconds:g} s.", file=sys.stderr)
        reports = [path.read_text() if path.exists() else None
                   for path in (Path(folder, f"report-{rank}") for rank in range(options.ranks))]
    failed = next((each for each in reports if each is None or each.startswith("failed\n")), "")
    if not ended or failed != "":
        print((failed or "A rank ended without a report.").partition("\n")[2] or failed, file=sys.stderr)
        return 2
    verdict, _, text = reports[0].partition("\n")
    print(text)
    return 0 if verdict == "ok" else 1


def _wait(context: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    try:
        while not context.join(1):
            if time.monotonic() > deadline:
                for each in context.processes:
                    each.kill()
                return False
    except (multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException) as error:
        print(error, file=sys.stderr)
    return True


def _rank(rank: int, ranks: int, folder: str, file: str, function: str, seconds: float) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", store=dist.FileStore(str(Path(folder, "store")), ranks), rank=rank,
                            world_size=ranks, timeout=datetime.timedelta(seconds=seconds))
    try:
        text = _verified(file, function)
    except BaseException:
        text = f"failed\nRank {rank}:\n{traceback.format_exc()}"
        Path(folder, f"report-{rank}").write_text(text)
        os._exit(0)  # the others, who wait for this one, learn it from gloo
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"report-{rank}").write_text(text)


def _verified(file: str, function: str) -> str:
    from liblasp.torch import init_groups, verify
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location("verified", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    group = init_groups().sequence
    model, batch, *options = getattr(module, function)(group)
    report = verify(model, batch, group, **(options[0] if options else {}))
    return f"{'ok' if report.ok else 'wrong'}\n{report}"


if __name__ == "__main__":
    sys.exit(main())
