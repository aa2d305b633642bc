// Verified messages between MPI processes: the same bits as without, over every schedule; and processes that do not
// agree about it are told so.
#include <lasp/lasp_mpi.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../kill/guarded_rank.h"

namespace {

using lasp_kill::Guarded;

int my_rank = 0, failures = 0;

void expect(bool right, const std::string &what) {
  if (right) return;
  ++failures;
  std::fprintf(stderr, "rank %d: %s: %s\n", my_rank, what.c_str(), lasp_last_error());
}

constexpr int64_t kTokens = 40;
constexpr int32_t kHeads = 2, kDim = 16;

struct Rank {
  explicit Rank(int32_t verify) {
    expect(lasp_mpi_comm_create(MPI_COMM_WORLD, &comm) == LASP_OK, "comm");
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.time_limit_ms = 60'000;
    options.cpu_threads = 1;
    options.verify_messages = verify;
    expect(lasp_context_create(LASP_ABI, comm, &options, &context) == LASP_OK, "context");
  }
  ~Rank() {
    expect(lasp_plan_destroy(plan) == LASP_OK, "destroying the plan");
    expect(lasp_context_destroy(context) == LASP_OK, "destroying the context");
    expect(lasp_comm_destroy(comm) == LASP_OK, "destroying the comm");
  }
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  lasp_status make_plan(int32_t schedule) {
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = kTokens;
    p.heads_q = p.heads_k = p.heads_v = kHeads;
    p.head_dim_k = p.head_dim_v = kDim;
    p.schedule = schedule;
    p.pieces = schedule == LASP_SCHEDULE_ALL_SCAN ? 3 : 0;
    p.broadcast_final_state = 1;
    return lasp_plan_create(context, &p, &plan);
  }

  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
};

// A checksum of everything that forward and backward write.
uint64_t results(int32_t schedule, int32_t verify) {
  Rank rank(verify);
  expect(rank.make_plan(schedule) == LASP_OK, "plan");
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  expect(lasp_plan_get_info(rank.plan, &info) == LASP_OK, "info");
  Guarded input, o, final_state, cache, work, dq, dk, dv;
  for (Guarded *b : {&input, &o, &dq, &dk, &dv}) b->resize(sizeof(float) * kTokens * kHeads * kDim);
  for (size_t i = 0; i < kTokens * kHeads * kDim; ++i) {
    const float x = static_cast<float>((i * 37 + static_cast<size_t>(my_rank)) % 101) / 101;
    std::memcpy(input.data() + 4 * i, &x, sizeof x);
  }
  final_state.resize(sizeof(float) * kHeads * kDim * kDim);
  cache.resize(info.state_cache_bytes);
  work.resize(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
  lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
  f.q = f.k = f.v = input.in();
  f.o = o.out();
  f.final_state = final_state.out();
  f.state_cache = cache.out();
  f.workspace = work.out();
  expect(lasp_forward(rank.plan, &f, nullptr) == LASP_OK, "forward");
  lasp_backward_args b = LASP_BACKWARD_ARGS_INIT;
  b.q = b.k = b.v = b.d_o = input.in();
  b.state_cache = cache.in();
  b.dq = dq.out();
  b.dk = dk.out();
  b.dv = dv.out();
  b.workspace = work.out();
  expect(lasp_backward(rank.plan, &b, nullptr) == LASP_OK, "backward");
  uint64_t h = 0xcbf29ce484222325;
  for (Guarded *buffer : {&o, &final_state, &dq, &dk, &dv}) {
    expect(buffer->intact(), "a guard was written");
    for (size_t i = 0; i < buffer->in().bytes; ++i) h = (h ^ buffer->data()[i]) * 0x100000001b3;
  }
  return h;
}

void tells_who_disagrees() {
  Rank rank(my_rank == 0 ? 1 : 0);
  expect(rank.make_plan(LASP_SCHEDULE_RING) == LASP_ERROR_DISAGREEMENT, "a disagreement");
  expect(std::string(lasp_last_error()) == "verify_messages: rank 0 has 1, rank 1 has 0", "its sentence");
}

}  // namespace

int main(int argc, char **argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  alarm(100);  // a watchdog: a hang is a failure
  for (const int32_t schedule : {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_GATHER, LASP_SCHEDULE_ALL_SCAN,
                                 LASP_SCHEDULE_DOUBLING, LASP_SCHEDULE_HEAD_SCATTER, LASP_SCHEDULE_RELAY})
    expect(results(schedule, 0) == results(schedule, 1), "other bits, schedule " + std::to_string(schedule));
  tells_who_disagrees();
  int anywhere = 0;
  MPI_Allreduce(&failures, &anywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return anywhere ? 1 : 0;
}
