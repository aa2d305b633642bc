// Wrong packings: every refusal of a pass's offsets, and of a packing that the plan has no use for.
#include "bad_input.h"

namespace {

constexpr lasp_status kStruct = LASP_ERROR_INVALID_STRUCT, kSmall = LASP_ERROR_BUFFER_TOO_SMALL;
constexpr lasp_status kMisaligned = LASP_ERROR_MISALIGNED;

template <class Change>
lasp_status forward(Rig &rig, Change change) {
  lasp_packing packing = rig.packing;
  lasp_forward_args args = rig.forward_args();
  args.packing = &packing;
  change(packing, args);
  return lasp_forward(rig.plan, &args, nullptr);
}

// With these offsets in place of {0, 5, 20}.
template <class T, class... Offset>
lasp_status offsets(Rig &rig, Offset... offset) {
  const T values[] = {static_cast<T>(offset)...};
  return forward(rig, [&](lasp_packing &p, lasp_forward_args &) {
    p.dtype = sizeof(T) == 4 ? LASP_INT32 : LASP_INT64;
    p.cu_seqlens = {values, sizeof values};
    p.num_sequences = static_cast<int64_t>(sizeof...(offset)) - 1;
  });
}

// Calls that take a packing each in its own way.
template <class Args>
lasp_status without(lasp_status (*call)(lasp_plan *, const Args *, lasp_stream), Rig &rig, Args args) {
  args.packing = nullptr;
  return call(rig.plan, &args, nullptr);
}
template <class Args>
lasp_status with(lasp_status (*call)(lasp_plan *, const Args *, lasp_stream), Rig &rig, Args args) {
  args.packing = &rig.packing;
  return call(rig.plan, &args, nullptr);
}

lasp_status halo(Rig &rig, bool is_forward, const lasp_packing *packing) {
  lasp_halo_options options = LASP_HALO_OPTIONS_INIT;
  options.rows = 3, options.channels = 16;
  lasp_halo *made = nullptr;
  Rig::must(lasp_halo_create(rig.plan, &options, &made));
  lasp_halo_args args = LASP_HALO_ARGS_INIT;
  args.x = {rig.o.data, rig.o.bytes}, args.before = rig.dq;
  args.d_before = {rig.dk.data, rig.dk.bytes}, args.d_x = rig.dv;
  args.workspace = rig.workspace;
  args.packing = packing;
  const lasp_status status = (is_forward ? lasp_halo_forward : lasp_halo_backward)(made, &args, nullptr);
  lasp_halo_destroy(made);
  return status;
}

#define PACKING(change) \
  [](Rig &r) { return forward(r, [](lasp_packing &p, [[maybe_unused]] lasp_forward_args &a) { change; }); }
#define OFFSETS(...) [](Rig &r) { return offsets<int64_t>(r, __VA_ARGS__); }
#define NARROW(...) [](Rig &r) { return offsets<int32_t>(r, __VA_ARGS__); }
#define CALL(how, call, args) [](Rig &r) { return how(call, r, r.args()); }

// Each row's last words: of a packed plan.
const WrongCall kPacked[] = {
    {"NotFromZero", kInvalid, "packing.cu_seqlens\\[0\\] = 1: must be 0", OFFSETS(1, 5, 24), false, true},
    {"NotFromZeroNarrow", kInvalid, "cu_seqlens\\[0\\] = -1: must be 0", NARROW(-1, 5, 24), false, true},
    {"Decreasing", kInvalid, "cu_seqlens\\[2\\] = 5: less than the offset before it, 10", OFFSETS(0, 10, 5, 24),
     false, true},
    {"DecreasingNarrow", kInvalid, "cu_seqlens\\[2\\] = 5: less", NARROW(0, 10, 5, 24), false, true},
    {"DecreasingAtTheEnd", kInvalid, "cu_seqlens\\[2\\] = 11: less", OFFSETS(0, 12, 11), false, true},
    {"Negative", kInvalid, "cu_seqlens\\[1\\] = -5: less", OFFSETS(0, -5, 24), false, true},
    {"EndsLate", kInvalid, "cu_seqlens\\[2\\] = 25: the ranks hold 24", OFFSETS(0, 5, 25), false, true},
    {"EndsLateNarrow", kInvalid, "cu_seqlens\\[1\\] = 2147483647: the ranks hold 24", NARROW(0, 2147483647), false,
     true},
    {"TooMany", kInvalid, "packing.num_sequences = 4: must be 0 to max_sequences, 3", OFFSETS(0, 1, 2, 3, 24),
     false, true},
    {"CountNegative", kInvalid, "packing.num_sequences = -1", PACKING(p.num_sequences = -1), false, true},
    {"CountHuge", kInvalid, "packing.num_sequences = 9223372036854775807", PACKING(p.num_sequences = INT64_MAX),
     false, true},
    {"OffsetsAbsent", kInvalid, "packing.cu_seqlens is null: 24 bytes", PACKING((p.cu_seqlens = {nullptr, 24})),
     false, true},
    {"OffsetsTooSmall", kSmall, "packing.cu_seqlens holds 23 bytes: 24", PACKING(p.cu_seqlens.bytes = 23), false,
     true},
    {"NarrowOffsetsTooSmall", kSmall, "packing.cu_seqlens holds 11 bytes: 12",
     PACKING((p.cu_seqlens.bytes = 11, p.dtype = LASP_INT32)), false, true},
    {"OffsetsMisaligned", kMisaligned, "packing.cu_seqlens at",
     PACKING(p.cu_seqlens.data = static_cast<const char *>(p.cu_seqlens.data) + 4), false, true},
    {"OffsetsInO", kInvalid, "o and packing.cu_seqlens share memory",
     PACKING(a.o.data = const_cast<void *>(p.cu_seqlens.data)), false, true},
    {"Dtype", kInvalid, "packing.dtype = LASP_FLOAT32: must be", PACKING(p.dtype = LASP_FLOAT32), false, true},
    {"DtypeDefault", kInvalid, "packing.dtype = LASP_DTYPE_DEFAULT", PACKING(p.dtype = 0), false, true},
    {"DtypeUnknown", kInvalid, "packing.dtype = 18", PACKING(p.dtype = 18), false, true},
    {"OnADevice", kUnsupported, "packing.memory = LASP_DEVICE_CUDA", PACKING(p.memory = LASP_DEVICE_CUDA), false,
     true},
    {"Memory", kInvalid, "packing.memory = 77", PACKING(p.memory = 77), false, true},
    {"StructSize", kStruct, "packing.size = 12", PACKING(p.size = 12), false, true},
    {"StructSizeZero", kStruct, "packing.size = 0", PACKING(p.size = 0), false, true},
    {"ForwardWithout", kInvalid, "packing is null: the plan was made with max_sequences = 3",
     CALL(without, lasp_forward, forward_args), false, true},
    {"BackwardWithout", kInvalid, "packing is null", CALL(without, lasp_backward, backward_args), false, true},
    {"Step", kUnsupported, "max_sequences = 3, and step takes a plan of B rows",
     [](Rig &r) {
       const lasp_step_args args = r.step_args();
       return lasp_step(r.plan, &args, nullptr);
     },
     false, true},
    {"HaloForwardWithout", kInvalid, "packing is null", [](Rig &r) { return halo(r, true, nullptr); }, false, true},
    {"HaloBackwardWithout", kInvalid, "packing is null", [](Rig &r) { return halo(r, false, nullptr); }, false,
     true},
};

// And of one that is not.
const WrongCall kUnpacked[] = {
    {"Forward", kInvalid, "packing is given, but the plan was made with max_sequences = 0",
     CALL(with, lasp_forward, forward_args)},
    {"Backward", kInvalid, "packing is given", CALL(with, lasp_backward, backward_args)},
    {"HaloForward", kInvalid, "packing is given", [](Rig &r) { return halo(r, true, &r.packing); }},
    {"HaloBackward", kInvalid, "packing is given", [](Rig &r) { return halo(r, false, &r.packing); }},
};

}  // namespace

INSTANTIATE_TEST_SUITE_P(OfAPass, WrongCalls, testing::ValuesIn(kPacked), name_of_row);
INSTANTIATE_TEST_SUITE_P(NotPacked, WrongCalls, testing::ValuesIn(kUnpacked), name_of_row);
