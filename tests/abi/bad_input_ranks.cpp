// Mistakes that take more than one rank: problems that disagree in one field, one rank whose problem is refused, a
// step over a group, and two threads in one context.
#include <chrono>
#include <regex>
#include <thread>

#include "bad_input.h"

namespace {

struct Answer {
  lasp_status status = LASP_OK;
  std::string sentence;
  bool plan_untouched = false;
};

// Every rank of an in-process group creates a plan at once, each with its own problem.
std::vector<Answer> create_plans(const std::vector<lasp_problem> &problems) {
  const size_t nranks = problems.size();
  std::vector<lasp_comm *> comms(nranks);
  Rig::must(lasp_comm_create_threads(static_cast<int32_t>(nranks), comms.data()));
  std::vector<Answer> answers(nranks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < nranks; ++r) {
    threads.emplace_back([&, r] {
      lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
      options.cpu_threads = 1;
      options.time_limit_ms = 5000;
      lasp_context *context = nullptr;
      answers[r].status = lasp_context_create(LASP_ABI, comms[r], &options, &context);
      auto *const sentinel = reinterpret_cast<lasp_plan *>(&answers[r]);
      lasp_plan *plan = sentinel;
      if (answers[r].status == LASP_OK) answers[r].status = lasp_plan_create(context, &problems[r], &plan);
      answers[r].sentence = lasp_last_error();
      answers[r].plan_untouched = plan == sentinel;
      if (answers[r].status == LASP_OK) lasp_plan_destroy(plan);
      // "Contexts live on": the same group agrees right after.
      const lasp_problem good = Rig::valid_problem();
      EXPECT_EQ(lasp_plan_create(context, &good, &plan), LASP_OK) << "rank " << r << ": " << lasp_last_error();
      EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
      EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  return answers;
}

lasp_problem base() {
  lasp_problem problem = Rig::valid_problem();
  problem.dtype = LASP_BFLOAT16;
  problem.schedule = LASP_SCHEDULE_ALL_SCAN;
  return problem;
}

struct Disagreement {
  const char *field;
  const char *sentence;  // how the sentence may name it
  void (*both)(lasp_problem &);
  void (*one)(lasp_problem &);
};
void nothing(lasp_problem &) {}
std::ostream &operator<<(std::ostream &out, const Disagreement &row) { return out << row.field; }
#define ONE(change) [](lasp_problem &p) { change; }

// Of no tokens, so that they suit any number of ranks.
constexpr lasp_run kRuns[] = {{0, 0, 0}, {0, 1, 0}}, kOtherRuns[] = {{0, 1, 0}, {0, 0, 0}};
void no_tokens_in_runs(lasp_problem &p) {
  p.tokens = 0, p.ownership = LASP_OWN_RUNS, p.runs = kRuns, p.num_runs = 2;
}

const Disagreement kDisagreements[] = {
    {"batch", "batch", nothing, ONE(p.batch = 2)},
    {"heads_q", "heads_q", nothing, ONE(p.heads_q = 1)},
    {"heads_k", "heads_k", nothing, ONE(p.heads_k = 2)},
    {"heads_v", "heads_v", nothing, ONE(p.heads_v = 1)},
    {"head_dim_k", "head_dim_k", nothing, ONE(p.head_dim_k = 16)},
    {"head_dim_v", "head_dim_v", nothing, ONE(p.head_dim_v = 8)},
    {"dtype", "dtype: rank 0 has LASP_BFLOAT16, rank 1 has LASP_FLOAT16", nothing, ONE(p.dtype = LASP_FLOAT16)},
    {"decay", "decay: rank 0 has LASP_DECAY_SCALAR, rank 1 has LASP_DECAY_CHANNEL", nothing,
     ONE(p.decay = LASP_DECAY_CHANNEL)},
    {"decay_dtype", "decay_layout.dtype: rank 0 has LASP_FLOAT32, rank 1 has LASP_BFLOAT16", nothing,
     ONE(p.decay_layout.dtype = p.d_decay_layout.dtype = LASP_BFLOAT16)},
    {"beta_dtype", "beta_layout.dtype: rank 0 has LASP_FLOAT32, rank 1 has LASP_BFLOAT16",
     ONE(p.write = LASP_WRITE_DELTA), ONE(p.beta_layout.dtype = p.d_beta_layout.dtype = LASP_BFLOAT16)},
    {"write", "write: rank 0 has LASP_WRITE_ADDITIVE, rank 1 has LASP_WRITE_DELTA", nothing,
     ONE(p.write = LASP_WRITE_DELTA)},
    {"mask", "mask: rank 0 has LASP_MASK_CAUSAL, rank 1 has LASP_MASK_BIDIRECTIONAL",
     ONE(p.decay = LASP_DECAY_NONE), ONE(p.mask = LASP_MASK_BIDIRECTIONAL)},
    {"scale", "scale: rank 0 has 0\\.[0-9]+, rank 1 has 0\\.5", nothing, ONE(p.scale_given = 1; p.scale = 0.5f)},
    {"max_sequences", "max_sequences: rank 0 has 2, rank 1 has 3", ONE(p.max_sequences = 2),
     ONE(p.max_sequences = 3)},
    {"ownership", "ownership: rank 0 has LASP_OWN_CONTIGUOUS, rank 1 has LASP_OWN_ZIGZAG", nothing,
     ONE(p.ownership = LASP_OWN_ZIGZAG)},
    {"zigzag_of_other_tokens", "tokens: rank 0 has 24, rank 1 has 26; with LASP_OWN_ZIGZAG all have the same",
     ONE(p.ownership = LASP_OWN_ZIGZAG), ONE(p.tokens = 26)},
    {"zigzag_each_of_other_tokens",
     "tokens: rank 0 has 24, rank 1 has 26; with LASP_OWN_ZIGZAG_EACH all have the same",
     ONE((p.ownership = LASP_OWN_ZIGZAG_EACH, p.max_sequences = 2)), ONE(p.tokens = 26)},
    {"zigzag_each_of_other_sequences", "max_sequences: rank 0 has 2, rank 1 has 3",
     ONE((p.ownership = LASP_OWN_ZIGZAG_EACH, p.max_sequences = 2)), ONE(p.max_sequences = 3)},
    {"runs", "runs: not the same on rank 0 and rank 1", no_tokens_in_runs, ONE(p.runs = kOtherRuns)},
    {"packed", "max_sequences: rank 0 has 0, rank 1 has 2", nothing, ONE(p.max_sequences = 2)},
    {"schedule", "schedule: rank 0 has LASP_SCHEDULE_ALL_SCAN, rank 1 has LASP_SCHEDULE_RING", nothing,
     ONE(p.schedule = LASP_SCHEDULE_RING)},
    {"pieces", "pieces", nothing, ONE(p.pieces = 2)},
    {"cache", "cache: rank 0 has LASP_CACHE_CHUNKS, rank 1 has LASP_CACHE_INCOMING", nothing,
     ONE(p.cache = LASP_CACHE_INCOMING)},
    {"chunk", "\\bchunk\\b", nothing, ONE(p.chunk = 32)},
    {"backward", "backward", nothing, ONE(p.backward = 0)},
    {"broadcast_final_state", "broadcast_final_state", nothing, ONE(p.broadcast_final_state = 1)},
    {"segment", "\\bsegment\\b", nothing, ONE(p.segment = 16)},
    {"segment_of_another_length", "\\bsegment\\b", ONE(p.segment = 16; p.tokens = 32), ONE(p.segment = 32)},
};

class Disagreements : public testing::TestWithParam<Disagreement> {};

TEST_P(Disagreements, ErrorOnEveryRankNamesTheField) {
  const Disagreement &row = GetParam();
  for (const size_t nranks : {2, 3}) {
    std::vector<lasp_problem> problems(nranks, base());
    for (lasp_problem &problem : problems) row.both(problem);
    row.one(problems[1]);
    const std::vector<Answer> answers = create_plans(problems);
    for (size_t r = 0; r < nranks; ++r) {
      SCOPED_TRACE("rank " + std::to_string(r) + " of " + std::to_string(nranks));
      EXPECT_EQ(answers[r].status, LASP_ERROR_DISAGREEMENT)
          << lasp_status_name(answers[r].status) << ": " << answers[r].sentence;
      EXPECT_TRUE(std::regex_search(answers[r].sentence, std::regex(row.sentence))) << answers[r].sentence;
      EXPECT_TRUE(answers[r].plan_untouched);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Disagreements, testing::ValuesIn(kDisagreements),
                         [](const auto &test) { return std::string(test.param.field); });

struct Refusal {
  const char *name;
  lasp_status status;
  void (*one)(lasp_problem &);
};
TEST(Ranks, OneRefusalIsToldToTheOthersAtOnce) {
  const Refusal refusals[] = {
      {"invalid", kInvalid, ONE(p.heads_q = 0)},
      {"unsupported", kUnsupported, ONE(p.head_dim_v = 100)},
      {"delta", kUnsupported, ONE(p.write = LASP_WRITE_DELTA; p.segment = p.chunk = 16)},
      {"struct size", LASP_ERROR_INVALID_STRUCT, ONE(p.size = 3)},
  };
  for (const Refusal &refusal : refusals) {
    for (const size_t refusing : {0, 2}) {
      SCOPED_TRACE(std::string(refusal.name) + " on rank " + std::to_string(refusing));
      std::vector<lasp_problem> problems(3, base());
      refusal.one(problems[refusing]);
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<Answer> answers = create_plans(problems);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << "waited for the time limit";
      for (size_t r = 0; r < answers.size(); ++r) {
        EXPECT_EQ(answers[r].status, r == refusing ? refusal.status : LASP_ERROR_PEER_REFUSED)
            << "rank " << r << ": " << lasp_status_name(answers[r].status) << ": " << answers[r].sentence;
        EXPECT_TRUE(answers[r].plan_untouched);
        if (r != refusing) {
          const std::string wanted =
              "rank " + std::to_string(refusing) + " refused its problem with " + lasp_status_name(refusal.status);
          EXPECT_NE(answers[r].sentence.find(wanted), std::string::npos) << answers[r].sentence;
        }
      }
    }
  }
}

// It talks to nobody: rank 1 has no part in what rank 0 does.
TEST(Ranks, StepOnAGroup) {
  lasp_comm *comms[2];
  Rig::must(lasp_comm_create_threads(2, comms));
  const auto rank = [&](size_t r) {
    Rig valid;  // its buffers serve the group's plan too
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.time_limit_ms = 5000;
    Rig::must(lasp_context_create(LASP_ABI, comms[r], &options, &context));
    const lasp_problem problem = Rig::valid_problem();
    Rig::must(lasp_plan_create(context, &problem, &plan));
    const lasp_step_args args = valid.step_args();
    const auto step = [&](lasp_plan *by) {
      std::memset(valid.state.data, 0, valid.state.bytes);
      EXPECT_EQ(lasp_step(by, &args, nullptr), LASP_OK) << lasp_last_error();
      return valid.arena.bytes();
    };
    EXPECT_TRUE(step(plan) == step(valid.plan)) << "rank " << r << " steps otherwise than alone";
    lasp_plan_destroy(plan);
    lasp_context_destroy(context);
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
  for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

// A transport whose first wait, on the thread that is inside the library, lets a second thread try the same
// context.
struct Intruded {
  lasp_context *context = nullptr;
  lasp_status status = LASP_OK;
  std::string sentence;
  int32_t waits = 0;

  lasp_transport table() {
    lasp_transport t = LASP_TRANSPORT_INIT;
    t.nranks = 2;
    t.send = [](void *, const void *, uint64_t, int32_t, int32_t, lasp_stream, void **request) {
      *request = request;  // any value
      return lasp_status{LASP_OK};
    };
    t.receive = [](void *, void *, uint64_t, int32_t, int32_t, lasp_stream, void **request) {
      *request = request;  // any value
      return lasp_status{LASP_OK};
    };
    t.test = [](void *, void *, int32_t *done) {
      *done = 0;
      return lasp_status{LASP_OK};
    };
    t.wait = [](void *user, void *, int64_t, int32_t *lost_rank) {
      static_cast<Intruded *>(user)->intrude();
      *lost_rank = 1;
      return lasp_status{LASP_ERROR_PEER_LOST};
    };
    t.cancel = [](void *, void *) {};
    return t;
  }

  void intrude() {
    if (waits++ > 0) return;
    std::thread([this] {
      const lasp_problem problem = Rig::valid_problem();
      lasp_plan *plan = nullptr;
      status = lasp_plan_create(context, &problem, &plan);
      sentence = lasp_last_error();
    }).join();
  }
};

TEST(Ranks, TwoThreadsInOneContext) {
  Intruded intruded;
  const lasp_transport table = intruded.table();
  lasp_comm *comm = nullptr;
  Rig::must(lasp_comm_create_custom(&table, &intruded, &comm));
  Rig::must(lasp_context_create(LASP_ABI, comm, nullptr, &intruded.context));
  const lasp_problem problem = Rig::valid_problem();
  lasp_plan *plan = nullptr;
  EXPECT_EQ(lasp_plan_create(intruded.context, &problem, &plan), LASP_ERROR_PEER_LOST) << lasp_last_error();
  EXPECT_GE(intruded.waits, 1) << "the transport was never asked to wait";
  EXPECT_EQ(intruded.status, LASP_ERROR_IN_USE) << lasp_status_name(intruded.status);
  EXPECT_NE(intruded.sentence.find("thread"), std::string::npos) << intruded.sentence;
  EXPECT_EQ(lasp_context_destroy(intruded.context), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
}

}  // namespace
