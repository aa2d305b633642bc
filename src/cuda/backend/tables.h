// A rank's tokens as kernels read them: runs and segments in device memory, made once with the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "cuda/choice/plan_inputs.h"
#include "cuda/cut/runs.h"
#include "cuda/device/cuda_call.h"

namespace lasp::cuda {

class PackedTables;

inline constexpr size_t kTableAlignment = 256;

// Device memory, freed on the device that it was allocated on.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock &) = delete;
  DeviceBlock &operator=(const DeviceBlock &) = delete;

  void allocate(size_t bytes);  // once, on the current device
  std::byte *data() const { return data_; }

 private:
  std::byte *data_ = nullptr;
  int device_ = 0;
};

// Where a table is: in the plan's own memory from Tables::upload() on, or in a pass's workspace (packed_tables.h).
struct TablePlace {
  std::shared_ptr<const DeviceBlock> block;  // keeps the plan's own
  std::byte *data = nullptr;
  size_t offset = 0;
  int64_t size = 0, most = 0;  // entries, and how many there is room for
};

// One of a plan's tables in device memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  T *data() const {  // null where there is nothing, or not yet
    return size() > 0 && place_->data != nullptr ? reinterpret_cast<T *>(place_->data) : nullptr;
  }
  int64_t size() const { return place_ ? place_->size : 0; }
  // As launches take runs.
  RunSpan span() const requires std::is_same_v<T, gpu::Run> { return {data(), size()}; }

 private:
  friend class Tables;
  friend class PackedTables;
  explicit DeviceArray(std::shared_ptr<TablePlace> place) : place_(std::move(place)) {}

  std::shared_ptr<TablePlace> place_;
};

// A plan's tables on their way to the device: added one by one, then all of them by one allocation and one copy.
class Tables {
 public:
  template <class T>
  DeviceArray<T> add(const std::vector<T> &values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t offset = (host_.size() + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
    host_.resize(offset + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(host_.data() + offset, values.data(), values.size() * sizeof(T));
    places_.push_back(
        std::make_shared<TablePlace>(TablePlace{block_, nullptr, offset, static_cast<int64_t>(values.size()), 0}));
    return DeviceArray<T>(places_.back());
  }
  // Ends when the tables are on the device, so that passes on any stream find them there. `stream` carries nothing
  // else that takes time.
  void upload(cudaStream_t stream);

 private:
  std::vector<std::byte> host_;
  std::shared_ptr<DeviceBlock> block_ = std::make_shared<DeviceBlock>();
  std::vector<std::shared_ptr<TablePlace>> places_;
};

// A cut of the rank's segments into runs of at most `run_tokens` tokens, and a finer one, of `state_tokens`, for
// finding the states between runs: more blocks share that work. Where a segment has several runs, `run_tokens` is a
// multiple of `state_tokens`. States are indexed by the finer cut everywhere; of what a scan leaves at them, only
// what enters a run of the coarser cut is a state. In arrays of two, [0] is forward and [1] reversed.
//
// Of a packed plan each pass has a cut of its own, in tables that are made before it (packed_tables.h). Their sizes
// are those of the packing where the host knows it; else there is room for any, and what is not used is empty.
struct Partition {
  Partition(Tables &tables, const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens);
  Partition(PackedTables &tables, const TokenPartition &whole, int64_t run_tokens, int64_t state_tokens);
  Partition(const Partition &) = delete;  // PackedTables know where it is
  Partition &operator=(const Partition &) = delete;

  // That there is room for: states, and of all runs of passes runs and checkpoints.
  int64_t num_states = 0, num_runs = 0, num_checkpoints = 0;
  // States and runs that kernels are chosen for: of a packing that the host does not know, those of as many
  // sequences of one length.
  int64_t usual_states = 0, usual_runs = 0;

  DeviceArray<gpu::Segment> segments;  // by the finer cut
  DeviceArray<gpu::Run> state_runs;    // the finer cut
  DeviceArray<gpu::Run>
      followed[2];  // of it, those of runs after which, in scan order, another of their segment comes
  DeviceArray<gpu::Run> leading[2];  // the same, and all of segments whose end state leaves the rank
  bool single_runs = false;          // no segment has two runs
  bool always_single = false;        // in no packing
  int64_t longest_state_run = 0;     // tokens; no run of `state_runs` has more
  // The runs of passes: all, those of such segments, and the others. Run::state is the state that enters the run.
  DeviceArray<gpu::Run> runs[2], consumers[2], independent[2];
  DeviceArray<gpu::Run> beginnings;  // of runs[1], those with a sequence's first token
};

// ShortRunTables of a Partition in device memory.
struct ShortRuns {
  ShortRuns(Tables &tables, const ShortRunTables &cut);
  // Windows of `runs` runs of passes, with `parts` places for the short ones of each.
  ShortRuns(PackedTables &tables, const Partition &cut, int64_t tokens, int64_t parts, int64_t runs);

  using Window = ShortRunTables::Window;
  // Those of this pass; one at least.
  std::span<const Window> windows() const;

  std::vector<Window> all_windows;
  int64_t tokens = 0, parts = 0, runs_in_window = 0;  // of a packed plan; else 0
  DeviceArray<gpu::Run> wholes;                       // likewise: what the windows go through
  DeviceArray<gpu::Run> runs;
  DeviceArray<gpu::Segment> segments;
  DeviceArray<int64_t> entered_at[2];
  int64_t most = 0;  // runs of the largest window
};

}  // namespace lasp::cuda
