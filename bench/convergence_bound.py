"""The bound on the difference of two loss curves of convergence.py, and its derivation.

Setups see the same tokens and start from the same parameters, so that they differ in float32 rounding alone: in the
order of sums, and in the last places of an exponential on another device. Let u = 2^-24. Rounding errors of a sum of
m terms, in any order, are with high probability at most sqrt(m) u of the terms (Higham and Mary, 2019). Errors of
different operations add in quadrature.

Forward. A token passes 14 operations in a block and 4 outside. Each is a sum of at most
m = max(d_model, d_ff, T + head_dim) terms: the attention's, of a sequence of T tokens, whatever its chunks and ranks
are. So logits carry the relative error
    e_f = u sqrt((14 L + 4) m).
A token's loss is a difference of two numbers of the size of a few logits; ln 256 stands for that size. The errors of
the n tokens of a step are independent, and their mean is a sum of n terms, so the loss of the first step errs by
    b_0 = ln(256) (4 e_f / sqrt(n) + u sqrt(n)).

Step. The backward pass is such a chain again, and the gradients of the parameters are sums over n tokens, on one rank
or on several: e_g = sqrt(2) e_f + u sqrt(n). AdamW divides by the gradient's own size, so that a step moves a
parameter p by about the rate r, with the relative error e_g, and then rounds p, by u |p| at most. In the worst case,
with the errors of all entries aligned with the gradient g, the loss differs after that step by
r |g|_1 e_g + u sum |g p|. Hence
    b_n = b_0 + sum over steps s < n of (r_s |g_s|_1 e_g + u sum |g_s p_s|),
with r, g and p of the one-rank run.

Alignment does not happen. Errors of P parameters have random signs and give 1 / sqrt(P) of that, 1/350 here. The room
between the two is for training itself, which lets old differences grow. Two controls measure the bound: a run whose
first parameters differ by one unit in the last place must stay inside, and a run whose ranks do not exchange their
states must leave it.

The room suffices as long as no operation divides by numbers next to zero. The norm of each head in TransNormer does:
a token whose output happens to be near zero is blown up to norm 1, and differences grow a thousandfold within twenty
steps. convergence.py therefore trains the model without that norm."""
import math

UNIT = 2.0 ** -24
MUST_LEAVE_BY = 10.0  # a run without the exchange is to be told from rounding by this factor of the bound or more


def curve_bound(model, steps):
    """A bound for each step. `model`: layers, d_model, d_ff, heads, seq_len and batch; `steps`: [r, |g|_1, sum |g p|]
    of each step of the one-rank run."""
    tokens = model["batch"] * model["seq_len"]
    terms = max(model["d_model"], model["d_ff"], model["seq_len"] + model["d_model"] // model["heads"])
    forward = UNIT * math.sqrt((14 * model["layers"] + 4) * terms)
    gradient = math.sqrt(2.0) * forward + UNIT * math.sqrt(tokens)
    bound, total = [], math.log(256) * (4 * forward / math.sqrt(tokens) + UNIT * math.sqrt(tokens))
    for rate, norm_one, weighted in steps:
        bound.append(total)
        total += rate * norm_one * gradient + UNIT * weighted
    return bound


def compare(loss, reference, bound):
    """The largest difference of a curve from the one-rank curve, its step (the first is 1), and the largest share of
    the bound at any step. A loss that is not a number is infinitely far away."""
    differences = [abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(loss, reference, strict=True)]
    largest = max(differences)
    return {"largest": largest, "step": differences.index(largest) + 1,
            "share": max(difference / limit for difference, limit in zip(differences, bound, strict=True))}


def holds(row):
    """Whether a compared row is as it must be: inside the bound, or far outside where the exchange was cut."""
    return row["share"] >= MUST_LEAVE_BY if row["cut"] else row["share"] <= 1.0
