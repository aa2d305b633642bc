#!/usr/bin/env python3
"""The process in which bench/peers.py runs public code: it can be stopped. Reads a line of JSON for each thing to do, writes
lines of JSON: what is known so far, then with "done". What the public code prints goes to the standard error."""
import json
import os
import sys
import types

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(row):
    print(json.dumps(row), file=ANSWERS, flush=True)


def main():
    import peer_functions  # not before: importing PyTorch takes seconds, and its failure is an answer
    import torch
    import triton
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no CUDA device")
    device = torch.device("cuda", 0)
    answer({"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "triton": triton.__version__, "done": True})
    for line in sys.stdin:
        task = json.loads(line)
        make, shape = peer_functions.ONE_GPU[task["name"]], types.SimpleNamespace(**task["shape"])
        if "shares" in task:
            try:
                peer_functions.compile_all(make, shape, device, task["share"], task["shares"])
                row = {}
            except Exception as error:
                row = {"missing": peer_functions.reason(error)}
        else:
            row = peer_functions.measure(make, shape, task["repeats"], device, answer)
        answer(row | {"done": True})
        if "CUDA error" in row.get("missing", row.get("backward_missing", "")):
            return  # nothing runs in this process any more


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        answer({"missing": f"{type(error).__name__}: {error}"[:200], "done": True})
        sys.exit(1)
