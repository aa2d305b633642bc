// 16-bit floats, rounded to nearest, ties to even.
#pragma once

#include <cstdint>

namespace emulator {

uint16_t to_half(float x);
float from_half(uint16_t bits);
uint16_t to_bfloat16(float x);
float from_bfloat16(uint16_t bits);

}  // namespace emulator
