"""liblasp.torch.trainers.torchtitan: torchtitan's Qwen3.5, and its gated delta net alone, over ranks, against themselves
on one."""
import importlib.util

import pytest

torch = pytest.importorskip("torch")
if any(importlib.util.find_spec(each) is None for each in ("torchtitan", "triton")):
    pytest.skip("no torchtitan, or no triton, in this environment: pip install torchtitan triton", allow_module_level=True)
import hf_ranks  # noqa: E402
import titan_cases  # noqa: E402

CASES = {"contiguous": (False,), "headtail": (True,), "documents": (False, True), "headtail documents": (True, True)}


MODELS = {"contiguous": (False, False), "headtail": (True, False), "documents": (False, True),
          "headtail documents": (True, True)}


@pytest.fixture(scope="module", params=(2, 3, 4))
def reports(request, tmp_path_factory):
    return hf_ranks.run(tmp_path_factory.mktemp("ranks"), request.param, [
        *((key, titan_cases.apart, case) for key, case in CASES.items()),
        *((("model", key), titan_cases.model_apart, case) for key, case in MODELS.items()),
        ("refusals", titan_cases.refusals, ())])


@pytest.mark.parametrize("key", CASES)
def test_full_layer(reports, key):
    for found in hf_ranks.found(reports, key):
        assert len(found) == 14
        worst = max(found, key=found.get)
        assert found[worst] < 1e-5, (worst, found[worst])  # rounding; what is wrong is off by a hundredth


@pytest.mark.parametrize("key", MODELS)
def test_full_model(reports, key):
    for far, noise in hf_ranks.found(reports, ("model", key)):
        assert len(far) > 40
        hf_ranks.assert_near(far, noise)


SENTENCES = {"no model": "must be a torch.nn.Module", "no layer": "model (Linear): has no GatedDeltaNet and no Qwen35Attention of torchtitan",
             "no group": "group: has no process group", "twice": "its forward was replaced already",
             "rows": "x: 2 rows; over a split sequence a batch is one row", "pictures": "serves text alone",
             "masks": "must be None or VarlenMetadata", "transformed": "out_transform and is_causal=False",
             "window": "model.layers.1.attn: attends in a window of (4, 0)"}


def test_full_refusals(reports):
    for sentences in hf_ranks.found(reports, "refusals"):
        assert sentences.pop("as it was")
        assert sentences.keys() == SENTENCES.keys()
        for name, words in SENTENCES.items():
            assert sentences[name] is not None and words in sentences[name], (name, sentences[name])
