// Wrong calls on halos.
#include "bad_input.h"

namespace {

constexpr lasp_status kHandle = LASP_ERROR_INVALID_HANDLE, kStruct = LASP_ERROR_INVALID_STRUCT;
constexpr lasp_status kSmall = LASP_ERROR_BUFFER_TOO_SMALL, kMisaligned = LASP_ERROR_MISALIGNED;
constexpr int64_t kRows = 3, kChannels = 16;

// A halo on the rig's plan, with args in the rig's buffers: o serves as x, dv as d_x.
class WithHalo {
 public:
  explicit WithHalo(Rig &rig) : rig_(rig) {
    lasp_halo_options options = valid();
    Rig::must(lasp_halo_create(rig.plan, &options, &halo));
  }
  ~WithHalo() { lasp_halo_destroy(halo); }
  WithHalo(const WithHalo &) = delete;
  WithHalo &operator=(const WithHalo &) = delete;

  static lasp_halo_options valid() {
    lasp_halo_options options = LASP_HALO_OPTIONS_INIT;
    options.rows = kRows, options.channels = kChannels;
    return options;
  }
  lasp_halo_args args() const {
    lasp_halo_args a = LASP_HALO_ARGS_INIT;
    a.x = {rig_.o.data, rig_.o.bytes};
    a.before = rig_.dq;
    a.d_before = {rig_.dk.data, rig_.dk.bytes};
    a.d_x = rig_.dv;
    a.workspace = rig_.workspace;
    return a;
  }
  lasp_halo *halo = nullptr;

 private:
  Rig &rig_;
};

template <class Change>
lasp_status create(Rig &rig, Change change) {
  lasp_halo_options options = WithHalo::valid();
  change(options);
  return lasp_halo_create(rig.plan, &options, &rig.outs.halo);
}
template <class Change>
lasp_status forward(Rig &rig, Change change) {
  const WithHalo with(rig);
  lasp_halo_args args = with.args();
  change(args, rig);
  return lasp_halo_forward(with.halo, &args, nullptr);
}
template <class Change>
lasp_status backward(Rig &rig, Change change) {
  const WithHalo with(rig);
  lasp_halo_args args = with.args();
  change(args, rig);
  return lasp_halo_backward(with.halo, &args, nullptr);
}

template <class Buffer>
void misalign(Buffer &buffer, size_t bytes) {
  buffer.data = static_cast<std::remove_pointer_t<decltype(buffer.data)> *>(
      reinterpret_cast<decltype(buffer.data)>(reinterpret_cast<uintptr_t>(buffer.data) + bytes));
  buffer.bytes -= bytes;
}

#define CREATE(change) [](Rig &r) { return create(r, [](lasp_halo_options &o) { change; }); }
#define FORWARD(change) \
  [](Rig &r) { return forward(r, [](lasp_halo_args &a, [[maybe_unused]] Rig &rig) { change; }); }
#define BACKWARD(change) \
  [](Rig &r) { return backward(r, [](lasp_halo_args &a, [[maybe_unused]] Rig &rig) { change; }); }

lasp_halo *dead_halo(Rig &rig) {
  lasp_halo *halo = nullptr;
  const lasp_halo_options options = WithHalo::valid();
  Rig::must(lasp_halo_create(rig.plan, &options, &halo));
  Rig::must(lasp_halo_destroy(halo));
  return halo;
}

const WrongCall kCreate[] = {
    {"NullPlan", kInvalid, "plan",
     [](Rig &r) {
       const lasp_halo_options options = WithHalo::valid();
       return lasp_halo_create(nullptr, &options, &r.outs.halo);
     }},
    {"WrongHandle", kHandle, "plan",
     [](Rig &r) {
       const lasp_halo_options options = WithHalo::valid();
       return lasp_halo_create(reinterpret_cast<lasp_plan *>(r.context), &options, &r.outs.halo);
     }},
    {"NullOptions", kInvalid, "options", [](Rig &r) { return lasp_halo_create(r.plan, nullptr, &r.outs.halo); }},
    {"NullOut", kInvalid, "halo",
     [](Rig &r) {
       const lasp_halo_options options = WithHalo::valid();
       return lasp_halo_create(r.plan, &options, nullptr);
     }},
    {"StructSize", kStruct, "options.size", CREATE(o.size = 12)},
    {"NoRows", kInvalid, "rows = 0", CREATE(o.rows = 0)},
    {"RowsNegative", kInvalid, "rows = -1", CREATE(o.rows = -1)},
    {"TooManyRows", kInvalid, "rows = 65.*64", CREATE(o.rows = 65)},
    {"NoChannels", kInvalid, "channels = 0", CREATE(o.channels = 0)},
    {"TooManyChannels", kInvalid, "channels|2\\^62", CREATE(o.channels = INT64_MAX / 4)},
    {"Type", kInvalid, "x.dtype = ", CREATE(o.x.dtype = 77)},
    {"TypeOfGradient", kInvalid, "d_x.dtype = ", CREATE(o.d_x.dtype = -1)},
    {"Flags", kInvalid, "x.flags = 2", CREATE(o.x.flags = 2)},
    {"Reserved", kInvalid, "d_x.reserved", CREATE(o.d_x.reserved[1] = 1)},
    {"StrideWithoutFlag", kInvalid, "x: has strides.*LASP_LAYOUT_STRIDED", CREATE(o.x.token = 16)},
    {"StrideNegative", kInvalid, "x.token = -16", CREATE(o.x.flags = LASP_LAYOUT_STRIDED; o.x.token = -16)},
    {"RowsOverlap", kInvalid, "d_x.token = 15", CREATE(o.d_x.flags = LASP_LAYOUT_STRIDED; o.d_x.token = 15)},
    {"OutputWithStrideZero", kInvalid, "d_x.token = 0", CREATE(o.d_x.flags = LASP_LAYOUT_STRIDED)},
};

const WrongCall kHalo[] = {
    {"InfoOfNull", kInvalid, "halo", [](Rig &r) { return lasp_halo_get_info(nullptr, &r.outs.halo_info); }},
    {"InfoOfDead", kHandle, "halo", [](Rig &r) { return lasp_halo_get_info(dead_halo(r), &r.outs.halo_info); }},
    {"InfoOfPlan", kHandle, "this is a plan, not a halo",
     [](Rig &r) { return lasp_halo_get_info(reinterpret_cast<lasp_halo *>(r.plan), &r.outs.halo_info); }},
    {"InfoNull", kInvalid, "info",
     [](Rig &r) {
       const WithHalo with(r);
       return lasp_halo_get_info(with.halo, nullptr);
     }},
    {"PlanDestroyedBefore", LASP_ERROR_IN_USE, "plan: 1 halo",
     [](Rig &r) {
       const WithHalo with(r);
       return lasp_plan_destroy(r.plan);
     }},
    {"DestroyTwice", kHandle, "halo", [](Rig &r) { return lasp_halo_destroy(dead_halo(r)); }},
    {"HaloAsPlan", kHandle, "this is a halo, not a plan",
     [](Rig &r) {
       const WithHalo with(r);
       return lasp_plan_destroy(reinterpret_cast<lasp_plan *>(with.halo));
     }},
};

// Of a plan whose ranks have two runs of tokens each.
template <class Call>
lasp_status of_zigzag(Rig &rig, Call call, int32_t ownership = LASP_OWN_ZIGZAG) {
  lasp_problem problem = Rig::valid_problem();
  problem.ownership = ownership;
  if (ownership == LASP_OWN_ZIGZAG_EACH) problem.max_sequences = 3;
  lasp_plan *plan = nullptr;
  Rig::must(lasp_plan_create(rig.context, &problem, &plan));
  const lasp_status status = call(plan);
  lasp_plan_destroy(plan);
  return status;
}

lasp_packing packing_of(const std::vector<int64_t> &offsets) {
  lasp_packing packing = LASP_PACKING_INIT;
  packing.cu_seqlens = {offsets.data(), offsets.size() * sizeof offsets[0]};
  packing.num_sequences = static_cast<int64_t>(offsets.size()) - 1;
  return packing;
}
lasp_status halo_of_each(Rig &rig, const std::vector<int64_t> &offsets) {
  const auto call = [&](lasp_plan *plan) {
    const lasp_packing packing = packing_of(offsets);
    lasp_halo_options options = WithHalo::valid();
    lasp_halo *halo = nullptr;
    Rig::must(lasp_halo_create(plan, &options, &halo));
    lasp_halo_args args = LASP_HALO_ARGS_INIT;
    args.x = {rig.o.data, rig.o.bytes}, args.before = rig.dq, args.workspace = rig.workspace;
    args.packing = &packing;
    const lasp_status status = lasp_halo_forward(halo, &args, nullptr);
    lasp_halo_destroy(halo);
    return status;
  };
  return of_zigzag(rig, call, LASP_OWN_ZIGZAG_EACH);
}

const WrongCall kZigzag[] = {
    {"Step", LASP_ERROR_UNSUPPORTED, "step is not served with ownership = LASP_OWN_ZIGZAG",
     [](Rig &r) {
       return of_zigzag(r, [&](lasp_plan *plan) {
         const lasp_step_args args = r.step_args();
         return lasp_step(plan, &args, nullptr);
       });
     }},
    {"StepOfEach", LASP_ERROR_UNSUPPORTED, "step is not served with ownership = LASP_OWN_ZIGZAG_EACH",
     [](Rig &r) {
       const auto step = [&](lasp_plan *plan) {
         const lasp_step_args args = r.step_args();
         return lasp_step(plan, &args, nullptr);
       };
       return of_zigzag(r, step, LASP_OWN_ZIGZAG_EACH);
     }},
    // Of a group of one, whose sequences have two parts each.
    {"OddSequence", kInvalid, "cu_seqlens\\[2\\] = 13: with LASP_OWN_ZIGZAG_EACH each sequence is cut into 2 parts",
     [](Rig &r) {
       return halo_of_each(r, {0, 6, 13, 24});
     }},
    {"PartsShorterThanRows", LASP_ERROR_UNSUPPORTED,
     "sequence 1 has parts of 2 tokens, which are fewer than the 3 rows",
     [](Rig &r) {
       return halo_of_each(r, {0, 10, 14, 24});
     }},
};

const WrongCall kForward[] = {
    {"NullHalo", kInvalid, "halo",
     [](Rig &) {
       const lasp_halo_args args = LASP_HALO_ARGS_INIT;
       return lasp_halo_forward(nullptr, &args, nullptr);
     }},
    {"NullArgs", kInvalid, "args", [](Rig &r) { return lasp_halo_forward(WithHalo(r).halo, nullptr, nullptr); }},
    {"StructSize", kStruct, "args.size = 12", FORWARD(a.size = 12)},
    {"Stream", kInvalid, "stream",
     [](Rig &r) {
       const WithHalo with(r);
       const lasp_halo_args args = with.args();
       return lasp_halo_forward(with.halo, &args, reinterpret_cast<lasp_stream>(&r));
     }},
    {"XAbsent", kInvalid, "\\bx\\b", FORWARD((a.x = {nullptr, 0}))},
    {"BeforeAbsent", kInvalid, "before", FORWARD((a.before = {nullptr, 0}))},
    {"XTooSmall", kSmall, "\\bx\\b", FORWARD(a.x.bytes = Rig::kTokens * kChannels * 4 - 1)},
    {"BeforeTooSmall", kSmall, "before", FORWARD(a.before.bytes = kRows * kChannels * 4 - 1)},
    {"XMisaligned", kMisaligned, "\\bx\\b", FORWARD(misalign(a.x, 2))},
    {"BeforeMisaligned", kMisaligned, "before", FORWARD(misalign(a.before, 1))},
    {"WorkspaceMisaligned", kMisaligned, "workspace", FORWARD(misalign(a.workspace, 8))},
    {"BeforeInsideX", kInvalid, "x and before share memory", FORWARD(a.before.data = const_cast<void *>(a.x.data))},
};

const WrongCall kBackward[] = {
    {"NullHalo", kInvalid, "halo",
     [](Rig &) {
       const lasp_halo_args args = LASP_HALO_ARGS_INIT;
       return lasp_halo_backward(nullptr, &args, nullptr);
     }},
    {"NullArgs", kInvalid, "args", [](Rig &r) { return lasp_halo_backward(WithHalo(r).halo, nullptr, nullptr); }},
    {"GradientAbsent", kInvalid, "d_before", BACKWARD((a.d_before = {nullptr, 0}))},
    {"DxAbsent", kInvalid, "d_x", BACKWARD((a.d_x = {nullptr, 0}))},
    {"GradientTooSmall", kSmall, "d_before", BACKWARD(a.d_before.bytes = 8)},
    {"DxTooSmall", kSmall, "d_x", BACKWARD(a.d_x.bytes = Rig::kTokens * kChannels * 4 - 1)},
    {"GradientMisaligned", kMisaligned, "d_before", BACKWARD(misalign(a.d_before, 2))},
    {"DxMisaligned", kMisaligned, "d_x", BACKWARD(misalign(a.d_x, 2))},
    {"GradientInsideDx", kInvalid, "d_before and d_x share memory", BACKWARD(a.d_before.data = a.d_x.data)},
};

// What lasp_problem_get_halo_info refuses, and leaves unwritten.
template <class Change>
lasp_status assumed(Rig &rig, Change change) {
  lasp_problem problem = Rig::valid_problem();
  lasp_placement placement = LASP_PLACEMENT_INIT;
  lasp_halo_options options = WithHalo::valid();
  change(problem, placement, options);
  return lasp_problem_get_halo_info(&problem, &placement, &options, &rig.outs.halo_info);
}
#define ASSUMED(change)                                                                         \
  [](Rig &r) {                                                                                  \
    return assumed(r, []([[maybe_unused]] lasp_problem &p, [[maybe_unused]] lasp_placement &at, \
                         [[maybe_unused]] lasp_halo_options &o) { change; });                   \
  }
lasp_status assumed_without(Rig &rig, int absent) {
  const lasp_problem problem = Rig::valid_problem();
  const lasp_placement placement = LASP_PLACEMENT_INIT;
  const lasp_halo_options options = WithHalo::valid();
  return lasp_problem_get_halo_info(absent == 0 ? nullptr : &problem, absent == 1 ? nullptr : &placement,
                                    absent == 2 ? nullptr : &options, absent == 3 ? nullptr : &rig.outs.halo_info);
}

const WrongCall kAssumed[] = {
    {"NoProblem", kInvalid, "problem is null", [](Rig &r) { return assumed_without(r, 0); }},
    {"NoPlacement", kInvalid, "placement is null", [](Rig &r) { return assumed_without(r, 1); }},
    {"NoOptions", kInvalid, "options is null", [](Rig &r) { return assumed_without(r, 2); }},
    {"NoInfo", kInvalid, "info is null", [](Rig &r) { return assumed_without(r, 3); }},
    {"OptionsSize", kStruct, "options.size", ASSUMED(o.size = 3)},
    {"Rank", kInvalid, "rank = 4", ASSUMED(at.rank = 4)},
    {"Device", kInvalid, "placement.device = 77", ASSUMED(at.device = 77)},
    {"Problem", kUnsupported, "head_dim_k", ASSUMED(p.head_dim_k = 7)},
    {"Rows", kInvalid, "rows = 65", ASSUMED(o.rows = 65)},
    {"Type", kInvalid, "d_x.dtype", ASSUMED(o.d_x.dtype = 77)},
};

INSTANTIATE_TEST_SUITE_P(HaloWithoutAGroup, WrongCalls, testing::ValuesIn(kAssumed), name_of_row);
INSTANTIATE_TEST_SUITE_P(HaloCreate, WrongCalls, testing::ValuesIn(kCreate), name_of_row);
INSTANTIATE_TEST_SUITE_P(Halo, WrongCalls, testing::ValuesIn(kHalo), name_of_row);
INSTANTIATE_TEST_SUITE_P(Zigzag, WrongCalls, testing::ValuesIn(kZigzag), name_of_row);
INSTANTIATE_TEST_SUITE_P(HaloForward, WrongCalls, testing::ValuesIn(kForward), name_of_row);
INSTANTIATE_TEST_SUITE_P(HaloBackward, WrongCalls, testing::ValuesIn(kBackward), name_of_row);

// On a group of one: nothing before, and nothing to add.
TEST(RightCalls, OfAHaloWriteWhatTheySay) {
  Rig rig;
  std::memset(rig.o.data, 0, rig.o.bytes);
  const WithHalo with(rig);
  const lasp_halo_args args = with.args();
  const std::vector<unsigned char> before = rig.arena.bytes();
  EXPECT_EQ(lasp_halo_backward(with.halo, &args, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_EQ(rig.arena.bytes(), before) << "nobody has a gradient for these rows";
  EXPECT_EQ(lasp_halo_forward(with.halo, &args, nullptr), LASP_OK) << lasp_last_error();
  const auto *bytes = static_cast<const unsigned char *>(rig.dq.data);
  for (int64_t i = 0; i < kRows * kChannels * 4; ++i) ASSERT_EQ(bytes[i], 0);
  EXPECT_EQ(bytes[kRows * kChannels * 4], Arena::kCanary);
  EXPECT_EQ(lasp_halo_destroy(nullptr), LASP_OK);
}

}  // namespace
