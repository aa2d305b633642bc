// A layout by its strides, as tests write it.
#pragma once

#include <lasp/lasp.h>

namespace lasp_test {

constexpr lasp_layout strided(int64_t batch, int64_t token, int64_t head, int32_t dtype = LASP_DTYPE_DEFAULT) {
  return {dtype, LASP_LAYOUT_STRIDED, batch, token, head, {0, 0}};
}

}  // namespace lasp_test
