#!/usr/bin/env python3
"""Draws reports of long_sequences.py: tokens/s and peak memory of a GPU by the length of the sequence, a column for each
number of GPUs. A cross marks where a way ends.

usage: plot_long_sequences.py picture.svg one.json [two.json ...]        needs matplotlib (Debian: python3-matplotlib)
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WAYS = {"segments": ("liblasp, time segments", "#3b6ea5", "o"), "ranks": ("liblasp", "#7fb0d8", "s"),
        "lasp": ("LASP", "#c9772b", "^"), "lasp2": ("LASP-2 (no decay)", "#a03c3c", "v"),
        "ulysses": ("Ulysses with fla", "#6b8f3a", "D")}
SMALL_GPU = 80e9 / 2 ** 30  # GiB of a GPU of 80 GB


def length(tokens):
    return f"{tokens >> 20}M" if tokens >= 1 << 20 else f"{tokens >> 10}K"


def draw(axes, rows, of, gpus):
    for way, (name, color, marker) in WAYS.items():
        mine = sorted((row for row in rows if row["way"] == way and "tokens" in row), key=lambda row: row["tokens"])
        done = [row for row in mine if of in row]
        if not done:
            continue
        name = "fla's operator" if way == "ulysses" and gpus == 1 else name
        axes.plot([row["tokens"] for row in done], [row[of] for row in done], color=color, marker=marker, ms=4, label=name)
        ended = [row["tokens"] for row in mine if of not in row]
        if ended:
            axes.plot(ended[0], done[-1][of], color=color, marker="x", ms=9, mew=2)
            axes.plot([done[-1]["tokens"], ended[0]], 2 * [done[-1][of]], color=color, ls=":", lw=1)


def main():
    picture, reports = sys.argv[1], [json.load(open(name)) for name in sys.argv[2:]]
    rows = [row for report in reports for row in report["rows"]]
    numbers = sorted({row["gpus"] for row in rows})
    lengths = sorted({row["tokens"] for row in rows if "tokens" in row})
    figure, axes = plt.subplots(2, len(numbers), figsize=(5.2 * len(numbers), 6.4), sharex=True, sharey="row", squeeze=False)
    for column, gpus in enumerate(numbers):
        above, below = axes[:, column]
        mine = [row for row in rows if row["gpus"] == gpus]
        draw(above, mine, "tokens_per_s_per_gpu", gpus)
        draw(below, mine, "peak_GiB", gpus)
        above.set_title(f"{gpus} {reports[0]['gpu']}" + ("s" if gpus > 1 else ""))
        below.axhline(SMALL_GPU, color="gray", lw=1, ls="--")
        below.annotate("a GPU of 80 GB", (lengths[0], SMALL_GPU), xytext=(0, 3), textcoords="offset points", fontsize=8,
                       color="gray")
        below.set_xscale("log", base=2)
        below.set_xticks(lengths, [length(tokens) for tokens in lengths])
        below.minorticks_off()
        below.set_xlabel("tokens of the sequence (x: does not run)")
        above.legend(fontsize=8, loc="lower right")
        for each in (above, below):
            each.grid(alpha=0.3)
            each.set_ylim(bottom=0)
    axes[0][0].set_ylabel("tokens/s on each GPU")
    axes[1][0].set_ylabel("peak memory of a GPU, GiB")
    figure.suptitle("Training a model of 1.15 billion parameters, one sequence a step")
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
