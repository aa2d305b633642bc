#!/usr/bin/env python3
"""liblasp.torch on a GPU machine: what the tests on the CPU cannot show.

    python3 check.py                 # every check that this machine's GPUs allow
    python3 check.py stream speed    # some of them

Needs torch with CUDA, and the liblasp package (PYTHONPATH) with a liblasp.so that has the CUDA backend: `carry` beside
this file makes one on a machine with a compiler. Checks:
  attention   forward and backward on CUDA tensors against float64: decays, dtypes, layouts, packed, states
  stream      the caller's current stream is respected, nothing waits for the device
  graph       a forward pass captured into a CUDA graph
  arrays      torch, CuPy and JAX arrays, and anything with DLPack or __cuda_array_interface__, through the base
              package: no copy, forward and backward against float64
  streams     the same on streams of CuPy's and torch's, current and given
  refusals    wrong device, dtype, strides, stream, read-only memory, closed handles; what follows is right
  module      LinearAttention under autocast and checkpointing, beside exact attention between the same layers
  softmax     softmax_attention's kernels are the flash kernels, and read heads that share keys once
  states      LinearAttention: states carried on, packed sequences, two ranks on one GPU, checkpointing without a
              second exchange
  operators   compiled calls beside ordinary ones, opcheck, fake tensors
  packed      offsets in device memory: layers, operators and graphs that wait for nothing, beside offsets on the host
  delta       delta_rule, gated_delta_rule and kda against the CPU; packed
  segments    time_segments in float32: three and seven segments beside one, packed sequences, a convolution
  segments_over_gpus  the same over two and four GPUs, beside one
  long        time_segments of a compiled model in bfloat16; the loss in tiles
  training    examples/pytorch/train.py by DDP, FSDP and FSDP2 over NCCL, with 1, 2 and 4 GPUs, against one
  watchdog    examples/pytorch/watchdog.py: ends a process whose host waits for a stopped one
  models      models of transformers by liblasp.torch.hf over two ranks and over all GPUs, against the unsplit ones; verify
  fla         layers of flash-linear-attention with its kernels, beside the unsplit ones
  trainers    the trainers of liblasp.torch.trainers, DDP, FSDP and DeepSpeed, over one rank, two, and all GPUs, in
              bfloat16
  exchange    NCCL: by torch's communicator and by one of our own; messages; a rank that does not come
  overhead    what a call adds to that of C, of a plan without work: at most 5 microseconds
  speed       microseconds of a pass, and a training step at a real size
Each prints its numbers. Exit status 0: all passed (what the machine lacks is said and skipped)."""

import argparse
import datetime
import os
import sys
import time
import traceback

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # before JAX is imported, which would take the GPU

import torch  # noqa: E402

import compiled  # noqa: E402
import delta  # noqa: E402
import frameworks  # noqa: E402
import layers_of_fla  # noqa: E402
import models  # noqa: E402
import modules  # noqa: E402
import one_gpu  # noqa: E402
import overhead  # noqa: E402
import packed  # noqa: E402
import refusals  # noqa: E402
import segments  # noqa: E402
import several_gpus  # noqa: E402
import speed  # noqa: E402
import trainers  # noqa: E402
from problems import counts  # noqa: E402

CHECKS = {
    name[len("check_"):]: function
    for module in (one_gpu, frameworks, refusals, modules, compiled, packed, delta, segments, several_gpus, models,
                   layers_of_fla, trainers, overhead, speed)
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
        began, before = time.perf_counter(), counts["failed"]
        try:
            CHECKS[name]()
            if counts["failed"] > before:
                failed.append(name)
        except BaseException as problem_found:
            traceback.print_exc()
            failed.append(name)
            if isinstance(problem_found, KeyboardInterrupt):
                break
        print(f"  {'FAILED' if failed[-1:] == [name] else 'ok'} ({time.perf_counter() - began:.1f} s)", flush=True)
    print(
        f"{len(names) - len(failed)} of {len(names)} checks passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
        + f"; lines: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
