#!/usr/bin/env python3
"""The numbers of the exchange's model, fitted to bench/results/exchanges.csv.     fit_exchanges.py [--fold US] [--fold-gbs GB/S]

A pass of several ranks takes what it takes on one, what its own state costs (one unknown for each length and direction,
the same for all schedules and ranks), and the exchange by the formulas of docs/reference/schedules.md. Latency, bandwidth
and the round of both ways are fitted by least squares; the fold is given, because it was measured alone. Rows of 65,536 tokens, whose pass
takes most of the time, count a third, and NCCL's by their share. NCCL's own all-gathers are in the fit, its chains and neighbours are not:
they ran one after the other without a pass between, in which messages overlap."""
import argparse
import csv
import math
import pathlib

import numpy

PIECES = 2  # of the all-scan, by the model of that time


def terms(schedule, ranks, launch, byte):
    """Latencies, states moved, rounds of both ways, and the folds in microseconds."""
    rounds, several, fold = math.ceil(math.log2(ranks)), ranks > 2, launch + byte
    return {"ring": lambda: (ranks - 1, ranks - 1, 0, (ranks - 2) * fold),
            "all-gather": lambda: (1, ranks - 1, several, several * launch + (ranks - 2) * byte),
            "all-scan": lambda: (ranks - 2 + PIECES, (ranks - 2 + PIECES) / PIECES, several * (PIECES - 1),
                                 (ranks - 3 + PIECES) * (launch + byte / PIECES)),
            "doubling": lambda: (rounds, rounds, several * rounds, 2 * (rounds - 1) * fold),
            "nccl all-gather": lambda: (1, ranks - 1, 1, 0)}[schedule]()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fold", type=float, default=1.4)
    parser.add_argument("--fold-gbs", type=float, default=2585)
    given = parser.parse_args()
    path = pathlib.Path(__file__).parent / "results" / "exchanges.csv"
    rows = list(csv.DictReader(path.open(newline="")))
    alone = {(row["run"], row["tokens"]): row for row in rows if row["schedule"] == "none"}
    own = sorted({(tokens, way) for _, tokens in alone for way in ("forward_ms", "backward_ms")})
    byte = 2 * 2**20 / (given.fold_gbs * 1e3) if given.fold_gbs else 0
    names, matrix, times, weights = [], [], [], []
    for row in rows:
        if row["schedule"] in ("none", "nccl chain", "nccl neighbours"):
            continue
        for way in ("forward_ms", "backward_ms") if row["tokens"] else ("forward_ms",):
            us = 1e3 * float(row[way])
            latency, states, rounds, fold = terms(row["schedule"], int(row["ranks"]), given.fold, byte)
            if row["tokens"]:
                us -= 1e3 * float(alone[row["run"], row["tokens"]][way])
            weights.append(1 / (10 + 0.1 * us) if not row["tokens"] else 1 / 30 if int(row["tokens"]) > 20000 else 1 / 10)
            names.append((row["schedule"], row["ranks"], row["tokens"] or row["state_mib"] + " MiB", way[:-3], us))
            matrix.append([latency, states * float(row["state_mib"]) / 2, rounds] +
                          [float((row["tokens"], way) == each) for each in own])
            times.append(us - fold)
    matrix, times, weights = numpy.array(matrix), numpy.array(times), numpy.array(weights)
    found = numpy.linalg.lstsq(matrix * weights[:, None], times * weights, rcond=None)[0]
    left = matrix @ found - times
    for name, error in zip(names, left):
        print("%-16s %s ranks %8s %-8s %6.0f us measured, model %+4.0f" % (*name, error))
    of_passes = [error for name, error in zip(names, left) if "MiB" not in name[2]]
    print("own state, us:", ", ".join(f"{tokens} {way[:-3]} {us:.1f}" for (tokens, way), us in zip(own, found[3:])))
    print(f"of the passes: {numpy.sqrt(numpy.mean(numpy.square(of_passes))):.1f} us rms, at most "
          f"{max(map(abs, of_passes)):.0f}")
    print(f"latency_us={found[0]:.2f},bandwidth_gbs={2 * 2**20 / found[1] / 1e3:.0f},round_us={found[2]:.1f}")


if __name__ == "__main__":
    main()
