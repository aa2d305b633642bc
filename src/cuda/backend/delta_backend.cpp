// What a plan of the delta rule on a GPU is made of, its workspace and cache, and the small operations on states.
#include "cuda/backend/delta_backend.h"

#include <algorithm>

#include "base/status.h"

namespace lasp::cuda {

DeltaBackend::DeltaBackend(Tables &tables, const Problem &problem, const TokenPartition &partition,
                           int32_t compute_capability)
    : inputs_(problem, partition),
      problem_(problem),
      map_(affine_map_of(problem)),
      choices_(make_delta_choices(problem, compute_capability)),
      tables_(tables, partition, gpu::delta_checkpoint_tokens(choices_.set)),
      description_(choices_.describe(compute_capability)) {
  check_allocation(static_cast<cudaError_t>(gpu::load_delta_kernels(choices_.set)), "loading kernels");
  check_allocation(static_cast<cudaError_t>(gpu::load_state_kernels()), "loading kernels");
}

void DeltaBackend::prepare_to_compose() {
  if (maps_) return;
  maps_.emplace(inputs_.state_shape());
  description_ += "; maps by " + maps_->library_text();
}

int64_t DeltaBackend::checkpoint_bytes() const {
  const gpu::DType type = gpu::delta_checkpoint_type(choices_.set, dtype_of(problem_.dtype));
  return inputs_.floats(tables_.num_checkpoints) * (type == gpu::DType::kFloat32 ? 4 : 2);
}

uint64_t DeltaBackend::cached_state_bytes(bool chunks) const {
  Carver states(nullptr);
  if (chunks) {
    states.take<std::byte>(checkpoint_bytes());
  } else {
    states.take<float>(map_.state_floats());
  }
  return states.used();
}

// Without the padding at the end where it holds states alone.
uint64_t DeltaBackend::cache_bytes(bool chunks) const {
  const int64_t states = chunks ? checkpoint_bytes() : map_.state_floats() * int64_t{sizeof(float)};
  if (transition_floats() == 0) return static_cast<uint64_t>(states);
  return cached_state_bytes(chunks) + static_cast<uint64_t>(transition_floats()) * sizeof(float);
}

DeltaBackend::ForwardWorkspace DeltaBackend::forward_workspace(void *workspace, void *cache) const {
  Carver carver(workspace);
  ForwardWorkspace w{};
  const bool kept = problem_.backward && cache != nullptr;
  if (kept && problem_.cache_chunks) w.checkpoints = cache;
  if (kept && transition_floats() > 0)
    w.transitions =
        reinterpret_cast<float *>(static_cast<std::byte *>(cache) + cached_state_bytes(problem_.cache_chunks));
  ForwardBuffers none{};
  w.launch =
      carver.take<float>(gpu::delta_forward_workspace(choices_.set, forward_pass(none, w, gpu::RunFilter::kAll)));
  w.bytes = carver.used();
  return w;
}

DeltaBackend::BackwardWorkspace DeltaBackend::backward_workspace(void *workspace, const void *cache) const {
  const Problem &p = problem_;
  Carver carver(workspace);
  BackwardWorkspace w{};
  // The cache is only read here: its states are final.
  w.checkpoints = p.cache_chunks ? const_cast<void *>(cache) : carver.take<std::byte>(checkpoint_bytes());
  if (cache != nullptr && transition_floats() > 0)
    w.transitions =
        reinterpret_cast<const float *>(static_cast<const std::byte *>(cache) + cached_state_bytes(p.cache_chunks));
  w.d_checkpoints = carver.take<std::byte>(checkpoint_bytes());
  const int64_t of_head = p.batch * p.tokens;
  const auto stage = [&](int32_t heads, int32_t dim) {
    return heads == p.heads ? nullptr : carver.take<float>(of_head * p.heads * dim);
  };
  w.staged[0] = stage(p.heads_q, p.head_dim_k);
  w.staged[1] = stage(p.heads_k, p.head_dim_k);
  w.staged[2] = stage(p.heads_v, p.head_dim_v);
  const BackwardBuffers none{};
  const ForwardWorkspace forward{};
  w.launch = carver.take<float>(
      std::max(gpu::delta_reversed_workspace(choices_.set, reversed_pass(none, w, gpu::RunFilter::kAll)),
               gpu::delta_forward_workspace(choices_.set, forward_pass({}, forward, gpu::RunFilter::kAll))));
  w.gradients = carver.take<float>(gpu::delta_gradients_workspace(choices_.set, gradients_pass(none, w)));
  w.bytes = carver.used();
  return w;
}

void DeltaBackend::fill_inputs(gpu::DeltaInputs &to, const DeviceArray<gpu::Run> &runs, const void *decay,
                               const void *beta) const {
  static_cast<gpu::PassInputs &>(to) = inputs_.pass_inputs(runs.span(), decay);
  to.scale = problem_.scale;
  to.beta = beta;
  to.beta_dtype = dtype_of(problem_.beta_dtype);
  to.beta_strides = inputs_.strides(problem_.beta_layout);
  to.segments = tables_.segments.data();
}

void DeltaBackend::fill_map(const AffineMapView &map, bool reversed, const float *cached) const {
  gpu::DeltaMaps maps;
  maps.shape = inputs_.state_shape();
  maps.segments = tables_.segments.data();
  maps.num_segments = tables_.segments.size();
  maps.reversed = reversed;
  maps.state = map.state;
  maps.transition = map.transition;
  maps.cached = cached;
  check_launch(gpu::launch_delta_maps(maps, stream_), "filling a map");
}

void DeltaBackend::copy(void *to, const void *from, int64_t floats, const char *what) const {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (from == nullptr) return check(cudaMemsetAsync(to, 0, bytes, stream_), what);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), what);
}

void DeltaBackend::copy_empty_sequences(float *to, const float *from, bool) {
  check_launch(gpu::launch_copy_states(to, from, tables_.empty_sequences.data(), tables_.empty_sequences.size(),
                                       inputs_.floats(1), stream_),
               "handing on the states of empty sequences");
}

void DeltaBackend::compose(lasp_stream stream, AffineMapView to, std::span<const AffineMapView> later,
                           AffineMapView earlier, int64_t begin, int64_t end) {
  if (!later.empty()) return maps_->compose(stream, to, later.front(), earlier, begin, end);
  const int64_t size = problem_.state_size();
  check(
      cudaMemcpyAsync(to.state + begin * size, earlier.state + begin * size,
                      static_cast<size_t>((end - begin) * size) * sizeof(float), cudaMemcpyDeviceToDevice, stream),
      "copying states");
}

}  // namespace lasp::cuda
