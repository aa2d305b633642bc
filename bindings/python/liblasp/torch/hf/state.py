"""What a parallelized model knows: its group, what was replaced in it, and which tokens it is working on."""
from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import nn

from ..problem import invalid_argument
from ..sequence_group import SequenceGroup

ATTRIBUTE = "_liblasp_parallel"
WHOLE = "whole"  # the operations are the model's own, on whole sequences
LOCAL = "local"  # no token sees another: to find out what else mixes them
_PROMPT = "_liblasp_prompt"
_SHORTEST_PROMPT = 8  # a shorter one may well be the beginning of what follows it too


class Share(NamedTuple):
    """This rank's part of one batch."""

    tokens: int
    total: int                             # of all ranks
    cu_seqlens: Optional[Tuple[int, ...]]  # where sequences are packed
    mask: Optional[torch.Tensor]           # bool [B, tokens], False for padding; None where there is none
    items: Optional[torch.Tensor]          # by how many the sum of losses is divided


class Replaced(NamedTuple):
    """One module with a forward of its own."""

    name: str                    # in the model
    kind: str                    # its class
    operations: Tuple[str, ...]  # what is liblasp's in it


class Parallel:
    def __init__(self, model: nn.Module, group: SequenceGroup):
        self.model, self.group = model, group
        self.replaced: List[Replaced] = []
        self.now: Union[Share, str, None] = None
        self.wrapper: Optional[nn.Module] = None  # what averages gradients, as the latest forward pass met it
        self.prefilled: Optional[List[torch.Tensor]] = None  # in prefill: the convolutions' last inputs, call by call

    def share(self, tokens: int) -> Union[Share, str]:
        """What an operation on `tokens` tokens works on."""
        now = self.now
        if now is None:
            raise invalid_argument("model: is parallelized and was called outside of `with shard(model, batch)`; it runs "
                                   "unsplit in `with whole(model)`")
        if isinstance(now, Share) and tokens != now.tokens:
            raise invalid_argument(f"model: was given {tokens} tokens, this rank's share has {now.tokens}: call it "
                                   "with what shard gives, model(**local)")
        return now

    @contextlib.contextmanager
    def working_on(self, now: Union[Share, str]) -> Iterator[None]:
        if self.now is not None:
            raise invalid_argument("shard: inside of another for the same model")
        self.now = now
        try:
            yield
        finally:
            self.now = None

    def __deepcopy__(self, memo: Any) -> Parallel:
        raise invalid_argument("model: is parallelized and cannot be copied: copy it before")


def is_parallel(model: nn.Module) -> bool:
    return any(ATTRIBUTE in module.__dict__ for module in model.modules())


def parallel_of(model: Any) -> Parallel:
    """The state of a parallelized model, or of one that is wrapped."""
    if isinstance(model, nn.Module):
        for module in model.modules():
            found = module.__dict__.get(ATTRIBUTE)
            if found is not None:
                return found
    raise invalid_argument("model: is not parallelized: parallelize(model, group) comes first")


@contextlib.contextmanager
def whole(model: nn.Module) -> Iterator[nn.Module]:
    """Inside, the model runs unsplit, with its own operations, on this rank alone."""
    parallel = parallel_of(model)
    hook = parallel.model.register_forward_pre_hook(_refuse_prompt_again, with_kwargs=True)
    try:
        with parallel.working_on(WHOLE):
            yield model
    finally:
        hook.remove()


def remember_prompt(cache: Any, input_ids: Optional[torch.Tensor]) -> None:
    """That `cache` has seen these tokens, so that they are not read into it again."""
    if input_ids is not None and input_ids.shape[1] >= _SHORTEST_PROMPT:
        setattr(cache, _PROMPT, input_ids[0].detach().clone())


def _refuse_prompt_again(module: nn.Module, args: Tuple[Any, ...], arguments: Dict[str, Any]) -> None:
    # generate cuts off what a cache has seen by the keys in it. A cache of states alone has none, and would take the
    # prompt twice. What follows the first call may be anything, also the same tokens.
    caches = (arguments.get("past_key_values"), arguments.get("cache_params"))
    seen = next((each for each in caches if hasattr(each, _PROMPT)), None)
    ids = arguments.get("input_ids", args[0] if args else None)
    if seen is None or ids is None:
        return
    prompt = getattr(seen, _PROMPT)
    if ids.shape[1] >= prompt.shape[0] and torch.equal(ids[0, :prompt.shape[0]], prompt.to(ids.device)):
        raise invalid_argument(f"input_ids: begin with the {prompt.shape[0]} tokens of the prompt, which the cache of "
                               f"prefill has seen: give {type(module).__name__} the tokens that follow it alone")
    delattr(seen, _PROMPT)
