// Measures the fused backward kernel (fused_backward_time.cpp).
#pragma once

void time_fused_backward();
