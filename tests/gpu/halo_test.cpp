// Halos on one GPU: order on streams, graphs, a caller's transport. `lasp_conformance` with LASP_TEST_DEVICE=cuda
// has the drawn splits over virtual ranks.
#include <gtest/gtest.h>

#include "gpu/device_mailboxes.h"
#include "support/group.h"
#include "support/halo_run.h"

namespace lasp_test {
namespace {

// Rows of 16 bytes and of fewer, messages in one piece and not, gradients of several ranks for one row.
std::vector<HaloCase> chosen_halos() {
  HaloCase wide, narrow, several, packed;
  wide.tokens = {100, 200, 50}, wide.batch = 2, wide.channels = 512, wide.dtype = wide.d_dtype = LASP_BFLOAT16;
  narrow.tokens = {9, 12, 4}, narrow.channels = 7, narrow.gap = 1, narrow.dtype = LASP_FLOAT16;
  several.tokens = {5, 1, 1, 0, 2}, several.batch = 3, several.rows = 6, several.channels = 24;
  several.d_dtype = LASP_BFLOAT16;
  packed.tokens = {40, 40, 40}, packed.cu_seqlens = {0, 39, 41, 80, 100, 120}, packed.channels = 64;
  return {wide, narrow, several, packed};
}

TEST(GpuHalo, IsOrderedOnTheStream) {
  for (const HaloCase &c : chosen_halos())
    for (const bool own_stream : {false, true}) {
      HaloRunOptions options;
      options.late_inputs = options.may_wait = true;
      options.own_stream = own_stream;
      EXPECT_EQ(run_halo_on_threads(c, options), "") << c;
    }
}

TEST(GpuHalo, OfAGroupOfOneReturnsAtOnceAndCanBeCaptured) {
  HaloCase c;
  c.tokens = {50}, c.batch = 2, c.channels = 96;
  for (const int32_t replays : {0, 3}) {
    HaloRunOptions options;
    options.late_inputs = replays == 0;
    options.graph_replays = replays;
    options.own_stream = true;
    lasp_comm *comm = nullptr;
    ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
    EXPECT_EQ(run_halo(c, comm, options), "");
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  }
}

TEST(GpuHalo, OverThreadsIsNotCaptured) {
  HaloRunOptions options;
  options.graph_replays = 1;
  const std::string said = run_halo_on_threads(chosen_halos()[0], options);
  EXPECT_NE(said.find("LASP_ERROR_UNSUPPORTED"), std::string::npos) << said;
  EXPECT_NE(said.find("threads transport cannot be captured"), std::string::npos) << said;
}

TEST(GpuHalo, OverACallersTransport) {
  for (const HaloCase &c : chosen_halos()) {
    const auto nranks = static_cast<int32_t>(c.tokens.size());
    DeviceMailboxes boxes(nranks);
    on_threads(nranks, [&](int32_t rank) {
      lasp_comm *comm = nullptr;
      EXPECT_EQ(boxes.make_comm(rank, &comm), LASP_OK) << lasp_last_error();
      HaloRunOptions options;
      options.own_stream = true;
      EXPECT_EQ(run_halo(c, comm, options), "") << c << ", rank " << rank;
      EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
    });
  }
}

}  // namespace
}  // namespace lasp_test
