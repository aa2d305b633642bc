"""liblasp.torch.hf: models of transformers over split sequences.

    from liblasp.torch import hf as sp
    model = sp.parallelize(AutoModelForCausalLM.from_pretrained(name), groups.sequence)
    with sp.shard(model, batch) as local:    # this rank's part of the batch
        loss = model(**local).loss           # the whole batch's, the same on every rank
        sp.backward(loss)
"""
try:
    from transformers import __version__ as _version
except ImportError:
    raise ImportError("liblasp.torch.hf needs transformers 5 or later: pip install transformers") from None
if int(_version.split(".")[0]) < 5:
    raise ImportError(f"liblasp.torch.hf needs transformers 5 or later; this is {_version}")

from .batch import backward, shard  # noqa: E402
from .parallel import parallelize, replaced, restore  # noqa: E402
from .prefill import prefill  # noqa: E402
from .segments import time_segments  # noqa: E402
from .state import Replaced, whole  # noqa: E402

__all__ = ["Replaced", "backward", "parallelize", "prefill", "replaced", "restore", "shard", "time_segments",
           "whole"]
