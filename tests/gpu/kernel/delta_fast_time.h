// How long the fast kernels of the delta rule take.
#pragma once

namespace lasp::gpu {
void time_delta_fast(bool with_gradients, bool only_channel);
}
