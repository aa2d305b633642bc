#!/usr/bin/env python3
"""Draws what recall.py wrote: recall while training, and by distance.

    python recall_figure.py OUT.svg ROWS.json...        # needs matplotlib"""
import json
import pathlib
import sys

# One hue for each cut, none of them told apart by red and green.
LOOKS = {"none": ("nothing is cut", "#0072b2", "o"), "segments": ("each segment on its own", "#d55e00", "s"),
         "ranks": ("each rank on its own", "#7f7f7f", "^")}


def draw(rows, path):
    """Draws rows of recall.py into an SVG file; without matplotlib says so."""
    try:
        import matplotlib
    except ImportError:
        print(f"{path} is not drawn: matplotlib is not installed (Debian: apt install python3-matplotlib).")
        return
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "recall",
                                "axes.spines.top": False, "axes.spines.right": False})
    figure, (training, distance) = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True, layout="constrained")
    for row in rows:
        label, color, marker = LOOKS[row["cut"]]
        look = {"label": label, "color": color, "marker": marker, "markersize": 4.5, "linewidth": 1.6}
        training.plot([point["step"] for point in row["curve"]], [point["recall"] for point in row["curve"]], **look)
        points = _with_enough_questions(row["by_distance"])
        distance.plot([at for at, _ in points], [recall for _, recall in points], **look)
    _mark_stages(training, rows[0]["curve"])
    distance.set_xscale("log", base=2)
    distance.xaxis.set_major_formatter(lambda x, _: short(x))
    distance.set_xlabel("distance from the question back to the answer, tokens")
    training.set_xlabel("optimizer step")
    training.set_ylabel("questions answered rightly")
    training.set_ylim(0, 1.04)
    training.set_title("While training, on new sequences of so many tokens:", loc="left", fontsize=10, pad=18)
    distance.set_title(f"After training, in sequences of {short(rows[0]['tokens'])} tokens", loc="left", fontsize=10,
                       pad=18)
    for axes in (training, distance):
        axes.axhline(rows[0]["chance"], color="black", linewidth=0.9, linestyle=":", label="chance")
        axes.grid(axis="y", color="#e4e4e4")
        axes.set_axisbelow(True)
    distance.legend(loc="center left", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _with_enough_questions(by_distance, enough=50):
    """[(distance, recall)], of neighbouring octaves together where one alone has too few questions."""
    points, begin, asked, right = [], None, 0, 0
    for least, more_asked, more_right in by_distance:
        begin, asked, right = begin or least, asked + more_asked, right + more_right
        if asked >= enough:
            points.append(((begin * 2 * least)**0.5, right / asked))  # the middle, by logarithm
            begin, asked, right = None, 0, 0
    return points


def _mark_stages(axes, curve):
    """A line where sequences become longer, and how long they are."""
    begin = 0
    for i, point in enumerate(curve):
        if i + 1 == len(curve) or curve[i + 1]["tokens"] != point["tokens"]:
            axes.text((begin + point["step"]) / 2, 1.045, short(point["tokens"]), ha="center", fontsize=7.5)
            axes.axvline(point["step"], color="#e4e4e4", linewidth=0.8, zorder=0)
            begin = point["step"]


def short(tokens):
    """65536 as 64K."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return f"{tokens:.3g}"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    draw([row for name in sys.argv[2:] for row in json.loads(pathlib.Path(name).read_text())], sys.argv[1])
