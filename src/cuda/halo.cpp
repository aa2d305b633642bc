#include "cuda/halo.h"

namespace lasp {

CudaHalo::CudaHalo(CudaDevice &device, const HaloPlan &plan) : HaloPasses(plan), device_(device) {
  const cuda::Current current(device.primary());
  const cuda::RelaxedCapture relaxed;
  cuda::load_halo_kernels();
  for (const bool forward : {true, false}) {
    const std::vector<Transfer> group = messages(forward);
    device.transport().require_room(group.size());
    device.transport().reserve(group, 1);
  }
}

void CudaHalo::connect() {
  std::vector<Transfer> both = messages(true);
  const std::vector<Transfer> back = messages(false);
  both.insert(both.end(), back.begin(), back.end());
  if (both.empty()) return;
  const cuda::Current current(device_.primary());
  device_.transport().connect(both, device_.exchange_stream());
}

void CudaHalo::run(const char *name, lasp_stream stream, FunctionRef<void()> body) {
  device_.run({name, stream, device_.comm().nranks() > 1}, [&](bool capturing) {
    stream_ = stream;
    capturing_ = capturing;
    body();
  });
}

void CudaHalo::clear(const HaloRows &to, int64_t count) {
  cuda::clear_rows(plan().shape, tensor(to, nullptr), count);
}
void CudaHalo::gather(std::span<const HaloPart> parts, const HaloRows &from, void *workspace) {
  cuda::gather_rows(plan().shape, tensor(from, workspace), parts);
}
void CudaHalo::scatter(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) {
  cuda::scatter_rows(plan().shape, tensor(to, workspace), parts);
}
void CudaHalo::add(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) {
  cuda::add_rows(plan().shape, tensor(to, workspace), parts);
}

void CudaHalo::exchange(std::span<const Transfer> messages, int32_t operation, const ExchangeLog &log) {
  device_.enqueue({stream_, capturing_, operation, tag_of(operation, kTagRows)}, messages);
  log.write("a halo", true);
}

}  // namespace lasp
