"""Ranks as processes with gloo for the tests of liblasp.torch.hf: one spawn runs many checks."""
import faulthandler
import functools
import logging
import os
import warnings

import pytest
import torch
import torch.distributed as dist

import hf_models
from processes import found, on_processes, run_checks  # noqa: F401 (found is for the tests)


def process(rank, ranks, folder, checks):
    faulthandler.enable()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="0", USE_HUB_KERNELS="0")  # as torchrun has them
    return run_checks(rank, ranks, folder, checks)


def run(folder, ranks, checks, seconds=240):
    """checks: (key, function, arguments); what each gave on each rank."""
    return on_processes(folder, ranks, process, ranks, folder, checks, seconds=seconds)


LENGTHS = {"contiguous": 37, "zigzag": 48}  # of a batch: an odd one, and equal parts for 2, 3 and 4 ranks


def sequence_group(ownership="contiguous"):
    return dist.group.WORLD if ownership == "contiguous" else _owned(ownership)


@functools.lru_cache(maxsize=None)
def _owned(ownership):
    from liblasp.torch import SequenceGroup
    return SequenceGroup(dist.group.WORLD, ownership=ownership)


# ---- Steps, and how far they are apart ----

def unsplit(model, batch):
    """Loss and gradients of an unsplit step."""
    model.zero_grad()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    return float(loss.detach()), gradients_of(model)


def split(model, batch):
    from liblasp.torch import hf as sp
    model.zero_grad()
    with sp.shard(model, batch) as local:
        loss = model(**local).loss
        sp.backward(loss)
    return float(loss.detach()), gradients_of(model)


def in_segments(model, batch, segment=10):
    from liblasp.torch import hf as sp
    model.zero_grad()
    loss = sp.time_segments(model, batch, segment=segment)
    return float(loss), gradients_of(model)


def gradients_of(model):
    return {name: each.grad.double().clone() for name, each in model.named_parameters() if each.grad is not None}


def by_document(model, batch, ends):
    """The same of packed sequences: each for itself, over the targets of all."""
    model.zero_grad()
    total, begin, count = 0.0, 0, int((batch["labels"][:, 1:] != -100).sum())
    for end in ends:
        part = {name: value[:, begin:end] for name, value in batch.items() if name != "position_ids"}
        loss = model(**part, use_cache=False, num_items_in_batch=torch.tensor(count)).loss
        loss.backward()
        total, begin = total + float(loss.detach()), end
    return total, gradients_of(model)


def moved(name, batch, **changes):
    """An unsplit step whose weights are each moved by float32's last place: how far rounding carries."""
    return unsplit(nudged(hf_models.make(name, **changes)), batch)


@torch.no_grad()
def nudged(model):
    generator = torch.Generator().manual_seed(5)
    for each in model.parameters():
        each.mul_((1 + 2.0**-23 * (torch.randint(0, 2, each.shape, generator=generator) * 2 - 1)).to(each.device))
    return model


def apart(one, other):
    """How far two steps' losses, and the gradients of each parameter, are apart, these relative to the gradient."""
    assert one[1].keys() == other[1].keys()
    return {"loss": abs(one[0] - other[0]),
            **{name: float((one[1][name] - other[1][name]).norm() / other[1][name].norm().clamp_min(1e-30))
               for name in other[1]}}


def whole_distance(one, other):
    """Of all gradients, in parts of the other's."""
    far = sum(float((one[name] - other[name]).square().sum()) for name in other)
    return (far / sum(float(each.square().sum()) for each in other.values())) ** 0.5


def padded(name, side, ownership="contiguous"):
    """A split step with a padded row, over the border of the ranks, beside an unsplit one."""
    from liblasp.torch import hf as sp
    batch = hf_models.batch_of(tokens=LENGTHS[ownership])
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    count = LENGTHS[ownership] * 3 // 5
    pad = slice(0, count) if side == "left" else slice(-count, None)
    batch["attention_mask"][1, pad], batch["labels"][1, pad], batch["input_ids"][1, pad] = 0, -100, 0
    reference = unsplit(hf_models.make(name), batch)
    model = sp.parallelize(hf_models.make(name), sequence_group(ownership))
    return apart(split(model, batch), reference), apart(moved(name, batch), reference)


def decoded(name, padded, device="cpu", ownership="contiguous"):
    """How far the logits of greedy tokens are from the unsplit model's after a split prefill, and how far rounding
    carries. `padded`: on the left, a row over the border of the ranks."""
    from liblasp.torch import hf as sp
    tokens = 19 if ownership == "contiguous" else 24
    batch = {"input_ids": hf_models.batch_of(tokens=tokens)["input_ids"].to(device)}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if padded:
        batch["input_ids"][1, :tokens * 2 // 3], batch["attention_mask"][1, :tokens * 2 // 3] = 0, 0
    own, nudged_model, model = (hf_models.make(name).to(device).eval() for _ in range(3))
    wanted, moved_logits = (generated(each, steps=6, **batch) for each in (own, nudged(nudged_model)))
    first, cache = sp.prefill(sp.parallelize(model, sequence_group(ownership)), batch)
    ids, found = torch.cat([batch["input_ids"], first.argmax(-1, keepdim=True)], 1), [first[:, None]]
    with sp.whole(model), torch.no_grad():
        if name == "MiniMax":  # its generate takes up no cache
            for at in range(tokens, tokens + 5):
                found.append(model(input_ids=ids[:, -1:], position_ids=torch.tensor([[at]], device=device),
                                   use_cache=True, past_key_values=cache).logits)
                ids = torch.cat([ids, found[-1].argmax(-1)], 1)
        elif name == "Mamba2":  # which has no keys to tell how many tokens a cache has seen
            with pytest.raises(ValueError, match=f"begin with the {tokens} tokens of the prompt"):
                generated(model, ids, torch.ones_like(ids), steps=1, cache_params=cache)
            found.append(generated(model, ids[:, -1:], torch.ones_like(ids[:, -1:]), steps=5, cache_params=cache))
            generated(model, ids, torch.ones_like(ids), steps=1, cache_params=cache)  # later tokens may be the same
        else:
            mask = torch.cat([batch["attention_mask"], torch.ones_like(ids[:, -1:])], 1)
            found.append(generated(model, ids, mask, steps=5, past_key_values=cache))
    return [float((each - wanted).norm() / wanted.norm()) for each in (torch.cat(found, 1), moved_logits)]


def generated(model, input_ids, attention_mask, steps, **cache):
    """Logits [B, steps, words] of greedy tokens."""
    model.generation_config.eos_token_id = None
    found = model.generate(input_ids, attention_mask=attention_mask, max_new_tokens=steps, do_sample=False,
                           output_logits=True, return_dict_in_generate=True, **cache)
    return torch.stack(found.logits, 1)


# A split step rounds each sum elsewhere, an unsplit one with moved weights each weight: several operations to a weight
# and token, so a few times that. What is wrong is thousands of times as far (test_verify's mistakes).
FACTOR, LOSS_BOUND = 32, 2.0**-18


def assert_decoded(far, noise):
    assert far <= FACTOR * max(noise, 2.0**-23), (far, noise)


def assert_near(found, noise):
    for name, far in found.items():
        bound = LOSS_BOUND if name == "loss" else FACTOR * max(noise[name], 2.0**-23)
        assert far <= bound, f"{name}: {far:.3g} from the unsplit model's, bound {bound:.3g}"
