"""What the tests of liblasp.torch.trainers run, on ranks and on one process: few steps of tiny models."""
import contextlib
import os
import tempfile

import torch
import torch.distributed as dist

import hf_models

TOKENS = 21


class Sequences(torch.utils.data.Dataset):
    """Batches of them differ in how many targets count; if not `all_count`."""

    def __init__(self, count, seed=0, all_count=False, tokens=TOKENS):
        self.all_count = all_count
        self.ids = torch.randint(3, hf_models.WORDS, (count, tokens), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, at):
        labels = self.ids[at].clone()
        if not self.all_count:
            labels[:at % 5] = -100
        return {"input_ids": self.ids[at], "labels": labels}


def groups_of(sequence_ranks):
    """None for 0: one process, unsplit."""
    from liblasp.torch import init_groups
    return init_groups(sequence_ranks=sequence_ranks) if sequence_ranks > 0 else None


def forget_accelerators():
    """Accelerate keeps one state for a process; each case begins anew."""
    from accelerate.state import AcceleratorState, GradientState
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


# ---- The Trainer of transformers ----

def arguments_of(folder, groups, rows, **changes):
    from transformers import TrainingArguments
    data_ranks = 1 if groups is None else groups.data_ranks
    return TrainingArguments(**{**dict(
        output_dir=folder, use_cpu=True, per_device_train_batch_size=rows // data_ranks,
        per_device_eval_batch_size=rows // data_ranks, logging_steps=1, learning_rate=3e-3, report_to=[],
        disable_tqdm=True, log_level="error", ddp_find_unused_parameters=False, save_strategy="no",
        dataloader_pin_memory=False), **changes})


def trainer_class(groups):
    from transformers import Trainer
    from liblasp.torch.trainers.transformers import SequenceParallelMixin

    class SequenceTrainer(SequenceParallelMixin, Trainer):
        pass
    return Trainer if groups is None else SequenceTrainer


def by_trainer(sequence_ranks, name, steps, rows=4, resume=False, all_count=False, tokens=TOKENS, zigzag=False,
               **changes):
    """Losses and norms by step, what the Trainer counted, the evaluation, and what was saved."""
    forget_accelerators()
    from transformers import PrinterCallback
    from liblasp.torch import SequenceGroup
    from liblasp.torch import hf as sp
    groups = groups_of(sequence_ranks)
    cut = SequenceGroup(groups.sequence, ownership="zigzag") if zigzag else None
    shared = [tempfile.mkdtemp() if groups is None or dist.get_rank() == 0 else None]
    if groups is not None:
        dist.broadcast_object_list(shared)

    def make():
        arguments = arguments_of(shared[0], groups, rows, max_steps=steps, include_num_input_tokens_seen="all",
                                 **changes)
        own, model = {} if groups is None else {"groups": groups}, hf_models.make(name)
        made = trainer_class(groups)(sp.parallelize(model, cut) if zigzag else model, arguments,
                                     train_dataset=Sequences(24, all_count=all_count, tokens=tokens),
                                     eval_dataset=Sequences(8, 1, all_count, tokens), compute_metrics=right_words, **own)
        made.remove_callback(PrinterCallback)
        return made
    trainer = make()
    trainer.train()
    if resume:  # as if it had ended in the middle
        trainer = make()
        trainer.train(resume_from_checkpoint=os.path.join(shared[0], f"checkpoint-{steps // 2}"))
    found = trainer.evaluate()
    logged = [each for each in trainer.state.log_history if "grad_norm" in each]
    return {"loss": [each["loss"] for each in logged], "norm": [each["grad_norm"] for each in logged],
            "samples": trainer.get_total_train_batch_size(trainer.args),
            "evaluation": found["eval_loss"], "right": found["eval_right"],
            "tokens": trainer.state.num_input_tokens_seen, "flos": trainer.state.total_flos,
            "epoch": trainer.state.epoch, "saved": sorted(os.listdir(shared[0]))}


def right_words(predicted):
    """Needs every token of every sequence once, in their order."""
    logits, labels = torch.tensor(predicted.predictions), torch.tensor(predicted.label_ids)
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
    return {"right": float((losses * torch.arange(1, len(losses) + 1)).mean())}


# ---- A loop with an Accelerator ----

def by_accelerate(sequence_ranks, name, rows=4, accumulate=2, **options):
    """Losses by batch, and the parameters after all."""
    from accelerate import Accelerator
    from liblasp.torch import hf as sp
    from liblasp.torch.trainers.accelerate import over_sequences
    forget_accelerators()
    groups, model = groups_of(sequence_ranks), hf_models.make(name)
    torch.manual_seed(100 + (dist.get_rank() if groups else 0))  # each rank would shuffle in another way
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **options)
    if groups is not None:
        over_sequences(accelerator, groups)
        sp.parallelize(model, groups.sequence)
    dataset = Sequences(16, all_count=True)
    order = torch.utils.data.RandomSampler(dataset, generator=None if groups else torch.Generator().manual_seed(100))
    loader = torch.utils.data.DataLoader(dataset, rows // (groups.data_ranks if groups else 1), sampler=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # AdamW does not see a scale
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, first = [], []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                share = sp.shard(model, batch) if groups else contextlib.nullcontext({**batch, "use_cache": False})
                with share as local:
                    loss = model(**local).loss
                    accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(accelerator.gather_for_metrics(loss.detach()[None]).mean()))
            first += accelerator.gather_for_metrics(batch["input_ids"])[:, 0].tolist()
    return losses, first


# ---- PyTorch Lightning ----

def by_lightning(sequence_ranks, name, steps=4, rows=4, accumulate=2, tokens=TOKENS, **options):
    """Losses that were logged, that of validation, and what was saved."""
    import lightning.pytorch as pl
    from liblasp.torch.trainers.lightning import SequenceParallelStrategy
    os.environ["TORCHELASTIC_RUN_ID"] = "none"  # as torchrun has it: ranks are there already
    ranks = dist.get_world_size() if sequence_ranks else 1
    rows //= ranks // max(sequence_ranks, 1)
    folder = tempfile.mkdtemp()
    logged = []

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = hf_models.make(name)

        def training_step(self, batch, _):
            loss = self.model(**{"use_cache": False, **batch}).loss
            logged.append(float(self.trainer.strategy.reduce(loss.detach())))
            return loss

        def validation_step(self, batch, _):
            self.log("validation", self.model(**{"use_cache": False, **batch}).loss, sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)  # AdamW does not see a scale

    def loader(dataset, order=None):
        return torch.utils.data.DataLoader(dataset, rows, sampler=order)
    strategy = SequenceParallelStrategy(sequence_ranks, **options) if sequence_ranks else "auto"
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", devices=ranks, max_steps=steps, logger=False,
                         accumulate_grad_batches=accumulate, enable_progress_bar=False, enable_model_summary=False,
                         default_root_dir=folder, num_sanity_val_steps=0, gradient_clip_val=3.0)
    training = Sequences(32, all_count=True, tokens=tokens)
    order = None if sequence_ranks else torch.utils.data.DistributedSampler(training, 1, 0)  # Lightning shuffles by it
    trainer.fit(Module(), loader(training, order), loader(Sequences(8, 1, True, tokens)))
    return logged, float(trainer.callback_metrics["validation"]), [len(files) for _, _, files in os.walk(folder)][-1]


# ---- A loop of one's own ----

def by_zero(sequence_ranks, name, steps=4, rows=4):
    """DDP, and torch's ZeroRedundancyOptimizer: losses by step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from liblasp.torch import hf as sp
    groups, model, found = groups_of(sequence_ranks), hf_models.make(name), []
    if groups is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    else:
        sp.parallelize(model, groups.sequence)
        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-3)
        rows //= groups.data_ranks
    for step in range(steps):
        begin = step * rows if groups is None else (step * groups.data_ranks + groups.data_rank) * rows
        batch = hf_models.batch_of(rows=16, tokens=TOKENS)
        batch = {key: value[begin:begin + rows] for key, value in batch.items()}
        if groups is None:
            loss = model(**batch, use_cache=False).loss
            loss.backward()
        else:
            with sp.shard(model, batch) as local:
                loss = model(**local).loss
                sp.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses = loss.detach().clone()
        if groups is not None:
            dist.all_reduce(losses)
        found.append(float(losses) / (1 if groups is None else dist.get_world_size()))
    return found, []


def by_deepspeed(sequence_ranks, name, stage, steps=3):
    """DeepSpeed's engine, ZeRO of a stage: losses by step."""
    from liblasp.torch import hf as sp
    groups, model, found = groups_of(sequence_ranks), hf_models.make(name), []
    if groups is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed
        sp.parallelize(model, groups.sequence)
        config = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
                  "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0}
        model, optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    for step in range(steps):
        batch = hf_models.batch_of(tokens=TOKENS, seed=step)
        if groups is None:
            loss = model(**batch, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with sp.shard(model, batch) as local:
                loss = model(**local).loss
                sp.backward(loss)
            model.step()
        found.append(float(loss.detach()))
    return found, []
