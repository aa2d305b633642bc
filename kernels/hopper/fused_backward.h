// Between the parts of the fused backward pass, and its own test: a launch in clusters of a given size.
#pragma once

#include "../launch.h"

namespace lasp::gpu {

namespace hopper {
// The same in clusters of 1, 2 or 4 blocks; and how many such clusters the device holds at a time, or minus a
// cudaError_t.
int launch_fused_backward(const FusedBackward &pass, int32_t cluster, Stream stream);
int fused_backward_clusters(const FusedBackward &pass, int32_t cluster);
}  // namespace hopper

}  // namespace lasp::gpu
