// The tables of a packed plan. Each pass brings the offsets of its sequences, and its tables are made from them on
// the device, in its workspace (kernels/packed_tables.h): nothing is allocated, agreed on or waited for.
//
// Offsets in host memory are counted here, so that launches have no empty entries. Offsets in device memory are not
// known to the host: launches then have room for any packing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/packing.h"
#include "core/workspace.h"
#include "cuda/backend/tables.h"
#include "cuda/cut/packed_sizes.h"
#include "kernels/packed_tables.h"

namespace lasp::cuda {

// A result of a pass.
struct Padded {
  gpu::Tensor tensor;
  DType dtype;
};

class PackedTables {
 public:
  // Of a rank's tokens of the whole buffer.
  PackedTables(const Problem &problem, const TokenRanges &ranges, int32_t rank);

  // Lays out the tables of a cut or of its short runs, which outlive this. At most gpu::kMostCuts cuts.
  void add(Partition &cut, const gpu::CutTokens &tokens);
  void add(ShortRuns &short_runs, const Partition &cut);

  uint64_t bytes() const { return bytes_; }
  // The tables of this packing are in `memory`, of bytes() bytes, or will be once make() is enqueued.
  void set(void *memory, const Packing &packing);
  // Of offsets in device memory the padding of these results is cleared with it.
  void make(cudaStream_t stream, std::span<const Padded> results = {});

  // Of the packing that was set last. How many segments there are, in device memory; null: the tables
  // say.
  const int64_t *live_segments() const { return exact_ ? nullptr : live_.data() + gpu::kLiveSegments; }
  // Likewise how many parts of its runs are followed by another run of their segment.
  const int64_t *followed(const Partition &cut) const;
  // Whether some of this rank's tokens may be padding.
  bool may_pad() const { return may_pad_; }
  // Whether make() has cleared it.
  bool is_cleared() const { return cleared_; }
  // Zero into the padding of results [1, T, heads, dim].
  void zero_padding(std::span<const Padded> results, cudaStream_t stream) const;
  // to[n] = from[n], or zero, for the empty sequences of this rank; states of `size` floats.
  void copy_empty_sequences(float *to, const float *from, int64_t size, bool adds, cudaStream_t stream) const;

 private:
  struct Cut {
    Partition *partition;
    gpu::CutTokens tokens;
    DeviceArray<gpu::PackedSegment> scratch;
    ShortRuns *short_runs = nullptr;
  };
  template <class T>
  DeviceArray<T> add(int64_t most);
  template <class T>
  static gpu::Table<T> table_of(const DeviceArray<T> &array);
  void set_sizes(const Packing &packing);
  bool may_carry() const;
  gpu::PackedCut tables_of(const Cut &cut) const;
  gpu::ZeroPadding padding_of(std::span<const Padded> results) const;

  const std::vector<gpu::PackedRange> ranges_;
  const EachSplit each_;  // Problem::each
  const int64_t tokens_, max_sequences_, most_segments_;
  uint64_t bytes_ = 0;
  std::vector<std::byte> image_;  // where the host makes small tables
  void *memory_ = nullptr;        // and where they go
  std::vector<std::shared_ptr<TablePlace>> places_;
  std::vector<Cut> cuts_;
  std::vector<int32_t> given_;    // offsets from the host, local ones
  DeviceArray<int32_t> offsets_;  // the same, where they are many
  DeviceArray<int64_t> empty_, live_;
  Packing packing_;
  bool exact_ = false, may_pad_ = true, cleared_ = false;
  int64_t num_empty_ = 0;
};

}  // namespace lasp::cuda
