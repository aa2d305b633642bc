// Which NCCL a communicator is used by: the only one that the process has loaded, and none where there is none to
// be seen or more than one. Each case is a process of its own, since a library that was found stays loaded.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <lasp/lasp.h>

namespace {

void *load(const std::string &path, int mode = RTLD_LAZY | RTLD_LOCAL) {
  void *const library = dlopen(path.c_str(), mode);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  return library;
}

// Makes a comm of a communicator that nobody looks into, says the status and the sentence, and ends the process.
[[noreturn]] void try_nccl(const lasp_nccl_functions *functions = nullptr) {
  int nothing = 0;
  lasp_comm *comm = nullptr;
  const lasp_status status = lasp_comm_create_nccl(reinterpret_cast<struct ncclComm *>(&nothing), functions, &comm);
  lasp_build_info info = LASP_BUILD_INFO_INIT;
  lasp_get_build_info(&info);
  std::fprintf(stderr, "%s; %s; build: %s\n", lasp_status_name(status), lasp_last_error(), info.nccl);
  if (comm != nullptr) lasp_comm_destroy(comm);
  std::exit(0);
}

class NcclChoice : public testing::Test {
 protected:
  static void SetUpTestSuite() { testing::FLAGS_gtest_death_test_style = "fast"; }
};
const testing::ExitedWithCode kEnds(0);

TEST_F(NcclChoice, NoneIsLoaded) {
  EXPECT_EXIT(try_nccl(), kEnds,
              "LASP_ERROR_LIBRARY_MISSING; nccl: no library .*`functions`; build: not in this process so far");
}

TEST_F(NcclChoice, TheOnlyOneIsTakenHoweverItWasLoaded) {
  EXPECT_EXIT((load(FAKE_NCCL_FIRST), try_nccl()), kEnds, "LASP_OK; ; build: 2.28.9, in .*first/libnccl.so.2");
  EXPECT_EXIT((load(FAKE_NCCL_FIRST, RTLD_NOW | RTLD_GLOBAL), try_nccl()), kEnds, "LASP_OK");
  EXPECT_EXIT((load(FAKE_NCCL_FIRST), load(FAKE_NCCL_FIRST), try_nccl()), kEnds, "LASP_OK");
  // Linked into a framework's own library, under another name.
  EXPECT_EXIT((load(FAKE_NCCL_FRAMEWORK), try_nccl()), kEnds, "LASP_OK; ; build: 2.27.3, in .*libframework.so");
}

TEST_F(NcclChoice, OfTwoNoneIsTaken) {
  EXPECT_EXIT((load(FAKE_NCCL_FIRST), load(FAKE_NCCL_SECOND), try_nccl()), kEnds,
              "LASP_ERROR_LIBRARY_MISSING; nccl: this process has loaded 2, .*libnccl.so.2 and "
              ".*libnccl.so.2 among them.*`functions`; build: 2.28.9, in .*; 2.20.5, in ");
  EXPECT_EXIT((load(FAKE_NCCL_FIRST, RTLD_NOW | RTLD_GLOBAL), load(FAKE_NCCL_FRAMEWORK), try_nccl()), kEnds,
              "LASP_ERROR_LIBRARY_MISSING; nccl: this process has loaded 2");
}

// No other one is loaded in its place, though the loader would find it.
TEST_F(NcclChoice, OneThatHidesItsFunctionsIsNotReplaced) {
  const auto hidden = [] {
    load(FAKE_NCCL_HIDDEN);
    setenv("LD_LIBRARY_PATH", FAKE_NCCL_FIRST, 1);
    try_nccl();
  };
  EXPECT_EXIT(hidden(), kEnds, "LASP_ERROR_LIBRARY_MISSING; nccl: no library");
}

TEST_F(NcclChoice, OldOnesAreRefused) {
  EXPECT_EXIT(
      (load(FAKE_NCCL_OLD), try_nccl()), kEnds,
      "LASP_ERROR_LIBRARY_MISSING; nccl: .*libnccl.so.2 has version code 21700; NCCL 2.18 .21800. or later");
}

TEST_F(NcclChoice, TheCallersFunctionsDecideBetweenTwo) {
  const auto by_table = [] {
    load(FAKE_NCCL_FIRST);
    void *const second = load(FAKE_NCCL_SECOND);
    lasp_nccl_functions table = LASP_NCCL_FUNCTIONS_INIT;
    const auto take = [&](lasp_function &to, const char *name) {
      to = reinterpret_cast<lasp_function>(dlsym(second, name));
    };
    take(table.get_version, "ncclGetVersion");
    take(table.comm_count, "ncclCommCount");
    take(table.comm_user_rank, "ncclCommUserRank");
    take(table.comm_cu_device, "ncclCommCuDevice");
    take(table.comm_get_async_error, "ncclCommGetAsyncError");
    take(table.get_error_string, "ncclGetErrorString");
    take(table.send, "ncclSend");
    take(table.recv, "ncclRecv");
    take(table.all_gather, "ncclAllGather");
    take(table.group_start, "ncclGroupStart");
    take(table.group_end, "ncclGroupEnd");
    try_nccl(&table);
  };
  EXPECT_EXIT(by_table(), kEnds, "LASP_OK");
}

}  // namespace
