// See channel_pass_time.cpp.
#pragma once

namespace lasp::gpu {

void time_channel_pass();  // prints a table

}  // namespace lasp::gpu
