// The launches where decay is per channel, for forward.cu, reversed.cu, gradients.cu and passes.cu.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta_hopper::channel {

// A walk beside the preparation of its chunks (channel_beside.cuh). `ready` null: all are prepared before it.
struct Beside {
  int32_t *ready = nullptr;  // [slots, H], 0 until a chunk is prepared; behind it two counters (channel_prepare.cu)
  int32_t early = 0;         // chunks, of all heads, before the walk takes its multiprocessors
  int32_t walks = 0;         // its blocks
  bool reversed = false;
};
constexpr int64_t beside_bytes(int64_t slots, int32_t heads) { return 4 * (slots * heads + 2); }

// What chunks are before any state is known.
int launch_prepare(const DeltaInputs &p, const Slots &slots, const Beside &beside, Stream stream);

// `kept`: of stretches, what their gradients need; else empty.
// `early`: the walk may begin while the launch before it, the preparation or channel_finish.cu's, still runs.
int launch_forward(const DeltaForward &p, const Slots &slots, const Stretches &kept, const Beside &beside,
                   bool early, Stream stream);
int launch_reversed(const DeltaReversed &p, const Slots &slots, const Beside &beside, Stream stream);
int load_prepare();
int load_forward();
int load_reversed();

}  // namespace lasp::gpu::delta_hopper::channel
