// Device memory that other ranks map, in this process or another one. The driver keeps it as long as anybody has it
// mapped: so a rank may still write there when its owner is gone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace lasp {

// An open file, closed with its owner.
class File {
 public:
  explicit File(int number = -1) : number_(number) {}
  ~File();
  File(File &&other) noexcept : number_(std::exchange(other.number_, -1)) {}
  File &operator=(File &&other) noexcept;

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

class PeerMemory {
 public:
  PeerMemory() = default;
  // Of the current device, and all zero, by the stream. Throws Error: the device or the driver has none that can be
  // mapped, or too little.
  static PeerMemory make(int32_t device, size_t bytes, cudaStream_t stream);
  // Another rank's, which `file` stands for, to be read and written by this rank's device. Throws Error.
  static PeerMemory map(const File &file, int32_t device, size_t bytes);
  ~PeerMemory();
  PeerMemory(PeerMemory &&other) noexcept { *this = std::move(other); }
  PeerMemory &operator=(PeerMemory &&other) noexcept;

  std::byte *data() const { return reinterpret_cast<std::byte *>(address_); }
  // What stands for it where it is to be mapped. Throws Error.
  File file() const;
  // Work that may never end still uses it: it stays until the process ends.
  void leak() { handle_ = address_ = bytes_ = 0; }

 private:
  void place(int32_t device, size_t bytes);

  unsigned long long handle_ = 0, address_ = 0;
  size_t bytes_ = 0;
};

// Throws Error unless `device` can write the memory of the device at this PCI bus id, and all of NVLink's ordering
// and atomic operations hold between them.
void require_nvlink(int32_t device, const char *bus_id);

}  // namespace lasp
