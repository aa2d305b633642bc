#include "common/environment.h"
#include "failure.h"
#include "memory.h"
#include "modes.h"
#include "table.h"

#include <algorithm>
#include <thread>

namespace bench {
namespace {

constexpr int32_t kRanks = 4;
constexpr int64_t kLong = int64_t{1} << 20, kShort = int64_t{1} << 14;

// Plans of four ranks that hold `tokens` each, by rank; the plan of rank 1 is told about.
lasp_plan_info plan_info(const Config &config, const std::vector<int64_t> &tokens) {
  std::vector<lasp_comm *> created(kRanks);
  check(lasp_comm_create_threads(kRanks, created.data()), "lasp_comm_create_threads");
  const std::vector<CommHandle> comms(created.begin(), created.end());
  std::vector<lasp_plan_info> infos(kRanks, lasp_plan_info LASP_PLAN_INFO_INIT);
  std::vector<std::string> errors(kRanks);
  const auto plan_rank = [&](size_t rank) {
    try {
      lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
      options.cpu_threads = config.threads;
      lasp_context *context = nullptr;
      check(lasp_context_create(LASP_ABI, comms[rank].get(), &options, &context), "lasp_context_create");
      const ContextHandle context_handle(context);
      lasp_problem problem = config.problem(0);
      problem.tokens = tokens[rank];
      lasp_plan *plan = nullptr;
      check(lasp_plan_create(context, &problem, &plan), "lasp_plan_create");
      const PlanHandle plan_handle(plan);
      check(lasp_plan_get_info(plan, &infos[rank]), "lasp_plan_get_info");
    } catch (const Failure &failure) {
      errors[rank] = failure.what();
    }
  };
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) threads.emplace_back(plan_rank, rank);
  for (std::thread &thread : threads) thread.join();
  for (const std::string &error : errors)
    if (!error.empty()) throw Failure(error);
  return infos[1];
}

std::vector<int64_t> evenly(int64_t total) { return std::vector<int64_t>(kRanks, total / kRanks); }
// Rank 1 holds what it would hold of the short sequence, the last rank all the rest.
std::vector<int64_t> same_share(int64_t total) {
  const int64_t share = kShort / kRanks;
  return {share, share, share, total - 3 * share};
}

}  // namespace

int run_memory(const Options &options, FILE *out) {
  Options one = options;
  one.ranks = {kRanks};
  one.tokens = {kShort};
  one.tokens_per_rank = false;
  if (one.threads.empty()) one.threads = {1};
  std::fprintf(out, "Workspace of rank 1 of %d, by plans alone: nothing is allocated or computed.\n", kRanks);
  std::fprintf(
      out,
      "Even split: a sequence of 2^14 and one of 2^20 tokens. Same share: rank 1 holds 4,096 tokens of each.\n\n");
  const Table table(out, {{"decay", 7},
                          {"dtype", 8},
                          {"split", 10},
                          {"sequence", 8},
                          {"local", 7},
                          {"forward", 9},
                          {"bytes/token", 11},
                          {"backward", 9},
                          {"bytes/token", 11},
                          {"state cache", 11}});
  table.header();
  int status = 0;
  for (const Config &config : make_configs(one, 1, kRanks)) {
    const auto show = [&](const char *split, int64_t total, const std::vector<int64_t> &tokens) {
      const lasp_plan_info info = plan_info(config, tokens);
      const auto local = static_cast<double>(tokens[1] * config.shape.batch);
      const auto forward = static_cast<double>(info.workspace_forward_bytes);
      const auto backward = static_cast<double>(info.workspace_backward_bytes);
      table.row({name_of(kDecays, config.shape.decay), name_of(kDTypes, config.shape.dtype), split,
                 std::to_string(total), std::to_string(tokens[1]), tools::human_bytes(forward),
                 format("%.1f", forward / local), tools::human_bytes(backward), format("%.1f", backward / local),
                 tools::human_bytes(static_cast<double>(info.state_cache_bytes))});
      return info;
    };
    const lasp_plan_info brief = show("even", kShort, evenly(kShort));
    const lasp_plan_info extensive = show("even", kLong, evenly(kLong));
    const lasp_plan_info share = show("same share", kLong, same_share(kLong));
    const bool grows = extensive.workspace_forward_bytes > brief.workspace_forward_bytes * (kLong / kShort) ||
                       extensive.workspace_backward_bytes > brief.workspace_backward_bytes * (kLong / kShort);
    const bool differs = share.workspace_forward_bytes != brief.workspace_forward_bytes ||
                         share.workspace_backward_bytes != brief.workspace_backward_bytes;
    if (grows || differs) status = 1;
  }
  std::fprintf(out, status == 0
                        ? "\nThe workspace does not depend on the length of the whole sequence, and per local "
                          "token the long one takes no more than the short one.\n"
                        : "\nThe workspace depends on the length of the whole sequence.\n");
  return status;
}

}  // namespace bench
