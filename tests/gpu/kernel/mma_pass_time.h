// See mma_pass_time.cpp.
#pragma once

namespace lasp::gpu {

void time_mma_pass();  // prints a table

}  // namespace lasp::gpu
