#!/usr/bin/env python3
"""Draws lasp-bench's JSON: counted GFLOP/s of each configuration beside the machine's sgemm rate.

usage: plot.py results.json [picture.svg]        needs matplotlib (Debian: apt install python3-matplotlib)
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def label(result, varying):
    config = result["config"]
    return ", ".join(f"{key} {config[key]}" for key in varying) or config["decay"]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        report = json.load(file)
    results = [r for r in report["results"] if "forward" in r or "backward" in r]
    if not results:
        sys.exit("no configuration has a speed")
    varying = [k for k in results[0]["config"] if len({r["config"][k] for r in results}) > 1]
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.45 * len(results)))
    rows = range(len(results))
    for offset, name, color in ((-0.2, "forward", "#3b6ea5"), (0.2, "backward", "#c9772b")):
        with_pass = [(row + offset, r[name]) for row, r in zip(rows, results) if name in r]
        axes.barh([row for row, _ in with_pass], [p["gflops"] for _, p in with_pass], 0.38, label=name, color=color)
    sgemm = [(row, r["sgemm_gflops"]) for row, r in zip(rows, results) if r["sgemm_gflops"] > 0]
    axes.scatter([rate for _, rate in sgemm], [row for row, _ in sgemm], marker="|", s=300, color="black", label="sgemm 1024")
    axes.set_yticks(list(rows), [label(r, varying) for r in results], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("counted GFLOP/s")
    axes.set_title(f"liblasp {report['library']['version']}, {report['machine']['cpu']}, {report['date_utc'][:10]}", fontsize=10)
    axes.legend(fontsize=8, markerscale=0.4, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    output = sys.argv[2] if len(sys.argv) == 3 else sys.argv[1].rsplit(".", 1)[0] + ".svg"
    figure.savefig(output)
    print(output)


if __name__ == "__main__":
    main()
