// Wrong calls on traces, and what LASP_TRACE may name.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bad_input.h"

namespace {

namespace fs = std::filesystem;

constexpr lasp_status kHandle = LASP_ERROR_INVALID_HANDLE, kStruct = LASP_ERROR_INVALID_STRUCT;

lasp_status start(Rig &rig, size_t size, int64_t max_records) {
  lasp_trace_options options = LASP_TRACE_OPTIONS_INIT;
  options.size = size, options.max_records = max_records;
  return lasp_trace_start(rig.context, &options);
}

const WrongCall kRows[] = {
    {"StartNull", kInvalid, "context is null", [](Rig &) { return lasp_trace_start(nullptr, nullptr); }},
    {"StartWrongHandle", kHandle, "this is a plan, not a context",
     [](Rig &r) { return lasp_trace_start(reinterpret_cast<lasp_context *>(r.plan), nullptr); }},
    {"StructSize", kStruct, "options.size = 12", [](Rig &r) { return start(r, 12, 0); }},
    {"RecordsNegative", kInvalid, "options.max_records = -1",
     [](Rig &r) { return start(r, sizeof(lasp_trace_options), -1); }},
    {"TooManyRecords", kInvalid, "options.max_records = 67108865",
     [](Rig &r) { return start(r, sizeof(lasp_trace_options), (1 << 26) + 1); }},
    {"StartTwice", LASP_ERROR_IN_USE, "traced already; stop",
     [](Rig &r) {
       Rig::must(lasp_trace_start(r.context, nullptr));
       return lasp_trace_start(r.context, nullptr);
     }},
    {"StartOnAnotherContextOfTheComm", LASP_ERROR_IN_USE, "its comm is traced by another context",
     [](Rig &r) {
       lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
       options.cpu_threads = 1;
       lasp_context *other = nullptr;
       Rig::must(lasp_context_create(LASP_ABI, r.comm, &options, &other));
       Rig::must(lasp_trace_start(other, nullptr));
       const lasp_status status = lasp_trace_start(r.context, nullptr);
       const std::string sentence = lasp_last_error();
       Rig::must(lasp_context_destroy(other));  // ends its trace
       return lasp_set_last_error(status, sentence.c_str());
     }},
    {"StopNull", kInvalid, "context is null", [](Rig &) { return lasp_trace_stop(nullptr); }},
    {"StopWithoutStart", kInvalid, "not traced", [](Rig &r) { return lasp_trace_stop(r.context); }},
    {"StopTwice", kInvalid, "not traced",
     [](Rig &r) {
       Rig::must(lasp_trace_start(r.context, nullptr));
       Rig::must(lasp_trace_stop(r.context));
       return lasp_trace_stop(r.context);
     }},
    {"WriteNull", kInvalid, "context is null", [](Rig &) { return lasp_trace_write(nullptr, "trace.json"); }},
    {"WriteWithoutStart", kInvalid, "nothing was recorded",
     [](Rig &r) { return lasp_trace_write(r.context, "trace.json"); }},
    {"WriteNoPath", kInvalid, "path is null",
     [](Rig &r) {
       Rig::must(lasp_trace_start(r.context, nullptr));
       return lasp_trace_write(r.context, nullptr);
     }},
    {"WriteNoFolder", kInvalid, "path = \"no/such/folder/t.json\": No such file",
     [](Rig &r) {
       Rig::must(lasp_trace_start(r.context, nullptr));
       return lasp_trace_write(r.context, "no/such/folder/t.json");
     }},
    {"WriteFullDisk", kInvalid, "not written to the end: No space left",
     [](Rig &r) {
       Rig::must(lasp_trace_start(r.context, nullptr));
       return lasp_trace_write(r.context, "/dev/full");
     }},
};
INSTANTIATE_TEST_SUITE_P(Trace, WrongCalls, testing::ValuesIn(kRows), name_of_row);

// Contexts with LASP_TRACE set.
class TraceVariable : public testing::Test {
 protected:
  TraceVariable() : folder_(fs::path(testing::TempDir()) / ("lasp-trace-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~TraceVariable() override {
    unsetenv("LASP_TRACE");
    fs::remove_all(folder_);
  }
  void set(const std::string &value) { setenv("LASP_TRACE", value.c_str(), 1); }
  std::string in_folder(const std::string &name) const { return (folder_ / name).string(); }
  // A context on rank 1 of 2, made and destroyed.
  static lasp_status make() {
    lasp_comm *comms[2] = {};
    Rig::must(lasp_comm_create_threads(2, comms));
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1;
    lasp_context *context = nullptr;
    const lasp_status status = lasp_context_create(LASP_ABI, comms[1], &options, &context);
    const std::string sentence = lasp_last_error();
    if (status == LASP_OK) Rig::must(lasp_context_destroy(context));
    for (lasp_comm *comm : comms) Rig::must(lasp_comm_destroy(comm));
    return lasp_set_last_error(status, sentence.c_str());
  }
  void refused(const std::string &value, const std::string &why) {
    set(value);
    EXPECT_EQ(make(), LASP_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(lasp_last_error()).find(why), std::string::npos) << lasp_last_error();
  }

  fs::path folder_;
};

TEST_F(TraceVariable, RefusesWhatCannotBeWritten) {
  refused(in_folder("trace.json"), "would write one file");
  refused(in_folder("%x.json"), "%r is the rank");
  refused(in_folder("trace-%"), "%r is the rank");
  refused(in_folder("none/%r.json"), "No such file");
}

TEST_F(TraceVariable, WritesAFileForEachContext) {
  set(in_folder("100%%-%r-%p.json"));
  const std::string stem = "100%-1-" + std::to_string(getpid());
  EXPECT_EQ(make(), LASP_OK) << lasp_last_error();
  EXPECT_EQ(make(), LASP_OK) << lasp_last_error();
  for (const std::string &name : {stem + ".json", stem + "-2.json"}) {
    std::ifstream file(in_folder(name));
    std::string text((std::istreambuf_iterator<char>(file)), {});
    EXPECT_NE(text.find("\"rank\":1,\"ranks\":2"), std::string::npos) << name << ": " << text;
  }
}

TEST_F(TraceVariable, ALockedFileIsAnotherTraces) {
  const std::string path = in_folder("locked-%r.json"), file = in_folder("locked-1.json");
  const std::string lock = "exec 9>" + file + "; flock 9; touch " + file + ".held; read line";
  std::FILE *const other = popen(lock.c_str(), "w");
  ASSERT_NE(other, nullptr);
  for (int i = 0; i < 500 && !fs::exists(file + ".held"); ++i) usleep(10'000);
  ASSERT_TRUE(fs::exists(file + ".held"));
  refused(path, "another trace is written to");
  pclose(other);
}

}  // namespace
