// A chunk's rows of one head, as float32: the caller's own memory where that is float32 and products read it well,
// else a copy in a thread's scratch.
#pragma once

#include <cstdint>

namespace lasp::cpu {

struct Tile {
  const float *data = nullptr;
  int ld = 0;
  const float *row(int64_t i) const { return data + i * ld; }
};

struct OutTile {
  float *data = nullptr;
  int ld = 0;
  float *row(int64_t i) const { return data + i * ld; }
};

// Where a chunk's tokens lie.
struct TokenSpan {
  int64_t row = 0;    // batch row
  int64_t token = 0;  // first local token
  int length = 0;
};

}  // namespace lasp::cpu
