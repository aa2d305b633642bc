"""The checks by several processes, a GPU each: training, and NCCL itself."""

import datetime
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import liblasp
import liblasp.torch as lt
from problems import BOUNDS, error, line, need, on_gpu, problem, run, skip

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLE = next(
    (folder / "examples" / "pytorch" for folder in HERE.parents if (folder / "examples" / "pytorch").is_dir()), None
)


def spawn(function, ranks, *args):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(entry, (function, ranks, port, args), ranks)


def entry(rank, function, ranks, port, args):
    gpus = torch.cuda.device_count() or ranks  # without any: a trial on the CPU
    shared = gpus < ranks  # NCCL lets a GPU be used by two machines, not by one twice: a rank is then a machine
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank % gpus if shared else rank),
        LOCAL_WORLD_SIZE="1" if shared else str(ranks),
        GROUP_RANK=str(rank if shared else 0),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    if shared:
        os.environ.update(NCCL_HOSTID=f"lasp-check-{rank}", NCCL_SOCKET_IFNAME="lo")
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % gpus)
    function(rank, ranks, *args)


def by_case(ranks, prepare, cases, device):
    """A line for each case: that of the first rank that is not right. `prepare` gives each rank a function of a case,
    which says whether it is right (None: not there) and what was found."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(cases_rank, ranks, prepare, cases, device, f"{folder}/found")
        parts = [pickle.loads(pathlib.Path(f"{folder}/found.{rank}").read_bytes()) for rank in range(ranks)]
    for case in cases:
        good, said = min((part[case] for part in parts), key=lambda each: each[0] is not False)
        if good is None:
            skip(f"{case}: {said}")
        else:
            line(good, f"{case}, {ranks} rank(s): {said}")


def cases_rank(rank, ranks, prepare, cases, device, file):
    device = torch.device(device, torch.cuda.current_device() if device == "cuda" else None)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo",
                            device_id=device if device.type == "cuda" else None, timeout=datetime.timedelta(seconds=40))
    one_case, found = prepare(ranks, device), {}
    for case in cases:
        try:
            found[case] = one_case(case)
        except Exception:
            found[case] = False, traceback.format_exc()
        print(f"    rank {rank} of {ranks}, {case}: {found[case][1]}", flush=True)
    pathlib.Path(f"{file}.{rank}").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


def train_rank(rank, ranks, arguments):
    sys.path.insert(0, str(EXAMPLE))
    import train

    train.main(arguments)


def read_curve(path):
    return [float(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]


def check_training():
    folder = pathlib.Path(tempfile.mkdtemp())
    text = folder / "text.txt"  # of these programs themselves: every machine has it
    text.write_text("".join(file.read_text() for file in sorted(HERE.glob("*.py"))))
    steps = 20
    common = [
        "--steps",
        str(steps),
        "--seq-len",
        "4096",
        "--batch",
        "4",
        "--log-every",
        str(steps),
        "--dtype",
        "float32",
        "--lr",
        "1e-4",
        "--text",
        str(text),
    ]
    runs = [("one", 1, []), ("one fsdp2", 1, ["--parallel", "fsdp2"]), ("checkpointed", 1, ["--checkpoint"])]
    for ranks in (2, 4):
        if torch.cuda.device_count() >= ranks:
            runs += [(f"{ranks} sequence", ranks, ["--sequence-ranks", "0", "--checkpoint"])]
    if torch.cuda.device_count() >= 4:
        runs += [
            (f"2 x 2 {how}", 4, ["--sequence-ranks", "2", "--parallel", how]) for how in ("ddp", "fsdp", "fsdp2")
        ]
    curves = {}
    for name, ranks, extra in runs:
        spawn(train_rank, ranks, [*common, *extra, "--loss-csv", str(folder / "curve.csv")])
        curves[name] = read_curve(folder / "curve.csv")
        difference = max(abs(a - b) for a, b in zip(curves["one"], curves[name]))
        print(
            f"  {name}: loss {curves[name][0]:.4f} to {curves[name][-1]:.4f}, from one rank's at most {difference:.2g}"
        )
        # A change of the first weights by 3e-7 of them parts the curves by 2e-2 within twenty steps at the example's
        # own rate of 2e-3 (Adam makes a step of the rate of a gradient next to zero), by 1e-3 at 2e-4, where such a
        # gradient is rare. At this rate they were apart by 2e-6; a gradient of q too large by 1% parts them by 1e-3.
        need(difference < 1e-4 and curves[name][-1] < curves[name][0] - 0.2, name)


def exchange_rank(rank, ranks, own):
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    if own:
        from liblasp.torch import nccl

        nccl.communicator = nccl._new_communicator
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    if rank == 0:
        print(
            f"  torch hands out its communicator: {hasattr(backend, '_comm_ptr')}; used here: {not own}", flush=True
        )
    tokens = 1024
    x, d_o = problem("scalar", batch=1, tokens=tokens, dtype=torch.bfloat16)
    one = run(on_gpu, x, d_o, f"cuda:{rank}")
    begin, end = lt.shard_bounds(tokens, rank, ranks)
    mine = {n: v if n == "initial_state" else v[:, begin:end] for n, v in x.items()}
    group = lt.sequence_group(dist.group.WORLD)
    many = run(lambda leaves: on_gpu(leaves, group=dist.group.WORLD), mine, d_o[:, begin:end], f"cuda:{rank}")
    for name in ("o", "d q", "d k", "d v", "d decay"):
        found = error(many[name], one[name][:, begin:end])
        need(found < BOUNDS[torch.bfloat16], f"{name} on rank {rank}: {found}")
    module = lt.LinearAttention(256, 4, group=dist.group.WORLD).cuda().bfloat16()
    y = torch.randn(1, 512, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    counts = []
    for how in (lambda f, a: f(a), lt.checkpoint):
        how(module, y).sum().backward()
        before = group.traffic()["messages_sent"]
        how(module, y).sum().backward()
        torch.cuda.synchronize()
        counts.append(group.traffic()["messages_sent"] - before)
    need(counts[0] == counts[1], f"checkpointing sends {counts[1]} messages, plain runs {counts[0]}")
    if rank == 0:
        print(
            f"  {ranks} ranks agree with one; {counts[0]} messages a pass with and without checkpointing",
            flush=True,
        )
    dist.barrier()
    group.close()
    dist.destroy_process_group()


def lost_rank(rank, ranks):
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    group = lt.SequenceGroup(dist.new_group(list(range(ranks))), time_limit=3.0)
    x, _ = problem("none", batch=1, tokens=64)
    q, k, v = (x[name].cuda() for name in "qkv")
    lt.linear_attention(q, k, v, group=group)
    torch.cuda.synchronize()
    if rank == 0:
        began = time.perf_counter()
        try:
            while time.perf_counter() - began < 20:
                lt.linear_attention(q, k, v, group=group, scale=2.0)
                time.sleep(0.2)
            need(False, "a rank that does not come was not noticed")
        except liblasp.CommFailed as sentence:
            print(f"  after {time.perf_counter() - began:.1f} s: {sentence}", flush=True)
    else:
        time.sleep(8)
    os._exit(0)  # the communicator cannot be ended in order any more


def check_watchdog():
    """Two processes, which may share a GPU: one is stopped, and the other's host sits in a stream synchronisation."""
    for where in ("exchange", "all-reduce"):
        done = subprocess.run([sys.executable, str(EXAMPLE / "watchdog.py"), "--device", "cuda", "--stop-before", where],
                              capture_output=True, text=True, timeout=100)
        said = [each for each in done.stdout.splitlines() if each.startswith(("watchdog:", "rank 0"))]
        line(done.returncode == 0, f"stopped before the {where}: {' '.join(said)}")
        if done.returncode != 0:
            print(done.stdout + done.stderr)


def check_exchange():
    ranks = min(4, torch.cuda.device_count())
    if ranks < 2:
        print("  SKIPPED: one GPU")
        return
    for own in (False, True):
        spawn(exchange_rank, ranks, own)
    spawn(lost_rank, 2)
