"""The messages of a sequence group over a torch process group on the CPU: gloo's, by the library's custom
transport.

Messages are staged in memory of this module, so that the library's memory is free as soon as a call returns, even
when a rank was lost. gloo can neither tell whether a message has come nor be interrupted; so a thread of its own
waits for it, and the library's thread waits for that thread, with the time limit, and looks at the group's store
from time to time. The store holds whom each blocked rank waits for, and how the group broke: the first cause is
every rank's.
"""
from __future__ import annotations

import datetime
import threading
import time
from typing import Optional

import torch
import torch.distributed as dist

import liblasp

_FIRST_TAG = 1 << 20  # tags below are the program's own
_NO_TAG = _FIRST_TAG - 1  # of a message that nobody sends
_LOOK_EVERY = 0.25    # seconds between looks at the store while a wait goes on
_RETURNS_WITHIN = 10.0  # seconds that a wait may need to return once its connections are closed
_FOREVER = datetime.timedelta(days=20)  # the widest that gloo's clock takes without overflow is about 24 days
_KEYS = {}  # how many groups this process has made of each process group, for names in the store


def _store_of(group: dist.ProcessGroup) -> dist.Store:
    name = group.group_name
    _KEYS[name] = _KEYS.get(name, 0) + 1
    return dist.PrefixStore(f"lasp/{name}/{_KEYS[name]}/", dist.distributed_c10d._get_default_store())


class _Request:
    __slots__ = ("work", "staging", "data", "peer")

    def __init__(self, work, staging, data, peer):
        self.work, self.staging, self.data, self.peer = work, staging, data, peer


class _Waiter(threading.Thread):
    """Waits for one message at a time, so that the library's thread can be told of other things meanwhile."""

    def __init__(self):
        super().__init__(name="lasp-gloo", daemon=True)
        self._changed = threading.Condition()
        self._work, self._result, self._closed = None, None, False
        self.start()

    def run(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work is not None or self._closed)
                if self._closed:
                    return
                work = self._work
            try:
                work.wait(_FOREVER)
                result = True
            except Exception as error:  # the connection broke, and gloo says how
                result = error
            del work
            with self._changed:
                self._work, self._result = None, result
                self._changed.notify_all()

    def begin(self, work) -> None:
        with self._changed:
            self._work, self._result = work, None
            self._changed.notify_all()

    def wait(self, seconds: float):
        """True when the message came, the exception when it failed, None when neither happened in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._result is not None or self._closed, seconds)
            return self._result

    def is_waiting(self) -> bool:
        with self._changed:
            return self._work is not None

    def settle(self) -> None:
        """Waits until the wait that goes on has returned."""
        with self._changed:
            self._changed.wait_for(lambda: self._work is None, _RETURNS_WITHIN)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class GlooTransport(liblasp.Transport):
    """One rank's end, as liblasp.Transport has it."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.nranks = dist.get_rank(group), dist.get_world_size(group)
        self._store = _store_of(group)
        self._waiter: Optional[_Waiter] = None
        self._awaited = self.rank  # the peer of the message that the waiter waits for
        self._broken: Optional[str] = None  # "aborted" or the lost rank's number, once known here

    def send(self, data, peer: int, tag: int, stream: int) -> _Request:
        return self._begin(self.group.send, bytearray(data), None, peer, tag)

    def receive(self, data, peer: int, tag: int, stream: int) -> _Request:
        return self._begin(self.group.recv, bytearray(len(data)), data, peer, tag)

    def _begin(self, start, staging, data, peer, tag) -> _Request:
        work = None
        if self._broken is None:
            try:
                work = start([torch.frombuffer(staging, dtype=torch.uint8)], peer, _FIRST_TAG + tag)
            except RuntimeError:  # the connection is gone already: `wait` says so
                self._break(str(peer))
        return _Request(work, staging, data, peer)

    def test(self, request: _Request) -> bool:
        return request.work is None

    def wait(self, request: _Request, time_limit_ms: int) -> None:
        limit = float("inf") if time_limit_ms < 0 else time_limit_ms / 1000
        began = time.monotonic()
        if request.work is None:
            self._raise()
        if self._waiter is None:
            self._waiter = _Waiter()
        self._awaited = request.peer
        self._waiter.begin(request.work)
        published = False
        while True:
            left = limit - (time.monotonic() - began)
            result = self._waiter.wait(max(0.0, min(left, _LOOK_EVERY)))
            if result is True:
                break
            if result is not None:
                self._lose(request.peer)
            self._raise_if_broken()
            if left <= 0:
                self._lose(self._chase(request.peer))
            if not published:
                self._store.set(f"waits/{self.rank}", str(request.peer))
                published = True
        if published:
            self._store.set(f"waits/{self.rank}", "")
        if request.data is not None:
            request.data[:] = request.staging

    def cancel(self, request: _Request) -> None:
        """The staging lives until gloo is done with it. A wait that goes on is ended, by the one way that gloo has: a
        wait that times out closes all connections of its group. It has to be on the connection of the wait that goes
        on: others may be closed already, by their peers. A thread that is still in gloo when the interpreter ends
        would abort the process, so this returns after that wait."""
        if self._waiter is None or not self._waiter.is_waiting():
            return
        try:
            never = self.group.recv([torch.empty(1, dtype=torch.uint8)], self._awaited, _NO_TAG)
            never.wait(datetime.timedelta(milliseconds=1))
        except RuntimeError:
            pass  # that it timed out, or that the connection was closed already
        self._waiter.settle()

    def abort(self, lost_rank: int) -> None:
        self._break("aborted" if lost_rank < 0 else str(lost_rank))

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.close()

    def _chase(self, peer: int) -> int:
        """Follows who waits for whom to the rank that waits for nobody."""
        seen = {self.rank}
        try:
            while peer not in seen and self._store.check([f"waits/{peer}"]):
                further = self._store.get(f"waits/{peer}").decode()
                if not further:
                    break
                seen.add(peer)
                peer = int(further)
        except RuntimeError:
            pass  # the store is gone too: the peer is as much as is known
        return peer

    def _break(self, cause: str) -> None:
        if self._broken is not None:
            return
        try:
            cause = self._store.compare_set("broken", "", cause).decode()
        except RuntimeError:
            pass
        self._broken = cause

    def _raise_if_broken(self) -> None:
        if self._broken is None:
            try:
                if self._store.check(["broken"]):
                    self._broken = self._store.get("broken").decode()
            except RuntimeError:
                pass  # without a store the time limit decides
        if self._broken is not None:
            self._raise()

    def _raise(self) -> None:
        if self._broken == "aborted":
            raise liblasp.Aborted("a rank called abort")
        raise liblasp.PeerLost(f"rank {self._broken} was lost", rank=int(self._broken))

    def _lose(self, rank: int) -> None:
        self._break(str(rank))
        self._raise()
