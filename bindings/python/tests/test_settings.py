"""Settings that change how a group computes and not what: a segment, and checksummed messages."""

import numpy as np
import pytest

import liblasp
from support import (FLOAT32_BOUND, MailboxEnd, Mailboxes, on_threads, raise_first, random_problem, recurrence,
                     relative_error)

Q, K, V, G, D_O = random_problem(11, tokens=96, heads=2, head_dim=16, decay="scalar")
EXPECTED = recurrence(Q, K, V, G, D_O, 0.25)
CHUNK, SEGMENT = 16, 32


def run(comms, cuts, verify=False, **settings):
    """o, dq, dk, dv, d_decay and the last rank's final state, of the whole sequence cut at `cuts`."""

    def body(rank, comm):
        begin, end = cuts[rank], cuts[rank + 1]
        q, k, v, g, d_o = (np.ascontiguousarray(x[:, begin:end]) for x in (Q, K, V, G, D_O))
        with liblasp.Context(comm, cpu_threads=1, time_limit=60, verify_messages=verify) as context:
            plan = context.plan(liblasp.Problem.like(q, k, v, decay=g, chunk=CHUNK, **settings))
            o, state = plan.forward(q, k, v, g, final_state=True)
            return (o, *plan.backward(d_o, q, k, v, g)[:4]), state, plan.owners(0, plan.info.total_tokens).last_rank

    ranks = raise_first(on_threads(comms, body))
    tensors = [np.concatenate(parts, 1) for parts in zip(*(rank[0] for rank in ranks))]
    return (*tensors, ranks[ranks[0][2]][1])


def correct(results):
    for name, result in zip(("o", "dq", "dk", "dv", "dg", "final_state"), results):
        assert relative_error(result, EXPECTED[name]) <= FLOAT32_BOUND, name


@pytest.mark.parametrize("cuts", [[0, 32, 64, 96], [0, 64, 64, 96], [0, 0, 32, 96], [0, 32, 96]],
                         ids=lambda cuts: "-".join(map(str, cuts)))
@pytest.mark.parametrize("schedule", ["auto", "ring", "all_scan"])
def test_a_segment_makes_the_cut_unseen(schedule, cuts):
    """Results of every cut at multiples of the segment are those of one rank, bit for bit."""
    whole = run(liblasp.Comm.threads(1), [0, 96], segment=SEGMENT)
    correct(whole)
    ranks = run(liblasp.Comm.threads(len(cuts) - 1), cuts, segment=SEGMENT, schedule=schedule)
    assert all(np.array_equal(one, many) for one, many in zip(whole, ranks))


def test_without_a_segment_the_cut_is_seen():
    """So that the comparison above can fail."""
    whole, ranks = run(liblasp.Comm.threads(1), [0, 96]), run(liblasp.Comm.threads(2), [0, 64, 96])
    correct(ranks)
    assert not all(np.array_equal(one, many) for one, many in zip(whole, ranks))


def test_segment_is_refused():
    """What the library says of it comes through."""
    with liblasp.Context(cpu_threads=1) as context:
        for segment, words in ((24, "segment = 24"), (-16, "segment = -16"), (2 ** 64, "segment = 184467")):
            with pytest.raises(liblasp.InvalidArgument, match=words):
                context.plan(tokens=64, heads=2, head_dim=16, chunk=CHUNK, segment=segment)
        for wrong in ({"mask": "bidirectional"}, {"schedule": "all_gather"}, {"schedule": "doubling"}, {"schedule": "head_scatter"}):
            with pytest.raises(liblasp.Unsupported, match="segment"):
                context.plan(tokens=64, heads=2, head_dim=16, chunk=CHUNK, segment=SEGMENT, **wrong)
        context.plan(tokens=64, heads=2, head_dim=16, chunk=CHUNK, segment=SEGMENT)


@pytest.mark.parametrize("schedule", ["ring", "all_gather", "all_scan", "doubling", "head_scatter"])
def test_verified_messages(schedule):
    """The same numbers with the checksums as without."""
    cuts = [0, 40, 41, 96]
    plain = run(liblasp.Comm.threads(3), cuts, schedule=schedule)
    verified = run([end.comm() for end in Mailboxes(3).ends()], cuts, verify=True, schedule=schedule)
    correct(plain)
    assert all(np.array_equal(a, b) for a, b in zip(plain, verified))


def test_verify_messages_is_refused():
    with pytest.raises(liblasp.InvalidArgument, match="verify_messages = 2"):
        liblasp.Context(verify_messages=2)
    with pytest.raises(liblasp.Unsupported):
        liblasp.Context(verify_messages=True, device="cuda")


class Corrupting(MailboxEnd):
    """Changes one bit of the next message, when told to."""

    corrupt = False

    def send(self, data, peer, tag, stream):
        data = bytearray(data)
        if self.corrupt:
            data[3] ^= 16
            self.corrupt = False
        return super().send(data, peer, tag, stream)


@pytest.mark.parametrize("verify", [False, True])
def test_a_changed_message(verify):
    """Is found where messages are verified; where they are not, the same change becomes a wrong number."""
    ends = Mailboxes(2).ends(Corrupting)

    def body(rank, comm):
        mine = [np.ascontiguousarray(x[:, 48 * rank:48 * rank + 48]) for x in (Q, K, V, G)]
        with liblasp.Context(comm, cpu_threads=1, time_limit=20, verify_messages=verify) as context:
            plan = context.plan(liblasp.Problem.like(*mine[:3], decay=mine[3], schedule="ring"))
            good = plan.forward(*mine)
            ends[0].corrupt = rank == 0 or ends[0].corrupt
            if rank == 1 and verify:
                with pytest.raises(liblasp.CommFailed, match="rank 0 .* arrived changed") as caught:
                    plan.forward(*mine)
                assert caught.value.name == "LASP_ERROR_TRANSPORT"
                return True
            return np.array_equal(good, plan.forward(*mine))

    assert raise_first(on_threads([end.comm() for end in ends], body)) == [True, verify]


def test_ranks_disagree_about_verifying():
    def body(rank, comm):
        with liblasp.Context(comm, cpu_threads=1, time_limit=20, verify_messages=rank == 0) as context:
            with pytest.raises(liblasp.Disagreement, match="verify_messages"):
                context.plan(tokens=4, heads=1, head_dim=8)

    raise_first(on_threads(liblasp.Comm.threads(2), body))


@pytest.mark.parametrize("asked", ({}, {"device": "auto"}, {"device": liblasp.Device.AUTO}, {"device": "cpu"}))
def test_the_device_is_found_by_the_comm(asked):
    """On the CPU, unless the comm's memory is a GPU's: then a GPU it is, or what is missing is said."""
    with liblasp.Context(**asked) as context:
        assert (context.device, context.device_index) == (liblasp.Device.CPU, 0) and "on cpu" in repr(context)
    if not liblasp.build_info().has_cuda:
        return  # the comm below cannot be made
    end = Mailboxes(1).ends()[0]
    with liblasp.Comm.custom(end, rank=0, nranks=1, memory="cuda") as comm:
        try:
            with liblasp.Context(comm, **asked) as context:
                assert context.device == liblasp.Device.CUDA
        except liblasp.Unsupported:  # no GPU here
            assert asked.get("device") != "cpu"
        except liblasp.InvalidArgument as error:
            assert asked.get("device") == "cpu" and "carries device memory" in str(error)
