#!/usr/bin/env python3
"""Draws a report of lasp-bench: of the CPU, counted GFLOP/s of each configuration beside the machine's
sgemm rate; of GPUs, the share of the copy floor (the time that reading each input and writing each output once takes).
Draws the loss curves of a report of convergence.py.

usage: plot.py results.json [picture.svg]        needs matplotlib (Debian: apt install python3-matplotlib)
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import convergence_figure

PASSES = (("forward", -0.2, "#3b6ea5"), ("backward", 0.2, "#c9772b"))


def label(config, varying):
    return ", ".join(f"{key} {config[key]}" for key in varying) or config["decay"]


def bars(axes, rows):
    """One pair of bars a row: (label, {pass: value}, {pass: text at the bar's end})."""
    for name, offset, color in PASSES:
        drawn = [(i + offset, values[name], texts.get(name, "")) for i, (_, values, texts) in enumerate(rows) if name in values]
        axes.barh([y for y, _, _ in drawn], [value for _, value, _ in drawn], 0.38, label=name, color=color)
        for y, value, text in drawn:
            axes.annotate(text, (value, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [text for text, _, _ in rows], fontsize=8)
    axes.invert_yaxis()


def of_bench(report, axes):
    results = [r for r in report["results"] if "forward" in r or "backward" in r]
    if not results:
        sys.exit("no configuration has a speed")
    varying = [k for k in results[0]["config"] if len({r["config"][k] for r in results}) > 1]
    passes = [{name: r[name] for name, _, _ in PASSES if name in r} for r in results]
    names = [label(r["config"], varying) for r in results]
    if results[0]["config"].get("device") == "cuda":
        bars(axes, [(text, {n: 100 * p["share_of_floor"] for n, p in made.items()},
                     {n: f"{1e3 * p['median_s']:.3f} ms" for n, p in made.items()}) for text, made in zip(names, passes)])
        axes.set_xlim(0, 100)
        axes.set_xlabel(f"% of the copy floor ({results[0]['copy_gbs']:.0f} GB/s)")
        machine = results[0]["gpu"]
    else:
        bars(axes, [(text, {n: p["gflops"] for n, p in made.items()}, {}) for text, made in zip(names, passes)])
        sgemm = [(row, r["sgemm_gflops"]) for row, r in enumerate(results) if r["sgemm_gflops"] > 0]
        axes.scatter([rate for _, rate in sgemm], [row for row, _ in sgemm], marker="|", s=300, color="black", label="sgemm 1024")
        axes.set_xlabel("counted GFLOP/s")
        machine = report["machine"]["cpu"]
    return f"liblasp {report['library']['version']}, {machine}"


def main():
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        report = json.load(file)
    output = sys.argv[2] if len(sys.argv) == 3 else sys.argv[1].rsplit(".", 1)[0] + ".svg"
    if report.get("tool") == "convergence.py":
        convergence_figure.draw(report, output)
    else:
        draw(report, output)
    print(output)


def draw(report, output):
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.45 * len(report["results"])))
    title = of_bench(report, axes)
    axes.set_title(f"{title}, {report['date_utc'][:10]}", fontsize=10)
    axes.legend(fontsize=8, markerscale=0.4, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(output)


if __name__ == "__main__":
    main()
