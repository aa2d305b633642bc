"""Draws a report of convergence.py: the loss curves above, their distances from the one-rank curve below."""
import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.fonttype"] = "none"
import matplotlib.pyplot as plt  # noqa: E402

COLORS = {"ddp": "#3b6ea5", "fsdp2": "#c9772b", "zero": "#4f9d69", "deepspeed-1": "#8e6bb0", "deepspeed-2": "#b05f8a",
          "deepspeed-3": "#7a7a3a"}
POINTS = 100  # of a curve: a page loads what is drawn; single differences jump between zero and a last place anyway


def style(row):
    if row["cut"]:
        return {"color": "#c0392b", "linestyle": "--", "linewidth": 1.2, "label": "exchange cut"}
    if row["perturb"]:
        return {"color": "black", "linestyle": ":", "linewidth": 1.2, "label": "last places changed"}
    return {"color": COLORS[row["parallel"]], "linewidth": 0.8, "label": row["parallel"]}


def draw(report, path):
    """Writes the figure to `path`, in the format of its suffix."""
    one, *others = report["setups"]
    every = -(-report["steps"] // POINTS)
    steps = range(1, report["steps"] + 1, every)
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 8), sharex=True, height_ratios=(2, 3))
    above.plot(steps, one["loss"][::every], color="0.75", linewidth=4, label="one rank")
    below.plot(steps, report["bound"][::every], color="black", linewidth=1.6, label="bound")
    for row in others:
        above.plot(steps, row["loss"][::every], **style(row))
        apart = [abs(a - b) for a, b in zip(row["loss"], one["loss"])]
        largest = [max(apart[i:i + every]) for i in range(0, len(apart), every)]
        below.plot(steps, [value or float("nan") for value in largest], **style(row))  # zero has no place on the axis
    above.set_ylabel("loss")
    below.set_yscale("log")
    below.set_ylabel("distance of the loss from one rank's" + (f", largest of {every} steps" if every > 1 else ""))
    below.set_xlabel("step")
    kinds = {line.get_label(): line for axes in (above, below) for line in axes.get_lines()}  # one for all of a kind
    below.legend(kinds.values(), kinds.keys(), fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes in (above, below):
        axes.grid(alpha=0.25)
    ranks = ", ".join(str(count) for count in sorted({row["ranks"] for row in report["setups"]}))
    above.set_title(f"{len(report['setups'])} runs on {ranks} ranks, float32, {report['environment']['device']}, "
                    f"{report['date_utc'][:10]}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
