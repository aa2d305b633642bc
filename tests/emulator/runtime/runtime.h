// What the files of the stand-in CUDA runtime share: errors, devices, kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "machine/machine.h"

namespace emulator::runtime {

// Remembers an error as the last one of this thread, and returns it. As if each program and library had linked a
// static runtime of its own, each has its own last error, so that this is for functions that they call, and for no
// others.
cudaError_t remember(cudaError_t error, const void *caller);
[[gnu::always_inline]] inline cudaError_t note(cudaError_t error) {
  return error == cudaSuccess ? error : remember(error, __builtin_return_address(0));
}
// What a kernel that failed leaves for every later call; cudaSuccess as long as none has.
cudaError_t broken();
// Says why on stderr, the first time.
void break_all(const char *why);
// note(body()), unless something is broken.
template <class Body>
[[gnu::always_inline]] inline cudaError_t call(const Body &body) {
  return note(broken() != cudaSuccess ? broken() : body());
}

int device_count();
// The context that is on top of this thread's stack, or the first device.
int current_device();
void set_current_device(int device);
void push_device(int device);
int pop_device();  // -1: there is none

// What LASP_EMULATED_CAPABILITY chooses: 80, 86 or 90, which is the default. The code is that for 9.0 on each of
// them.
struct Capability {
  int major, minor;
  size_t shared_of_multiprocessor;  // of which a block can have all but kReservedShared, once it has asked for it
  size_t shared_opt_in() const;
};
const Capability &capability();

constexpr int kMultiprocessors = 132;
constexpr size_t kDeviceMemory = size_t{80} << 30;
constexpr size_t kSharedMemory = 48 << 10, kReservedShared = 1 << 10;
constexpr int kVersion = CUDART_VERSION;

inline size_t Capability::shared_opt_in() const { return shared_of_multiprocessor - kReservedShared; }

// A kernel that a program has registered.
struct Kernel {
  std::string name;
  bool has_ptx = false;
  std::map<int, int> most_shared;  // cudaFuncAttributeMaxDynamicSharedMemorySize by device
};
// By the address of its host stub, or by a cudaKernel_t or cudaFunction_t, which is the Kernel itself. Null: none.
Kernel *find_kernel(const void *function);
// The facts of its PTX, or why there are none.
cudaError_t facts_of(const Kernel &kernel, const KernelFacts *&facts);
// How much dynamic shared memory a launch on this device may ask for.
size_t most_dynamic_shared(const Kernel &kernel, const KernelFacts &facts, int device);

// A function of the driver by its name; null: none.
void *driver_function(const char *name);
void *shared_memory_function(std::string_view name);  // of those that map memory

// Memory of a device that comes from elsewhere.
void add_mapping(void *data, size_t bytes);
void remove_mapping(void *data);
// Whether the bytes from data on are in one allocation, or begin in none.
bool within_allocation(const void *data, size_t bytes);
bool is_allocation(const void *data);
bool is_lazy(const void *data);  // and its pages read as zero once they are given back

}  // namespace emulator::runtime

// What cudaGetKernel and the driver hand out.
struct CUkern_st : emulator::runtime::Kernel {};
