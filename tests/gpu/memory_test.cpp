// A GPU without free memory: a context or a plan is refused by LASP_ERROR_DEVICE_MEMORY, and made once there is
// some.
#include <gtest/gtest.h>

#include <vector>

#include "support/device.h"
#include "support/group.h"

namespace lasp_test {
namespace {

// All of the current device's memory, as long as it lives.
class AllMemory {
 public:
  AllMemory() {
    for (size_t size = gpu::free_memory(); size >= (size_t{1} << 16); size /= 2) {
      while (void *const memory = taken(size)) pieces_.push_back({memory, size});
    }
    gpu::clear_error();
  }
  ~AllMemory() {
    for (const Piece &piece : pieces_) gpu::release(piece.memory, piece.bytes);
  }
  AllMemory(const AllMemory &) = delete;
  AllMemory &operator=(const AllMemory &) = delete;

 private:
  struct Piece {
    void *memory;
    size_t bytes;
  };
  static void *taken(size_t size) {
    try {
      return gpu::allocate(size);
    } catch (const std::exception &) {
      return nullptr;
    }
  }
  std::vector<Piece> pieces_;
};

TEST(DeviceMemory, APlanIsRefusedWithoutAndMadeWithIt) {
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  const lasp_context_options options = test_context_options(Case{});
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  ASSERT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context), LASP_OK) << lasp_last_error();
  lasp_problem p = LASP_PROBLEM_INIT;
  p.batch = 1 << 17, p.tokens = 16, p.head_dim_k = p.head_dim_v = 8;  // tables of many MiB: a run for each row
  {
    const AllMemory all;
    EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_ERROR_DEVICE_MEMORY);
    EXPECT_NE(std::string(lasp_last_error()).find("not enough free memory"), std::string::npos)
        << lasp_last_error();
    lasp_status status = -1;
    EXPECT_EQ(lasp_context_get_async_error(context, &status, nullptr, 0), LASP_OK);
    EXPECT_EQ(status, LASP_OK);
  }
  EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

// What check_values and the watch over replays need is small, and made with the context: there is room, or a
// refusal that harms nothing.
TEST(DeviceMemory, AContextThatChecksValuesIsMadeOrRefused) {
  lasp_comm *comms[2] = {};
  ASSERT_EQ(lasp_comm_create_threads(2, comms), LASP_OK);
  lasp_context_options options = test_context_options(Case{});
  options.check_values = 1;
  lasp_context *context = nullptr;
  {
    const AllMemory all;
    const lasp_status status = lasp_context_create(LASP_ABI, comms[0], &options, &context);
    EXPECT_TRUE(status == LASP_OK || status == LASP_ERROR_DEVICE_MEMORY) << lasp_last_error();
    if (status == LASP_OK) {
      EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
    }
  }
  EXPECT_EQ(lasp_context_create(LASP_ABI, comms[0], &options, &context), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
  for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

// With -1 the context is on the current device, and on it alone.
TEST(DeviceIndex, IsTheCurrentOneWhereNoneIsGiven) {
  for (int32_t device = 0; device < gpu::device_count(); ++device) {
    gpu::use_device(device);
    lasp_comm *comm = nullptr;
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.device = LASP_DEVICE_CUDA;
    ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
    ASSERT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context), LASP_OK) << lasp_last_error();
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = 16, p.head_dim_k = p.head_dim_v = 8;
    ASSERT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
    char text[4096];
    EXPECT_EQ(lasp_plan_describe(plan, text, sizeof text, nullptr), LASP_OK);
    const std::string wanted = "CUDA device " + std::to_string(device) + ",";
    EXPECT_NE(std::string(text).find(wanted), std::string::npos) << text;
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  }
  gpu::use_device(0);
}

}  // namespace
}  // namespace lasp_test
