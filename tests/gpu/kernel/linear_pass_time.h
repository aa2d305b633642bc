// See linear_pass_time.cpp.
#pragma once

namespace lasp::gpu {

void time_linear_pass();  // prints a table

}  // namespace lasp::gpu
