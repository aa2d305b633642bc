// The host side of the Hopper linear pass: which tensors it takes, how a pass is cut, and the tensor maps of its
// loads.
#include "linear_pass.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "layout.cuh"
#include "tensor_map.h"

namespace lasp::gpu::hopper {
namespace {

constexpr int32_t kSmallestSlice = 32, kMostRows = 128;

// Whether own_states.cuh finds them: of more than 64 rows, whose columns are whole panels.
bool finds_own_states(const LinearPass &pass) {
  return !pass.y.data && !pass.state_in && !pass.checkpoints && !pass.edge_state && pass.state_out &&
         !pass.state_transposed && pass.filter == RunFilter::kAll && pass.a.dim > 64 && pass.y.dim % 64 == 0;
}

// `pass` is `whole` cut to the rows of the state from `first` on.
bool fill(PassParams &p, const LinearPass &whole, int32_t first, const LinearPass &pass, PassShape shape) {
  p.y = pass.y.data;
  p.g = pass.g;
  p.runs = pass.runs;
  p.state_in = pass.state_in;
  p.state_out = pass.state_out;
  p.edge_state = pass.edge_state;
  p.checkpoints = pass.checkpoints;
  p.y_strides = pass.y.strides;
  p.g_strides = pass.g_strides;
  p.state_row = pass.state_transposed ? 1 : pass.y.dim;
  p.state_column = pass.state_transposed ? whole.a.dim : 1;
  p.state_size = whole.a.dim * pass.y.dim;
  p.adds = first > 0;
  p.heads = pass.heads;
  p.a_heads = pass.a.heads;
  p.b_heads = pass.b.heads;
  p.c_heads = pass.c.heads;
  p.a_dim = pass.a.dim;
  p.y_dim = pass.y.dim;
  p.scale = pass.scale;
  p.in_scale = pass.in_scale;
  p.out_scale = pass.out_scale;
  p.decay = pass.decay;
  p.reversed = pass.reversed;
  p.decay_is_float = pass.decay_dtype == DType::kFloat32;
  p.filter = pass.filter;
  const bool states_alone = !pass.y.data && !pass.state_in;
  p.counts = states_alone ? pass.counts : nullptr;
  p.counts_by_head = states_alone && pass.counts_by_head;
  p.entry_decay = pass.entry_decay;
  const auto map = [&](CUtensorMap &to, const Tensor &t, uint32_t columns) {
    return encode_tensor_map(to, t, pass.batch, pass.tokens, pass.dtype, columns);
  };
  return (!pass.y.data || map(p.a, pass.a, 64)) && map(p.b, pass.b, 64) && map(p.c, pass.c, uint32_t(shape.slice));
}

LinearPass cut_rows(const LinearPass &whole, int32_t first) {
  LinearPass pass = whole;
  pass.a.dim = pass.b.dim = std::min(kMostRows, whole.a.dim - first);
  for (Tensor *x : {&pass.a, &pass.b})
    if (x->data) x->data = static_cast<uint16_t *>(x->data) + first;
  const int64_t state = int64_t{first} * (whole.state_transposed ? 1 : whole.y.dim);
  if (pass.state_in) pass.state_in += state;
  if (pass.state_out) pass.state_out += state;
  if (pass.edge_state) pass.edge_state += state;
  if (pass.checkpoints) pass.checkpoints = static_cast<uint16_t *>(pass.checkpoints) + state;
  return pass;
}

int launch_own_states(const LinearPass &whole, Stream stream) {
  const int32_t columns = whole.y.dim % 128 == 0 ? 128 : 64;
  for (int32_t first = 0; first < whole.a.dim; first += kMostRows) {
    PassParams params = {};
    const LinearPass pass = cut_rows(whole, first);
    if (!fill(params, whole, first, pass, {64, 1})) return cudaErrorInvalidValue;
    const int64_t blocks = pass.num_runs * pass.heads * (pass.y.dim / columns);
    const auto enqueue = pass.dtype == DType::kBFloat16 ? enqueue_own_states_bfloat16 : enqueue_own_states_float16;
    if (const int error = enqueue(params, columns, blocks, stream)) return error;
  }
  return cudaSuccess;
}

int launch_rows(const LinearPass &whole, int32_t first, PassShape shape, Stream stream, int *clusters) {
  const LinearPass pass = cut_rows(whole, first);
  if (pass.a.dim % 8 || !shape_fits(pass, shape)) return cudaErrorInvalidValue;
  PassParams params = {};
  if (!fill(params, whole, first, pass, shape)) return cudaErrorInvalidValue;
  const int64_t blocks = pass.num_runs * pass.heads * (pass.y.dim / shape.slice);
  const auto enqueue = pass.dtype == DType::kBFloat16 ? enqueue_bfloat16 : enqueue_float16;
  return enqueue(params, shape, blocks, stream, clusters);
}

// A block has up to 128 rows of the state; more of them go by several launches, in slices of 32.
int launch(const LinearPass &pass, PassShape shape, Stream stream, int *clusters) {
  if (!shape_fits(pass, shape)) return cudaErrorInvalidValue;
  for (int32_t first = 0; first < pass.a.dim; first += kMostRows)
    if (const int error = launch_rows(pass, first, shape, stream, clusters)) return error;
  return cudaSuccess;
}

}  // namespace

const char *refusal(const LinearPass &pass) {
  if (pass.y_float32 || pass.y_adds) return "the Hopper kernel writes results of 16 bits, over what is there";
  if (pass.tokens > INT32_MAX - kChunk || pass.batch > INT32_MAX)
    return "too many tokens for the tensor-core kernel's coordinates";
  if (pass.num_runs > INT32_MAX / (int64_t{pass.heads} * (pass.y.dim / kSmallestSlice)))
    return "too many runs for one launch of the tensor-core kernel";
  const auto fits = [&](const Tensor &t) { return tensor_map_fits(t, pass.batch, pass.tokens); };
  const bool reads_fit = fits(pass.b) && fits(pass.c);
  const bool output_fits = !pass.y.data || (fits(pass.a) && fits(pass.y));
  if (!reads_fit || !output_fits)
    return "the tensor-core kernel wants tensors and strides that are multiples of 16 bytes";
  return nullptr;
}

// Of small states per token slices of 64 in more runs: they outweigh finding the states of these.
int32_t blocks_of(const LinearPass &pass) {
  const bool whole = pass.decay == Decay::kScalar && pass.a.dim <= 64 && pass.y.dim == 64;
  return whole ? 1 : pass.y.dim / kSmallestSlice;
}

bool shape_fits(const LinearPass &pass, PassShape shape) {
  if (shape.slice != 32 && !(shape.slice == 64 && pass.a.dim <= kMostRows)) return false;
  if ((shape.cluster != 1 && shape.cluster != 2 && shape.cluster != 4) || pass.y.dim % shape.slice) return false;
  return pass.y.dim / shape.slice % shape.cluster == 0;
}

// Both choices are measured (docs/history/linear-pass.md). A chunk of 64 columns takes 1.6 times as long as one of
// 32, or 1.3 times with up to 64 rows: what counts is how often the device is filled. Two blocks that share their
// loads of a and b also wait for each other: it pays where the work of a chunk is even and short, or where each has
// more of it. An H100 holds only 30 clusters of four.
PassShape choose_shape(const LinearPass &pass, int32_t multiprocessors) {
  const int64_t items = (pass.total_runs ? pass.total_runs : pass.num_runs) * pass.heads;
  const auto waves = [&](int32_t slice) {
    return (items * (pass.y.dim / slice) + multiprocessors - 1) / multiprocessors;
  };
  const bool even = pass.decay == Decay::kNone || pass.decay == Decay::kHead, small = pass.a.dim <= 64;
  const bool pays = !small || pass.y.data || pass.reversed || pass.decay != Decay::kHead;
  const bool wide = pays && shape_fits(pass, {64, 1}) && (small ? 13 : 16) * waves(64) < 10 * waves(32);
  const bool share = wide || (even && pass.y.data);
  PassShape shape = {wide ? 64 : 32, 1};
  if (share && shape_fits(pass, {shape.slice, 2})) shape.cluster = 2;
  return shape;
}

int launch_linear_pass(const LinearPass &pass, PassShape shape, Stream stream) {
  if (finds_own_states(pass)) return launch_own_states(pass, stream);
  return launch(pass, shape, stream, nullptr);
}

int active_clusters(const LinearPass &pass, PassShape shape) {
  int clusters = 0;
  const int status = launch(pass, shape, nullptr, &clusters);
  return status ? -status : clusters;
}

}  // namespace lasp::gpu::hopper
