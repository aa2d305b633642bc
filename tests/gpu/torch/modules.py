"""liblasp.torch.LinearAttention on one GPU: autocast, states carried on, packed sequences, ranks, checkpointing."""

import threading
import unittest.mock

import torch

import liblasp
import liblasp.torch as lt
from liblasp.torch import softmax
from problems import BOUNDS, attempt, error, line, recurrence

DECAYS = ("none", "head", "scalar", "channel")
# A chain of float32 operations around the attention, each a sum of at most 64 terms, with a norm per head in
# between: 16 times the attention's own bound leaves room, 8 times that for gradients, which go through all of it
# twice. Products of float32 are torch's own, in full precision by default.
MODULE_BOUND = 16 * BOUNDS[torch.float32]


def exactly(q, k, v, decay, **_):
    """Stands in for linear_attention under autocast: the recurrence in float64, its inputs and output in bfloat16."""
    q, k, v = (x.bfloat16().double() for x in (q, k, v))
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=torch.float64, device=q.device)
    return recurrence(q, k, v, None if decay is None else decay.double(), state)[0].bfloat16()


def check_module():
    """Under autocast, beside the same module with exact attention: the layers around it round to bfloat16, and the norm
    per head makes much of that where an output is next to zero, whatever the attention does."""
    torch.manual_seed(0)
    for decay in DECAYS:
        module = lt.LinearAttention(256, 4, decay=decay).cuda()
        x = torch.randn(2, 256, 256, device="cuda")
        weights = torch.randn_like(x)  # of the loss; the mean square hardly depends on what is before the norm

        def run():
            module.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                y = lt.checkpoint(module, x)
            (y.float() * weights).mean().backward()
            return {"output": y, **{name: p.grad.clone() for name, p in module.named_parameters()}}

        actual = run()
        with unittest.mock.patch.object(lt.module, "linear_attention", exactly):
            expected = run()
        errors = {name: error(actual[name], expected[name]) for name in expected}
        worst = max(errors, key=errors.get)
        # The attention's own error once for the output, and for gradients forward and backward; roundings that fall
        # the other way are of the same size.
        line(errors["output"] <= 2 * BOUNDS[torch.bfloat16] and errors[worst] <= 4 * BOUNDS[torch.bfloat16],
             f"{decay}: beside exact attention: output {errors['output']:.2g}, worst {worst} {errors[worst]:.2g}")


def make_module(decay, **options):
    torch.manual_seed(3)
    return lt.LinearAttention(64, 4, head_dim_k=16, head_dim_v=24, kv_heads=2, decay=decay, **options).cuda()


def check_softmax():
    """softmax_attention, and what each of four ranks has of it, by the flash kernels, which read the few heads of keys as
    they are; beside float64."""
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    tokens, ranks, heads, few, width = 4096, 4, 8, 2, 64
    q, k, v, d_o = (torch.randn(1, tokens, h, width, device="cuda", dtype=torch.bfloat16)
                    for h in (heads, few, few, heads))

    def passes(dtype, cut):
        leaves = [each.detach().to(dtype).requires_grad_() for each in (q, k, v)]
        ends = [tokens * at // cut for at in range(cut + 1)]
        o = torch.cat([softmax._by_sequence(
            leaves[0][:, begin:end].transpose(1, 2), *(softmax_keys(each, dtype)[:, :, :end] for each in leaves[1:]),
            (0, tokens), begin, end, {"enable_gqa": True} if dtype == torch.bfloat16 else {})
            for begin, end in zip(ends, ends[1:])], 2).transpose(1, 2)
        return gradients(o, leaves)

    def whole():
        leaves = [each.detach().requires_grad_() for each in (q, k, v)]
        return gradients(softmax.softmax_attention(*leaves), leaves)

    def gradients(o, leaves):
        o.backward(d_o.to(o.dtype))
        return [o.detach(), *(each.grad for each in leaves)]

    def softmax_keys(x, dtype):
        return (x if dtype == torch.bfloat16 else x.repeat_interleave(heads // few, 2)).transpose(1, 2)

    exact = passes(torch.float64, 1)
    for name, run in (("four ranks", lambda: passes(torch.bfloat16, ranks)), ("softmax_attention", whole)):
        run()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            found = run()
            torch.cuda.synchronize()
        kernels = [each.key for each in recorded.key_averages()]
        flash = sorted({kernel[:60] for kernel in kernels if "flash" in kernel})
        others = [kernel[:60] for kernel in kernels
                  if "efficient" in kernel or "fmha_cutlass" in kernel or "softmax_warp" in kernel]
        line(flash and not others, f"{name}: flash kernels: {flash}; others: {others}")
        for tensor, one, other in zip(("o", "dq", "dk", "dv"), found, exact):
            line(error(one, other) < 1e-2, f"{name}: {tensor}: {error(one, other):.2g} from float64")


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
    comms = liblasp.Comm.threads(count)
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
