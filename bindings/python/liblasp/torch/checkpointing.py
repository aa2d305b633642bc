"""Activation checkpointing that exchanges nothing a second time.

A recomputation needs the states that came from other ranks, and the forward pass keeps exactly those in its state
cache. `keep_states` is a `context_fn` of torch.utils.checkpoint: it makes one recorder for each checkpointed call,
which holds the state caches of the call's linear attentions, in their order, for as long as the graph holds the
call.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, ContextManager, List, NamedTuple, Optional, Tuple, TypeVar

import torch
from torch.utils.checkpoint import checkpoint as _torch_checkpoint

T = TypeVar("T")


class _Thread(threading.local):  # a recomputation runs in whichever thread runs the backward pass
    def __init__(self):
        self.active: list = []  # the scopes that this thread is in


_thread = _Thread()
scopes = 0  # in all threads; a compiled program guards on it
_counting = threading.Lock()


class Kept(NamedTuple):
    """What a recomputation needs of one forward pass."""

    key: Any  # of the plan, to see that the recomputation asks for the same
    state_cache: torch.Tensor
    final_state: Optional[torch.Tensor]  # where it was broadcast, which a recomputation does not repeat


class _Scope:
    """A context manager that can be entered again: a graph kept for two backward passes recomputes twice."""

    def __init__(self, kept: list):
        self.kept = kept

    def __enter__(self):
        _thread.active.append(self)
        _count(1)
        return self

    def __exit__(self, *exception):
        _thread.active.remove(self)
        _count(-1)
        return False


def _count(by: int) -> None:
    global scopes
    with _counting:
        scopes += by


class _Recording(_Scope):
    pass


class _Replaying(_Scope):
    def __enter__(self):
        self.position = 0
        return super().__enter__()

    def take(self, key) -> Kept:
        if self.position >= len(self.kept) or self.kept[self.position].key != key:
            raise RuntimeError(
                "the recomputation of a checkpointed function asked for another linear attention than its forward "
                "pass did: the function must do the same both times")
        self.position += 1
        return self.kept[self.position - 1]


def keep_states() -> Tuple[ContextManager[Any], ContextManager[Any]]:
    """`context_fn` for torch.utils.checkpoint.checkpoint(..., use_reentrant=False): what is entered around the forward
    pass, and around its recomputation."""
    kept: List[Kept] = []
    return _Recording(kept), _Replaying(kept)


def checkpoint(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """torch.utils.checkpoint.checkpoint(function, *args), whose recomputation sends no message.

    Any linear attention inside keeps the state that came into this rank, a [K, V] matrix per sequence and head, and
    recomputes everything else. Other keyword arguments are handed on.
    """
    return _torch_checkpoint(function, *args, use_reentrant=False, context_fn=keep_states, **kwargs)


def is_checkpointed() -> bool:
    """Whether this thread is inside a call under `keep_states`."""
    return bool(_thread.active)


def recomputed(key) -> Optional[Kept]:
    """What the forward pass of this very call kept, where this is a recomputation."""
    for scope in reversed(_thread.active):
        if isinstance(scope, _Replaying):
            return scope.take(key)
    return None


def keep(kept: Kept) -> None:
    """Hands what a forward pass left to every checkpointed call around it."""
    for scope in _thread.active:
        if isinstance(scope, _Recording):
            scope.kept.append(kept)
