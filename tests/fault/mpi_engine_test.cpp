// Failures between MPI processes, seen through the public interface: calls out of step, a refused pass, a caller
// that wants to stop. Every rank is answered, in time, and its sentence says why.
#include <lasp/lasp_mpi.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "../kill/guarded_rank.h"

namespace {

using namespace lasp_kill;

int my_rank = 0, world_size = 1, failures = 0;

void expect(bool right, const std::string &what, const std::string &seen) {
  if (right) return;
  ++failures;
  std::fprintf(stderr, "rank %d: %s: %s\n", my_rank, what.c_str(), seen.c_str());
}
bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// Plans and passes once, then makes the call that goes wrong; what it answered.
Outcome after_a_pass(int64_t limit_ms, const lasp_context_options &options,
                     const std::function<Outcome(GuardedRank &)> &call) {
  lasp_comm *comm = nullptr;
  expect(lasp_mpi_comm_create(MPI_COMM_WORLD, &comm) == LASP_OK, "a comm", lasp_last_error());
  GuardedRank rank(comm, limit_ms, options);
  Shape shape;
  shape.broadcast = true;
  for (const Outcome &good : {rank.plan(shape), rank.forward()})
    expect(good.status == LASP_OK, "a good call", good.sentence);
  MPI_Barrier(MPI_COMM_WORLD);
  const Outcome outcome = call(rank);
  MPI_Barrier(MPI_COMM_WORLD);
  rank.destroy();
  expect(rank.defects().empty(), "defects", rank.defects());
  return outcome;
}
Outcome after_a_pass(int64_t limit_ms, const std::function<Outcome(GuardedRank &)> &call) {
  return after_a_pass(limit_ms, LASP_CONTEXT_OPTIONS_INIT, call);
}

// Rank 0 goes backward, all others forward. Ranks 0 and 1 wait for each other, and the `impatient` one of them ends
// it: it names the other's call. All others have more patience; they are told.
void calls_out_of_step(int impatient) {
  const Outcome outcome = after_a_pass(my_rank == impatient ? 1'500 : 30'000, [](GuardedRank &rank) {
    return my_rank == 0 ? rank.backward() : rank.forward();
  });
  expect(outcome.status == LASP_ERROR_PEER_LOST, "status " + std::to_string(outcome.status), outcome.sentence);
  expect(outcome.ms < 20'000, "told in time", std::to_string(outcome.ms) + " ms");
  if (my_rank != impatient) return;
  const char *const calls[] = {"lasp_backward", "lasp_forward"};
  const std::string wanted = "rank " + std::to_string(1 - my_rank) + " is in " + calls[1 - my_rank] +
                             ", this rank in " + calls[my_rank] +
                             ": all ranks must make the same calls in the same order";
  expect(contains(outcome.sentence, wanted), "out of step", outcome.sentence);
}

// Rank 1 calls without arguments; the others wait for it, with a limit of a minute.
void a_refused_pass() {
  const Outcome outcome = after_a_pass(60'000, [](GuardedRank &rank) {
    return my_rank == 1
               ? rank.timed(Call::kForward, [&] { return lasp_forward(rank.made_plan(), nullptr, nullptr); })
               : rank.forward();
  });
  if (my_rank == 1) {
    expect(outcome.status == LASP_ERROR_INVALID_ARGUMENT, "the refusal", outcome.sentence);
  } else {
    expect(outcome.status == LASP_ERROR_PEER_LOST, "status " + std::to_string(outcome.status), outcome.sentence);
    expect(contains(outcome.sentence, "rank 1 did not come, one of its own calls was refused or failed"), "why",
           outcome.sentence);
  }
  expect(outcome.ms < 20'000, "told at once", std::to_string(outcome.ms) + " ms");
}

// Rank 0's caller stops the wait for ranks that come only when all is over.
void a_caller_that_wants_to_stop() {
  static int asked = 0;
  asked = 0;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.interrupted = [](void *) { return ++asked >= 3 ? int32_t{1} : int32_t{0}; };
  const Outcome outcome = after_a_pass(60'000, options, [](GuardedRank &rank) {
    if (my_rank == 0) return rank.forward();
    return Outcome{Call::kForward, LASP_ERROR_ABORTED, 0, "the caller's own function"};
  });
  expect(outcome.status == LASP_ERROR_ABORTED, "status " + std::to_string(outcome.status), outcome.sentence);
  expect(contains(outcome.sentence, "the caller's own function"), "who", outcome.sentence);
  expect(outcome.ms < 20'000, "in time", std::to_string(outcome.ms) + " ms");
}

}  // namespace

int main(int argc, char **argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  alarm(100);  // a watchdog: a hang is a failure
  calls_out_of_step(0);
  calls_out_of_step(1);
  a_refused_pass();
  a_caller_that_wants_to_stop();
  int anywhere = 0;
  MPI_Allreduce(&failures, &anywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return anywhere ? 1 : 0;
}
