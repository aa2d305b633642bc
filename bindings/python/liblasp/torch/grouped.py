"""A module in a sequence group: what copying and pickling do with the group."""
from __future__ import annotations

import copy
from typing import Any, Dict

import torch.distributed as dist
from torch import nn


class GroupedModule(nn.Module):
    """A module with an attribute `group`. A copy stays in its group; pickled it cannot be where the group holds handles
    of this process."""

    def __deepcopy__(self, memo: Dict[int, Any]) -> GroupedModule:
        memo[id(self.group)] = self.group
        copied = memo[id(self)] = self.__class__.__new__(self.__class__)
        copied.__setstate__(copy.deepcopy(self.__dict__, memo))
        return copied

    def __getstate__(self) -> Dict[str, Any]:
        if isinstance(self.group, dist.ProcessGroup):
            raise TypeError(f"a {type(self).__name__} in a process group cannot be pickled: save its state_dict(), and "
                            "give the group anew")
        return self.__dict__
