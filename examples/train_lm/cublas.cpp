// Finds cuBLAS and calls its one function of matrix products.
#ifdef TRAIN_LM_HAS_CUDA
#include "cublas.hpp"

#include <dlfcn.h>

#include <exception>
#include <stdexcept>
#include <vector>

namespace train_lm {
namespace {

// Values of cuBLAS's enumerations, which are part of its ABI.
constexpr int kFloat32 = 0, kBfloat16 = 14;    // cudaDataType_t
constexpr int kInFloat32 = 68, kDefault = -1;  // cublasComputeType_t; cublasGemmAlgo_t
constexpr int kAsItIs = 0, kTransposed = 1;    // cublasOperation_t

// A handle for dlsym. It is never closed: other threads may use it.
void *open_library(const std::string &path) {
  if (path.empty() && dlsym(RTLD_DEFAULT, "cublasGemmEx") != nullptr) return dlopen(nullptr, RTLD_NOW);
  std::string reasons;
  for (const std::string &name : path.empty() ? std::vector<std::string>{"libcublas.so.13", "libcublas.so.12"}
                                              : std::vector<std::string>{path}) {
    if (void *library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
    const char *reason = dlerror();
    reasons += std::string(reasons.empty() ? "" : "; ") + (reason != nullptr ? reason : name.c_str());
  }
  throw std::runtime_error("cuBLAS cannot be loaded; --cublas PATH names a copy (a Python wheel of it has one): " +
                           reasons);
}

template <typename Function>
void find(void *library, const char *name, Function *function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) throw std::runtime_error(std::string("This cuBLAS lacks ") + name + "; it is too old.");
}

int type_of(const Operand &x) { return x.narrow ? kBfloat16 : kFloat32; }

}  // namespace

Cublas::Cublas(const std::string &path, lasp_stream stream) {
  void *library = open_library(path);
  find(library, "cublasCreate_v2", &create_);
  find(library, "cublasDestroy_v2", &destroy_);
  find(library, "cublasSetStream_v2", &set_stream_);
  find(library, "cublasGemmEx", &gemm_);
  check(create_(&handle_), "cublasCreate");
  check(set_stream_(handle_, stream), "cublasSetStream");
}

Cublas::~Cublas() {
  // It waits for the device, and the device may be waiting for a rank that has failed. The process then ends.
  if (std::uncaught_exceptions() == 0) destroy_(handle_);
}

void Cublas::check(int result, const char *call) const {
  if (result != 0)
    throw std::runtime_error(std::string(call) + ": cuBLAS answered " + std::to_string(result) +
                             (result == 3 ? ", that there is no room on the GPU." : "."));
}

// cuBLAS counts matrices by columns. A row-major matrix is its transpose there, and c^T = b^T a^T.
void Cublas::multiply(std::int64_t m, std::int64_t n, std::int64_t k, Operand a, bool a_transposed, Operand b,
                      bool b_transposed, float beta, Operand c) const {
  const float one = 1.0f;
  const auto narrow = [](std::int64_t x) { return static_cast<int>(x); };
  check(gemm_(handle_, b_transposed ? kTransposed : kAsItIs, a_transposed ? kTransposed : kAsItIs, narrow(n),
              narrow(m), narrow(k), &one, b.data, type_of(b), narrow(b_transposed ? k : n), a.data, type_of(a),
              narrow(a_transposed ? m : k), &beta, const_cast<void *>(c.data), type_of(c), narrow(n), kInFloat32,
              kDefault),
        "cublasGemmEx");
}

}  // namespace train_lm
#endif
