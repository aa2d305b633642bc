// The struct rules: INIT macro and init function agree; a smaller struct, of an earlier header, is read as a
// prefix, a larger one only with a zero tail; an output struct, or text, is written up to the caller's size and not
// a byte further.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "first_sizes.h"
#include "init_macros.h"
#include "rig.h"

namespace {

// Exactly `size` bytes that end where a page begins that nobody may touch: a byte read or written beyond them is a
// crash. A canary lies before them.
class Bytes {
 public:
  Bytes(const void *from, size_t known, size_t size)
      : size_(size), page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    const size_t pages = (kCanary + size + page_ - 1) / page_;
    mapped_ = (pages + 1) * page_;
    memory_ = static_cast<unsigned char *>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(memory_, MAP_FAILED);
    EXPECT_EQ(mprotect(memory_ + pages * page_, page_, PROT_NONE), 0);
    data_ = memory_ + pages * page_ - size;
    std::memset(memory_, 0xa5, pages * page_ - size);
    std::memcpy(data_, from, std::min(known, size));
    std::memcpy(data_, &size, std::min(size, sizeof size));
  }
  ~Bytes() { munmap(memory_, mapped_); }
  Bytes(const Bytes &) = delete;
  Bytes &operator=(const Bytes &) = delete;
  unsigned char *data() { return data_; }
  size_t size() const { return size_; }
  bool guard_intact() const {
    return std::all_of(data_ - kCanary, data_, [](unsigned char byte) { return byte == 0xa5; });
  }

 private:
  static constexpr size_t kCanary = 64;
  size_t size_, page_, mapped_;
  unsigned char *memory_, *data_;
};

// Sizes that no header has had: beginning with one that is too small to hold the size itself.
std::vector<size_t> no_sizes(size_t first) { return {0, 1, sizeof(size_t) - 1, 12, first - 8, first + 4}; }

// ---- Macro and function ----

using Init = std::function<lasp_status(void *, size_t)>;
struct InitRow {
  const char *name;
  const void *macro;
  size_t size, first;  // `first` in the first release's header
  Init init;
};
template <class T>
InitRow init_row(const char *name, const T &macro, size_t first, lasp_status (*init)(T *, size_t)) {
  return {name, &macro, sizeof(T), first, [init](void *p, size_t size) { return init(static_cast<T *>(p), size); }};
}
const std::vector<InitRow> &init_rows() {
  static const std::vector<InitRow> rows = {
      init_row("lasp_context_options", macro_context_options, first_sizes.context_options,
               lasp_context_options_init),
      init_row("lasp_problem", macro_problem, first_sizes.problem, lasp_problem_init),
      init_row("lasp_forward_args", macro_forward_args, first_sizes.forward_args, lasp_forward_args_init),
      init_row("lasp_backward_args", macro_backward_args, first_sizes.backward_args, lasp_backward_args_init),
      init_row("lasp_step_args", macro_step_args, first_sizes.step_args, lasp_step_args_init),
      init_row("lasp_maps_args", macro_maps_args, sizeof(lasp_maps_args), lasp_maps_args_init),
  };
  return rows;
}

TEST(Init, FunctionEqualsMacroByteForByte) {
  for (const InitRow &row : init_rows()) {
    std::vector<unsigned char> bytes(row.size, 0xa5);
    ASSERT_EQ(row.init(bytes.data(), row.size), LASP_OK) << row.name << ": " << lasp_last_error();
    EXPECT_EQ(std::memcmp(bytes.data(), row.macro, row.size), 0) << row.name;
  }
}

// A program compiled against a header with a smaller, or a larger, struct of the same name.
TEST(Init, FunctionWritesTheGivenSizeOnly) {
  for (const InitRow &row : init_rows()) {
    for (const size_t size : {row.first, row.size, row.size + 40}) {
      SCOPED_TRACE(std::string(row.name) + ", size " + std::to_string(size));
      std::vector<unsigned char> bytes(row.size + 128, 0xa5);
      ASSERT_EQ(row.init(bytes.data(), size), LASP_OK) << lasp_last_error();
      size_t stated;
      std::memcpy(&stated, bytes.data(), sizeof stated);
      EXPECT_EQ(stated, size);
      for (size_t i = sizeof(size_t); i < bytes.size(); ++i) {
        const unsigned char expected = i >= size       ? 0xa5
                                       : i >= row.size ? 0
                                                       : static_cast<const unsigned char *>(row.macro)[i];
        ASSERT_EQ(bytes[i], expected) << "byte " << i;
      }
    }
    for (const size_t size : no_sizes(row.first)) {
      std::vector<unsigned char> bytes(row.size, 0xa5);
      EXPECT_EQ(row.init(bytes.data(), size), LASP_ERROR_INVALID_STRUCT) << row.name << ", size " << size;
      EXPECT_EQ(bytes, std::vector<unsigned char>(row.size, 0xa5)) << row.name;
    }
  }
}

TEST(Init, EveryMacroStatesItsSize) {
  EXPECT_EQ(macro_build_info.size, sizeof macro_build_info);
  EXPECT_EQ(macro_nccl_functions.size, sizeof macro_nccl_functions);
  EXPECT_EQ(macro_transport.size, sizeof macro_transport);
  EXPECT_EQ(macro_traffic.size, sizeof macro_traffic);
  EXPECT_EQ(macro_plan_info.size, sizeof macro_plan_info);
  EXPECT_EQ(macro_packing.size, sizeof macro_packing);
  EXPECT_EQ(macro_halo_options.size, sizeof macro_halo_options);
  EXPECT_EQ(macro_halo_info.size, sizeof macro_halo_info);
  EXPECT_EQ(macro_halo_args.size, sizeof macro_halo_args);
  EXPECT_EQ(macro_groups.size, sizeof macro_groups);
  EXPECT_EQ(macro_trace_options.size, sizeof macro_trace_options);
  EXPECT_EQ(macro_placement.size, sizeof macro_placement);
}

// ---- Structs the library reads ----

lasp_status never(void *, const void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
  return LASP_ERROR_TRANSPORT;
}
lasp_transport valid_transport() {
  lasp_transport t = LASP_TRANSPORT_INIT;
  t.send = never;
  t.receive = [](void *, void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
    return lasp_status{LASP_ERROR_TRANSPORT};
  };
  t.test = [](void *, void *, int32_t *) { return lasp_status{LASP_ERROR_TRANSPORT}; };
  t.wait = [](void *, void *, int64_t, int32_t *) { return lasp_status{LASP_ERROR_TRANSPORT}; };
  t.cancel = [](void *, void *) {};
  return t;
}

struct Input {
  const char *name;
  std::vector<unsigned char> valid;  // a whole valid struct
  size_t first;                      // its size in the first release's header
  std::function<lasp_status(Rig &, void *)> call;
};
template <class T>
std::vector<unsigned char> bytes_of(const T &value) {
  const auto *bytes = reinterpret_cast<const unsigned char *>(&value);
  return {bytes, bytes + sizeof value};
}

lasp_halo_options halo_options() {
  lasp_halo_options options = macro_halo_options;
  options.channels = 16;
  return options;
}
struct MadeHalo {
  explicit MadeHalo(Rig &rig) {
    const lasp_halo_options options = halo_options();
    Rig::must(lasp_halo_create(rig.plan, &options, &halo));
  }
  ~MadeHalo() { lasp_halo_destroy(halo); }
  MadeHalo(const MadeHalo &) = delete;
  MadeHalo &operator=(const MadeHalo &) = delete;
  lasp_halo *halo = nullptr;
};
lasp_halo_args halo_args(const Rig &rig) {
  lasp_halo_args args = macro_halo_args;
  args.x = {rig.o.data, rig.o.bytes};
  args.before = rig.dq;
  args.workspace = rig.workspace;
  return args;
}

std::vector<Input> inputs(Rig &rig) {
  return {
      {"lasp_context_options", bytes_of(macro_context_options), first_sizes.context_options,
       [](Rig &r, void *p) {
         lasp_context *made = nullptr;
         const lasp_status status =
             lasp_context_create(LASP_ABI, r.comm, static_cast<lasp_context_options *>(p), &made);
         if (status == LASP_OK) Rig::must(lasp_context_destroy(made));
         return status;
       }},
      {"lasp_problem", bytes_of(Rig::valid_problem()), first_sizes.problem,
       [](Rig &r, void *p) {
         lasp_plan *made = nullptr;
         const lasp_status status = lasp_plan_create(r.context, static_cast<lasp_problem *>(p), &made);
         if (status == LASP_OK) Rig::must(lasp_plan_destroy(made));
         return status;
       }},
      {"lasp_transport", bytes_of(valid_transport()), first_sizes.transport,
       [](Rig &, void *p) {
         lasp_comm *made = nullptr;
         const lasp_status status = lasp_comm_create_custom(static_cast<lasp_transport *>(p), nullptr, &made);
         if (status == LASP_OK) Rig::must(lasp_comm_destroy(made));
         return status;
       }},
      {"lasp_forward_args", bytes_of(rig.forward_args()), first_sizes.forward_args,
       [](Rig &r, void *p) { return lasp_forward(r.plan, static_cast<lasp_forward_args *>(p), nullptr); }},
      {"lasp_backward_args", bytes_of(rig.backward_args()), first_sizes.backward_args,
       [](Rig &r, void *p) { return lasp_backward(r.plan, static_cast<lasp_backward_args *>(p), nullptr); }},
      {"lasp_step_args", bytes_of(rig.step_args()), first_sizes.step_args,
       [](Rig &r, void *p) { return lasp_step(r.plan, static_cast<lasp_step_args *>(p), nullptr); }},
      {"lasp_halo_options", bytes_of(halo_options()), sizeof(lasp_halo_options),
       [](Rig &r, void *p) {
         lasp_halo *made = nullptr;
         const lasp_status status = lasp_halo_create(r.plan, static_cast<lasp_halo_options *>(p), &made);
         if (status == LASP_OK) Rig::must(lasp_halo_destroy(made));
         return status;
       }},
      {"lasp_halo_args", bytes_of(halo_args(rig)), sizeof(lasp_halo_args),
       [](Rig &r, void *p) {
         const MadeHalo made(r);
         return lasp_halo_forward(made.halo, static_cast<lasp_halo_args *>(p), nullptr);
       }},
      {"lasp_trace_options", bytes_of(macro_trace_options), sizeof(lasp_trace_options),
       [](Rig &r, void *p) {
         const lasp_status status = lasp_trace_start(r.context, static_cast<lasp_trace_options *>(p));
         if (status == LASP_OK) Rig::must(lasp_trace_stop(r.context));
         return status;
       }},
  };
}

class InputStructs : public testing::Test {
 protected:
  void SetUp() override {  // a state and a cache to compute from
    std::memset(rig.state.data, 0, rig.state.bytes);
    const lasp_forward_args args = rig.forward_args();
    ASSERT_EQ(lasp_forward(rig.plan, &args, nullptr), LASP_OK) << lasp_last_error();
  }
  Rig rig;
};

// What a program compiled against the first release's header hands over, and nothing beyond it: the rest is
// default.
TEST_F(InputStructs, OfTheFirstHeadersSizeAreAccepted) {
  for (const Input &input : inputs(rig)) {
    EXPECT_LE(input.first, input.valid.size()) << input.name << ": structs only grow";
    Bytes bytes(input.valid.data(), input.valid.size(), input.first);
    EXPECT_EQ(input.call(rig, bytes.data()), LASP_OK) << input.name << ": " << lasp_last_error();
  }
}

// What lies behind the caller's struct is not the library's to read, whatever it is: here, what most fields refuse.
TEST_F(InputStructs, NothingBeyondTheFirstHeadersSizeCounts) {
  for (const Input &input : inputs(rig)) {
    Bytes bytes(input.valid.data(), input.valid.size(), input.valid.size());
    std::memset(bytes.data() + input.first, 0xee, input.valid.size() - input.first);
    std::memcpy(bytes.data(), &input.first, sizeof input.first);
    ASSERT_EQ(input.call(rig, bytes.data()), LASP_OK) << input.name << ": " << lasp_last_error();
  }
}

TEST_F(InputStructs, LargerWithZeroTailIsAccepted) {
  for (const Input &input : inputs(rig)) {
    Bytes bytes(input.valid.data(), input.valid.size(), input.valid.size() + 48);
    EXPECT_EQ(input.call(rig, bytes.data()), LASP_OK) << input.name << ": " << lasp_last_error();
  }
}

TEST_F(InputStructs, LargerWithUnknownTailIsRefused) {
  for (const Input &input : inputs(rig)) {
    for (const size_t at : {size_t{0}, size_t{47}}) {  // the first and the last unknown byte
      Bytes bytes(input.valid.data(), input.valid.size(), input.valid.size() + 48);
      bytes.data()[input.valid.size() + at] = 1;
      const std::vector<unsigned char> before = rig.arena.bytes();
      EXPECT_EQ(input.call(rig, bytes.data()), LASP_ERROR_INVALID_STRUCT) << input.name << ", byte " << at;
      EXPECT_NE(std::string(lasp_last_error()).find("size"), std::string::npos) << lasp_last_error();
      EXPECT_TRUE(before == rig.arena.bytes()) << input.name << ": a buffer was written";
    }
  }
}

TEST_F(InputStructs, OfASizeThatNoHeaderHadAreRefused) {
  for (const Input &input : inputs(rig)) {
    for (const size_t size : no_sizes(input.first)) {
      Bytes bytes(input.valid.data(), input.valid.size(), input.valid.size() + 8);
      std::memcpy(bytes.data(), &size, sizeof size);
      EXPECT_EQ(input.call(rig, bytes.data()), LASP_ERROR_INVALID_STRUCT) << input.name << ", size " << size;
      EXPECT_NE(std::string(lasp_last_error()).find("size = " + std::to_string(size)), std::string::npos)
          << lasp_last_error();
    }
  }
}

// ---- Structs the library writes ----

struct Output {
  const char *name;
  size_t size, prefix, first;  // `first` in the first release's header
  std::function<lasp_status(Rig &, void *)> call;
};
const std::vector<Output> &outputs() {
  static const std::vector<Output> rows = {
      {"lasp_build_info", sizeof(lasp_build_info), offsetof(lasp_build_info, flags), first_sizes.build_info,
       [](Rig &, void *p) { return lasp_get_build_info(static_cast<lasp_build_info *>(p)); }},
      {"lasp_traffic", sizeof(lasp_traffic), offsetof(lasp_traffic, messages_sent), first_sizes.traffic,
       [](Rig &r, void *p) { return lasp_comm_get_traffic(r.comm, static_cast<lasp_traffic *>(p)); }},
      {"lasp_plan_info", sizeof(lasp_plan_info), offsetof(lasp_plan_info, token_begin), first_sizes.plan_info,
       [](Rig &r, void *p) { return lasp_plan_get_info(r.plan, static_cast<lasp_plan_info *>(p)); }},
      {"lasp_halo_info", sizeof(lasp_halo_info), offsetof(lasp_halo_info, forward_bytes_sent),
       sizeof(lasp_halo_info),
       [](Rig &r, void *p) {
         const MadeHalo made(r);
         return lasp_halo_get_info(made.halo, static_cast<lasp_halo_info *>(p));
       }},
      {"lasp_groups", sizeof(lasp_groups), offsetof(lasp_groups, data_ranks), first_sizes.groups,
       [](Rig &, void *p) { return lasp_groups_of_rank(12, 3, 2, 7, static_cast<lasp_groups *>(p)); }},
  };
  return rows;
}

TEST(OutputStructs, AreWrittenByTheCallersSize) {
  Rig rig;
  for (const Output &output : outputs()) {
    SCOPED_TRACE(output.name);
    const std::vector<unsigned char> nothing(output.size, 0xee);
    Bytes whole(nothing.data(), output.size, output.size), prefix(nothing.data(), output.size, output.prefix),
        larger(nothing.data(), output.size, output.size + 48), first(nothing.data(), output.size, output.first);
    ASSERT_EQ(output.call(rig, whole.data()), LASP_OK) << lasp_last_error();
    ASSERT_EQ(output.call(rig, prefix.data()), LASP_OK) << lasp_last_error();
    ASSERT_EQ(output.call(rig, larger.data()), LASP_OK) << lasp_last_error();
    ASSERT_EQ(output.call(rig, first.data()), LASP_OK) << lasp_last_error();
    const size_t from = sizeof(size_t);  // each keeps the size its caller stated
    EXPECT_LE(output.first, output.size) << "structs only grow";
    EXPECT_EQ(std::memcmp(whole.data() + from, prefix.data() + from, output.prefix - from), 0);
    EXPECT_EQ(std::memcmp(whole.data() + from, first.data() + from, output.first - from), 0);
    EXPECT_EQ(std::memcmp(whole.data() + from, larger.data() + from, output.size - from), 0);
    for (size_t i = output.size; i < larger.size(); ++i) EXPECT_EQ(larger.data()[i], 0);
    for (Bytes *bytes : {&whole, &prefix, &larger, &first}) {
      size_t stated;
      std::memcpy(&stated, bytes->data(), sizeof stated);
      EXPECT_EQ(stated, bytes->size());
      EXPECT_TRUE(bytes->guard_intact());
    }
    EXPECT_NE(std::memcmp(whole.data() + from, nothing.data(), output.size - from), 0) << "nothing was written";
  }
}

// What a newer header's struct holds beyond this library's knowledge comes back as zero, "default", not as whatever
// was there before.
TEST(OutputStructs, UnknownTailComesBackZero) {
  Rig rig;
  for (const Output &output : outputs()) {
    SCOPED_TRACE(output.name);
    const std::vector<unsigned char> noise(output.size + 48, 0xee);
    Bytes larger(noise.data(), noise.size(), noise.size());
    ASSERT_EQ(output.call(rig, larger.data()), LASP_OK) << lasp_last_error();
    for (size_t i = output.size; i < larger.size(); ++i) EXPECT_EQ(larger.data()[i], 0) << "byte " << i;
    EXPECT_TRUE(larger.guard_intact());
  }
}

TEST(OutputStructs, OfASizeThatNoHeaderHadAreRefused) {
  Rig rig;
  for (const Output &output : outputs()) {
    for (const size_t size : {size_t{0}, size_t{1}, sizeof(size_t) - 1, size_t{12}, output.size + 4}) {
      const std::vector<unsigned char> nothing(output.size + 8, 0xee);
      Bytes bytes(nothing.data(), nothing.size(), nothing.size());
      std::memcpy(bytes.data(), &size, sizeof size);
      EXPECT_EQ(output.call(rig, bytes.data()), LASP_ERROR_INVALID_STRUCT) << output.name << ", size " << size;
      for (size_t i = sizeof size; i < bytes.size(); ++i) EXPECT_EQ(bytes.data()[i], 0xee) << output.name;
    }
  }
}

// ---- Text the library writes ----

// Every capacity from none to more than is needed: a prefix with its zero, and no byte beyond the capacity.
TEST(Describe, WritesNoByteBeyondTheCapacity) {
  Rig rig;
  size_t needed = 0;
  ASSERT_EQ(lasp_plan_describe(rig.plan, nullptr, 0, &needed), LASP_OK) << lasp_last_error();
  ASSERT_GT(needed, 100u);
  std::vector<char> whole(needed, '\x5a');
  ASSERT_EQ(lasp_plan_describe(rig.plan, whole.data(), needed, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_EQ(whole.back(), '\0');
  EXPECT_EQ(std::strlen(whole.data()), needed - 1);
  for (size_t capacity = 0; capacity <= needed + 2; ++capacity) {
    std::vector<char> text(needed + 64, '\x5a');
    size_t told = 0;
    ASSERT_EQ(lasp_plan_describe(rig.plan, text.data(), capacity, &told), LASP_OK) << lasp_last_error();
    EXPECT_EQ(told, needed);
    const size_t length = capacity == 0 ? 0 : std::min(capacity, needed) - 1;
    ASSERT_TRUE(std::equal(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length), whole.begin()))
        << capacity;
    if (capacity > 0) {
      ASSERT_EQ(text[length], '\0') << "capacity " << capacity;
    }
    for (size_t i = capacity == 0 ? 0 : length + 1; i < text.size(); ++i)
      ASSERT_EQ(text[i], '\x5a') << "byte " << i << " of capacity " << capacity;
  }
}

}  // namespace
