"""ShortConvolution beside torch.nn.Conv1d. What ranks add is in test_torch_ranks.py."""
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# Sums of at most 8 products and a bias, and of 2 x 50 tokens in the weight's gradient: in any order within
# sqrt(100) u of each other, u = 2^-24, and twice that, since both sides round.
BOUND = 2 * 10 * 2.0 ** -24


def reference(convolution, x):
    """By torch's convolution, of whole sequences."""
    padded = F.pad(x.transpose(1, 2), (convolution.width - 1, 0))
    y = F.conv1d(padded, convolution.weight, convolution.bias, groups=x.shape[2]).transpose(1, 2)
    return F.silu(y) if convolution.activation else y


def differentiated(function, x, module, d_y):
    x = x.clone().requires_grad_()
    y = function(x)
    found = torch.autograd.grad(y, [x, *module.parameters()], d_y)
    return [y.detach(), *found]


def agree(found, expected, bound=BOUND):
    return all(one.dtype == other.dtype and float((one - other).norm()) <= bound * float(other.norm())
               for one, other in zip(found, expected))


@pytest.mark.parametrize("width,bias,activation", [(1, False, None), (2, True, "silu"), (4, False, "silu"),
                                                   (8, True, None)])
def test_it_is_torchs_convolution(width, bias, activation):
    torch.manual_seed(3)
    module = lt.ShortConvolution(6, width, bias=bias, activation=activation)
    x, d_y = torch.randn(2, 50, 6), torch.randn(2, 50, 6)
    expected = differentiated(lambda x: reference(module, x), x, module, d_y)
    assert agree(differentiated(module, x, module, d_y), expected)
    packed = lambda x: torch.cat([reference(module, x[:, b:e]) for b, e in ((0, 2), (2, 30), (30, 50))], 1)  # noqa: E731
    expected = differentiated(packed, x[:1], module, d_y[:1])
    for offsets in ([0, 2, 30, 50], torch.tensor([0, 0, 2, 30, 30, 50])):
        given = lambda x: module(x, cu_seqlens=offsets)  # noqa: E731, B023
        assert agree(differentiated(given, x[:1], module, d_y[:1]), expected)


def test_16_bits_are_summed_in_float32():
    torch.manual_seed(3)
    module = lt.ShortConvolution(6, 4)
    x, d_y = torch.randn(2, 50, 6).bfloat16(), torch.randn(2, 50, 6).bfloat16()
    wide = differentiated(lambda x: reference(module, x), x.float(), module, d_y.float())
    found = differentiated(module, x, module, d_y)
    assert [each.dtype for each in found] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert agree([found[2]], [wide[2]])
    assert all(torch.equal(one, other.bfloat16()) for one, other in zip(found[:2], wide[:2]))


def test_parameters_are_conv1ds():
    torch_s = nn.Conv1d(6, 6, 4, groups=6)
    module = lt.ShortConvolution(6, 4, bias=True)
    module.load_state_dict(torch_s.state_dict())
    assert [tuple(each.shape) for each in module.state_dict().values()] == [(6, 1, 4), (6,)]


def test_compiled():
    module = lt.ShortConvolution(6, 4)
    x = torch.randn(2, 50, 6)
    assert torch.equal(torch.compile(lambda x: module(2 * x), backend="eager")(x), module(2 * x))


def test_bad_input():
    module = lt.ShortConvolution(6, 4)
    for words, call in (
            (r"x: is a tensor \[2, 5, 7\], must be a tensor \[B, T, 6\]", lambda: module(torch.zeros(2, 5, 7))),
            ("cu_seqlens: goes from 0 to 6, must go from 0 to at most the 5 tokens",
             lambda: module(torch.zeros(1, 5, 6), cu_seqlens=[0, 6])),
            ("width = 9: must be at most 8", lambda: lt.ShortConvolution(6, 9)),
            ("activation = 'relu': must be None or 'silu'", lambda: lt.ShortConvolution(6, 4, activation="relu"))):
        with pytest.raises(liblasp.InvalidArgument, match=f"^{words}"):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packing", [{}, {"cu_seqlens": [0, 3, 22, 22, 50]}])
@pytest.mark.parametrize("tokens", [(20, 25, 5), (45, 0, 1, 4)])
def test_split_over_a_comm_without_a_process_group(tokens, packing, dtype):
    torch.manual_seed(3)
    whole = lt.ShortConvolution(6, 4, bias=True, activation="silu")
    batch = 1 if packing else 2
    x, d_y = torch.randn(batch, 50, 6).to(dtype), torch.randn(batch, 50, 6).to(dtype)
    expected = differentiated(lambda x: whole(x, **packing), x, whole, d_y)
    xs, d_ys = x.split(tokens, 1), d_y.split(tokens, 1)
    found = [None] * len(tokens)

    def run(rank, comm):
        with lt.SequenceGroup(comm, cpu_threads=1, time_limit=60) as group:
            module = lt.ShortConvolution(6, 4, bias=True, activation="silu", group=group)
            module.load_state_dict(whole.state_dict())
            for _ in range(2):
                found[rank] = differentiated(lambda x: module(x, **packing), xs[rank], module, d_ys[rank])

    threads = [threading.Thread(target=run, args=each) for each in enumerate(liblasp.Comm.threads(len(tokens)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    y, d_x = (torch.cat([one[i] for one in found], 1) for i in range(2))
    # Which tokens a vector instruction takes at once depends on the cut, and with it silu's last bit. A row's gradient
    # is rounded on both sides of an edge, and their sum is: three roundings of the type for one.
    unit = 2.0 ** -24 if dtype == torch.float32 else 2.0 ** -8
    assert agree([y, d_x], expected[:2], BOUND + 3 * unit)
    assert agree([sum(one[i] for one in found) for i in (2, 3)], expected[2:])


def over_ranks(rank, folder):
    """Ranks that are processes, which test_torch_ranks.py starts. They hold fewer tokens than the convolution sees, or none; packed and not."""
    torch.manual_seed(6)
    convolution, x, d_y = lt.ShortConvolution(6, 4, activation="silu"), torch.randn(1, 40, 6), torch.randn(1, 40, 6)
    errors = []
    for offsets in (None, [0, 1, 11, 11, 25, 40]):
        given = {} if offsets is None else {"cu_seqlens": offsets}
        whole = x.clone().requires_grad_()
        y = convolution(whole, **given)
        expected = torch.autograd.grad(y, (whole, convolution.weight), d_y)
        convolution.group = dist.group.WORLD
        for ends in ((0, 10, 20, 30, 40), (0, 1, 1, 3, 40), (0, 38, 40, 40, 40)):
            part = slice(ends[rank], ends[rank + 1])
            mine = x[:, part].clone().requires_grad_()
            found = convolution(mine, **given)
            d_mine, d_weight = torch.autograd.grad(found, (mine, convolution.weight), d_y[:, part])
            dist.all_reduce(d_weight)
            for one, other in ((found, y[:, part]), (d_mine, expected[0][:, part]), (d_weight, expected[1])):
                errors.append(float((one - other).norm() / other.norm().clamp_min(1e-30)))
        convolution.group = None
    return errors


def over_changing_shares(rank, folder):
    """Rank 0 has as many tokens each time, and the others make a new plan with it, because the total is another. What
    travels is counted as the library's."""
    torch.manual_seed(6)
    convolution, errors = lt.ShortConvolution(6, 4), []
    group = lt.SequenceGroup(dist.group.WORLD, time_limit=20, plan_limit=2)
    for tokens in (40, 37, 38, 40):
        x = torch.randn(1, tokens, 6)
        convolution.group = None
        y = convolution(x)
        convolution.group = group
        begin, end = lt.shard_bounds(tokens, rank, dist.get_world_size())
        found = convolution(x.transpose(1, 2).contiguous().transpose(1, 2)[:, begin:end], total_tokens=tokens)
        errors.append(float((found - y[:, begin:end]).detach().norm() / y.detach().norm()))
    try:
        convolution(x[:, begin:end], total_tokens=1)
    except liblasp.InvalidArgument as error:
        return {"errors": errors, "messages": group.traffic()["messages_sent"], "sentence": str(error),
                "halos": len(group._halos)}
