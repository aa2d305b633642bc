// Between the parts of the Hopper linear pass: the host side that chooses and describes, and the kernels, compiled
// one element type per file. Also what its own test asks for: a launch of a given shape.
#pragma once

#include "../launch.h"

namespace lasp::gpu::hopper {

struct PassParams;

// How a pass is cut: columns of y that one block owns, and blocks of a cluster, which share their loads of a and b.
struct PassShape {
  int32_t slice = 0, cluster = 0;
};

// Why not these tensors, or null; how many blocks a (run, head) keeps busy.
const char *refusal(const LinearPass &pass);
int32_t blocks_of(const LinearPass &pass);

// Whether this shape can run this pass; the caller has asked `refusal`.
bool shape_fits(const LinearPass &pass, PassShape shape);
PassShape choose_shape(const LinearPass &pass, int32_t multiprocessors);
int launch_linear_pass(const LinearPass &pass, PassShape shape, Stream stream);

int load_linear_pass_kernels();

// `blocks` is the grid. Returns a cudaError_t. *clusters, if not null: nothing is launched, only asked how many
// clusters the device holds at a time.
int enqueue_bfloat16(const PassParams &params, PassShape shape, int64_t blocks, Stream stream, int *clusters);
int enqueue_float16(const PassParams &params, PassShape shape, int64_t blocks, Stream stream, int *clusters);
// The same of own_states.cuh; `columns` of a block: 64 or 128. No blocks: the kernel is only loaded.
int enqueue_own_states_bfloat16(const PassParams &params, int32_t columns, int64_t blocks, Stream stream);
int enqueue_own_states_float16(const PassParams &params, int32_t columns, int64_t blocks, Stream stream);
// How many clusters of that shape the device holds at a time, or minus a cudaError_t.
int active_clusters(const LinearPass &pass, PassShape shape);

}  // namespace lasp::gpu::hopper
