// Packings of one plan on a GPU: offsets in device memory through one captured graph, against the oracle, and
// offsets in host memory beside them. Whatever is in device memory, nothing is touched outside the buffers.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/device.h"
#include "support/group.h"
#include "support/kinds.h"
#include "support/measure.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

constexpr int64_t kMost = 9;

// 32 x 16 in float32 for the recurrent kernels; 128 x 128 in bfloat16 for the fused pass and 64 x 64 beside it.
Case gpu_case(int32_t decay, int32_t dim, int32_t cache) {
  Case c;
  c.name = "gpu_packing";
  c.decay = decay, c.cache = cache, c.aligned = true;
  c.tokens = dim == 32 ? 131 : 900;
  c.heads_q = c.heads_v = 2, c.heads_k = dim == 64 ? 1 : 2;
  c.head_dim_k = dim, c.head_dim_v = dim == 32 ? 16 : dim;
  c.dtype = dim == 32 ? LASP_FLOAT32 : LASP_BFLOAT16;
  c.cu_seqlens.assign(kMost + 1, 0);
  c.cu_seqlens.back() = c.tokens;
  return c;
}

// kMost sequences, some of them empty; half of the time padding behind them.
std::vector<int64_t> drawn_offsets(std::mt19937 &random, int64_t tokens) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const int64_t end = below(2) == 0 ? tokens : below(tokens + 1);
  std::vector<int64_t> offsets = {0, end};
  while (static_cast<int64_t>(offsets.size()) <= kMost)
    offsets.push_back(below(4) == 0 ? offsets.back() : below(end + 1));
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

CaseData data_of(const Case &c, bool states) {
  CaseData data = make_data(c);
  if (!states) data.initial_state.clear(), data.d_final_state.clear();
  return data;
}

// A plan, its buffers, and forward and backward of it as a graph whose offsets are in device memory.
class PackedGraph {
 public:
  PackedGraph(const Case &c, bool narrow, bool states = true)
      : case_(c),
        data_(data_of(c, states)),
        memory_(case_, data_, 0, 1, options_),
        narrow_(narrow),
        stream_(gpu::make_stream()) {
    ok(lasp_comm_create_self(&comm_));
    const lasp_context_options context_options = test_context_options(case_);
    ok(lasp_context_create(LASP_ABI, comm_, &context_options, &context_));
    lasp_problem p = problem_of(case_, 0, 1, options_);
    memory_.set_strides(p);
    ok(lasp_plan_create(context_, &p, &plan_));
    ok(lasp_plan_get_info(plan_, &result_.info));
    size_t needed = 0;
    ok(lasp_plan_describe(plan_, nullptr, 0, &needed));
    std::string text(needed, '\0');
    ok(lasp_plan_describe(plan_, text.data(), text.size(), nullptr));
    result_.tensor_cores = text.find(": tensor-core kernels") != std::string::npos;
    memory_.make_for(result_.info);
    offsets_ = gpu::allocate(bytes());
    gpu::fill(offsets_, 0, bytes(), stream_);
    packing_.cu_seqlens = {offsets_, bytes()};
    packing_.num_sequences = kMost;
    packing_.dtype = narrow ? LASP_INT32 : LASP_INT64;
    ok(lasp_plan_prepare(plan_, stream_));
    graph_.begin(stream_);
    lasp_forward_args f = memory_.forward_args();
    f.packing = &packing_;
    ok(lasp_forward(plan_, &f, stream_));
    lasp_backward_args b = memory_.backward_args();
    b.packing = &packing_;
    ok(lasp_backward(plan_, &b, stream_));
    graph_.end(stream_);
  }
  ~PackedGraph() {
    gpu::wait(stream_);
    gpu::release(offsets_, bytes());
    ok(lasp_plan_destroy(plan_));
    ok(lasp_context_destroy(context_));
    ok(lasp_comm_destroy(comm_));
    gpu::destroy_stream(stream_);
  }

  // Replayed with other offsets, whatever they are.
  Outputs replay(const std::vector<int64_t> &offsets) {
    const std::vector<int32_t> narrow(offsets.begin(), offsets.end());
    begin();
    gpu::copy(offsets_, narrow_ ? static_cast<const void *>(narrow.data()) : offsets.data(), bytes(), stream_);
    graph_.launch(stream_);
    return end(offsets);
  }
  // Passes of the same plan, with offsets in host memory; of `mixed` those of the backward pass are on the device.
  Outputs pass(const std::vector<int64_t> &offsets, bool mixed = false) {
    const PackingOf packing(offsets, narrow_);
    begin();
    gpu::copy(offsets_, packing.get()->cu_seqlens.data, bytes(), stream_);
    gpu::wait(stream_);
    lasp_forward_args f = memory_.forward_args();
    f.packing = packing.get();
    ok(lasp_forward(plan_, &f, stream_));
    lasp_backward_args b = memory_.backward_args();
    b.packing = mixed ? &packing_ : packing.get();
    ok(lasp_backward(plan_, &b, stream_));
    return end(offsets);
  }

 private:
  static void ok(lasp_status status) { ASSERT_EQ(status, LASP_OK) << lasp_last_error(); }
  size_t bytes() const { return (kMost + 1) * (narrow_ ? sizeof(int32_t) : sizeof(int64_t)); }
  void begin() {
    memory_.poison_forward(0);
    memory_.poison_backward(0);
    memory_.upload(stream_);
  }
  Outputs end(const std::vector<int64_t> &offsets) {
    memory_.download(stream_);
    result_.tensors = memory_.results();
    result_.complaints = memory_.misdeeds("a pass");
    Case c = case_;
    // Wild ones say of no token where it lies.
    const bool right = std::is_sorted(offsets.begin(), offsets.end()) && offsets.front() == 0;
    if (right && offsets.back() <= c.tokens) c.cu_seqlens = offsets;
    return assemble(c, {result_});
  }

  const Case case_;
  const CaseData data_;
  const RunOptions options_;
  RankMemory memory_;
  const bool narrow_;
  const lasp_stream stream_;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  void *offsets_ = nullptr;
  lasp_packing packing_ = LASP_PACKING_INIT;
  gpu::Graph graph_;
  RankResult result_;
};

void expect_right(const Case &base, const std::vector<int64_t> &offsets, const std::vector<Outputs> &outs,
                  bool states = true) {
  Case c = base;
  c.cu_seqlens = offsets;
  const Expected expected = expected_of(c, data_of(base, states));
  for (const Outputs &out : outs) {
    EXPECT_EQ(out.complaints, "");
    EXPECT_EQ(compare(c, expected, out), "")
        << (&out == outs.data() ? "replayed: " : "from the host: ") << testing::PrintToString(offsets);
  }
}

class GpuPacking : public testing::TestWithParam<int32_t> {};

// 125 packings for each decay and cache: 1,000 through graphs.
TEST_P(GpuPacking, AThousandThroughGraphs) {
  for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING}) {
    const Case c = gpu_case(GetParam(), 32, cache);
    PackedGraph graph(c, cache == LASP_CACHE_CHUNKS);
    std::mt19937 random(static_cast<uint32_t>(GetParam()) + 1);
    for (int i = 0; i < (quick_run() ? 25 : 125) && !HasFailure(); ++i) {
      const std::vector<int64_t> offsets = drawn_offsets(random, c.tokens);
      std::vector<Outputs> outs = {graph.replay(offsets)};
      if (i % 5 == 0) outs.push_back(graph.pass(offsets, i % 2 == 1));
      expect_right(c, offsets, outs);
    }
  }
}

TEST_P(GpuPacking, OnTensorCores) {
  for (const int32_t dim : {128, 64})
    for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING}) {
      SCOPED_TRACE(testing::Message() << "width " << dim << ", cache " << cache);
      const Case c = gpu_case(GetParam(), dim, cache);
      PackedGraph graph(c, cache == LASP_CACHE_INCOMING);
      std::mt19937 random(static_cast<uint32_t>(GetParam()) + 77);
      for (int i = 0; i < (quick_run() ? 1 : 4) && !HasFailure(); ++i) {
        const std::vector<int64_t> offsets = drawn_offsets(random, c.tokens);
        expect_right(c, offsets, {graph.replay(offsets), graph.pass(offsets)});
      }
    }
}

// Without states at the sequences' edges, which passes then take for zero without reading any: no sequence has two
// runs, or some have.
TEST_P(GpuPacking, WithoutStates) {
  for (const int32_t dim : {128, 64})
    for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING}) {
      SCOPED_TRACE(testing::Message() << "width " << dim << ", cache " << cache);
      const Case c = gpu_case(GetParam(), dim, cache);
      PackedGraph graph(c, cache == LASP_CACHE_CHUNKS, false);
      std::mt19937 random(static_cast<uint32_t>(GetParam()) + 31);
      for (int i = 0; i < (quick_run() ? 2 : 4) && !HasFailure(); ++i) {
        std::vector<int64_t> offsets = drawn_offsets(random, c.tokens);
        for (int64_t n = 0; i == 0 && n <= kMost; ++n) offsets[static_cast<size_t>(n)] = 90 * n;
        expect_right(c, offsets, {graph.replay(offsets), graph.pass(offsets)}, false);
      }
    }
}

// Sequences of several runs each, in launches that have room for any packing: what offsets in host memory give, for
// which launches have no empty entries.
TEST_P(GpuPacking, InSeveralRuns) {
  for (const int32_t dim : {128, 64})
    for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING}) {
      SCOPED_TRACE(testing::Message() << "width " << dim << ", cache " << cache);
      Case c = gpu_case(GetParam(), dim, cache);
      c.tokens = c.cu_seqlens.back() = 9000;
      PackedGraph graph(c, true);
      std::mt19937 random(static_cast<uint32_t>(GetParam()) + 5);
      for (int i = 0; i < 4; ++i) {
        const std::vector<int64_t> offsets = i == 0 ? c.cu_seqlens : drawn_offsets(random, c.tokens);
        const Outputs replayed = graph.replay(offsets), passed = graph.pass(offsets);
        EXPECT_EQ(replayed.complaints + passed.complaints, "");
        for (int t = 0; t < kTensors; ++t) {
          const auto id = static_cast<TensorId>(t);
          EXPECT_LE(relative_error(passed.tensors[id], replayed.tensors[id]), error_bound(c, id, true))
              << kTensorNames[id] << ": " << testing::PrintToString(offsets);
        }
      }
    }
}

// Offsets that are not in order give numbers that mean nothing, and leave the canaries around each buffer alone.
TEST_P(GpuPacking, OfWildOffsetsStayInTheirBuffers) {
  for (const int32_t dim : {32, 128}) {
    const Case c = gpu_case(GetParam(), dim, LASP_CACHE_CHUNKS);
    PackedGraph graph(c, false);
    std::mt19937_64 random(5);
    for (int i = 0; i < (quick_run() ? 5 : 20); ++i) {
      std::vector<int64_t> offsets(kMost + 1);
      for (int64_t &offset : offsets)
        offset = i % 2 ? static_cast<int64_t>(random()) : static_cast<int64_t>(random() % 5000) - 1000;
      const Outputs out = graph.replay(offsets);
      for (const RankResult &rank : out.ranks) EXPECT_EQ(rank.complaints, "");
    }
    const std::vector<int64_t> whole = c.cu_seqlens;
    expect_right(c, whole, {graph.replay(whole)});
  }
}

// LASP_OWN_ZIGZAG_EACH, of a group of one, where it is no other split: its tables are made in another way. Wild
// offsets stay in their buffers there too.
TEST_P(GpuPacking, OfSequencesThatAreCutByThemselves) {
  for (const bool delta : {false, true})
    for (const int32_t dim : {32, 128}) {
      SCOPED_TRACE(testing::Message() << "width " << dim << (delta ? ", delta rule" : ""));
      Case c = gpu_case(GetParam(), dim, dim == 32 ? LASP_CACHE_INCOMING : LASP_CACHE_CHUNKS);
      c.ownership = LASP_OWN_ZIGZAG_EACH, c.delta = delta;
      c.tokens += c.tokens % 2, c.cu_seqlens.back() = c.tokens;
      PackedGraph graph(c, delta);
      std::mt19937 random(static_cast<uint32_t>(GetParam()) + 3);
      for (int i = 0; i < (quick_run() ? 3 : 10) && !HasFailure(); ++i) {
        std::vector<int64_t> offsets = drawn_offsets(random, c.tokens);
        for (int64_t &offset : offsets) offset -= offset % 2;
        expect_right(c, offsets, {graph.replay(offsets), graph.pass(offsets, i % 2 == 1)});
      }
      for (int i = 0; i < 4; ++i) {
        std::vector<int64_t> wild(kMost + 1);
        for (int64_t &offset : wild) offset = static_cast<int64_t>(random() % 5000) - 1000;
        for (const RankResult &rank : graph.replay(wild).ranks) EXPECT_EQ(rank.complaints, "");
      }
    }
}

// On tensor cores: by Hopper's kernels for any decay, by others where it is not per channel.
TEST_P(GpuPacking, OfTheDeltaRule) {
  for (const int32_t dim : {128, 64, 32})
    for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING}) {
      SCOPED_TRACE(testing::Message() << "width " << dim << ", cache " << cache);
      Case c = gpu_case(GetParam(), dim, cache);
      c.delta = true;
      PackedGraph graph(c, cache == LASP_CACHE_CHUNKS);
      std::mt19937 random(static_cast<uint32_t>(GetParam()) + 9);
      for (int i = 0; i < (quick_run() ? 2 : 10) && !HasFailure(); ++i) {
        const std::vector<int64_t> offsets = drawn_offsets(random, c.tokens);
        const Outputs replayed = graph.replay(offsets);
        expect_right(c, offsets, {replayed, graph.pass(offsets, i % 2 == 1)});
        const bool serve = gpu::capability() == 90 || (gpu::capability() >= 80 && GetParam() != LASP_DECAY_CHANNEL);
        EXPECT_EQ(replayed.tensor_cores, serve && c.dtype != LASP_FLOAT32);
      }
      std::vector<int64_t> wild(kMost + 1);
      for (int64_t &offset : wild) offset = static_cast<int64_t>(random() % 5000) - 1000;
      for (const RankResult &rank : graph.replay(wild).ranks) EXPECT_EQ(rank.complaints, "");
    }
}

INSTANTIATE_TEST_SUITE_P(Decays, GpuPacking, testing::ValuesIn(kDecays));

}  // namespace
}  // namespace lasp_test
