// Memory of the stand-in driver that other ranks map: files without a name, which the kernel keeps as long as
// anybody has them open or mapped.
#include <cuda.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/runtime.h"

namespace emulator::runtime {
namespace {

constexpr size_t kUnit = size_t{2} << 20;

int number_of(CUmemGenericAllocationHandle handle) { return static_cast<int>(handle) - 1; }  // a handle is never 0
CUmemGenericAllocationHandle handle_of(int number) { return static_cast<CUmemGenericAllocationHandle>(number) + 1; }
void *address_of(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

CUresult granularity(size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
  return *bytes = kUnit, CUDA_SUCCESS;
}

CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *,
                unsigned long long) {
  if (bytes % kUnit != 0) return CUDA_ERROR_INVALID_VALUE;
  const int number = memfd_create("emulated", MFD_CLOEXEC);
  if (number < 0 || ftruncate(number, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return *handle = handle_of(number), CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) { return close(number_of(handle)), CUDA_SUCCESS; }

CUresult to_file(void *number, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long) {
  *static_cast<int *>(number) = dup(number_of(handle));
  return CUDA_SUCCESS;
}
CUresult from_file(CUmemGenericAllocationHandle *handle, void *file, CUmemAllocationHandleType) {
  const int number = dup(static_cast<int>(reinterpret_cast<intptr_t>(file)));
  if (number < 0) return CUDA_ERROR_INVALID_VALUE;
  return *handle = handle_of(number), CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr *address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void *const there = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (there == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  return *address = reinterpret_cast<CUdeviceptr>(there), CUDA_SUCCESS;
}
CUresult unreserve(CUdeviceptr address, size_t bytes) {
  return munmap(address_of(address), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  struct stat file {};
  if (fstat(number_of(handle), &file) != 0 || file.st_size != static_cast<off_t>(bytes))
    return CUDA_ERROR_INVALID_VALUE;
  void *const there =
      mmap(address_of(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, number_of(handle), 0);
  if (there == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  return add_mapping(there, bytes), CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, size_t bytes) {
  remove_mapping(address_of(address));
  mmap(address_of(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) { return CUDA_SUCCESS; }

}  // namespace

void *shared_memory_function(std::string_view name) {
  const auto erased = [](auto *function) { return reinterpret_cast<void *>(function); };
  if (name == "cuMemGetAllocationGranularity") return erased(granularity);
  if (name == "cuMemCreate") return erased(create);
  if (name == "cuMemRelease") return erased(release);
  if (name == "cuMemExportToShareableHandle") return erased(to_file);
  if (name == "cuMemImportFromShareableHandle") return erased(from_file);
  if (name == "cuMemAddressReserve") return erased(reserve);
  if (name == "cuMemAddressFree") return erased(unreserve);
  if (name == "cuMemMap") return erased(map);
  if (name == "cuMemUnmap") return erased(unmap);
  if (name == "cuMemSetAccess") return erased(set_access);
  return nullptr;
}

}  // namespace emulator::runtime
