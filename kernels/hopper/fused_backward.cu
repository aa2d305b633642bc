// The host side of the backward kernel: which tensors it takes, and the tensor maps of its loads.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "../from_zero.h"
#include "fused_backward_internal.h"
#include "fused_backward_layout.cuh"
#include "tensor_map.h"

namespace lasp::gpu {
namespace hopper::fused {
namespace {

int32_t members_of(const FusedBackward &pass) { return pass.heads / pass.v.heads; }

// The kernel that serves a state's dimensions; the (run, head) of its grid.
int32_t form_of(const FusedBackward &pass) {
  if (pass.q.dim == kDim && pass.v.dim == kDim) return members_of(pass);
  if (pass.q.dim <= 64 && pass.v.dim <= 64 && pass.heads % 2 == 0) return kPaired;
  return pass.q.dim % 64 == 0 && pass.v.dim == 64 ? kNarrow : kTiled;
}
int64_t items_of(const FusedBackward &pass) { return pass.num_runs * (pass.heads / heads_of(form_of(pass))); }

// Of how many rows or columns of tiles the state is.
int32_t tiles_of(int32_t dim) { return (dim + kDim - 1) / kDim; }
int32_t tiles_at_once(const FusedBackward &pass) { return std::min(tiles_of(pass.q.dim), tiles_of(pass.v.dim)); }

const char *refusal(const FusedBackward &pass) {
  if (pass.tokens > INT32_MAX - kChunk || pass.batch > INT32_MAX)
    return "too many tokens for the fused backward kernel's coordinates";
  if (pass.num_runs > INT32_MAX / int64_t{pass.heads})
    return "too many runs for one launch of the fused backward kernel";
  if (!(pass.scale > 0)) return "the fused backward kernel wants a positive scale";
  for (const Tensor *t : {&pass.q, &pass.k, &pass.v, &pass.d_o, &pass.d_q, &pass.d_k, &pass.d_v}) {
    if (!tensor_map_fits(*t, pass.batch, pass.tokens))
      return "the fused backward kernel wants tensors and strides that are multiples of 16 bytes";
  }
  if (pass.v.heads == pass.heads) {
    if (pass.q.heads != pass.k.heads || pass.heads % pass.q.heads != 0)
      return "the fused backward kernel wants as many heads of q as of k where v has as many as do";
    for (const Tensor *t : {&pass.d_o, &pass.d_q, &pass.d_k, &pass.d_v})
      if (t->heads != pass.heads) return "the fused backward kernel wants as many heads of v's gradients as of do";
    return nullptr;
  }
  for (const Tensor *t : {&pass.q, &pass.d_o, &pass.d_q})
    if (t->heads != pass.heads) return "the fused backward kernel wants as many heads of q as of do";
  for (const Tensor *t : {&pass.k, &pass.d_k, &pass.d_v})
    if (t->heads != pass.v.heads) return "the fused backward kernel wants as many heads of k as of v";
  const int32_t members = members_of(pass);
  if (members * pass.v.heads != pass.heads || (members != 2 && members != 4 && members != 8))
    return "the fused backward kernel knows groups of 2, 4 and 8 heads";
  if (form_of(pass) != members)
    return "the fused backward kernel knows groups of heads of k and v with K and V of 128 alone";
  return nullptr;
}

bool fill(Params &p, const FusedBackward &pass) {
  p.d_q = pass.d_q.data;
  p.d_k = pass.d_k.data;
  p.d_v = pass.d_v.data;
  p.d_q_strides = pass.d_q.strides;
  p.d_k_strides = pass.d_k.strides;
  p.d_v_strides = pass.d_v.strides;
  p.g = pass.g;
  p.g_strides = pass.g_strides;
  p.runs = pass.runs;
  p.d_state_in = pass.d_state_in;
  p.d_edge_state = pass.d_edge_state;
  p.edge_adds = pass.edge_adds;
  p.batch = pass.batch;
  p.tokens = pass.tokens;
  p.heads = pass.heads;
  p.members = members_of(pass);
  p.shared = pass.heads / pass.q.heads;
  p.form = form_of(pass);
  p.scale = pass.scale;
  p.log2_scale = std::log2(pass.scale);
  p.decay = pass.decay;
  p.decay_is_float = pass.decay_dtype == DType::kFloat32;
  p.dim_k = pass.q.dim;
  p.dim_v = pass.v.dim;
  p.num_tiles = tiles_at_once(pass);
  p.most_tiles = std::max(tiles_of(pass.q.dim), tiles_of(pass.v.dim));
  const auto map = [&](CUtensorMap &to, const Tensor &t, uint32_t rows, uint32_t panels) {
    if (by_columns(p.form)) return encode_columns_map(to, t, pass.batch, pass.tokens, pass.dtype, rows);
    return encode_panels_map(to, t, pass.batch, pass.tokens, pass.dtype, rows, panels);
  };
  const int64_t state = int64_t{pass.q.dim} * pass.v.dim;
  const Tensor checkpoints = {
      const_cast<void *>(pass.checkpoints), {pass.heads * state, pass.v.dim, state}, pass.heads, pass.v.dim};
  const uint32_t rows = p.form == kPaired ? kCheckpointRows<kPaired> : kCheckpointRows<1>;
  const uint32_t of_k = 2, of_v = p.form == kNarrow ? 1 : 2;
  return encode_columns_map(p.checkpoints, checkpoints, pass.num_checkpoints, pass.q.dim, pass.dtype, rows) &&
         map(p.tiles[kV], pass.v, kChunk, of_v) && map(p.tiles[kDo], pass.d_o, kChunk, of_v) &&
         map(p.tiles[kK], pass.k, kChunk, of_k) && map(p.tiles[kQ], pass.q, kChunk, of_k) &&
         map(p.d_q_to, pass.d_q, kStoreRows, 1) && map(p.d_k_to, pass.d_k, kStoreRows, of_k) &&
         map(p.d_v_to, pass.d_v, kStoreRows, of_v);
}

// What FusedBackward::workspace holds: float offsets.
struct WorkspaceLayout {
  int32_t form;
  int64_t through_size, terms_size, kept, through, terms, sums, size;
  explicit WorkspaceLayout(const FusedBackward &pass)
      : form(form_of(pass)),
        through_size(pass.num_checkpoints * kStretch * pass.heads * kConsumers),
        terms_size(kDecayTerms * pass.batch * pass.heads * pass.tokens),
        kept(0),
        through(form == 1 ? 0 : items_of(pass) * tiles_at_once(pass) * kKept * kDim * columns_of(form) / 2),
        terms(through + through_size * tiles_at_once(pass)),
        sums(form <= kTiled ? terms + terms_size * tiles_at_once(pass) : terms),
        size(sums + (form <= kTiled ? pass.batch * pass.heads * pass.tokens : terms_size)) {}
};

int enqueue(const Params &params, DType dtype, int64_t blocks, Stream stream) {
  const bool bfloat16 = dtype == DType::kBFloat16;
  if (params.form < kTiled)
    return bfloat16 ? enqueue_narrow_bfloat16(params, blocks, stream)
                    : enqueue_narrow_float16(params, blocks, stream);
  if (params.form == kTiled)
    return bfloat16 ? enqueue_tiled_bfloat16(params, blocks, stream)
                    : enqueue_tiled_float16(params, blocks, stream);
  if (params.form == 1)
    return bfloat16 ? enqueue_bfloat16(params, blocks, stream) : enqueue_float16(params, blocks, stream);
  return bfloat16 ? enqueue_grouped_bfloat16(params, blocks, stream)
                  : enqueue_grouped_float16(params, blocks, stream);
}

int launch(const FusedBackward &pass, bool from_zero, Stream stream) {
  const int64_t items = items_of(pass);
  if (items == 0) return cudaSuccess;
  if (pass.q.dim % 32 || pass.v.dim % 32) return cudaErrorInvalidValue;
  Params params = {};
  if (!fill(params, pass)) return cudaErrorInvalidValue;
  params.from_zero = from_zero;
  if (pass.d_g) {
    const WorkspaceLayout at(pass);
    params.kept = pass.workspace + at.kept;
    params.through = pass.workspace + at.through;
    params.terms = pass.workspace + at.terms;
    params.sums = pass.workspace + at.sums;
    params.through_size = at.through_size;
    params.terms_size = at.terms_size;
  }
  for (params.diagonal = 0; params.diagonal < params.most_tiles; ++params.diagonal) {
    if (const int error = enqueue(params, pass.dtype, items, stream)) return error;
    if (pass.d_g)
      if (const int error = gather_decay_gradient(params, pass, stream)) return error;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace hopper::fused

using namespace hopper;

const char *fused_backward_refusal(const FusedBackward &pass) { return fused::refusal(pass); }

int64_t fused_backward_workspace(const FusedBackward &pass) { return fused::WorkspaceLayout(pass).size; }

int launch_fused_backward(const FusedBackward &pass, Stream stream) { return fused::launch(pass, false, stream); }
int launch_fused_backward_from_zero(const FusedBackward &pass, Stream stream) {
  return fused::launch(pass, true, stream);
}

// Clusters larger than a pair leave some of a group of multiprocessors idle, which has 16 of them or 18: of 132, as
// H100 and H200 have, 30 clusters of four work at once, and 15 of eight. By numbers of the device alone, so that a
// plan does not depend on which multiprocessors a card has.
int64_t fused_backward_blocks(const FusedBackward &pass, int32_t multiprocessors) {
  const int32_t members = fused::members_of(pass);
  const int64_t used = members > 2 ? int64_t{multiprocessors} * 10 / 11 : multiprocessors;
  return used / fused::tiles_at_once(pass) / members * members * fused::heads_of(fused::form_of(pass));
}

int load_fused_backward_kernels() {
  fused::Params params = {};
  for (const int32_t form : {fused::kPaired, fused::kNarrow, fused::kTiled, 1, 2, 4, 8})
    for (float *terms : {static_cast<float *>(nullptr), reinterpret_cast<float *>(128)}) {
      params.form = form, params.members = uint32_t(form), params.terms = terms;  // never read
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
        if (const int error = fused::enqueue(params, dtype, 0, nullptr)) return error;
    }
  return fused::load_decay_gradient_kernels();
}

}  // namespace lasp::gpu
