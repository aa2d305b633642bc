#!/usr/bin/env python3
"""Trains a small model to recall what it saw far back, and shows that it does, by distance.

    python recall.py --tokens 16K --segment 2K                                   # one process, in segments of time
    torchrun --nproc-per-node 2 recall.py --tokens 1M --segment 64K --cut none segments ranks --figure recall.svg

Keys are given values once, somewhere in a long filler, and asked for at the end (recall_task.py). The first stage of
training has sequences without filler, and each stage after it has sequences four times as long; gradients go all the
way back. Every step draws new sequences, so that its own answers, given before it learns from them, are a test.

With --cut, from the second stage on, nothing passes from segment to segment or from rank to rank; all else is the
same. What lies beyond the cut can then only be guessed."""
import argparse
import copy
import json
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import recall_task as task
from arguments import count
from liblasp.torch import LinearAttention, init_groups, shard, time_segments
from model import Block
from recall_figure import draw
from train import distribute, learning_rate, start_process_group

MOST_SEQUENCES = 16  # of a step: what short sequences need to be learnt quickly


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tokens", type=count, default=count("16K"), help="tokens of a sequence at the last stage (16K)")
    add("--segment", type=count, default=0, help="tokens of a segment in time, on all ranks (whole sequences)")
    add("--sequence-ranks", type=int, default=0, help="ranks that share a sequence; 0: all (0)")
    add("--cut", nargs="+", choices=("none", "segments", "ranks"), default=["none"],
        help="trains a model for each: with all that there is, with segments or ranks on their own (none)")
    add("--steps", type=int, default=40, help="optimizer steps of a stage; the first takes four times as many (40)")
    add("--batch-tokens", type=count, default=count("8K"),
        help=f"tokens of a step of shorter sequences, {MOST_SEQUENCES} of them at most (8K)")
    add("--evaluate", type=int, default=16, help="steps at the end that do not learn, for recall by distance (16)")
    add("--d-model", type=int, default=64, help="width of the model (64)")
    add("--layers", type=int, default=1, help="blocks (1)")
    add("--heads", type=int, default=2, help="attention heads (2)")
    add("--lr", type=float, default=1.2e-2, help="peak learning rate (1.2e-2)")
    add("--seed", type=int, default=1, help="of parameters and data (1)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPUs where there are any")
    add("--dtype", choices=("auto", "float32", "bfloat16"), default="auto",
        help="of activations; auto: bfloat16 by autocast on GPUs, float32 on the CPU")
    add("--log-every", type=int, default=20, help="steps between progress lines (20)")
    add("--json", help="write the rows of all runs here")
    add("--figure", help="draw them here, as SVG (needs matplotlib)")
    parser.set_defaults(parallel="ddp")  # for train.distribute
    args = parser.parse_args(argv)
    for name, least in (("sequence_ranks", 0), ("segment", 0), ("steps", 1), ("batch_tokens", 1), ("evaluate", 1),
                        ("d_model", 1), ("layers", 1), ("heads", 1), ("log_every", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}.")
    if not task.SHORTEST < args.tokens <= task.LONGEST:
        parser.error(f"--tokens must be more than the first stage's {task.SHORTEST}, and at most {task.LONGEST:,}.")
    if "segments" in args.cut and not args.segment:
        parser.error("--cut segments needs --segment.")
    for path in (args.json, args.figure):
        if path and not pathlib.Path(path).absolute().parent.is_dir():
            parser.error(f"{path}: there is no such folder.")
    return args


class RecallModel(nn.Module):
    """The language model's blocks without decay: nothing is forgotten. No positions."""

    def __init__(self, d_model, layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(task.VOCABULARY, d_model)
        self.blocks = nn.ModuleList(Block(d_model, heads, d_model, 0.0, None) for _ in range(layers))
        self.head = nn.Linear(d_model, task.VALUES, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.05)

    def forward(self, tokens):
        x = self.embedding(tokens).sum(-2)
        for block in self.blocks:
            x = block(x)
        return self.head(F.rms_norm(x, x.shape[-1:]))


class Score:
    """Questions [asked, right]: by distance, row i from 2^i tokens on, and by what their pairs lie beyond."""

    def __init__(self, device):
        self.octaves = torch.zeros(task.OCTAVES, 2, dtype=torch.long, device=device)
        self.beyond = torch.zeros(2, 2, dtype=torch.long, device=device)  # the segment's end; the rank's

    def add(self, right, known):
        outcome = torch.stack([torch.ones_like(right), right], -1).long()
        self.octaves.index_add_(0, torch.frexp(known[:, 0].float()).exponent.long() - 1, outcome)
        for row, other in zip(self.beyond, known[:, 1:].T):
            row += (outcome * other[:, None]).sum(0)

    def of_all_ranks(self):
        dist.all_reduce(self.octaves)
        dist.all_reduce(self.beyond)
        return self

    def recall(self):
        asked, right = self.octaves.sum(0).tolist()
        return right / asked


class Learner:
    """The model in training. `cut`: what it does without."""

    def __init__(self, args, groups, device):
        self.args, self.groups, self.device, self.step = args, groups, device, 0
        torch.manual_seed(args.seed)
        halves = takes_halves(args, device)
        model = RecallModel(args.d_model, args.layers, args.heads).to(device)
        self.model, self.optimizer = distribute(model, args, device, autocast=halves)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=halves)
        self.stages = [(tokens, args.steps * (1 if i else 4)) for i, tokens in enumerate(task.lengths(args.tokens))]
        self.cut = "none"

    @property
    def cut(self):
        return self._cut

    @cut.setter
    def cut(self, cut):
        self._cut = cut
        for module in self.model.modules():
            if isinstance(module, LinearAttention):
                module.group = None if cut == "ranks" else self.groups.sequence

    def state(self):
        """All that it has learnt, and how far it has come: for `go_back`."""
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.step))

    def go_back(self, state):
        model, optimizer, self.step = copy.deepcopy(state)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    def learn(self, tokens, stage):
        """`stage` steps over sequences of so many tokens. Gives the recall on the way, and the seconds of a step."""
        steps, curve = sum(count for _, count in self.stages), []
        score, began = Score(self.device), time.perf_counter()
        for i in range(stage):
            for parameter_group in self.optimizer.param_groups:
                parameter_group["lr"] = learning_rate(self.step, steps, self.args.lr)
            self.pass_over(tokens, self.step, score)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if (i + 1) % self.args.log_every == 0 or i + 1 == stage:
                recall = score.of_all_ranks().recall()
                seconds = (time.perf_counter() - began) / (i + 1)
                say(f"cut {self.cut:8s}  step {self.step:4d} of {steps}  {tokens:9,} tokens  recall {recall:.3f}  "
                    f"{seconds:.2f} s/step")
                curve.append({"step": self.step, "tokens": tokens, "recall": recall})
                score = Score(self.device)
        return curve, seconds

    def ask(self):
        """Passes that teach nothing: the answers of one set of parameters, by distance."""
        score = Score(self.device)
        for i in range(self.args.evaluate):
            self.pass_over(self.args.tokens, self.step + i, score)
            self.optimizer.zero_grad()
        return score.of_all_ranks()

    def pass_over(self, tokens, number, score):
        """Forward and backward over sequences that follow from their number."""
        segment, batch = self.args.segment or tokens, sequences(self.args, tokens)
        rank, ranks = self.groups.sequence_rank, self.groups.sequence_ranks
        generator = torch.Generator(self.device)
        generator.manual_seed((self.args.seed << 40) + (number << 16) + self.groups.data_rank)
        inputs, answers, known = task.draw(generator, batch, tokens, task.pieces(tokens, segment, ranks, self.device))

        def loss(logits, answers, known):
            asked = answers != task.NO_ANSWER
            logits, answers = logits[asked].float(), answers[asked]
            score.add(logits.argmax(-1) == answers, known[asked])
            # DDP takes the mean over the ranks of what is to be the mean over all questions.
            return F.cross_entropy(logits, answers, reduction="sum") * ranks / (batch * task.KEYS)

        if not self.args.segment:
            x, *y = (shard(each, rank, ranks) for each in (inputs, answers, known))
            with self.autocast:
                logits = self.model(x)
            loss(logits, *y).backward()
            return
        group, whole = self.groups.sequence, tokens  # what time_segments takes for one sequence
        if self.cut == "segments":
            whole = segment
        elif self.cut == "ranks":  # this rank's share of every segment is a sequence of its own
            begins = range(0, tokens, segment)
            inputs, answers, known = (
                torch.cat([shard(each[:, begin:begin + segment], rank, ranks) for begin in begins], 1)
                for each in (inputs, answers, known))
            group, segment, whole = None, max(1, segment // ranks), inputs.shape[1]
        for begin in range(0, inputs.shape[1], whole):
            x, *y = (each[:, begin:begin + whole] for each in (inputs, answers, known))
            with self.autocast:
                time_segments(self.model, x, y, loss, segment=segment, group=group)


def sequences(args, tokens):
    """Of one step, in each data-parallel group."""
    return max(1, min(MOST_SEQUENCES, args.batch_tokens // tokens))


def takes_halves(args, device):
    return args.dtype == "bfloat16" or (args.dtype == "auto" and device.type == "cuda")


def run(learner, cut, begun):
    """Goes on from the first stage, whose curve is `begun`, with this cut. Gives its row."""
    args, device = learner.args, learner.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    learner.cut, curve = cut, list(begun)
    for tokens, stage in learner.stages[1:]:
        more, seconds = learner.learn(tokens, stage)
        curve += more
    score = learner.ask()
    octaves, beyond = score.octaves.tolist(), score.beyond.tolist()
    say(f"cut {cut}: recall {score.recall():.3f}; chance {task.CHANCE:.3f}")
    for name, (asked, right) in zip(("in another segment", "on another rank"), beyond):
        if asked:
            say(f"  pair {name:18s} {right:5d} of {asked:5d}  {right / asked:.3f}")
    for i, (asked, right) in enumerate(octaves):
        if asked:
            say(f"  distance from {1 << i:9,}  {right:5d} of {asked:5d}  {right / asked:.3f}")
    return {"cut": cut, "tokens": args.tokens, "segment": args.segment, "ranks": dist.get_world_size(),
            "sequence_ranks": learner.groups.sequence_ranks, "device": device.type,
            "dtype": "bfloat16" if takes_halves(args, device) else "float32", "chance": task.CHANCE,
            "parameters": sum(p.numel() for p in learner.model.parameters()), "seconds_per_step": seconds,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None, "curve": curve,
            "beyond_segment": beyond[0], "beyond_rank": beyond[1],
            "by_distance": [[1 << i, *counts] for i, counts in enumerate(octaves) if counts[0]]}


def say(line):
    if dist.get_rank() == 0:
        print(line, flush=True)


def main(args):
    device = start_process_group(args.device)
    groups = init_groups(None, args.sequence_ranks)
    if "ranks" in args.cut and groups.sequence_ranks == 1:
        raise SystemExit("--cut ranks needs two ranks or more: run it by torchrun --nproc-per-node 2.")
    say(f"{groups.data_ranks} x {groups.sequence_ranks} ranks (data x sequence) on {device.type}, {args.tokens:,} "
        f"tokens" + (f" in segments of {args.segment:,}" if args.segment else ""))
    learner = Learner(args, groups, device)
    begun, _ = learner.learn(*learner.stages[0])
    first, rows = learner.state(), []
    for cut in args.cut:
        learner.go_back(first)
        rows.append(run(learner, cut, begun))
        if args.json and dist.get_rank() == 0:
            pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if args.figure and dist.get_rank() == 0:
        draw(rows, args.figure)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse_arguments())
