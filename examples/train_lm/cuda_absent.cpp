// In place of cuda.cpp in a build without the CUDA toolkit.
#include <stdexcept>

#include "cuda.hpp"

namespace train_lm::cuda {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("This train_lm was built without CUDA; --device cpu is what it has.");
}

}  // namespace

int device_count() { refuse(); }
void use(int) { refuse(); }
std::string name(int) { refuse(); }
lasp_stream make_stream() { refuse(); }
void destroy_stream(lasp_stream) noexcept {}
bool is_idle(lasp_stream) { refuse(); }
void *allocate(std::size_t) { refuse(); }
void release(void *) noexcept {}
void copy(void *, const void *, std::size_t, lasp_stream) { refuse(); }

}  // namespace train_lm::cuda
