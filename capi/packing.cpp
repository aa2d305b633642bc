// The offsets of a pass: read once, each refusal with the offset that is wrong.
#include "packing.h"

#include "core/names.h"
#include "structs.h"

namespace lasp {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

void check_kind(const lasp_packing &given, const Plan &plan) {
  if (given.dtype != LASP_INT32 && given.dtype != LASP_INT64)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "packing.dtype = %s: must be LASP_INT32 or LASP_INT64",
               dtype_name(given.dtype).c_str());
  switch (given.memory) {
    case LASP_DEVICE_AUTO:
    case LASP_DEVICE_CPU: break;
    case LASP_DEVICE_CUDA:
      if (plan.context().device_kind() == LASP_DEVICE_CUDA) break;
      throw fail(LASP_ERROR_UNSUPPORTED, "packing.memory = LASP_DEVICE_CUDA: offsets lie in host memory here");
    default:
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "packing.memory = %d: must be one of LASP_DEVICE_*", given.memory);
  }
  const int64_t most = plan.problem().num_sequences;
  if (given.num_sequences < 0 || given.num_sequences > most)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "packing.num_sequences = %lld: must be 0 to max_sequences, %lld",
               ll(given.num_sequences), ll(most));
}

void check_offsets(const Packing &packing, const TokenRanges &ranges) {
  const int64_t total = ranges.total(), parts = parts_of_each(ranges);
  if (packing[0] != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "packing.cu_seqlens[0] = %lld: must be 0", ll(packing[0]));
  for (int64_t n = 1; n <= packing.sequences; ++n) {
    if (packing[n] < packing[n - 1])
      throw fail(LASP_ERROR_INVALID_ARGUMENT,
                 "packing.cu_seqlens[%lld] = %lld: less than the offset before it, %lld", ll(n), ll(packing[n]),
                 ll(packing[n - 1]));
    if (packing[n] > total)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "packing.cu_seqlens[%lld] = %lld: the ranks hold %lld tokens in all",
                 ll(n), ll(packing[n]), ll(total));
    if (ranges.each && packing[n] % parts != 0)
      throw fail(
          LASP_ERROR_INVALID_ARGUMENT,
          "packing.cu_seqlens[%lld] = %lld: with LASP_OWN_ZIGZAG_EACH each sequence is cut into %lld parts of "
          "one length; pad it to a multiple",
          ll(n), ll(packing[n]), ll(parts));
  }
}

}  // namespace

Packing check_host_packing(BufferCheck &check, const lasp_packing *given, const Plan &plan) {
  const Packing packing = check_packing(check, given, plan);
  if (packing.on_device)
    throw fail(LASP_ERROR_UNSUPPORTED, "packing.cu_seqlens: a halo takes offsets in host memory");
  return packing;
}

Packing check_packing(BufferCheck &check, const lasp_packing *given, const Plan &plan) {
  const Problem &p = plan.problem();
  if (!p.packed) {
    if (given != nullptr)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "packing is given, but the plan was made with max_sequences = 0");
    return {};
  }
  if (given == nullptr)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "packing is null: the plan was made with max_sequences = %lld",
               ll(p.num_sequences));
  const lasp_packing own = read_struct(given, "packing");
  check_kind(own, plan);
  const bool wide = own.dtype == LASP_INT64;
  const Extent extent{{}, 1, 1, 1, own.num_sequences + 1, wide ? 8 : 4};
  Packing packing{check.input("packing.cu_seqlens", own.cu_seqlens, extent), own.num_sequences, wide, false};
  packing.on_device = own.memory == LASP_DEVICE_CUDA ||
                      (own.memory == LASP_DEVICE_AUTO && plan.context().device().has_memory(packing.offsets));
  if (!packing.on_device) check_offsets(packing, plan.ranges());
  return packing;
}

}  // namespace lasp
