// Halos over NCCL on 2, 4 and 8 GPUs: drawn splits byte for byte, calls that return at once, graphs.
#include <gtest/gtest.h>

#include <barrier>

#include "gpu/nccl_group.h"
#include "support/device.h"
#include "support/halo_run.h"

namespace lasp_test {
namespace {

std::string run_halo_on_nccl(const HaloCase &c, const HaloRunOptions &options) {
  const auto nranks = static_cast<int32_t>(c.tokens.size());
  const NcclGroup &group = nccl_group(nranks);
  std::barrier<> meeting(nranks);
  std::vector<std::string> complaints(c.tokens.size());
  on_threads(nranks, [&](int32_t rank) {
    gpu::use_device(rank);
    std::string &said = complaints[static_cast<size_t>(rank)];
    lasp_comm *comm = nullptr;
    if (lasp_comm_create_nccl(group[static_cast<size_t>(rank)]->get(), nullptr, &comm) != LASP_OK) {
      said = std::string("lasp_comm_create_nccl: ") + lasp_last_error() + "\n";
      meeting.arrive_and_drop();
      return;
    }
    HaloRunOptions of_rank = options;
    of_rank.device_index = rank;
    of_rank.meet = [&meeting] { meeting.arrive_and_wait(); };
    said = run_halo(c, comm, of_rank);
    if (lasp_comm_destroy(comm) != LASP_OK) said += std::string("lasp_comm_destroy: ") + lasp_last_error() + "\n";
  });
  std::string all;
  for (const std::string &said : complaints) all += said;
  return all;
}

class NcclHalo : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = gpu::why_no_nccl(); !reason.empty()) GTEST_SKIP() << reason;
    if (nccl_group_sizes().empty()) GTEST_SKIP() << "needs two GPUs";
  }
  static void run_everywhere(uint32_t cases, const HaloRunOptions &options) {
    for (const int32_t nranks : nccl_group_sizes())
      for (uint32_t seed = 0; seed < cases; ++seed) {
        const HaloCase c = drawn_halo(500 * seed + static_cast<uint32_t>(nranks), nranks);
        ASSERT_EQ(run_halo_on_nccl(c, options), "") << c;
      }
  }
};

TEST_F(NcclHalo, IsTheFormula) { run_everywhere(30, {}); }

TEST_F(NcclHalo, IsOrderedOnTheStreamAndReturnsAtOnce) {
  HaloRunOptions options;
  options.late_inputs = true;
  options.own_stream = true;
  run_everywhere(5, options);
}

TEST_F(NcclHalo, CanBeCaptured) {
  HaloRunOptions options;
  options.graph_replays = 3;
  run_everywhere(10, options);
}

}  // namespace
}  // namespace lasp_test
