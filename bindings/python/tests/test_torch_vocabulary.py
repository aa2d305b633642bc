"""linear_cross_entropy beside torch's cross_entropy."""
import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from liblasp.torch import vocabulary  # noqa: E402
from torch.nn import functional as F  # noqa: E402

ROWS, TOKENS, WIDTH, WORDS = 2, 33, 16, 50
# Logits are sums of 16 products, the weight's gradient one of 66 tokens, an entry of softmax one of 50 words: each
# within sqrt(66) u of any other order, u = 2^-24, three such sums one after the other, on two sides.
BOUND = 2 * 3 * 66 ** 0.5 * 2.0 ** -24


def problem():
    generator = torch.Generator().manual_seed(9)
    hidden = torch.randn(ROWS, TOKENS, WIDTH, generator=generator)
    weight = torch.randn(WORDS, WIDTH, generator=generator)
    targets = torch.randint(WORDS, (ROWS, TOKENS), generator=generator)
    targets[0, 5:9] = -100
    return hidden, weight, targets


def differentiated(function, hidden, weight):
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = function(hidden, weight)
    return [loss.detach(), *torch.autograd.grad(3.0 * loss, (hidden, weight))]


@pytest.mark.parametrize("reduction", ("mean", "sum"))
@pytest.mark.parametrize("tile", (1, 7, 4096))
def test_it_is_the_loss_of_the_logits(reduction, tile):
    hidden, weight, targets = problem()
    expected = differentiated(lambda h, w: F.cross_entropy((h @ w.T).flatten(0, 1), targets.flatten(),
                                                           reduction=reduction), hidden, weight)
    found = differentiated(lambda h, w: lt.linear_cross_entropy(h, w, targets, reduction=reduction, tile=tile), hidden,
                           weight)
    for one, other in zip(found, expected):
        assert float((one - other).norm()) <= BOUND * float(other.norm())
    with torch.no_grad():
        alone = lt.linear_cross_entropy(hidden, weight, targets, reduction=reduction, tile=tile)
    assert torch.equal(alone, found[0])


def test_gradients_that_are_not_wanted():
    hidden, weight, targets = problem()
    lt.linear_cross_entropy(hidden, weight.requires_grad_(), targets).backward()
    alone = weight.grad
    hidden, weight, _ = problem()
    lt.linear_cross_entropy(hidden.requires_grad_(), weight, targets).backward()
    assert hidden.grad.shape == hidden.shape and alone.shape == weight.shape and weight.grad is None


def test_autocast():
    """Beside the same product in bfloat16: logits and the gradient of each are rounded alike."""
    hidden, weight, targets = problem()
    with torch.autocast("cpu", torch.bfloat16):
        expected = differentiated(lambda h, w: F.cross_entropy((h @ w.T).flatten(0, 1).float(), targets.flatten()), hidden,
                                  weight)
        found = differentiated(lambda h, w: lt.linear_cross_entropy(h, w, targets), hidden, weight)
    assert [each.dtype for each in found] == [torch.float32] * 3
    for one, other in zip(found, expected):
        assert float((one - other).norm()) <= 2 * 2.0 ** -8 * float(other.norm())


def test_words_that_are_none():
    """Refused on the CPU; a GPU is not waited for, and the loss is no number there."""
    hidden, weight, targets = problem()
    for word in (-1, WORDS):
        targets[1, 3] = word
        with pytest.raises(liblasp.InvalidArgument,
                           match=f"^targets: {word} is no word: must be from 0 to {WORDS - 1}"):
            lt.linear_cross_entropy(hidden, weight, targets)
        total, _, d_weight = vocabulary._tiles(hidden.flatten(0, 1), weight, targets.flatten(), 7, (False, True))
        assert total.isnan() and d_weight.isnan().any()


def test_bad_input():
    hidden, weight, targets = problem()
    for words, changed in (("weight: shape", {"weight": weight.T}), ("targets: are torch.float32", {"targets": hidden}),
                           ("targets: are torch.int64 of shape", {"targets": targets[:1]}),
                           ("reduction = 'none'", {"reduction": "none"}), ("tile = 0", {"tile": 0})):
        with pytest.raises(liblasp.InvalidArgument, match=f"^{words}"):
            lt.linear_cross_entropy(**{"hidden": hidden, "weight": weight, "targets": targets, **changed})
