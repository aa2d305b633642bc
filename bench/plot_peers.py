#!/usr/bin/env python3
"""Draws the README's chart from bench/results/peers.csv: milliseconds forward and backward of liblasp and of the public code
that is fastest in that pass, for each shape of lasp-bench's table on one GPU, and on four.

usage: plot_peers.py peers.csv picture.svg [quoted.csv]        needs matplotlib (Debian: apt install python3-matplotlib)

quoted.csv is bench/results/quoted.csv: its lines of the picture become those of the new one.
"""
import csv
import sys

ONE_GPU, MANY_GPUS = "peers-models", "peers-4xh200"
STEPS = ("forward", "backward")
OURS, THEIRS, LINE = "#b8631c", "#5b6b7b", "#c3cad1"
SHORT = {"LASP fuse": "LASP"}


def ms(row, step):
    return float(row[f"{step}_ms"]) if row and row[f"{step}_ms"] else None


def written(value):
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3}f}"


def fastest(rows):
    """The row with the shortest pass, forward and backward; None where nothing has the pass."""
    return tuple(min((row for row in rows if ms(row, step) is not None), key=lambda row: ms(row, step), default=None)
                 for step in STEPS)


def label_of(row):
    tokens = f"{int(row['tokens']):,} tokens"
    if int(row["ranks"]) > 1:
        kind = {"head": "a decay per head", "none": "no decay"}[row["decay"]]
        return f"{row['ranks']} {row['device'].replace('NVIDIA ', '')}, {tokens} on each: {kind}"
    usual = row["tokens"] == "16384" or "batch" in row["shape"]
    return row["shape"] + ("" if usual else f", {tokens}")


def lines_of(rows):
    """(label, liblasp's row, the fastest public code's rows forward and backward), in the order of the rows."""
    one = [row for row in rows if row["run"] == ONE_GPU]
    many = [row for row in rows if row["run"] == MANY_GPUS and row["tokens"] == "16384"]
    key = lambda row: (row["run"], row["shape"], row["batch"], row["tokens"], row["heads"], row["decay"])
    lines = []
    for own in (row for row in one + many if row["name"] == "liblasp"):
        others = [row for row in one + many if key(row) == key(own) and row["name"] != "liblasp"]
        lines.append((label_of(own), own, fastest(others)))
    return lines


def draw(lines, output):
    """Returns what stands in the picture: (number, row or rows, columns)."""
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    height = 1.3 + 0.31 * len(lines)
    places = [place + (0.6 if int(own["ranks"]) > 1 else 0) for place, (_, own, _) in enumerate(lines)]
    # A white ground of its own: it is read on light and on dark pages.
    figure, panels = plt.subplots(1, 2, figsize=(13, height), sharey=True, facecolor="white")
    values = [value for _, own, others in lines for i, step in enumerate(STEPS) for row in (own, others[i])
              if (value := ms(row, step)) is not None]
    quoted = []
    for i_step, (axes, step) in enumerate(zip(panels, STEPS)):
        for place, (_, own, others) in zip(places, lines):
            other = others[i_step]
            mine, theirs = ms(own, step), ms(other, step)
            points = [(value, row, color) for value, row, color in ((mine, own, OURS), (theirs, other, THEIRS)) if value is not None]
            points.sort(key=lambda point: point[0])
            if len(points) == 2:
                axes.plot([points[0][0], points[1][0]], [place, place], color=LINE, linewidth=3, zorder=1)
            for i, (value, row, color) in enumerate(points):
                axes.plot([value], [place], "o", color=color, markersize=7, zorder=2)
                left = i == 0
                axes.annotate(written(value), (value, place), xytext=(-7 if left else 7, 0), textcoords="offset points",
                              ha="right" if left else "left", va="center", fontsize=9.5, color=color)
                quoted.append((written(value), row, f"{step}_ms"))
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 4)
        axes.set_title(f"{step}, ms", fontsize=11, loc="left")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.grid(axis="y", color="#eef0f2", linewidth=0.8, zorder=0)
    panels[0].set_yticks(places, [label for label, _, _ in lines], fontsize=10)
    panels[0].invert_yaxis()
    for place, (_, own, others) in zip(places, lines):
        text = ", ".join(dict.fromkeys(SHORT.get(row["name"], row["name"]) for row in others if row is not None))
        if others[0] is None:
            text = "no public code was measured"
        elif others[1] is None:
            text += ", forward alone"
        elif others[0] is others[1]:
            times = f"{sum(ms(others[0], step) for step in STEPS) / sum(ms(own, step) for step in STEPS):.1f}"
            text += f": {times} times"
            quoted.append((times, (others[0], own), "forward_ms + backward_ms"))
        panels[1].annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=10, color=THEIRS)
    devices = sorted({row["device"].replace("NVIDIA ", "").replace(" 80GB HBM3", "") for _, row, _ in lines if row["ranks"] == "1"})
    figure.suptitle(f"Training passes on one {' or '.join(devices)}, bfloat16, K x V of a head, 16,384 tokens unless said",
                    fontsize=12.5, fontweight="bold", x=0.01, y=1 - 0.1 / height, ha="left", va="top")
    for x, color, name in ((0.01, OURS, "● liblasp"), (0.075, THEIRS, "● the fastest public code in each pass; \"times\": of liblasp, both passes. fla is flash-linear-attention")):
        figure.text(x, 1 - 0.38 / height, name, color=color, fontsize=11, va="top")
    figure.tight_layout(rect=(0, 0, 0.985, 1 - 0.55 / height))
    figure.savefig(output, metadata={"Date": None}, bbox_inches="tight")
    return quoted


def name_of(row):
    words = [f"run={row['run']}", f'name="{row["name"]}"']
    if row["shape"]:
        return " ".join([*words, f'shape="{row["shape"]}"'])
    return " ".join(words + [f"{column}={row[column]}" for column in ("batch", "heads", "tokens", "decay")])


def quote(quoted, file):
    """The picture's lines of bench/results/quoted.csv, at the place of the old ones."""
    page = "bench/results/peers.svg"
    with open(file, newline="") as stream:
        lines = list(csv.reader(stream))
    new = [[page, number, "peers.csv", " / ".join(map(name_of, row if isinstance(row, tuple) else (row,))), column]
           for number, row, column in quoted]
    place = next((i for i, line in enumerate(lines) if line[0] == page), len(lines))
    kept = [line for line in lines if line[0] != page]
    with open(file, "w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(kept[:place] + new + kept[place:])


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    with open(sys.argv[1], newline="") as file:
        lines = lines_of(list(csv.DictReader(file)))
    if not any(own["run"] == ONE_GPU for _, own, _ in lines):
        sys.exit(f"{sys.argv[1]} has no run {ONE_GPU}")
    quoted = draw(lines, sys.argv[2])
    if len(sys.argv) == 4:
        quote(quoted, sys.argv[3])


if __name__ == "__main__":
    main()
