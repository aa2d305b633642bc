"""What verify has found, on all ranks together."""
from __future__ import annotations

from typing import List, NamedTuple, Tuple


class Finding(NamedTuple):
    """One thing that is not as on one rank."""

    where: str   # a module's name, "loss", "gradients", or "gradients of" a module
    kind: str    # restarts, leaks, scaled, positions, double counts, mean per rank, local labels, differs
    sentence: str


class Report(NamedTuple):
    """What verify gives: the same on every rank."""

    findings: Tuple[Finding, ...]
    modules: int    # that were compared
    parameters: int
    slowed: int     # tensors of decays that were made slow
    packed: bool    # whether packed sequences were tried too

    @property
    def ok(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        tried = "packed sequences too" if self.packed else "packed sequences not"
        lines: List[str] = [f"{self.modules} modules and the gradients of {self.parameters} parameters compared with one "
                            f"rank's; {self.slowed} tensors of decays made slow; {tried}"]
        if self.ok:
            return lines[0] + ": the same numbers."
        return "\n".join([lines[0] + ":", *(f"  {each.where}: {each.kind}: {each.sentence}" for each in self.findings)])
