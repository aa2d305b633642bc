"""liblasp.torch.hf over NCCL: models of transformers split over two ranks against the unsplit model on the same GPU, in
float32 and bfloat16. The models and bounds are those of bindings/python/tests/test_torch_hf_full.py."""

import importlib.util
import pathlib
import sys

import torch
import torch.distributed as dist

import several_gpus
from problems import need, skip

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bindings" / "python" / "tests"))

RANKS = 2


def gpu_batch(seed=3):
    import hf_models

    return {name: value.cuda() for name, value in hf_models.batch_of(seed=seed).items()}


def pair(name, dtype, **changes):
    """The unsplit model and the split one."""
    import hf_models
    from liblasp.torch import hf as sp

    one, many = (hf_models.make(name, dtype, **changes).cuda() for _ in range(2))
    return one, sp.parallelize(many, dist.group.WORLD)


def moved(name, batch):
    """As hf_ranks.moved, on the GPU: how far rounding carries."""
    import hf_models
    import hf_ranks

    return hf_ranks.unsplit(hf_ranks.nudged(hf_models.make(name).cuda()), batch)


def in_float32(name):
    import hf_ranks

    one, many = pair(name, torch.float32)
    batch = gpu_batch()
    reference = hf_ranks.unsplit(one, batch)
    found = hf_ranks.apart(hf_ranks.split(many, batch), reference)
    hf_ranks.assert_near(found, hf_ranks.apart(moved(name, batch), reference))
    return max(far for key, far in found.items() if key != "loss")


def in_bfloat16(name):
    """How far the unsplit and the split model are from float32, as medians over batches."""
    import hf_models
    import hf_ranks

    changes, found = hf_models.ALL_EXPERTS.get(name, {}), []
    one, many = pair(name, torch.bfloat16, **changes)
    reference = hf_models.make(name, **changes).cuda()
    reference.load_state_dict(one.state_dict())
    for seed in range(3):
        batch = gpu_batch(seed)
        expected = hf_ranks.unsplit(reference, batch)[1]
        found.append([hf_ranks.whole_distance(step[1], expected)
                      for step in (hf_ranks.unsplit(one, batch), hf_ranks.split(many, batch))])
    own, far = (sorted(each)[1] for each in zip(*found))
    need(far <= 1.5 * own, f"{name} in bfloat16: {far:.3g} from float32, the unsplit model {own:.3g}")
    return own, far


def models_rank(rank, ranks):
    import logging
    import os

    os.environ["USE_HUB_KERNELS"] = "0"
    logging.disable(logging.WARNING)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank % torch.cuda.device_count()))
    for name in ("MiniMax", "Mamba2", "Qwen3Next", "Bamba", "KimiLinear"):
        module = __import__("hf_models").MODELS[name][0]
        if importlib.util.find_spec(f"transformers.models.{module}") is None:
            if rank == 0:
                print(f"  {name}: not in this transformers", flush=True)
            continue
        worst = in_float32(name)
        own, far = in_bfloat16(name)
        if rank == 0:
            print(f"  {name} over {ranks} ranks: gradients in float32 at most {worst:.2g} from the unsplit model's; "
                  f"in bfloat16 {far:.2g} from float32, the unsplit model {own:.2g}", flush=True)
    dist.destroy_process_group()


def check_models():
    if importlib.util.find_spec("transformers") is None:
        return skip("no transformers")
    several_gpus.spawn(models_rank, RANKS)
