"""liblasp.torch.trainers on a GPU: three steps by each trainer, in bfloat16 by its own autocast, of models of
transformers that are split over one rank, over two, which may share a GPU, and over as many GPUs as there are. Losses
and gradients are held to the unsplit model's on the CPU in float32: as near as the unsplit model on the same GPU in
bfloat16."""

import contextlib
import functools
import importlib.util
import os
import tempfile

import torch
import torch.distributed as dist

import several_gpus
import models  # noqa: F401, for the path to the tests' models
from problems import skip

STEPS, RATE, ROWS, TOKENS = 3, 0.1, 2, 512
# Heads of 64, which tensor cores serve; all experts, so that no rounding chooses another one.
_WIDE = {"hidden_size": 256, "initializer_range": 0.06}
_SOFTMAX = {**_WIDE, "head_dim": 64, "num_experts_per_tok": 4}
SIZES = {
    "Mamba2": {**_WIDE, "num_heads": 8, "head_dim": 64, "state_size": 64, "chunk_size": 64},
    "MiniMax": {**_SOFTMAX, "intermediate_size": 256, "block_size": 64},
    "Qwen3Next": {**_SOFTMAX, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "moe_intermediate_size": 128,
                  "shared_expert_intermediate_size": 128},
}


def make(name):
    import hf_models

    return hf_models.make(name, **SIZES[name])


def batch_of():
    import hf_models

    batch = hf_models.batch_of(ROWS, TOKENS)
    batch["labels"][:, 0] = -100  # it is no target; a trainer that counts labels then counts targets
    return batch


class Rows(torch.utils.data.Dataset):
    """The rows of the one batch, which every step has."""

    def __init__(self):
        self.batch = batch_of()

    def __len__(self):
        return ROWS

    def __getitem__(self, at):
        return {name: each[at] for name, each in self.batch.items()}


class Seen:
    """What a trainer did: the loss of each step, and the first step's gradients."""

    def __init__(self):
        self.losses, self.gradients = [], {}

    def step(self, loss, model):
        if loss is not None:
            self.losses.append(float(loss.detach()))
        if model is not None and not self.gradients:
            for name, each in model.named_parameters():
                grad = getattr(each.grad, "full_tensor", lambda: each.grad)()
                if grad is not None:
                    self.gradients[name] = grad.detach().double().cpu()


# ---- Each trainer: its losses and gradients. groups: None for the unsplit model ----

def by_loop(groups, name, device, wrap=None, half=True):
    """torch alone."""
    from liblasp.torch import hf as sp

    model, seen = make(name).to(device), Seen()
    inner = model
    if groups is not None:
        sp.parallelize(model, groups.sequence)
    if wrap is not None:
        model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batch = {key: value.to(device) for key, value in batch_of().items()}
    for _ in range(STEPS):
        share = contextlib.nullcontext({**batch, "use_cache": False}) if groups is None else sp.shard(model, batch)
        with share as local:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = model(**local).loss
            loss.backward() if groups is None else sp.backward(loss)
        with whole_gradients(model):
            seen.step(loss, inner)
        optimizer.step()
        optimizer.zero_grad()
    return seen


def whole_gradients(model):
    from torch.distributed.fsdp import FullyShardedDataParallel as Older

    return Older.summon_full_params(model, with_grads=True) if isinstance(model, Older) else contextlib.nullcontext()


def ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, use_orig_params=True, device_id=next(model.parameters()).device)


def fsdp2(model):
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if type(module).__name__.endswith("DecoderLayer"):
            fully_shard(module)
    return fully_shard(model)


def by_trainer(groups, name, device, **changes):
    """The Trainer of transformers."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
    from liblasp.torch.trainers.transformers import SequenceParallelMixin

    class SequenceTrainer(SequenceParallelMixin, Trainer):
        pass

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            seen.step(None, None if changes.get("fsdp_config", {}).get("version") == 1 else model)

    model, seen = make(name), Seen()
    arguments = TrainingArguments(**{**dict(
        output_dir=tempfile.mkdtemp(), bf16=True, use_cpu=device.type == "cpu", per_device_train_batch_size=ROWS,
        max_steps=STEPS, optim="sgd", learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0.0,
        logging_steps=1, report_to=[], disable_tqdm=True, log_level="error", save_strategy="no",
        ddp_find_unused_parameters=False), **changes})
    trainer = SequenceTrainer(model, arguments, train_dataset=Rows(), groups=groups, callbacks=[Look()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    seen.losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return seen


def by_accelerate(groups, name, device, sharded=False):
    """A loop with an Accelerator, by FSDP2 or by DDP."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from liblasp.torch import hf as sp
    from liblasp.torch.trainers.accelerate import over_sequences

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if sharded else None
    accelerator = Accelerator(mixed_precision="bf16", cpu=device.type == "cpu", fsdp_plugin=plugin)
    inner, seen = make(name), Seen()
    over_sequences(accelerator, groups)
    model = sp.parallelize(inner.to(device), groups.sequence)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(Rows(), ROWS))
    for _ in range(STEPS):
        for batch in loader:
            with sp.shard(model, batch) as local:
                loss = model(**local).loss
                accelerator.backward(loss)
            seen.step(loss, inner)
            optimizer.step()
            optimizer.zero_grad()
    return seen


def by_lightning(groups, name, device):
    """PyTorch Lightning."""
    import lightning.pytorch as pl
    from liblasp.torch.trainers.lightning import SequenceParallelStrategy

    os.environ["TORCHELASTIC_RUN_ID"] = "none"  # as torchrun has it: ranks are there already
    seen, local = Seen(), int(os.environ["LOCAL_WORLD_SIZE"])

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make(name)

        def training_step(self, batch, _):
            loss = self.model(**batch).loss
            seen.step(loss, None)
            return loss

        def on_before_optimizer_step(self, _):
            seen.step(None, self.model)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=RATE)

    trainer = pl.Trainer(strategy=SequenceParallelStrategy(), accelerator="gpu" if device.type == "cuda" else "cpu",
                         devices=local, num_nodes=dist.get_world_size() // local, precision="bf16-mixed",
                         max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), ROWS))
    return seen


def by_deepspeed(groups, name, device, stage):
    """DeepSpeed's engine, which keeps gradients to itself."""
    os.environ["DS_ACCELERATOR"] = device.type
    import deepspeed
    from liblasp.torch import hf as sp

    model, seen = sp.parallelize(make(name).to(device), groups.sequence), Seen()
    config = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
              "train_micro_batch_size_per_gpu": ROWS, "gradient_clipping": 0.0,
              "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    batch = {key: value.to(device) for key, value in batch_of().items()}
    for _ in range(STEPS):
        with sp.shard(engine, batch) as local:
            loss = engine(**local).loss
            sp.backward(loss)
        engine.step()
        seen.step(loss, None)
    return seen


OLDER, NEWER = ({"fsdp": True, "fsdp_config": {"version": version}} for version in (1, 2))
# By case: the model, the package it needs, the loop and its options.
CASES = {
    **{f"torch, {name}": (name, "torch", by_loop, {"wrap": ddp}) for name in SIZES},
    "torch, FSDP": ("Qwen3Next", "torch", by_loop, {"wrap": fsdp}),
    "torch, FSDP2": ("Qwen3Next", "torch", by_loop, {"wrap": fsdp2}),
    **{f"Trainer, {name}": (name, "accelerate", by_trainer, {}) for name in SIZES},
    "Trainer, FSDP": ("Qwen3Next", "accelerate", by_trainer, OLDER),
    "Trainer, FSDP2": ("Qwen3Next", "accelerate", by_trainer, NEWER),
    "Accelerator": ("Qwen3Next", "accelerate", by_accelerate, {}),
    "Accelerator, FSDP2": ("Qwen3Next", "accelerate", by_accelerate, {"sharded": True}),
    "Lightning": ("Qwen3Next", "lightning", by_lightning, {}),
    **{f"DeepSpeed {stage}": ("Qwen3Next", "deepspeed", by_deepspeed, {"stage": stage}) for stage in (1, 2, 3)},
}


def one_case(case, groups, device):
    """Whether it is right, and what is said of it."""
    import hf_ranks

    name, _, function, options = CASES[case]
    reference, own = known(name, device)
    seen = function(groups, name, device, **options)
    # A loss is the mean of a thousand targets': one rounding of bfloat16 is far for it. The largest seen is 3.4e-3, by
    # FSDP2, which rounds the weights and the loss itself. Steps along half the gradient put the later losses 0.08 off.
    far = max(abs(one / other - 1) for one, other in zip(seen.losses, reference.losses, strict=True))
    good, said = far < 2.0**-8, f"losses {far:.1e} from float32 on the CPU"
    if seen.gradients:
        complete = seen.gradients.keys() == reference.gradients.keys()
        apart = hf_ranks.whole_distance(seen.gradients, reference.gradients) if complete else float("inf")
        good = good and apart <= 1.5 * own
        said += f", gradients {apart:.2g}, the unsplit model's {own:.2g}"
    return good, said


def forget_accelerators():
    """Accelerate keeps one state for a process, and the Trainer tells it of FSDP by the environment."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    for name in [each for each in os.environ if each.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]


@functools.cache
def known(name, device):
    """The unsplit model in float32 on the CPU, and how far its gradients are in bfloat16 on this device."""
    import hf_ranks

    reference = by_loop(None, name, torch.device("cpu"), half=False)
    return reference, hf_ranks.whole_distance(by_loop(None, name, device).gradients, reference.gradients)


def prepared(ranks, device):
    import logging
    import warnings

    os.environ["USE_HUB_KERNELS"] = "0"
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))  # each would take all
    from liblasp.torch import init_groups

    groups = init_groups()

    def judge(case):
        package = CASES[case][1]
        if importlib.util.find_spec(package) is None:
            return None, f"no {package}"
        if package == "accelerate":
            forget_accelerators()
        return one_case(case, groups, device)

    return judge


def check_trainers():
    if importlib.util.find_spec("transformers") is None:
        return skip("no transformers")
    for ranks in sorted({1, 2, torch.cuda.device_count()}):
        several_gpus.by_case(ranks, prepared, list(CASES), "cuda")
