"""liblasp.torch.trainers.lightning: PyTorch Lightning over ranks, against itself on one process. What is called full
takes 2 x 2 ranks (data x sequence)."""
import pytest

pytest.importorskip("lightning")
pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

import hf_models  # noqa: E402
import hf_ranks  # noqa: E402
import trainer_cases  # noqa: E402
from support import sentence_of  # noqa: E402
from trainer_cases import by_lightning  # noqa: E402


def refusals():
    """A sentence for each wrong use, on each rank."""
    import lightning.pytorch as pl
    import torch.distributed as dist
    from liblasp.torch.trainers.lightning import SequenceParallelStrategy
    rank, found = dist.get_rank(), {}

    class Module(pl.LightningModule):
        def __init__(self, *models, automatic=True):
            super().__init__()
            self.models, self.automatic_optimization = torch.nn.ModuleList(models), automatic

        def training_step(self, batch, _):
            return self.models[0](**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

        def predict_step(self, batch, _):
            return self.models[0](**batch).logits

    def refused(name, module=None, dataset=None, sequence_ranks=2, how="fit", collate=None, **options):
        trainer = pl.Trainer(strategy=SequenceParallelStrategy(sequence_ranks, **options), accelerator="cpu", devices=2,
                             max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False)
        dataset = dataset or trainer_cases.Sequences(4)
        found[name] = sentence_of(lambda: getattr(trainer, how)(
            module or Module(hf_models.make("Mamba2")), torch.utils.data.DataLoader(dataset, 2, collate_fn=collate)))

    refused("no model", Module(torch.nn.Linear(2, 2)))
    refused("two models", Module(hf_models.make("Mamba2"), hf_models.make("Mamba2")))
    refused("by hand", Module(hf_models.make("Mamba2"), automatic=False))
    refused("ranks", sequence_ranks=3)
    refused("batches", dataset=trainer_cases.Sequences(4, seed=rank))
    refused("short", dataset=trainer_cases.Sequences(4, tokens=1))
    refused("unequal parts", ownership="zigzag")
    refused("no dict", collate=lambda rows: torch.stack([row["input_ids"] for row in rows]))
    refused("predict", how="predict")
    return found


SENTENCES = {"no model": "holds 0 models of transformers", "two models": "holds 2 models of transformers",
             "by hand": "automatic_optimization = False", "ranks": "3", "batches": "batch: rank 1 has something else",
             "short": "has 1 tokens, the sequence group 2 ranks", "unequal parts": "pad the batch to 24",
             "no dict": "must be a dict of tensors", "predict": "a rank has a part of each sequence"}


def assert_equal(many, one):
    assert many[0] == pytest.approx(one[0], rel=1e-5)
    assert many[1] == pytest.approx(one[1], rel=1e-5)


def test_two_ranks_and_refusals(tmp_path):
    reports = hf_ranks.run(tmp_path, 2, [("fit", by_lightning, (2, "Mamba2")), ("refusals", refusals, ())])
    one = by_lightning(0, "Mamba2")
    for many in hf_ranks.found(reports, "fit"):
        assert_equal(many, one)
    assert [many[2] for many in hf_ranks.found(reports, "fit")] == [1, 0]  # one checkpoint, of rank 0
    for sentences in hf_ranks.found(reports, "refusals"):
        assert sentences.keys() == SENTENCES.keys()
        for name, words in SENTENCES.items():
            assert sentences[name] is not None and words in sentences[name], (name, sentences[name])


def zigzag():
    return by_lightning(2, "Qwen3.5", tokens=24, ownership="zigzag")


def test_full_four_ranks(tmp_path):
    reports = hf_ranks.run(tmp_path, 4, [("fit", by_lightning, (2, "Qwen3.5")), ("zigzag", zigzag, ())])
    for name, one in (("fit", by_lightning(0, "Qwen3.5")), ("zigzag", by_lightning(0, "Qwen3.5", tokens=24))):
        for many in hf_ranks.found(reports, name):
            assert_equal(many, one)
