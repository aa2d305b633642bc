"""liblasp.torch.trainers.megatron: a GPT of Megatron-Core with gated delta nets over context-parallel ranks, against
Megatron's own layer on one. Those called full take four ranks."""
import importlib.util

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
    pytest.skip("no megatron-core in this environment: pip install megatron-core", allow_module_level=True)
import hf_ranks  # noqa: E402
import megatron_cases  # noqa: E402

ROW = dict(packed="row", dataloader_inter_document_masking=True)
TWO = {"zigzag": dict(cp=2), "packed": dict(cp=2, packed=True), "row": dict(cp=2, **ROW), "one rank": dict(cp=1),
       "one rank, packed": dict(cp=1, packed=True), "one rank, row": dict(cp=1, **ROW)}
FOUR = {"zigzag": dict(cp=4), "packed": dict(cp=4, packed=True), "row": dict(cp=4, **ROW), "two of two": dict(cp=2),
        "tensor parallel": dict(cp=2, tp=2), "sequence parallel": dict(cp=2, tp=2, sequence_parallel=True)}


def check(options):
    return megatron_cases.apart(**options)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    others = [(each.__name__, each, ()) for each in (megatron_cases.same_when_padded, megatron_cases.groups_made,
                                                    megatron_cases.configuration, megatron_cases.refusals)]
    return hf_ranks.run(tmp_path_factory.mktemp("ranks"), 2, [(key, check, (case,)) for key, case in TWO.items()] + others)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return hf_ranks.run(tmp_path_factory.mktemp("ranks"), 4, [(key, check, (case,)) for key, case in FOUR.items()])


# Megatron's chunks and the library's round differently, by up to 3e-6 of the largest gradient, on one rank as on many. A
# state or a row that does not reach the next rank is off by a hundredth.
BOUND = 1e-5


def assert_near(parts):
    for found in parts:
        assert len(found) > 15
        worst = max(found, key=found.get)
        assert found[worst] < BOUND, (worst, found[worst])


@pytest.mark.parametrize("key", TWO)
def test_two_ranks(two, key):
    assert_near(hf_ranks.found(two, key))


@pytest.mark.parametrize("key", FOUR)
def test_full_four_ranks(four, key):
    assert_near(hf_ranks.found(four, key))


def test_padding_inside_of_sequences(two):
    assert hf_ranks.found(two, "same_when_padded") == [True, True]


def test_a_group_for_all_layers(two):
    assert hf_ranks.found(two, "groups_made") == [(True, True, True)] * 2


def test_configuration(two):
    for named, size, told in hf_ranks.found(two, "configuration"):
        assert named and size == 2 and "linear_key_head_dim must be set" in told


SENTENCES = {
    "wide": "linear_conv_kernel_dim = 9: must be at most 8", "head dim": "head_dim_k = 12",
    "spec": "spec (TransformerBlockSubmodules): has no GatedDeltaNet", "no spec": "must be a ModuleSpec",
    "cross": "key_value_states", "inference": "inference_context", "dynamic": "local_cp_size",
    "no offsets": "packed_seq_params.cu_seqlens_q: is None", "odd": "5 tokens a rank cannot be two equal parts",
    "odd row": "5 tokens a rank cannot be two equal parts",
    "rows": "2 rows; packed sequences are one", "end": "ends at 48, the ranks hold 96 tokens",
    "parts": "sequence 0 has 18 tokens, must be cut into 4 equal parts of at least 3",
    "short": "sequence 0 has 8 tokens, must be cut into 4 equal parts of at least 3"}


def test_refusals(two):
    for sentences in hf_ranks.found(two, "refusals"):
        assert sentences.keys() == SENTENCES.keys()
        for name, words in SENTENCES.items():
            assert sentences[name] is not None and words in sentences[name], (name, sentences[name])
