// Sums over ranks of what lies on their devices.
#include "ranks.hpp"

#include <vector>

namespace train_lm {
namespace {

template <typename T>
void sum_anywhere(const Endpoint &end, Context &context, T *data, std::size_t count) {
  Device &device = context.device();
  if (end.ranks == 1) return;
  if (!device.is_cuda()) return end.world->sum(data, count);
  if (end.world->enqueue_sum(data, count, device.stream())) return;
  std::vector<T> host(count);
  context.finish();
  device.copy(host.data(), data, count * sizeof(T));
  end.world->sum(host.data(), count);
  device.copy(data, host.data(), count * sizeof(T));
}

}  // namespace

void sum_over_ranks(const Endpoint &end, Context &context, float *data, std::size_t count) {
  sum_anywhere(end, context, data, count);
}

void sum_over_ranks(const Endpoint &end, Context &context, double *data, std::size_t count) {
  sum_anywhere(end, context, data, count);
}

}  // namespace train_lm
