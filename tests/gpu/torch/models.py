"""liblasp.torch.hf over NCCL: models of transformers split over two ranks, which may share a GPU, and over as many GPUs
as there are, against the unsplit model on the same GPU, in float32 and bfloat16, and their tokens behind a split
prefill. Models and bounds are those of bindings/python/tests/test_torch_hf_full.py."""

import importlib.util
import pathlib
import sys

import torch
import torch.distributed as dist

import several_gpus
from problems import skip

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bindings" / "python" / "tests"))

def batch_on(device, seed=3):
    import hf_models

    return {name: value.to(device) for name, value in hf_models.batch_of(seed=seed).items()}


def pair(name, dtype, device, **changes):
    """The unsplit model and the split one."""
    import hf_models
    from liblasp.torch import hf as sp

    one, many = (hf_models.make(name, dtype, **changes).to(device) for _ in range(2))
    return one, sp.parallelize(many, dist.group.WORLD)


def in_float32(name, device):
    """How far loss and gradients are from the unsplit model's, and how far rounding carries there."""
    import hf_models
    import hf_ranks

    one, many = pair(name, torch.float32, device)
    batch = batch_on(device)
    reference = hf_ranks.unsplit(one, batch)
    moved = hf_ranks.unsplit(hf_ranks.nudged(hf_models.make(name).to(device)), batch)
    found = hf_ranks.apart(hf_ranks.split(many, batch), reference)
    hf_ranks.assert_near(found, hf_ranks.apart(moved, reference))
    return max(far for key, far in found.items() if key != "loss")


def in_bfloat16(name, device):
    """How far the unsplit and the split model are from float32, as medians over batches."""
    import hf_models
    import hf_ranks

    changes, found = hf_models.ALL_EXPERTS.get(name, {}), []
    one, many = pair(name, torch.bfloat16, device, **changes)
    reference = hf_models.make(name, **changes).to(device)
    reference.load_state_dict(one.state_dict())
    for seed in range(3):
        batch = batch_on(device, seed)
        expected = hf_ranks.unsplit(reference, batch)[1]
        found.append([hf_ranks.whole_distance(step[1], expected)
                      for step in (hf_ranks.unsplit(one, batch), hf_ranks.split(many, batch))])
    return (sorted(each)[1] for each in zip(*found))


def decodes(name, device):
    """How far logits behind a split prefill, padded too, are from the unsplit model's."""
    import hf_ranks

    found = [hf_ranks.decoded(name, padded, device) for padded in {False, name != "MiniMax"}]
    for each in found:
        hf_ranks.assert_decoded(*each)
    return max(far for far, _ in found)


def prepared(_, device):
    import logging
    import os

    os.environ["USE_HUB_KERNELS"] = "0"
    logging.disable(logging.WARNING)

    def judge(name):
        module = __import__("hf_models").MODELS[name][0]
        if importlib.util.find_spec(f"transformers.models.{module}") is None:
            return None, "not in this transformers"
        worst, (own, far), behind = in_float32(name, device), in_bfloat16(name, device), decodes(name, device)
        return far <= 1.5 * own, (
            f"gradients in float32 at most {worst:.2g} from the unsplit model's, logits behind a split prefill "
            f"{behind:.2g}; gradients in bfloat16 {far:.2g} from float32, the unsplit model {own:.2g}")

    return judge


def check_models():
    if importlib.util.find_spec("transformers") is None:
        return skip("no transformers")
    for ranks in sorted({2, max(2, torch.cuda.device_count())}):
        several_gpus.by_case(ranks, prepared, list(__import__("hf_models").MODELS), "cuda")
