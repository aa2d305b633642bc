"""liblasp.torch.trainers.torchtitan: the gated delta net of torchtitan's Qwen3.5 over ranks, against itself on one."""
import importlib.util

import pytest

torch = pytest.importorskip("torch")
if any(importlib.util.find_spec(each) is None for each in ("torchtitan", "triton")):
    pytest.skip("no torchtitan, or no triton, in this environment: pip install torchtitan triton", allow_module_level=True)
import hf_ranks  # noqa: E402
import titan_cases  # noqa: E402

CASES = {"contiguous": (False,), "headtail": (True,), "documents": (False, True), "headtail documents": (True, True)}


@pytest.fixture(scope="module", params=(2, 4))
def reports(request, tmp_path_factory):
    return hf_ranks.run(tmp_path_factory.mktemp("ranks"), request.param, [
        *((key, titan_cases.apart, case) for key, case in CASES.items()), ("refusals", titan_cases.refusals, ())])


@pytest.mark.parametrize("key", CASES)
def test_full_layer(reports, key):
    for found in hf_ranks.found(reports, key):
        assert len(found) == 14
        worst = max(found, key=found.get)
        assert found[worst] < 1e-5, (worst, found[worst])  # rounding; what is wrong is off by a hundredth


SENTENCES = {"no model": "must be a torch.nn.Module", "no layer": "model (Linear): has no GatedDeltaNet of torchtitan",
             "no group": "group: has no process group", "twice": "its forward was replaced already",
             "rows": "x: 2 rows; over a split sequence a batch is one row"}


def test_full_refusals(reports):
    for sentences in hf_ranks.found(reports, "refusals"):
        assert sentences.keys() == SENTENCES.keys()
        for name, words in SENTENCES.items():
            assert sentences[name] is not None and words in sentences[name], (name, sentences[name])
