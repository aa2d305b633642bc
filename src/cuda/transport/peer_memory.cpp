#include "cuda/transport/peer_memory.h"

#include <unistd.h>

#include "cuda/device/driver_call.h"

namespace lasp {
namespace {

// What of the driver's virtual memory is used. Found once; a failure is found again by each who asks.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemExportToShareableHandle) to_file;
  decltype(&cuMemImportFromShareableHandle) from_file;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) unreserve;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;

  Driver() {
    cuda::find_driver(granularity, "cuMemGetAllocationGranularity");
    cuda::find_driver(create, "cuMemCreate");
    cuda::find_driver(release, "cuMemRelease");
    cuda::find_driver(to_file, "cuMemExportToShareableHandle");
    cuda::find_driver(from_file, "cuMemImportFromShareableHandle");
    cuda::find_driver(reserve, "cuMemAddressReserve");
    cuda::find_driver(unreserve, "cuMemAddressFree");
    cuda::find_driver(map, "cuMemMap");
    cuda::find_driver(unmap, "cuMemUnmap");
    cuda::find_driver(set_access, "cuMemSetAccess");
  }
};
const Driver &driver() {
  static const Driver found;
  return found;
}

constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUmemAllocationProp properties_of(int32_t device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties.requestedHandleTypes = kFile;
  return properties;
}

// Whole pieces of what the driver hands out: the same for an owner and for all who map it.
size_t rounded(size_t bytes, int32_t device) {
  const CUmemAllocationProp properties = properties_of(device);
  size_t unit = 0;
  cuda::check_driver(driver().granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                     "cuMemGetAllocationGranularity");
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

File::~File() {
  if (number_ >= 0) close(number_);
}

File &File::operator=(File &&other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

PeerMemory PeerMemory::make(int32_t device, size_t bytes, cudaStream_t stream) {
  PeerMemory memory;
  const CUmemAllocationProp properties = properties_of(device);
  const size_t size = rounded(bytes, device);
  cuda::check_driver(driver().create(&memory.handle_, size, &properties, 0), "cuMemCreate");
  memory.place(device, size);
  cuda::check(cudaMemsetAsync(memory.data(), 0, size, stream), "cudaMemsetAsync");
  cuda::check(cudaStreamSynchronize(stream), "cudaMemsetAsync");
  return memory;
}

PeerMemory PeerMemory::map(const File &file, int32_t device, size_t bytes) {
  PeerMemory memory;
  void *const number = reinterpret_cast<void *>(static_cast<intptr_t>(file.get()));
  cuda::check_driver(driver().from_file(&memory.handle_, number, kFile), "cuMemImportFromShareableHandle");
  memory.place(device, rounded(bytes, device));
  return memory;
}

void PeerMemory::place(int32_t device, size_t bytes) {
  cuda::check_driver(driver().reserve(&address_, bytes, 0, 0, 0), "cuMemAddressReserve");
  const int mapped = driver().map(address_, bytes, 0, handle_, 0);
  if (mapped != CUDA_SUCCESS) driver().unreserve(std::exchange(address_, 0), bytes);
  cuda::check_driver(mapped, "cuMemMap");
  bytes_ = bytes;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  cuda::check_driver(driver().set_access(address_, bytes, &access, 1), "cuMemSetAccess");
}

PeerMemory::~PeerMemory() {
  if (address_ != 0) {
    driver().unmap(address_, bytes_);
    driver().unreserve(address_, bytes_);
  }
  if (handle_ != 0) driver().release(handle_);
}

PeerMemory &PeerMemory::operator=(PeerMemory &&other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

File PeerMemory::file() const {
  int number = -1;
  cuda::check_driver(driver().to_file(&number, handle_, kFile, 0), "cuMemExportToShareableHandle");
  return File(number);
}

void require_nvlink(int32_t device, const char *bus_id) {
  int peer = -1;
  cuda::check(cudaDeviceGetByPCIBusId(&peer, bus_id), "a GPU that this process does not see");
  if (peer == device) return;
  for (const cudaDeviceP2PAttr needed : {cudaDevP2PAttrAccessSupported, cudaDevP2PAttrNativeAtomicSupported}) {
    int holds = 0;
    cuda::check(cudaDeviceGetP2PAttribute(&holds, needed, device, peer), "cudaDeviceGetP2PAttribute");
    if (holds == 0)
      throw fail(LASP_ERROR_UNSUPPORTED, "CUDA devices %d and %d have no NVLink between them", device, peer);
  }
}

}  // namespace lasp
