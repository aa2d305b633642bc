"""SequenceGroup: this rank's end of a sequence group, with what the library keeps for it: a comm and a context for
each device, plans by shape, workspace."""
from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from typing import Dict, List, NoReturn, Optional, Union

import torch
import torch.distributed as dist

import liblasp
from liblasp.arguments import describe, take_flag, take_integer, take_time_limit
from liblasp.enums import Schedule, ScheduleLike, take

from . import nccl
from .gloo import GlooTransport
from .library_halo import Halo, check_rows, free
from .ownership import OwnershipLike, fields_of, take_ownership
from .plans import Plan
from .problem import Key, problem_of, seen

Source = Union[dist.ProcessGroup, dist.device_mesh.DeviceMesh, liblasp.Comm, None]


class _Thread(threading.local):
    alone: Optional[SequenceGroup] = None  # the group of one that serves calls without a group


_thread = _Thread()
_of_process_group = {}       # by the process group's id; the value holds it
_live = weakref.WeakSet()
_named = weakref.WeakValueDictionary()  # by name, for operators
_numbers = itertools.count(1)


class SequenceGroup:
    """The ranks that share sequences, in the order of their tokens; of use where `linear_attention(group=...)` by a
    plain process group is not enough.

    source: a torch process group (gloo or another backend with point-to-point messages for CPU tensors, NCCL for
      CUDA tensors), a one-dimensional DeviceMesh, a liblasp.Comm (threads, MPI, your own), or None for a group of one.
    time_limit: seconds to wait for another rank; None: the library's ten minutes; float("inf"): for ever.
    cpu_threads: threads that compute on the CPU; 0: CPUs over the ranks of this machine.
    schedule, pieces, chunk: as in lasp.h; all ranks give the same. "relay" is for many layers on few ranks, and takes
      no packed sequences.
    segment: tokens, a multiple of the chunk: results are then equal bit for bit for any number of ranks and any cut
      at multiples of it; causal, on the CPU, and with the schedules "auto", "ring" and "all_scan". (The gradient of
      a per-head decay is a rank's share as ever, whose sum over ranks torch forms.)
    ownership: which tokens each rank holds. "contiguous": rank r's tokens follow rank r-1's. "zigzag": of 2W equal parts
      rank r has parts r and 2W-1-r, one after the other in its tensors, as causal softmax layers balance their work.
      "zigzag_each": each packed sequence is cut so by itself, for linear_attention with cu_seqlens alone. Or a list of
      (tokens, rank) of each run of all tokens in their order. All ranks give the same.
    verify_messages: a checksum travels with every message, and one that arrives changed raises liblasp.CommFailed
      instead of becoming a wrong number; all ranks give the same; on the CPU.
    check_values: for debugging: each pass looks for NaN, infinity and decays above 0 in what it read and wrote, and
      raises liblasp.WrongValues, which says where; on a GPU it waits for each pass.
    plan_limit: how many shapes' plans are kept, and as many halos of ShortConvolution.

    One thread uses a group at a time. Give the library a process group of its own, as init_groups does: other
    messages on it would have to come in the same order on all ranks, and gloo's connections are closed with a group
    that broke.
    """

    def __init__(self, source: Source = None, *, time_limit: Optional[float] = None, cpu_threads: int = 0,
                 schedule: ScheduleLike = "auto", pieces: int = 0, chunk: int = 0, segment: int = 0,
                 verify_messages: bool = False, check_values: bool = False, plan_limit: int = 64,
                 ownership: OwnershipLike = "contiguous"):
        if isinstance(source, dist.device_mesh.DeviceMesh):
            source = source.get_group()
        if isinstance(source, SequenceGroup) or not names_a_group(source):
            raise TypeError(f"source: must be a process group, a DeviceMesh, a liblasp.Comm or None, not "
                            f"{describe(source)}")
        self.process_group = source if isinstance(source, dist.ProcessGroup) else None
        self._given = source if isinstance(source, liblasp.Comm) else None
        self._settings = {"schedule": take(Schedule, schedule, "schedule"),
                          "pieces": take_integer(pieces, "pieces", least=0),
                          "chunk": take_integer(chunk, "chunk", least=0),
                          "segment": take_integer(segment, "segment", least=0)}
        self.ownership = take_ownership(ownership)
        self._settings.update(fields_of(self.ownership))
        cpu_threads = take_integer(cpu_threads, "cpu_threads", least=0)
        take_time_limit(time_limit)
        self._local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.process_group is not None else 1
        if cpu_threads == 0 and self._local_ranks > 1:  # of all groups on this machine; the library knows of one
            cpu_threads = max(1, len(os.sched_getaffinity(0)) // self._local_ranks)
        self._context_options = {"cpu_threads": cpu_threads, "time_limit": time_limit,
                                 "verify_messages": take_flag(verify_messages, "verify_messages"),
                                 "check_values": take_flag(check_values, "check_values")}
        self._plan_limit = take_integer(plan_limit, "plan_limit", least=1)
        self._comms, self._contexts = {}, {}  # by device
        self._workspace, self._workspace_bytes = None, 0  # on the CPU
        self._plans: Dict[Key, Plan] = {}
        self._halos: Dict[tuple, Halo] = {}  # by what `halo` was asked for, the latest last
        self._unused_halos: List[tuple] = []
        self._recents = liblasp.raw.recents_create()  # of _plans, by what tensors look like
        self._uses = itertools.count()
        self._parent: Optional[SequenceGroup] = None
        self._others: Dict[object, SequenceGroup] = {}  # by ownership
        self._at_close = []
        self._closed = False
        if self.process_group is not None:
            self.rank, self.size = dist.get_rank(source), dist.get_world_size(source)
        else:
            self.rank, self.size = (source.rank, source.nranks) if self._given is not None else (0, 1)
        self.name = f"liblasp:{next(_numbers)}"  # what an operator knows it by
        _named[self.name] = self
        _live.add(self)

    def plan(self, key: Key) -> Plan:
        """The plan of a call, made at its first use. Making one is collective; so every rank's keys must recur in
        step with the others' (see total_tokens)."""
        plan = self._plans.get(key)
        if plan is not None:
            plan.last_use = next(self._uses)
            return plan
        if self._closed:
            raise liblasp.InvalidHandle("the SequenceGroup is closed")
        context = self._context(key.q[3])
        try:
            problem = problem_of(key, self._settings)
        except liblasp.InvalidArgument:
            self.give_up(key.q[3])
            raise
        plan = self._plans[key] = Plan(context, key, problem)
        plan.last_use = next(self._uses)
        if len(self._plans) > self._plan_limit:  # the oldest is freed with the last graph that needs it
            oldest = self._plans.pop(min(self._plans, key=lambda each: self._plans[each].last_use))
            self._recents.drop(oldest)
        return plan

    def _halo(self, x: torch.Tensor, count: int, total_tokens: Optional[int], max_sequences: int = 0) -> Halo:
        """The halo of `count` rows of tensors like x, made at its first use: as `plan`. `max_sequences`: where each is cut
        by itself. Tells the other ranks where it is refused here."""
        if self._closed:
            raise liblasp.InvalidHandle("the SequenceGroup is closed")
        free(self._unused_halos)
        key = (*seen(x), count, total_tokens, max_sequences)
        halo = self._halos.pop(key, None)
        if halo is None:
            context = self._context(x.device)
            try:
                check_rows(x)
            except liblasp.InvalidArgument:
                self.give_up(x.device)
                raise
            halo = Halo(context, x, count, self._unused_halos, fields_of(self.ownership), max_sequences)
            if total_tokens is not None and halo.total_tokens != total_tokens:
                halo.give_up_forward()
                halo.close()
                raise liblasp.InvalidArgument(f"total_tokens = {total_tokens}: the ranks hold {halo.total_tokens}")
        self._halos[key] = halo
        if len(self._halos) > self._plan_limit:  # the oldest is freed with the last graph that needs it
            del self._halos[next(iter(self._halos))]
        return halo

    def owned(self, ownership: OwnershipLike) -> SequenceGroup:
        """The same ranks and transport where they hold other tokens: this group, or one that lives and closes with it. One
        is kept for each ownership asked for, and its plans with it."""
        taken = take_ownership(ownership)
        if taken == self.ownership:
            return self
        if self._parent is not None:
            return self._parent.owned(taken)
        if self._closed:
            raise liblasp.InvalidHandle("the SequenceGroup is closed")
        other = self._others.get(taken)
        if other is None:
            other = self._others[taken] = self._beside(taken)
        return other

    def _beside(self, ownership) -> SequenceGroup:
        """With comms and contexts of this one's."""
        other = object.__new__(SequenceGroup)
        other.__dict__.update(self.__dict__)
        other._parent, other._others, other.ownership = self, {}, ownership
        settings = {name: value for name, value in self._settings.items() if name not in ("ownership", "runs")}
        other._settings = {**settings, **fields_of(ownership)}
        other._plans, other._halos, other._unused_halos = {}, {}, []
        other._recents, other._workspace, other._workspace_bytes = liblasp.raw.recents_create(), None, 0
        other.name = f"liblasp:{next(_numbers)}"
        _named[other.name] = other
        return other

    def require_contiguous(self, what: str) -> None:
        """Raises liblasp.Unsupported where ranks hold their tokens in another way."""
        if self.ownership != "contiguous":
            raise liblasp.Unsupported(f"{what}: not with ownership = {self.ownership!r}: its ranks hold runs in their order")

    def recent_plan(self, settings: tuple, q, k, v, decay, beta, initial_state) -> Optional[Plan]:
        """The plan of one of the latest calls, if this one is like it. Says yes only where the key is that call's,
        so that ranks go on to find, or to make, their plans together."""
        plan = self._recents.find(settings, q, k, v, decay, beta, initial_state)
        if plan is not None:
            plan.last_use = next(self._uses)
        return plan

    def keep_recent(self, plan: Plan, settings: tuple, *tensors: Optional[torch.Tensor]) -> None:
        """From now on calls like this one find their plan by recent_plan."""
        self._recents.keep(plan, settings, *tensors)

    def give_up(self, device: object) -> None:
        """Tells the other ranks that this one's call failed before it came to the library. Which of theirs they are in
        is not known here: one of a plan or halo that there is, which breaks the group, or else the making of the first plan."""
        if self.size == 1 or self._closed:
            return
        plan = next(itertools.chain(self._plans.values(), self._halos.values()), None)
        if plan is not None:
            plan.give_up_forward()
        elif isinstance(device, torch.device) and device.type in ("cpu", "cuda"):
            self._context(device)._refuse_plan()

    def workspace(self, nbytes: int, plan: Plan) -> Optional[torch.Tensor]:
        """Scratch of at least `nbytes`; None for none. On the CPU kept from call to call; on a GPU torch's
        allocator does that, in the order of the stream."""
        if nbytes == 0:
            return None
        if not plan.on_cpu:
            return torch.empty(nbytes, dtype=torch.uint8, device=plan.device)
        if nbytes > self._workspace_bytes:
            self._workspace = torch.empty(nbytes, dtype=torch.uint8, device=plan.device)
            self._workspace_bytes = nbytes
        return self._workspace

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, contiguous. Only a process group can do it."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        if self.process_group is not None:
            dist.all_reduce(total, group=self.process_group)
        elif self.size > 1:
            raise liblasp.Unsupported("the gradient of a broadcast final state is to be summed over the ranks, and "
                                      "this group has no process group: detach the state")
        return total

    def traffic(self) -> dict:
        """What this rank has put on the transport: bytes_sent, bytes_received, messages_sent, messages_received and
        wait_seconds, over all devices."""
        total = dict.fromkeys(liblasp.Traffic._fields, 0)
        for comm in self._comms.values():
            traffic = comm.traffic()
            for name in total:
                total[name] += getattr(traffic, name)
        return total

    def check(self) -> None:
        """Raises what a failure outside any call left behind: a failed kernel, or on a GPU an exchange that a lost rank
        keeps waiting beyond the time limit. From any thread, at any time, and never blocks: for a watchdog."""
        for context in list(self._contexts.values()):
            context.check()

    def abort(self) -> None:
        """Breaks the group on purpose, from any thread: waits here and on other ranks raise liblasp.Aborted."""
        for context in list(self._contexts.values()):
            context.abort()

    def close(self) -> None:
        """Frees plans, contexts and comms; a given liblasp.Comm and the process group stay. Graphs made with the group
        can no longer run backward."""
        if self._closed:
            return
        for other in list(self._others.values()):
            other.close()
        self._closed = True
        self._recents.drop()
        for halo in self._halos.values():
            halo.close()
        free(self._unused_halos)
        for plan in self._plans.values():
            plan.close()
        if self._parent is not None:  # what else there is is the parent's
            self._parent._others.pop(self.ownership, None)
            for kept in (self._halos, self._plans):
                kept.clear()
            self._workspace, self._workspace_bytes = None, 0
            return
        for context in self._contexts.values():
            context.close()
        for comm in self._comms.values():
            if comm is not self._given:
                comm.close()
        for finish in self._at_close:
            finish()
        for kept in (self._halos, self._plans, self._contexts, self._comms):
            kept.clear()
        self._workspace, self._workspace_bytes = None, 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return f"<SequenceGroup: rank {self.rank} of {self.size}>"

    def __copy__(self) -> SequenceGroup:
        return self  # a copied module stays in its group

    def __deepcopy__(self, memo: object) -> SequenceGroup:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a SequenceGroup cannot be pickled, because it holds handles of this process: save a module's "
                        "state_dict(), and give the group anew")

    def _context(self, device):
        context = self._contexts.get(device)
        if context is None:
            context = liblasp.Context(self._comm(device), device=device, **self._context_options)
            self._contexts[device] = context
        return context

    def _comm(self, device):
        if device not in self._comms:
            self._comms[device] = self._make_comm(device)
        return self._comms[device]

    def _make_comm(self, device) -> liblasp.Comm:
        if self._given is not None:
            return self._given
        if self.size == 1:
            return liblasp.Comm.self_()
        if device.type == "cpu":
            return liblasp.Comm.custom(GlooTransport(self.process_group), rank=self.rank, nranks=self.size,
                                       name="gloo", local_ranks=min(self._local_ranks, self.size))
        pointer, finish = nccl.communicator(self.process_group, device)
        if finish is not None:
            self._at_close.append(finish)
        return liblasp.Comm.nccl(pointer, nccl.functions())


Group = Union[SequenceGroup, Source]


def owned(group: Group, ownership: OwnershipLike, like: object) -> SequenceGroup:
    """The group where its ranks hold tokens so. Where that is refused the other ranks are told, who wait in a call on
    tensors as `like`."""
    ranks = sequence_group(group)
    try:
        return ranks.owned(ownership)
    except liblasp.Error:
        ranks.give_up(getattr(like, "device", None))
        raise


def names_a_group(group: object) -> bool:
    """Whether `sequence_group` takes it."""
    return group is None or isinstance(group, (SequenceGroup, dist.ProcessGroup, dist.device_mesh.DeviceMesh,
                                               liblasp.Comm))


def sequence_group(group: Group) -> SequenceGroup:
    """The SequenceGroup of whatever names a group: one for each process group, made at its first use. Raises TypeError
    for what names none."""
    if group is None:
        alone = _thread.alone
        if alone is None:
            alone = _thread.alone = SequenceGroup()
            alone.name = ""
        return alone
    if isinstance(group, SequenceGroup):
        return group
    known = _of_process_group.get(id(group))
    if known is None or known._closed:
        known = _of_process_group[id(group)] = SequenceGroup(group)
        known._held = group  # so that the id is not another's
        if isinstance(group, dist.ProcessGroup):
            known.name = group.group_name
    return known


def name_of(group: Group) -> str:
    """What group_named takes for it."""
    if group is None:
        return ""
    if isinstance(group, dist.device_mesh.DeviceMesh):
        group = group.get_group()
    if isinstance(group, dist.ProcessGroup):
        return group.group_name
    if isinstance(group, SequenceGroup):
        return group.name
    raise liblasp.Unsupported("group: a liblasp.Comm has no name that a compiled program could keep: give "
                              "SequenceGroup(comm)")


def group_named(name: str) -> SequenceGroup:
    """The group that an operator was given the name of."""
    if name == "":
        return sequence_group(None)
    group = _named.get(name)
    if group is not None:
        return group
    if name.startswith("liblasp:"):
        raise liblasp.InvalidArgument(f"group = {name!r}: there is no such SequenceGroup in this process any "
                                      "more; a module or the caller must keep it")
    try:
        process_group = dist.distributed_c10d._resolve_process_group(name)
    except Exception as reason:
        raise liblasp.InvalidArgument(f"group = {name!r}: there is no such process group in this process") from reason
    return sequence_group(process_group)


@atexit.register
def _close_all():
    for group in list(_live):
        try:
            group.close()
        except liblasp.Error:  # a thread is still inside; the process ends anyway
            pass
