#!/usr/bin/env python3
"""Draws the README's chart from bench/results/peers.csv: forward and backward together of liblasp and of public code.

usage: plot_peers.py peers.csv picture.svg        needs matplotlib (Debian: apt install python3-matplotlib)
"""
import csv
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.fonttype"] = "none"
import matplotlib.pyplot as plt

PANELS = (("peers-h100", "head", "One H100: 16,384 tokens, 32 heads of 128, a decay per head",
           {"liblasp": "liblasp", "fla simple GLA": "flash-linear-attention", "Lightning Attention-2": "Lightning Attention-2"}),
          ("peers-4xh200", "head", "Four H200: 16,384 tokens on each, a decay per head",
           {"liblasp": "liblasp", "LASP fuse": "LASP"}),
          ("peers-4xh200", "none", "Four H200: 16,384 tokens on each, no decay",
           {"liblasp": "liblasp", "LASP-2": "LASP-2"}))


def main():
    with open(sys.argv[1], newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tokens"] == "16384" and row["batch"] == "1"]
    figure, panels = plt.subplots(len(PANELS), 1, figsize=(9, 4.2), sharex=True,
                                  height_ratios=[len(names) for *_, names in PANELS])
    for axes, (run, decay, title, names) in zip(panels, PANELS):
        times = {row["name"]: float(row["forward_ms"]) + float(row["backward_ms"])
                 for row in rows if row["run"] == run and row["decay"] == decay}
        for place, (name, shown) in enumerate(names.items()):
            axes.barh(place, times[name], 0.66, color="#b8631c" if name == "liblasp" else "#9aa5b1")
            ratio = "" if name == "liblasp" else f"  ({times[name] / times['liblasp']:.2g} times)"
            axes.annotate(f"{times[name]:.2f} ms{ratio}", (times[name], place), xytext=(5, 0), textcoords="offset points",
                          va="center", fontsize=12)
        axes.set_yticks(range(len(names)), names.values(), fontsize=12)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=12, loc="left")
        axes.set_xlim(0, 25)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(axis="x", bottom=False, labelbottom=False)
    figure.suptitle("Forward and backward, bfloat16, milliseconds", fontsize=13, fontweight="bold")
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
