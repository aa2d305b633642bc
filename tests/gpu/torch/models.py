"""liblasp.torch.hf over NCCL: models of transformers split over two ranks, which may share a GPU, and over as many GPUs
as there are, against the unsplit model on the same GPU: in float32 and bfloat16, as a zigzag, padded, packed, by time
segments, and their tokens behind a split prefill. Models and bounds are those of
bindings/python/tests/test_torch_hf_full.py."""

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


def pair(name, dtype, device, ownership="contiguous", **changes):
    """The unsplit model and the split one."""
    import hf_models
    import hf_ranks
    from liblasp.torch import hf as sp

    one, many = (hf_models.make(name, dtype, **changes).to(device) for _ in range(2))
    return one, sp.parallelize(many, hf_ranks.sequence_group(ownership))


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


def cut_otherwise(name, device):
    """As a zigzag, padded on each side, packed, and by time segments where no layer is softmax's: how far gradients are
    from the unsplit model's at most."""
    import hf_models
    import hf_ranks

    even = {key: value.to(device) for key, value in hf_models.batch_of(tokens=48).items()}
    cases = [(even, hf_ranks.unsplit, hf_ranks.split, {"ownership": "zigzag"})]
    for side in (slice(0, 22), slice(-22, None)):
        batch = batch_on(device)
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][1, side], batch["labels"][1, side], batch["input_ids"][1, side] = 0, -100, 0
        cases.append((batch, hf_ranks.unsplit, hf_ranks.split, {}))
    ends = (3, 4, 32, 50)
    batch = {key: value.to(device) for key, value in hf_models.batch_of(rows=1, tokens=50).items()}
    batch["labels"][0, list(ends[:-1])] = -100
    batch["position_ids"] = torch.cat([torch.arange(end - begin) for begin, end in zip((0, *ends), ends)])[None].to(device)
    cases.append((batch, lambda model, given: hf_ranks.by_document(model, given, ends), hf_ranks.split, {}))
    if name in hf_models.WITHOUT_SOFTMAX:
        cases.append((batch_on(device), hf_ranks.unsplit, hf_ranks.in_segments, hf_models.WITHOUT_SOFTMAX[name]))
    worst = 0.0
    for batch, whole, step, changes in cases:
        one, many = pair(name, torch.float32, device, **changes)
        reference = whole(one, batch)
        own = {key: value for key, value in changes.items() if key != "ownership"}
        moved = whole(hf_ranks.nudged(hf_models.make(name, **own).to(device)), batch)
        found = hf_ranks.apart(step(many, batch), reference)
        hf_ranks.assert_near(found, hf_ranks.apart(moved, reference))
        worst = max(worst, *(far for key, far in found.items() if key != "loss"))
    return worst


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
        otherwise = cut_otherwise(name, device)
        return far <= 1.5 * own, (
            f"gradients in float32 at most {worst:.2g} from the unsplit model's, by zigzag, padded, packed and in segments "
            f"{otherwise:.2g}, logits behind a split prefill {behind:.2g}; gradients in bfloat16 "
            f"{far:.2g} from float32, the unsplit model {own:.2g}")

    return judge


def verified(ranks, device):
    """liblasp.torch.verify on GPUs: nothing is wrong with a hybrid, and a mistake is found."""
    import hf_models
    from liblasp.torch.verifying import verify
    from liblasp.torch import hf as sp

    def judge(case):
        model = sp.parallelize(hf_models.make("Qwen3Next").to(device), dist.group.WORLD)
        batch = batch_on(device)

        def split(model, batch):
            with sp.shard(model, batch) as local:
                loss = model(**local).loss
                sp.backward(loss)
            if case == "gradients summed twice":
                for each in model.parameters():
                    each.grad.mul_(2)
            return loss
        report = verify(model, batch, dist.group.WORLD, split=split if case != "right" else None)
        return report.ok == (case == "right"), str(report).replace("\n", "; ")[:160]
    return judge


def check_models():
    if importlib.util.find_spec("transformers") is None:
        return skip("no transformers")
    several_gpus.by_case(2, verified, ["right", "gradients summed twice"], "cuda")
    for ranks in sorted({2, max(2, torch.cuda.device_count())}):
        several_gpus.by_case(ranks, prepared, list(__import__("hf_models").MODELS), "cuda")
