#include "gpu/nccl_processes.h"

#include <cstdlib>

namespace lasp_test {
namespace {

// Of a run that takes a fraction of a second, or several where eight ranks take turns on one GPU. Well more than
// the 20 s of test_context_options, within which the library itself gives a peer up and a rank may still answer.
constexpr std::chrono::seconds kAnswer{120};
constexpr std::chrono::seconds kStart{180};  // of CUDA and NCCL, in every process at once
constexpr std::chrono::seconds kEnd{30};

int32_t ranks_wanted() {
  const char *const set = std::getenv("LASP_TEST_NCCL_RANKS");
  if (set == nullptr) return 8;
  char *end = nullptr;
  const long ranks = std::strtol(set, &end, 10);
  if (end == set || *end != '\0' || ranks < 1 || ranks > 64)
    throw std::runtime_error(std::string("LASP_TEST_NCCL_RANKS=") + set + ": must be 1 to 64");
  return static_cast<int32_t>(ranks);
}

}  // namespace

NcclProcesses::NcclProcesses(int32_t nranks) : nranks_(nranks), workers_(nranks) {
  hello_ = from_bytes<Hello>(workers_.answers(kStart).front());
  if (!why_unusable().empty()) return;
  ByteWriter id;
  id.value(hello_.id);
  workers_.tell(id.bytes);
  workers_.answers(kStart);
}

std::string NcclProcesses::description() const {
  const int32_t gpus = hello_.gpus, hosts = (nranks_ + gpus - 1) / gpus;
  return std::to_string(nranks_) + " processes as " + std::to_string(hosts) + " host(s) of " + hello_.machine;
}

Outputs NcclProcesses::run(const Case &c, bool stored, RunOptions options) {
  if ((std::hash<std::string>()(c.name) + options.schedule) % 2 == 0) options.own_stream = true;
  workers_.tell(bytes_of(Task{stored, c.name, options}));
  std::vector<RankResult> ranks;
  for (const Bytes &answer : workers_.answers(kAnswer)) ranks.push_back(from_bytes<RankResult>(answer));
  return assemble(c, std::move(ranks));
}

std::string NcclProcesses::close() { return workers_.close(kEnd); }

NcclProcesses &nccl_processes() {
  static NcclProcesses group(ranks_wanted());
  return group;
}

}  // namespace lasp_test
