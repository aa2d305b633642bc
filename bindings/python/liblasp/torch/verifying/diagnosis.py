"""From two steps that differ to what is wrong: which module, and by which of the usual mistakes."""
from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch.nn import functional as F

from ..ownership import cut_runs, pieces_of
from .calls import Called, Place, Tensors, distance, distances
from .report import Finding

Alone = Callable[[Called], Optional[Tensors]]


def suspects(whole: List[Called], forced: List[Called], bound: float) -> Tuple[Set[str], List[Finding]]:
    """Of calls whose inputs were replaced by those of one rank: the modules that offer another one something wrong, or
    give it themselves; and whose whole numbers are wrong, which nobody replaces."""
    names = [each.name for each in whole]
    if names != [each.name for each in forced]:
        other = next((a.name for a, b in zip(whole, forced) if a.name != b.name), "the last one")
        return set(), [Finding(other, "differs", "the split model calls other modules than the unsplit one")]
    found: Dict[str, Finding] = {}
    blamed: Set[str] = set()
    for one, other in zip(whole, forced):
        for name, far in distances(other.offered, one.offered).items() if one.name else ():
            if not one.offered[name].is_floating_point() and far > 0:
                found.setdefault("", Finding(one.name, "positions", f"a {one.kind} gets other whole numbers than on one "
                                             "rank: position ids are missing, or restart on each rank"))
            elif far > bound:
                blamed.add(one.caller)
        if distance(other.given, one.given) > bound:
            blamed.add(one.name)
    if found:  # rotary factors and all that is made of them
        return set(), list(found.values())
    return {each for each in blamed if not any(other != each and _inside(other, each) for other in blamed)}, []


def _inside(name: str, around: str) -> bool:
    return around == "" or name.startswith(around + ".")


def modules(whole: List[Called], split: List[Called], blamed: Set[str], bound: float, place: Place,
            offsets: Optional[Sequence[int]], alone: Alone) -> List[Finding]:
    """What is wrong with each module that is blamed, from its calls with the inputs of one rank."""
    found: Dict[str, Finding] = {}
    for one, other in zip(whole, split):
        if one.name in blamed and distance(other.given, one.given) > bound:
            found.setdefault(one.name, _of_module(one, other, bound, place, offsets, alone))
    return list(found.values())


def _of_module(one: Called, other: Called, bound, place, offsets, alone: Alone) -> Finding:
    first = next(name for name, far in distances(other.given, one.given).items() if far > bound)
    pair = other.given[first], one.given[first]
    if offsets is None:
        by_itself = alone(other)
        if by_itself is not None and distance(other.given, by_itself) <= bound:
            return Finding(one.name, "restarts", f"a {one.kind} begins a new sequence on each rank: it was given no group")
    if offsets is not None and _leaks(*pair, bound, place, offsets):
        return Finding(one.name, "leaks", f"a {one.kind} lets packed sequences see those before them: it was not given "
                       "their offsets")
    split, whole = (each.double().flatten() for each in pair)
    factor = float(split @ whole / (whole @ whole).clamp_min(1e-30))
    if float((split - factor * whole).norm()) <= bound * float(split.norm()):
        return Finding(one.name, "scaled", f"a {one.kind} gives {factor:.4g} times what it should: a scale is missing, or "
                       "something is added once for each rank")
    return Finding(one.name, "differs", f"a {one.kind} gives something else than on one rank, from the same inputs "
                   f"({distance(other.given, one.given):.2g} of its size)")


def _leaks(split, whole, bound, place, offsets) -> bool:
    """Whether a sequence that begins on this rank, behind another, is wrong: no rank before it can be the reason."""
    for run, one, other in zip(place, pieces_of(split, place), pieces_of(whole, place)):
        for first, last in zip(offsets[1:], offsets[2:]):
            part = slice(first - run.begin, last - run.begin)
            if run.begin <= first < run.end and distance({"": one[:, part]}, {"": other[:, part]}) > bound:
                return True
    return False


def loss(whole: float, split: Sequence[float], bound: float, logits: Optional[torch.Tensor],
         labels: Optional[torch.Tensor], places: Sequence[Place]) -> Optional[Finding]:
    """`split`: of each rank. The unsplit model's logits and labels tell which mistake it is."""
    def near(one, other):
        return abs(one - other) <= bound * max(1.0, abs(other))

    ranks = len(split)
    if all(near(each, whole) for each in split) or near(sum(split), whole) or near(sum(split) / ranks, whole):
        return None
    said = f"{', '.join(f'{each:.6g}' for each in split)} on the ranks, {whole:.6g} on one"
    if logits is not None and labels is not None and logits.shape[:2] == labels.shape:
        means, short = _means(logits, labels, places)
        for values, kind, sentence in (
                (means, "mean per rank", "each rank's is a mean over its own targets: divide sums by the targets of all"),
                (short, "local labels", "labels were shifted within each rank: the target of a rank's last token is the next "
                                        "rank's first")):
            average = sum(values) / ranks
            if all(near(a, b) for a, b in zip(split, values)) or all(near(each, average) for each in split):
                return Finding("loss", kind, f"{sentence}; {said}")
        counts = [int((cut_runs(labels, place, 1)[:, 1:] != -100).sum()) for place in places]
        total = sum(mean * count for mean, count in zip(short, counts) if count)
        for count in (sum(counts), int((labels[:, 1:] != -100).sum())):
            if all(near(each, total / max(count, 1)) for each in split):
                return Finding("loss", "local labels", "labels were shifted within each rank: the target of a rank's last "
                               f"token is the next rank's first; {said}")
    return Finding("loss", "differs", said)


def _means(logits, labels, places) -> Tuple[List[float], List[float]]:
    """Each rank's mean, with targets across ranks and with targets of its own tokens alone."""
    parts = [cut_runs(logits, place, 1).flatten(0, 1).double() for place in places]
    across = [cut_runs(_shifted(labels), place, 1) for place in places]
    own = [_shifted(cut_runs(labels, place, 1)) for place in places]
    return tuple([float(F.cross_entropy(part, each.flatten())) for part, each in zip(parts, targets)]
                 for targets in (across, own))


def _shifted(labels) -> torch.Tensor:
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)


def gradients(whole: Dict[str, torch.Tensor], split: Dict[str, torch.Tensor], bound: float,
              ranks: int) -> Optional[Finding]:
    far: Dict[str, float] = {}
    factors = []
    size = max((float(each.norm()) for each in whole.values()), default=0.0)
    for name, own in whole.items():
        other = split.get(name)
        if other is None:
            far[name] = 1.0
            continue
        norm = float(own.norm())
        away = float((other - own).norm())
        if away > bound * max(norm, 1e-3 * size):
            far[name] = away / max(norm, 1e-30)
            factor = float((other.flatten() @ own.flatten()) / max(norm, 1e-30) ** 2)
            if float((other - factor * own).norm()) <= bound * float(other.norm()):
                factors.append(factor)
    if not far:
        return None
    worst = max(far, key=far.get)
    where = _holder(list(far), list(whole))
    said = f"{len(far)} of {len(whole)} parameters, {worst} by {far[worst]:.2g} of its size"
    if len(factors) == len(far) and max(factors) - min(factors) <= bound * max(factors):
        if abs(factors[0] - ranks) <= bound * ranks:
            return Finding(where, "double counts", f"are {ranks} times those of one rank: summed where a mean over ranks was "
                           f"meant, summed twice, or the loss was summed with its gradient; {said}")
        return Finding(where, "scaled", f"are {factors[0]:.4g} times those of one rank; {said}")
    return Finding(where, "differs", said)


def _holder(far: List[str], everything: List[str]) -> str:
    """The module that has all the parameters that are wrong, where it has not all parameters anyway."""
    def around(names: List[str]) -> List[str]:
        paths = [name.split(".")[:-1] for name in names]
        same = next((at for at, parts in enumerate(zip(*paths)) if len(set(parts)) > 1), min(map(len, paths)))
        return paths[0][:same]
    module = around(far)
    return f"gradients of {'.'.join(module)}" if len(module) > len(around(everything)) else "gradients"
