// What both writes have in common on the CPU: a rank's chunks, heads and threads, how its work is cut, and the
// tiles of the backward pass. The additive write is cpu_backend.h, the delta rule delta_backend.h.
#pragma once

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
  const char *description() const override { return description_.c_str(); }
  void copy_empty_sequences(float *to, const float *from, bool add) override;
  size_t most_composed() const override { return 1; }
  void fill_known_transition(lasp_stream, float *transition, const KnownTransition &known,
                             const float *log_decay) override;

 protected:
  RankWork(const Problem &problem, const TokenPartition &partition, ThreadPool &pool, const Kernels &kernels);

  int64_t chunks() const { return static_cast<int64_t>(partition_.chunks.size()); }
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
  std::string description_;
};

}  // namespace lasp::cpu

namespace lasp {

// The backend for the problem's write, and what takes it.
std::unique_ptr<Backend> make_cpu_backend(const Problem &, const TokenPartition &, ThreadPool &);

}  // namespace lasp
