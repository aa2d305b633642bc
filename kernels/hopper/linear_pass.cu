// The host side of the Hopper linear pass: what it supports, how a pass is cut, and the tensor maps of its loads.
#include "linear_pass.h"

#include <cuda_runtime_api.h>

#include "layout.cuh"

namespace lasp::gpu {
namespace hopper {
namespace {

constexpr int32_t kSmallestSlice = 32;
constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes, of a tensor map

// Strides of a dimension of one element do not count. A tensor map wants the others positive multiples of 16 bytes.
bool stride_fits(int64_t stride, int64_t extent) {
  return extent <= 1 || (stride > 0 && stride % 8 == 0 && stride < kStrideLimit / 2);
}
bool layout_fits(const Tensor &t, const LinearPass &pass) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && stride_fits(t.strides.batch, pass.batch) &&
         stride_fits(t.strides.token, pass.tokens) && stride_fits(t.strides.head, t.heads);
}

// Why not, or null.
const char *refusal(const LinearPass &pass, int32_t compute_capability) {
  if (compute_capability != 90) return "the tensor-core kernel is for compute capability 9.0";
  if (pass.dtype == DType::kFloat32) return "the tensor-core kernel computes bfloat16 and float16";
  if (pass.decay == Decay::kChannel) return "the tensor-core kernel knows no decay per channel";
  if (pass.a.dim != 64 && pass.a.dim != 128) return "the tensor-core kernel wants a first dimension of 64 or 128";
  if (pass.y.dim % kSmallestSlice || pass.y.dim <= 0 || pass.y.dim > 512)
    return "the tensor-core kernel wants a second dimension of a multiple of 32 up to 512";
  if (pass.tokens > INT32_MAX - kChunk || pass.batch > INT32_MAX)
    return "too many tokens for the tensor-core kernel's coordinates";
  if (pass.num_runs > INT32_MAX / (int64_t{pass.heads} * (pass.y.dim / kSmallestSlice)))
    return "too many runs for one launch of the tensor-core kernel";
  const bool reads_fit = layout_fits(pass.b, pass) && layout_fits(pass.c, pass);
  const bool output_fits = !pass.y.data || (layout_fits(pass.a, pass) && layout_fits(pass.y, pass));
  if (!reads_fit || !output_fits)
    return "the tensor-core kernel wants tensors and strides that are multiples of 16 bytes";
  return nullptr;
}

using EncodeTiled = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                 const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

EncodeTiled find_encode() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

// Boxes of one chunk and `columns` columns, swizzled by their width.
bool describe(CUtensorMap &map, const Tensor &t, const LinearPass &pass, uint32_t columns) {
  static const EncodeTiled encode = find_encode();
  if (!encode) return false;
  const auto type =
      pass.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto bytes = [](int64_t stride, int64_t extent) { return extent > 1 ? cuuint64_t(stride) * 2 : 16; };
  const cuuint64_t extents[4] = {cuuint64_t(t.dim), cuuint64_t(pass.tokens), cuuint64_t(t.heads),
                                 cuuint64_t(pass.batch)};
  const cuuint64_t strides[3] = {bytes(t.strides.token, pass.tokens), bytes(t.strides.head, t.heads),
                                 bytes(t.strides.batch, pass.batch)};
  const cuuint32_t box[4] = {columns, kChunk, 1, 1}, steps[4] = {1, 1, 1, 1};
  const auto swizzle = columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  return encode(&map, type, 4, t.data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool fill(PassParams &p, const LinearPass &pass, PassShape shape) {
  p.y = pass.y.data;
  p.g = pass.g;
  p.runs = pass.runs;
  p.state_in = pass.state_in;
  p.state_out = pass.state_out;
  p.y_strides = pass.y.strides;
  p.g_strides = pass.g_strides;
  p.state_row = pass.state_transposed ? 1 : pass.y.dim;
  p.state_column = pass.state_transposed ? pass.a.dim : 1;
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
  return (!pass.y.data || describe(p.a, pass.a, pass, 64)) && describe(p.b, pass.b, pass, 64) &&
         describe(p.c, pass.c, pass, uint32_t(shape.slice));
}

int launch(const LinearPass &pass, PassShape shape, Stream stream, int *clusters) {
  if (!shape_fits(pass, shape)) return cudaErrorInvalidValue;
  PassParams params = {};
  if (!fill(params, pass, shape)) return cudaErrorInvalidValue;
  const int64_t blocks = pass.num_runs * pass.heads * (pass.y.dim / shape.slice);
  const auto enqueue = pass.dtype == DType::kBFloat16 ? enqueue_bfloat16 : enqueue_float16;
  return enqueue(params, shape, blocks, stream, clusters);
}

}  // namespace

bool shape_fits(const LinearPass &pass, PassShape shape) {
  if (shape.slice != 32 && !(shape.slice == 64 && pass.a.dim == 128)) return false;
  if ((shape.cluster != 1 && shape.cluster != 2 && shape.cluster != 4) || pass.y.dim % shape.slice) return false;
  return pass.y.dim / shape.slice % shape.cluster == 0;
}

// Both choices are measured (docs/kernels.md). A chunk of 64 columns takes 1.6 times as long as one of 32: what
// counts is how often the device is filled. Two blocks that share their loads of a and b also wait for each other:
// it pays where the work of a chunk is even and short, or where each has more of it. An H100 holds only 30 clusters
// of four.
PassShape choose_shape(const LinearPass &pass, int32_t multiprocessors) {
  const int64_t items = pass.num_runs * pass.heads;
  const auto waves = [&](int32_t slice) {
    return (items * (pass.y.dim / slice) + multiprocessors - 1) / multiprocessors;
  };
  const bool wide = shape_fits(pass, {64, 1}) && 16 * waves(64) < 10 * waves(32);
  const bool share = wide || (pass.decay == Decay::kNone && pass.y.data);
  PassShape shape = {wide ? 64 : 32, 1};
  if (share && shape_fits(pass, {shape.slice, 2})) shape.cluster = 2;
  return shape;
}

int launch_linear_pass(const LinearPass &pass, PassShape shape, Stream stream) {
  return launch(pass, shape, stream, nullptr);
}

int active_clusters(const LinearPass &pass, PassShape shape) {
  int clusters = 0;
  const int status = launch(pass, shape, nullptr, &clusters);
  return status ? -status : clusters;
}

}  // namespace hopper

bool linear_pass_supported(const LinearPass &pass, int32_t compute_capability, const char **why) {
  const char *const reason = hopper::refusal(pass, compute_capability);
  if (why) *why = reason;
  return !reason;
}

int32_t linear_pass_blocks(const LinearPass &pass) { return pass.y.dim / hopper::kSmallestSlice; }

int launch_linear_pass(const LinearPass &pass, Stream stream) {
  if (pass.num_runs == 0 || pass.heads == 0) return cudaSuccess;
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  return hopper::launch_linear_pass(pass, hopper::choose_shape(pass, multiprocessors), stream);
}

}  // namespace lasp::gpu
