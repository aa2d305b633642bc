"""lasp.torch.LinearAttention on one GPU: autocast, states carried on, packed sequences, ranks, checkpointing."""

import threading

import torch

import lasp
import lasp.torch as lt
from problems import BOUNDS, attempt, error, line, need

DECAYS = ("none", "head", "scalar", "channel")
# A chain of float32 operations around the attention, each a sum of at most 64 terms, with a norm per head in
# between: 16 times the attention's own bound leaves room, 8 times that for gradients, which go through all of it
# twice. Products of float32 are torch's own, in full precision by default.
MODULE_BOUND = 16 * BOUNDS[torch.float32]


def check_module():
    torch.manual_seed(0)
    for decay in ("none", "head", "scalar", "channel"):
        module = lt.LinearAttention(256, 4, decay=decay)
        x = torch.randn(2, 256, 256)
        weights = torch.randn(2, 256, 256)  # of the loss; the mean square hardly depends on what is before the norm
        y = module(x)
        (y * weights).mean().backward()
        expected = {name: p.grad.clone() for name, p in module.named_parameters()}
        module.zero_grad()
        module.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            actual = lt.checkpoint(module, x.cuda())
        (actual.float() * weights.cuda()).mean().backward()
        errors = {name: error(p.grad, expected[name]) for name, p in module.named_parameters()}
        print(f"  {decay:8s} output {error(actual, y):.2g}, parameter gradients at most {max(errors.values()):.2g}")
        # Ten roundings to bfloat16 in a chain, of 2^-9 each, and the products of two such.
        need(error(actual, y) < 0.02 and max(errors.values()) < 0.05, f"{decay}: {errors}")


def make_module(decay, **options):
    torch.manual_seed(3)
    return lt.LinearAttention(64, 4, head_dim_k=16, head_dim_v=24, kv_heads=2, decay=decay, **options).cuda()


def check_states():
    torch.manual_seed(1)
    x = torch.randn(1, 200, 64, device="cuda")
    for decay in DECAYS:
        for check in (one_rank, virtual_ranks):
            attempt(decay, check, decay, x)


def one_rank(decay, x):
    whole, parts = x.clone().requires_grad_(), x.clone().requires_grad_()
    module = make_module(decay)
    y = module(whole)
    y[:, 130:].sum().backward()
    first, state = module(parts[:, :130], return_state=True)
    second = module(parts[:, 130:], state)
    second.sum().backward()
    found = error(torch.cat([first, second], 1), y), error(parts.grad, whole.grad)
    line(found[0] <= MODULE_BOUND and found[1] <= 8 * MODULE_BOUND,
         f"{decay}: two parts, the state carried on: output {found[0]:.2g}, gradient over the cut {found[1]:.2g}")
    packed = module(x, cu_seqlens=[0, 71, 71, 200])
    found = error(packed, torch.cat([module(x[:, :71]), module(x[:, 71:])], 1))
    line(found <= MODULE_BOUND, f"{decay}: packed sequences do not see each other: {found:.2g}")
    with torch.no_grad():
        state = module.zero_state(1, device="cuda")
        steps = torch.cat([module.step(x[:, t:t + 1], state) for t in range(50)], 1)
    found = error(steps, y[:, :50])
    line(found <= MODULE_BOUND, f"{decay}: decoding token by token: {found:.2g}")


def on_ranks(count, function):
    """function(rank, group) on a thread for each rank of a group on this GPU; results in rank order. A backward
    pass must run on its rank's own thread: torch's one thread per GPU would wait for a rank queued behind it."""
    comms = lasp.Comm.threads(count)
    groups = [lt.SequenceGroup(comm, time_limit=20.0) for comm in comms]
    results = [None] * count

    def body(rank):
        try:
            with torch.autograd.set_multithreading_enabled(False):
                results[rank] = function(rank, groups[rank])
            torch.cuda.synchronize()
        except BaseException as problem_found:
            results[rank] = problem_found
            groups[rank].abort()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for closing in (*groups, *comms):
        closing.close()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def virtual_ranks(decay, x):
    """Two ranks on this GPU against one; and what they send, with and without checkpointing."""
    one = x.clone().requires_grad_()
    y = make_module(decay)(one)
    y.square().sum().backward()
    modules = [make_module(decay) for _ in range(2)]

    def rank_function(rank, group):
        module = modules[rank]
        module.group = group
        sent, results = [], []
        for how in (lambda f, a: f(a), lt.checkpoint):
            mine = lt.shard(x, rank, 2).clone().requires_grad_()
            how(module, mine).square().sum().backward()  # makes the plans
            mine.grad = None
            before = group.traffic()["messages_sent"]
            output = how(module, mine)
            between = group.traffic()["messages_sent"]
            output.square().sum().backward()
            sent.append((between - before, group.traffic()["messages_sent"] - between))
            results.append((output.detach(), mine.grad))
        return sent, results

    ranks = on_ranks(2, rank_function)
    for which, how in enumerate(("plain", "checkpointed")):
        joined = [torch.cat([results[which][part] for _, results in ranks], 1) for part in (0, 1)]
        found = error(joined[0], y), error(joined[1], one.grad)
        line(found[0] <= MODULE_BOUND and found[1] <= 8 * MODULE_BOUND,
             f"{decay}: two ranks on one GPU, {how}: output {found[0]:.2g}, gradient {found[1]:.2g}")
    sent = [[sum(counts[which][part] for counts, _ in ranks) for part in (0, 1)] for which in (0, 1)]
    line(sent[0][0] > 0 and sent[0] == sent[1],
         f"{decay}: messages forward and backward: {sent[0]}; checkpointed: {sent[1]}")
