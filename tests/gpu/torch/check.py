#!/usr/bin/env python3
"""lasp.torch on a GPU machine: what the tests on the CPU cannot show.

    python3 check.py                 # every check that this machine's GPUs allow
    python3 check.py stream speed    # some of them

Needs torch with CUDA, and the lasp package (PYTHONPATH) with a liblasp.so that has the CUDA backend: `carry` beside this
file makes one on a machine with a compiler. Checks:
  attention   forward and backward on CUDA tensors against the CPU in float64: decays, dtypes, layouts, packed, states
  stream      the caller's current stream is respected, nothing waits for the device
  graph       a forward pass captured into a CUDA graph
  arrays      CuPy, JAX and torch arrays through the base package, without a copy
  module      LinearAttention under autocast, checkpointing, against float32 on the CPU
  refusals    tensors on the wrong device, a closed group
  training    examples/pytorch/train.py by DDP, FSDP and FSDP2 over NCCL, with 1, 2 and 4 GPUs, against one
  exchange    NCCL: by torch's communicator and by one of our own; messages; a rank that does not come
  speed       microseconds of a call, and a training step at a real size
Each prints its numbers. Exit status 0: all passed (what the machine lacks is said and skipped)."""

import argparse
import datetime
import sys
import time
import traceback

import torch

import one_gpu
import several_gpus
import speed

CHECKS = {
    name[len("check_"):]: function
    for module in (one_gpu, several_gpus, speed)
    for name, function in vars(module).items()
    if name.startswith("check_")
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="check", help="which; default: all")
    names = parser.parse_args().checks or list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        parser.error(f"no check is called {unknown[0]}: {', '.join(CHECKS)}")
    if not torch.cuda.is_available():
        print("SKIPPED: no CUDA device")
        return 77
    print(
        f"torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}, "
        f"{datetime.date.today()}"
    )
    failed = []
    for name in names:
        print(f"{name}:", flush=True)
        began = time.perf_counter()
        try:
            CHECKS[name]()
        except BaseException as problem_found:
            traceback.print_exc()
            failed.append(name)
            if isinstance(problem_found, KeyboardInterrupt):
                break
        print(f"  {'FAILED' if failed[-1:] == [name] else 'ok'} ({time.perf_counter() - began:.1f} s)", flush=True)
    print(
        f"{len(names) - len(failed)} of {len(names)} checks passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
