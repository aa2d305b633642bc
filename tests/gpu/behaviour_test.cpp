// What a GPU adds to the contract: order on streams, graphs, several contexts and devices, the caller's own use of
// the CUDA runtime. Each test runs cases of the table in a special way and holds them to the oracle as ever.
#include <gtest/gtest.h>

#include "support/device.h"
#include "support/group_params.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

// Every decay kind, lengths, packing, layouts, both cache modes, fused and general kernels.
std::vector<Case> chosen_cases() {
  std::vector<Case> cases;
  for (const char *name :
       {"none_batch", "head_long", "scalar_packed_ragged", "channel_cache_incoming", "head_no_tokens",
        "bidirectional_ragged", "scalar_padded", "channel_bfloat16", "none_wide_packed", "head_wide_length_300",
        "scalar_wide_grouped", "head_wide_unaligned", "scalar_wide_head_major", "head_several_default_chunks",
        "delta_scalar_long", "delta_channel_packed_ragged", "delta_head_cache_incoming"}) {
    cases.push_back(case_named(name));
  }
  return cases;
}

void expect_right(const Case &c, const Expected &expected, Transport transport, int32_t nranks,
                  const RunOptions &options) {
  const Outputs out = run_case(c, cached_data(c), transport, nranks, options);
  ASSERT_EQ(out.complaints, "") << c.name << " on " << nranks;
  EXPECT_EQ(compare(c, expected, out), "") << c.name << " on " << nranks;
}
void expect_right(const Case &c, Transport transport, int32_t nranks, const RunOptions &options) {
  expect_right(c, cached_expected(c), transport, nranks, options);
}

class Behaviour : public testing::TestWithParam<Case> {};

// RunOptions.graph_replays: each replay has the bits of the passes that ran eagerly before.
TEST_P(Behaviour, GraphReplayHasTheBitsOfTheEagerPasses) {
  RunOptions options;
  options.graph_replays = 3;
  expect_right(GetParam(), Transport::self, 1, options);
}

TEST_P(Behaviour, ForwardAloneCanBeCaptured) {
  RunOptions options;
  options.graph_replays = 2;
  options.backward = false;
  const Case &c = GetParam();
  const Outputs out = run_case(c, cached_data(c), Transport::self, 1, options);
  EXPECT_EQ(out.complaints, "");
}

// The stream is kept busy before the inputs' copy to the device, so work that is not ordered on it sees poison; and
// a call that waits for the device returns too late.
TEST_P(Behaviour, WorkIsOrderedOnTheStreamAndCallsReturnAtOnce) {
  for (const bool own_stream : {false, true}) {
    RunOptions options;
    options.late_inputs = true;
    options.own_stream = own_stream;
    options.recompute = true;
    expect_right(GetParam(), Transport::self, 1, options);
  }
}

TEST_P(Behaviour, VirtualRanksAreOrderedOnTheirStreams) {
  for (const int32_t schedule : schedules_of(GetParam())) {
    RunOptions options;
    options.schedule = schedule;
    options.late_inputs = options.may_wait = true;
    options.own_stream = true;
    expect_right(GetParam(), Transport::threads, 3, options);
  }
}

TEST_P(Behaviour, TheCallersLastErrorStaysOnRecord) {
  RunOptions options;
  options.old_error = true;
  options.recompute = true;
  expect_right(GetParam(), Transport::self, 1, options);
}

// Around every call of a run RankDevice compares the current device; here it is another than the context's.
TEST_P(Behaviour, CurrentDeviceIsPreserved) {
  if (gpu::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  for (const int32_t device : {0, 1}) {
    RunOptions options;
    options.device_index = device;
    options.other_device = true;
    options.recompute = true;
    expect_right(GetParam(), Transport::self, 1, options);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Behaviour, testing::ValuesIn(chosen_cases()),
                         [](const auto &test) { return test.param.name; });

// Pointers that the tensor cores do not take, in a plan made for them: other kernels do its work, in its workspace.
TEST(Unaligned, LongCasesAreRight) {
  for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
    Case c;
    c.name = "unaligned_" + std::to_string(decay);
    c.tokens = 700, c.heads_q = c.heads_k = c.heads_v = 1, c.head_dim_k = c.head_dim_v = 128, c.decay = decay;
    c.dtype = LASP_BFLOAT16;
    for (const int32_t nranks : {1, 2})
      expect_right(c, nranks == 1 ? Transport::self : Transport::threads, nranks, {});
  }
}

// The gradient of the decay by runs of its own, whatever the chunk is that the caller asks for.
TEST(DecayGradient, OfLargeChunks) {
  for (int32_t decay = LASP_DECAY_HEAD; decay <= LASP_DECAY_CHANNEL; ++decay) {
    for (const int32_t chunk : {128, 256}) {
      Case c;
      c.name = "large_chunks_" + std::to_string(decay);
      c.tokens = 1000, c.heads_q = c.heads_k = c.heads_v = 1, c.head_dim_k = c.head_dim_v = 64, c.decay = decay;
      c.dtype = LASP_BFLOAT16, c.aligned = true, c.chunk = chunk;
      for (const int32_t nranks : {1, 2})
        expect_right(c, nranks == 1 ? Transport::self : Transport::threads, nranks, {});
    }
  }
}

// Of more than 256 rows a state's columns go by pieces, in passes that see it as it is and transposed.
TEST(TensorCores, TakeDimensionsUpTo512) {
  const std::pair<int32_t, int32_t> shapes[] = {{256, 512}, {512, 72}, {384, 264}};
  for (const auto &[k, v] : shapes)
    for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay)
      for (const int32_t nranks : {1, 2}) {
        Case c;
        c.name = "up_to_512_" + std::to_string(k) + "_" + std::to_string(v) + "_" + std::to_string(decay);
        c.tokens = 500, c.heads_q = 2, c.heads_k = 1, c.heads_v = 2, c.head_dim_k = k, c.head_dim_v = v;
        c.decay = decay, c.mean_decay = 0.01, c.dtype = LASP_BFLOAT16, c.aligned = true;
        const Outputs out =
            run_case(c, cached_data(c), nranks == 1 ? Transport::self : Transport::threads, nranks, {});
        ASSERT_EQ(out.complaints, "") << c.name << " on " << nranks;
        EXPECT_EQ(compare(c, cached_expected(c), out), "") << c.name << " on " << nranks;
        EXPECT_TRUE(out.tensor_cores) << c.name;
      }
}

// Where no fused kernel serves: products of matrices over runs of several tiles, whole and partial, on tensor cores
// and (for strides and dimensions that rule them out, and for float32) without, to the accuracy of the plan's other
// kernels.
TEST(DecayGradient, ByProducts) {
  struct Shape {
    int32_t k, v, heads_q, heads_k, heads_v, dtype;
  };
  const Shape shapes[] = {{64, 64, 1, 1, 1, LASP_BFLOAT16},  {128, 256, 2, 1, 1, LASP_BFLOAT16},
                          {256, 72, 1, 1, 2, LASP_FLOAT16},  {128, 128, 4, 2, 1, LASP_BFLOAT16},
                          {40, 136, 1, 1, 1, LASP_FLOAT32},  {64, 24, 1, 1, 1, LASP_BFLOAT16},
                          {256, 512, 1, 1, 1, LASP_BFLOAT16}};
  for (const Shape &shape : shapes)
    for (const int32_t decay : {LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL})
      for (const double mean : {1e-3, 0.3, 60.0}) {
        Case c;
        c.name = "by_products_" + std::to_string(shape.k) + "_" + std::to_string(shape.v) + "_" +
                 std::to_string(decay) + "_" + std::to_string(mean);
        c.tokens = 700, c.head_dim_k = shape.k, c.head_dim_v = shape.v, c.decay = decay, c.mean_decay = mean;
        c.heads_q = shape.heads_q, c.heads_k = shape.heads_k, c.heads_v = shape.heads_v, c.dtype = shape.dtype;
        c.aligned = shape.v != 24, c.layout = c.aligned ? Layout::contiguous : Layout::padded;
        Expected expected = cached_expected(c);
        // A weak decay's gradient of a token is a sum of terms of both signs, and with one head it may happen to be
        // small for all tokens alike (by 2 with these data): it is right to a fraction of what it is in the mean.
        if (decay == LASP_DECAY_SCALAR && mean < 0.01) expected.d_decay_size = expected.d_decay_norm;
        for (const int32_t nranks : {1, 2})
          expect_right(c, expected, nranks == 1 ? Transport::self : Transport::threads, nranks, {});
      }
}

// Heads that share a head of k and v (or of q): by the fused kernel in groups of 2, 4 and 8, by staged sums in
// others, and, where pointers are not for tensor cores, some heads at a time.
struct Heads {
  int32_t q, k, v, dim;
};
class Grouped : public testing::TestWithParam<Heads> {};
TEST_P(Grouped, GradientsAreRight) {
  const Heads &heads = GetParam();
  for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay)
    for (const bool aligned : {true, false}) {
      Case c;
      c.name = "grouped_" + std::to_string(heads.q) + "_" + std::to_string(heads.k) + "_" +
               std::to_string(heads.v) + "_" + std::to_string(heads.dim) + "_" + std::to_string(decay) +
               (aligned ? "" : "_unaligned");
      c.batch = 2, c.tokens = aligned ? 340 : 90, c.decay = decay, c.mean_decay = 0.01;
      c.heads_q = heads.q, c.heads_k = heads.k, c.heads_v = heads.v, c.head_dim_k = c.head_dim_v = heads.dim;
      c.dtype = heads.q == 4 ? LASP_FLOAT16 : LASP_BFLOAT16, c.aligned = aligned;
      c.cache = decay == LASP_DECAY_SCALAR && heads.k == 2 ? LASP_CACHE_INCOMING : LASP_CACHE_CHUNKS;
      for (const int32_t nranks : {1, 3})
        expect_right(c, nranks == 1 ? Transport::self : Transport::threads, nranks, {});
    }
}
INSTANTIATE_TEST_SUITE_P(Heads, Grouped,
                         testing::Values(Heads{4, 2, 2, 128}, Heads{8, 2, 2, 128}, Heads{8, 1, 1, 128},
                                         Heads{16, 1, 1, 128}, Heads{3, 1, 1, 128}, Heads{4, 2, 1, 128},
                                         Heads{1, 4, 4, 128}, Heads{6, 2, 2, 64}),
                         [](const auto &test) {
                           const Heads &h = test.param;
                           return std::to_string(h.q) + "_" + std::to_string(h.k) + "_" + std::to_string(h.v) +
                                  "_" + std::to_string(h.dim);
                         });

// Large states: short runs' states are found for some of a group's heads at a time.
TEST(DecayGradient, BySlabsOfHeads) {
  for (const int32_t decay : {LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Case c;
    c.name = "slabs_of_heads_" + std::to_string(decay);
    c.tokens = 6000, c.heads_q = 4, c.heads_k = c.heads_v = 1, c.head_dim_k = 256, c.head_dim_v = 72;
    c.decay = decay, c.mean_decay = 1e-3, c.dtype = LASP_BFLOAT16, c.aligned = true;
    expect_right(c, Transport::self, 1, {});
  }
}

// Large states of one head: short runs' states are found for some of the tokens at a time.
TEST(DecayGradient, BySlabsOfTokens) {
  for (const int32_t decay : {LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL})
    for (const int32_t dtype : {LASP_FLOAT32, LASP_BFLOAT16}) {
      Case c;
      c.name = "slabs_of_tokens_" + std::to_string(decay) + "_" + std::to_string(dtype);
      c.tokens = 12000, c.heads_q = c.heads_k = c.heads_v = 1, c.head_dim_k = 256, c.head_dim_v = 72;
      c.decay = decay, c.mean_decay = 1e-3, c.dtype = dtype, c.aligned = true;
      for (const int32_t nranks : {1, 2})
        expect_right(c, nranks == 1 ? Transport::self : Transport::threads, nranks, {});
    }
}

// Kernels that the table's small cases do not reach, small enough for compute-sanitizer (tests/gpu/run
// --sanitizer).
std::vector<Case> small_cases() {
  struct Shape {
    int32_t k, v, dtype;
  };
  const Shape shapes[] = {
      {40, 136, LASP_FLOAT32}, {256, 72, LASP_BFLOAT16}, {72, 264, LASP_FLOAT16}, {264, 40, LASP_BFLOAT16}};
  std::vector<Case> cases;
  for (const int32_t members : {2, 4, 8}) {
    Case c;
    c.name = "small_grouped_" + std::to_string(members);
    c.tokens = 330, c.heads_q = members, c.heads_k = c.heads_v = 1, c.head_dim_k = c.head_dim_v = 128;
    c.decay = LASP_DECAY_SCALAR, c.mean_decay = 0.05, c.dtype = LASP_BFLOAT16, c.aligned = true;
    cases.push_back(c);
  }
  for (const Shape &shape : shapes)
    for (const int32_t decay : {LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
      Case c;
      c.name = "small_" + std::to_string(shape.k) + "_" + std::to_string(shape.v) + "_" + std::to_string(decay);
      c.tokens = 90, c.heads_q = c.heads_k = c.heads_v = 1, c.head_dim_k = shape.k, c.head_dim_v = shape.v;
      c.decay = decay, c.mean_decay = 0.05, c.dtype = shape.dtype, c.aligned = true;
      cases.push_back(c);
    }
  return cases;
}
class Small : public testing::TestWithParam<Case> {};
TEST_P(Small, IsRight) { expect_right(GetParam(), Transport::self, 1, {}); }
INSTANTIATE_TEST_SUITE_P(Shapes, Small, testing::ValuesIn(small_cases()),
                         [](const auto &test) { return test.param.name; });

// Outputs again from the incoming states alone: fewer states of runs are found then than when the rank's own state
// had to leave, and yet by the same kernels.
TEST(Recomputed, OutputsHaveTheSameBits) {
  for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
    for (const int32_t heads : {1, 2, 3, 4}) {
      Case c;
      c.name = "recomputed_" + std::to_string(decay) + "_" + std::to_string(heads);
      c.tokens = 3200, c.heads_q = c.heads_k = c.heads_v = heads, c.head_dim_k = c.head_dim_v = 128;
      c.decay = decay, c.mean_decay = 1e-3, c.dtype = LASP_BFLOAT16, c.aligned = true;
      c.cache = LASP_CACHE_INCOMING;
      RunOptions options;
      options.recompute = true;
      for (const int32_t nranks : {2, 3}) {
        const Outputs out = run_case(c, cached_data(c), Transport::threads, nranks, options);
        EXPECT_EQ(out.complaints, "") << c.name << " on " << nranks;
      }
    }
  }
}

// The maps of an exchange travel in the memory of a result until that is written, so they take no workspace: unless
// work that needs no incoming state goes ahead, or the result lies between others' bytes, and then they do.
TEST(ResultMemory, HoldsTheExchange) {
  for (const bool wide : {false, true}) {
    for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
      Case c;
      c.name = "result_memory_" + std::to_string(decay) + (wide ? "_wide" : "");
      c.tokens = 3 * (wide ? 800 : 200), c.head_dim_k = c.head_dim_v = wide ? 128 : 32, c.decay = decay;
      c.heads_q = c.heads_k = c.heads_v = 1;
      c.dtype = wide ? LASP_BFLOAT16 : LASP_FLOAT32, c.aligned = wide;
      const uint64_t map = uint64_t(c.head_dim_k) * c.head_dim_v * sizeof(float);
      // The recurrent kernels work ahead where a decay may forget what comes in.
      const bool ahead = !wide && (decay == LASP_DECAY_HEAD || decay == LASP_DECAY_SCALAR);
      const uint64_t saved = ahead ? 0 : map;
      for (const int32_t schedule : kSchedules) {
        SCOPED_TRACE("decay " + std::to_string(decay) + ", schedule " + std::to_string(schedule));
        RunOptions options;
        options.schedule = schedule;
        options.may_wait = true;
        std::vector<RankResult> ranks[2];
        for (const bool between_others : {false, true}) {
          c.layout = !between_others ? Layout::contiguous : wide ? Layout::packed_qkv : Layout::padded;
          Outputs out = run_case(c, cached_data(c), Transport::threads, 3, options);
          ASSERT_EQ(out.complaints, "");
          EXPECT_EQ(compare(c, cached_expected(c), out), "");
          ranks[between_others] = std::move(out.ranks);
        }
        for (int r = 0; r < 3; ++r) {
          const lasp_plan_info &free = ranks[0][r].info, &others = ranks[1][r].info;
          EXPECT_LE(free.workspace_backward_bytes + saved, others.workspace_backward_bytes);
          if (r == 0) {  // its outputs go ahead
            EXPECT_GE(free.workspace_forward_bytes, map);
          } else if (wide) {  // `o` is never packed
            EXPECT_LT(free.workspace_forward_bytes, map);
          } else {
            EXPECT_LE(free.workspace_forward_bytes + saved, others.workspace_forward_bytes);
          }
        }
      }
    }
  }
}

// As many maps as fit lie in the result, the others in the workspace. The last rank of an all-gather has the most
// and none of its own: with eight ranks of 2,048 tokens seven, where eight would not fit.
TEST(ResultMemory, HoldsAsManyMapsAsFit) {
  constexpr int32_t kRanks = 8;
  for (const int32_t tokens : {2048, 768}) {
    for (const int32_t decay : {LASP_DECAY_HEAD, LASP_DECAY_SCALAR}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens a rank, decay " << decay);
      Case c;
      c.name = "as_many_maps_" + std::to_string(tokens) + "_" + std::to_string(decay);
      c.tokens = kRanks * tokens, c.head_dim_k = c.head_dim_v = 128, c.decay = decay, c.mean_decay = 1e-4;
      c.heads_q = c.heads_k = c.heads_v = 1, c.dtype = LASP_BFLOAT16, c.aligned = true;
      RunOptions options;
      options.schedule = LASP_SCHEDULE_ALL_GATHER;
      options.may_wait = true;
      std::vector<RankResult> ranks[2];
      for (const bool packed : {false, true}) {
        c.layout = packed ? Layout::packed_qkv : Layout::contiguous;
        Outputs out = run_case(c, cached_data(c), Transport::threads, kRanks, options);
        ASSERT_EQ(out.complaints, "");
        EXPECT_EQ(compare(c, cached_expected(c), out), "");
        ranks[packed] = std::move(out.ranks);
      }
      const uint64_t map = (uint64_t{128} * 128 + 16) * sizeof(float), result = uint64_t(tokens) * 128 * 2;
      const uint64_t fit = (result - 64) / map;
      for (int r = 0; r < kRanks; ++r) {
        const uint64_t backward_maps = r == 0 ? 7 : kRanks - r;  // received, and the own one if it is sent
        EXPECT_EQ(ranks[0][r].info.workspace_backward_bytes + std::min(fit, backward_maps) * map,
                  ranks[1][r].info.workspace_backward_bytes)
            << "rank " << r;
      }
    }
  }
}

// Eight contexts in eight threads, each with a case, a stream and, as far as there are so many, a GPU of its own.
TEST(Contexts, SeveralAtOnce) {
  const std::vector<Case> cases = chosen_cases();
  for (const Case &c : cases) cached_expected(c);  // the cache is not for several threads
  std::vector<Outputs> outputs(8);
  on_threads(8, [&](int32_t i) {
    RunOptions options;
    options.own_stream = i % 2 == 0;
    options.device_index = i % gpu::device_count();
    options.repeats = 3;
    outputs[i] = run_case(cases[i], cached_data(cases[i]), Transport::self, 1, options);
  });
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(outputs[i].complaints, "") << cases[i].name;
    EXPECT_EQ(compare(cases[i], cached_expected(cases[i]), outputs[i]), "") << cases[i].name;
  }
}

// One thread uses two contexts in turn; destroying one leaves the other whole.
TEST(Contexts, TwoInOneThread) {
  const lasp_context_options options = test_context_options(Case{});
  lasp_comm *comms[2] = {};
  lasp_context *contexts[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(lasp_comm_create_self(&comms[i]), LASP_OK) << lasp_last_error();
    ASSERT_EQ(lasp_context_create(LASP_ABI, comms[i], &options, &contexts[i]), LASP_OK) << lasp_last_error();
  }
  expect_right(case_named("head_batch"), Transport::self, 1, {});
  EXPECT_EQ(lasp_context_destroy(contexts[0]), LASP_OK) << lasp_last_error();
  expect_right(case_named("scalar_batch"), Transport::self, 1, {});
  EXPECT_EQ(lasp_context_destroy(contexts[1]), LASP_OK) << lasp_last_error();
  for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
}

TEST(Contexts, ADeviceThatIsNotThereIsRefused) {
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK) << lasp_last_error();
  lasp_context_options options = test_context_options(Case{}, gpu::device_count());
  const lasp_status status = lasp_context_create(LASP_ABI, comm, &options, &context);
  EXPECT_TRUE(status == LASP_ERROR_NO_DEVICE || status == LASP_ERROR_INVALID_ARGUMENT) << lasp_status_name(status);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

// A virtual rank's exchange goes through the host's rendezvous, which no graph can replay: it says so.
TEST(Graphs, VirtualRanksRefuseToBeCaptured) {
  const Case &c = case_named("head_batch");
  RunOptions options;
  options.graph_replays = 1;
  const Outputs out = run_case(c, cached_data(c), Transport::threads, 2, options);
  EXPECT_NE(out.complaints.find("LASP_ERROR_UNSUPPORTED"), std::string::npos) << out.complaints;
}

}  // namespace
}  // namespace lasp_test
