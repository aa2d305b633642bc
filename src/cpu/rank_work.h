// What both writes have in common on the CPU: a rank's chunks, heads and threads, how its work is cut, and the
// tiles of the backward pass. The additive write is cpu_backend.h, the delta rule delta_backend.h.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "chunk_math.h"
#include "engine/backend.h"
#include "scratch.h"

namespace lasp::cpu {

class RankWork : public Backend {
 public:
  // Of a packed problem, whose partition is at first that of one sequence: cuts the rank's tokens anew, without
  // allocating. Workspace, carry and state cache are laid out for the most segments and chunks there can be.
  void repack(const TokenRanges &ranges, int32_t rank, OffsetSpan offsets);
  void clear_padding(const ForwardBuffers &b) override;
  void clear_padding(const BackwardBuffers &b) override;
  const char *description() const override { return description_.c_str(); }
  void copy_empty_sequences(float *to, const float *from, bool add) override;
  size_t most_composed() const override { return 1; }
  void fill_known_transition(lasp_stream, float *transition, const KnownTransition &known,
                             const float *log_decay) override;

 protected:
  RankWork(const Problem &problem, const TokenPartition &partition, ThreadPool &pool, const Kernels &kernels);

  // What the next packing changes beside the partition.
  virtual void follow_partition() = 0;

  int64_t chunks() const { return static_cast<int64_t>(partition_.chunks.size()); }
  // For sizes and places in memory, which are the same for each packing.
  int64_t most_chunks() const { return most_.chunks; }
  int64_t most_segments() const { return most_.segments; }
  int64_t states(int64_t n) const { return n * problem_.heads * problem_.state_size(); }
  TokenSpan tokens_of(int64_t chunk) const;
  const Segment &segment_of(int64_t chunk) const;
  bool ends_sequence(int64_t chunk) const;  // it holds a sequence's last token
  const std::vector<RowPath> &paths(bool reversed) const {
    return reversed ? partition_.backward : partition_.forward;
  }
  void describe(const char *text) { description_ += text; }

  // Calls body(item, scratch) in parallel, without allocating.
  template <class Body>
  void parallel(int64_t items, const Body &body, FunctionRef<void()> between = {}) {
    const auto call = [&](int64_t item, int32_t thread) { body(item, *scratch_[static_cast<size_t>(thread)]); };
    pool_.parallel_for(items, call, between);
  }

  void keep_incoming(const ForwardBuffers &b, const float *incoming) const;

  // gradient_tiles.cpp
  struct HeadInputs {
    Tile q, k, v, d_o;
  };
  HeadInputs load_inputs(const BackwardBuffers &b, const TokenSpan &span, int32_t head, Scratch &s) const;
  GradientTiles output_tiles(const BackwardBuffers &b, const TokenSpan &span, int32_t head, Scratch &s,
                             bool complete) const;
  void flush_tiles(const BackwardBuffers &b, const GradientTiles &to, const TokenSpan &span, int64_t chunk,
                   int32_t head, bool query, bool rest, double *head_dg, Scratch &s) const;
  void sum_head_decay(const BackwardBuffers &b, const double *head_dg) const;

  Problem problem_;
  AffineMap map_;  // of the whole rank
  TokenPartition partition_;
  ThreadPool &pool_;
  ChunkMath math_;
  std::vector<std::unique_ptr<Scratch>> scratch_;  // one for each thread
  int32_t group_ = 1;                              // output heads that share gradients of inputs
  int32_t walk_heads_ = 0;                         // neighbouring heads of one walk; 0: no walks
  std::vector<int64_t> walk_order_;                // segments, longest first

 private:
  void cut_walks();
  int32_t heads_of_a_walk(bool even);
  bool walks_are_even(int64_t walks);
  void clear_rows(void *data, const Layout &layout, int64_t heads, int64_t dim, DType type) const;

  PartitionSize most_;
  std::array<Slices, kMostRuns> padding_{};  // of each run: tokens of which nothing is read
  std::vector<int64_t> busy_;                // by thread
  std::string description_;
};

}  // namespace lasp::cpu

namespace lasp {

// The backend for the problem's write, and what takes it.
std::unique_ptr<cpu::RankWork> make_cpu_backend(const Problem &, const TokenPartition &, ThreadPool &);

}  // namespace lasp
