// One message of an operation, as it is handed to whatever moves it.
#pragma once

#include <cstdint>

namespace lasp {

struct Transfer {
  bool is_send = false;
  int32_t peer = -1;
  void *data = nullptr;
  uint64_t bytes = 0;
};

}  // namespace lasp
