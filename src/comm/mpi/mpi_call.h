// Small things that every file of the MPI transport needs: errors of MPI as exceptions, and messages of any size.
#pragma once

#include <mpi.h>

#include <climits>
#include <cstdint>

namespace lasp::mpi {

// MPI reported an error. Caught where the transport's functions are entered; becomes LASP_ERROR_TRANSPORT.
struct MpiFailure {
  int code;
};

inline void check(int code) {
  if (code != MPI_SUCCESS) throw MpiFailure{code};
}

// False before MPI_Init and once MPI_Finalize has begun: nothing of MPI may then be called.
inline bool mpi_is_usable() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

// A run of bytes as MPI wants it, a count and a type. Counts are ints, so that runs of more than `most` bytes
// become one element of a type built from large blocks and a rest. MPI allows the type to be freed while messages
// that use it are on their way.
class ByteRun {
 public:
  static constexpr uint64_t kMost = INT_MAX;
  static constexpr uint64_t kBlock = uint64_t{1} << 30;

  explicit ByteRun(uint64_t bytes, uint64_t most = kMost, uint64_t block = kBlock) {
    if (bytes <= most) {
      count_ = static_cast<int>(bytes);
      return;
    }
    MPI_Datatype block_type = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &block_type));
    const uint64_t blocks = bytes / block;
    const int lengths[2] = {static_cast<int>(blocks), static_cast<int>(bytes - blocks * block)};
    const MPI_Aint places[2] = {0, static_cast<MPI_Aint>(blocks * block)};
    const MPI_Datatype types[2] = {block_type, MPI_BYTE};
    const int code = MPI_Type_create_struct(2, lengths, places, types, &type_);
    MPI_Type_free(&block_type);
    check(code);
    count_ = 1;
    built_ = true;
    const int committed = MPI_Type_commit(&type_);
    if (committed != MPI_SUCCESS) MPI_Type_free(&type_);
    check(committed);
  }
  ~ByteRun() {
    if (built_) MPI_Type_free(&type_);
  }
  ByteRun(const ByteRun &) = delete;
  ByteRun &operator=(const ByteRun &) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
  bool built_ = false;
};

}  // namespace lasp::mpi
