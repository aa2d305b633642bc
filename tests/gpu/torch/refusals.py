"""What is refused on a GPU: by an exception with the library's sentence, and what follows is right."""

import torch

import liblasp
import liblasp.torch as lt
from frameworks import Interface, present
from problems import attempt, error, line, problem, refused, skip

OTHER_STREAM = 0x5A5A00  # no stream's address; it is only compared


def check_refusals():
    x, _ = problem("scalar", batch=1, tokens=32)
    for framework in present():
        with liblasp.Context(device="cuda:0") as context:
            attempt(framework.name, arrays_refused, framework, context, x)
    x = {name: x[name].cuda() for name in ("q", "k", "v", "decay")}
    with liblasp.Context(device="cuda:0") as context:
        attempt("calls", calls_refused, context, x)
    attempt("handles", handles_refused, x)
    attempt("liblasp.torch", functions_refused, {name: tensor.cpu() for name, tensor in x.items()})


def arrays_refused(framework, context, x):
    """The same of every framework."""
    given = [framework.put(x[name]) for name in ("q", "k", "v", "decay")]
    rest = given[1:]
    plan = context.plan(tokens=32, heads=4, head_dim=64, decay="scalar")
    out = torch.zeros(x["q"].shape, device="cuda")

    def wrong(what, words, q):
        refused(f"{framework.name}: {what}", words, lambda: plan.forward(q, *rest, out=out))

    wrong("a tensor on the CPU", "q lies on cpu:0, but the context is on cuda:0", x["q"])
    wrong("a NumPy array", "q lies on cpu:0, but the context is on cuda:0", x["q"].numpy())
    wrong("float16", r"q is of type (torch\.)?float16, but the plan was made for float32",
          framework.put(x["q"].half()))
    wrong("another shape", "q has shape", framework.put(x["q"][:, :-1].contiguous()))
    wrong("too few dimensions", "q has shape", framework.put(x["q"][0].contiguous()))
    if torch.cuda.device_count() > 1:
        wrong("another GPU", "q lies on cuda:1, but the context is on cuda:0", x["q"].to("cuda:1"))
    else:
        skip(f"{framework.name}: an array of another GPU: there is one GPU")
    if framework.name == "JAX":
        refused("JAX: an array as output, which JAX takes for constant", "o is read-only",
                lambda: plan.forward(*given, out=framework.put(torch.zeros_like(x["q"]))))
    if framework.name == "CuPy":
        wrong("strides", "q has strides", given[0][:, ::-1])
        wrong("float64", "q is of type", framework.cupy.zeros(given[0].shape, "float64"))
    with liblasp.Context(cpu_threads=1) as on_cpu:
        plain = on_cpu.plan(tokens=32, heads=4, head_dim=64, decay="scalar")
        refused(f"{framework.name}: a GPU's array on a CPU context",
                "q lies on cuda:0, but the context is on cpu:0", lambda: plain.forward(*given))
    expected = lt.linear_attention(x["q"], x["k"], x["v"], x["decay"])
    plan.forward(*given, out=out)
    line(error(out, expected) < 8e-6, f"{framework.name}: after all of these the plan computes")


def calls_refused(context, x):
    """Layouts, read-only memory, streams, blocks of bytes, gradients."""
    q, k, v, decay = x.values()
    plan = context.plan(tokens=32, heads=4, head_dim=64, decay="scalar")

    def forward(q=q, **named):
        return lambda: plan.forward(q, k, v, decay, **named)

    refused("strides", "q has strides", forward(q.transpose(1, 2).contiguous().transpose(1, 2)))
    refused("every other channel", "q has strides", forward(q.repeat_interleave(2, -1)[..., ::2]))
    refused("float64", "q is of type", forward(q.double()))
    refused("a gradient that would not be recorded", "q requires a gradient", forward(q.clone().requires_grad_()))
    refused("a list", "q is a list: must be an array", forward([1.0]))
    refused("a read-only array as output", "o is read-only", forward(out=Interface(q.clone(), readonly=True)))
    refused("an array in use on another stream", "q is in use on stream",
            forward(Interface(q, version=3, stream=OTHER_STREAM)))
    refused("a word for a stream", "stream is a str", forward(stream="default"))
    refused("a decay too many", "decay must be None",
            lambda: context.plan(tokens=32, heads=4, head_dim=64).forward(q, k, v, decay))
    size = plan.info.state_cache_bytes
    refused("a cache too small", "state_cache",
            forward(cache=torch.empty(max(size - plan.info.alignment, 1), dtype=torch.uint8, device="cuda")))
    refused("a cache that is not aligned", "state_cache",
            forward(cache=torch.empty(size + 1, dtype=torch.uint8, device="cuda")[1:]))
    refused("a cache on the CPU", "state_cache lies on cpu:0", forward(cache=torch.empty(size, dtype=torch.uint8)))
    refused("a segment on a GPU", "segment",
            lambda: context.plan(tokens=32, heads=4, head_dim=64, segment=256), liblasp.Unsupported)
    refused("a GPU that is not there", "device", lambda: liblasp.Context(device="cuda:4095"), liblasp.Unsupported)


def handles_refused(x):
    q, k, v, decay = x.values()
    context = liblasp.Context(device="cuda:0")
    plan = context.plan(tokens=32, heads=4, head_dim=64, decay="scalar")
    plan.forward(q, k, v, decay)
    plan.close()
    refused("a closed plan", "plan", lambda: plan.forward(q, k, v, decay), liblasp.InvalidHandle)
    context.close()
    refused("a closed context", "context", lambda: context.plan(tokens=32, heads=4, head_dim=64),
            liblasp.InvalidHandle)
    group = lt.SequenceGroup()
    lt.linear_attention(q, k, v, group=group)
    group.close()
    refused("a closed group", "closed", lambda: lt.linear_attention(q, k, v, group=group), liblasp.InvalidHandle)


def functions_refused(x):
    for name in ("q", "k", "v"):
        mixed = [x[each] if each == name else x[each].cuda() for each in ("q", "k", "v")]
        refused(f"linear_attention with {name} on the CPU", name if name != "q" else ".",
                lambda: lt.linear_attention(*mixed))  # noqa: B023
