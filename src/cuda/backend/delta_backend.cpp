// What a plan of the delta rule on a GPU is made of, its workspace and cache, and the small operations on states.
#include "cuda/backend/delta_backend.h"

#include <algorithm>

#include "base/status.h"

namespace lasp::cuda {

DeltaBackend::DeltaBackend(Tables &tables, const BackendPlan &plan)
    : inputs_(plan.problem, plan.partition),
      problem_(plan.problem),
      map_(affine_map_of(plan.problem)),
      kernels_(plan.problem, plan.compute_capability),
      choices_(make_delta_choices(inputs_, kernels_)),
      tables_(tables, plan, choices_.spacing),
      in_halves_(gpu::delta_has_halves(choices_.forward) &&
                 (tables_.any(false, gpu::RunFilter::kDependent) || tables_.any(true, gpu::RunFilter::kDependent))),
      description_(choices_.describe(plan.compute_capability, plan.problem.backward)) {}

void DeltaBackend::load_kernels() const {
  for (const gpu::KernelSet set : {choices_.forward, choices_.reversed, choices_.gradients, kOfStep})
    check_allocation(static_cast<cudaError_t>(gpu::load_delta_kernels(set)), "loading kernels");
  check_allocation(static_cast<cudaError_t>(gpu::load_state_kernels()), "loading kernels");
  if (problem_.packed) check_allocation(static_cast<cudaError_t>(gpu::load_packed_tables()), "loading kernels");
}

void DeltaBackend::adapt_tables(lasp_stream stream) const {
  if (problem_.packed) return;  // each pass makes its own
  tables_.adapt(stream);
  check(cudaStreamSynchronize(stream), "adapting tables");
}

void DeltaBackend::prepare_to_compose(int64_t heads, lasp_stream stream) {
  if (!maps_) {
    maps_.emplace(inputs_.state_shape(), stream);
    description_ += "; maps by " + maps_->library_text();
  }
  maps_->prepare(heads, stream);
}

// Of states, or `back` of their gradients.
int64_t DeltaBackend::checkpoint_bytes(bool back) const {
  gpu::DeltaReversed pass = delta_reversed_pass(inputs_, {}, {});
  pass.own_checkpoints = choices_.own_checkpoints;
  return tables_.num_checkpoints() * gpu::delta_checkpoint_bytes(choices_.forward, pass, back);
}

int64_t DeltaBackend::maps_floats() const {
  return gpu::delta_maps_floats(choices_.forward, forward_pass({}, {}, gpu::RunFilter::kAll));
}

// Outputs are found again from the general kernels' checkpoints, by stretches. From rounded ones they would be
// others, and stretches ask for more workspace: then the state that came in is kept as well.
DeltaBackend::Cached DeltaBackend::cached(const void *cache, bool chunks) const {
  const bool walks = !chunks || choices_.forward != gpu::KernelSet::kGeneric;
  Carver carver(const_cast<void *>(cache));
  Cached c{};
  if (chunks) c.checkpoints = carver.take<std::byte>(checkpoint_bytes(false));
  if (chunks) c.maps = carver.take<float>(maps_floats());
  if (walks) c.incoming = carver.take<float>(inputs_.floats(inputs_.partition().rows()));
  if (transition_floats() > 0) c.transitions = carver.take<float>(transition_floats());
  c.bytes = carver.used();
  return c;
}

uint64_t DeltaBackend::cache_bytes(bool chunks) const { return cached_bytes(chunks) + tables_.bytes(true); }

void DeltaBackend::make_tables(const ForwardBuffers &b) const {
  void *const cached = static_cast<std::byte *>(b.state_cache) + cached_bytes(problem_.cache_chunks);
  tables_.make(problem_.backward ? cached : b.workspace, b.packing, stream_);
}

void DeltaBackend::find_tables(const void *state_cache, const Packing &packing) const {
  auto *const cache = static_cast<std::byte *>(const_cast<void *>(state_cache));
  tables_.find(cache + cached_bytes(problem_.cache_chunks), packing);
}

DeltaBackend::ForwardWorkspace DeltaBackend::forward_workspace(void *workspace, void *cache) const {
  Carver carver(workspace);
  ForwardWorkspace w{};
  carver.take<std::byte>(static_cast<int64_t>(tables_.bytes(false)));
  if (problem_.backward && cache != nullptr) {
    const Cached kept = cached(cache, problem_.cache_chunks);
    w.checkpoints = kept.checkpoints, w.maps = kept.maps;
    w.incoming = kept.incoming, w.transitions = kept.transitions;
  }
  ForwardBuffers none{};
  w.launch = carver.take<float>(
      gpu::delta_forward_workspace(choices_.forward, forward_pass(none, w, gpu::RunFilter::kAll)));
  w.bytes = carver.used();
  return w;
}

DeltaBackend::BackwardWorkspace DeltaBackend::backward_workspace(void *workspace, const void *cache) const {
  const Problem &p = problem_;
  Carver carver(workspace);
  BackwardWorkspace w{};
  if (cache != nullptr) {  // it is only read here: its states are final
    const Cached kept = cached(cache, p.cache_chunks);
    w.checkpoints = kept.checkpoints, w.maps = kept.maps;
    w.incoming = kept.incoming, w.transitions = kept.transitions;
  }
  if (!p.cache_chunks) w.checkpoints = carver.take<std::byte>(checkpoint_bytes(false));
  w.d_checkpoints = carver.take<std::byte>(checkpoint_bytes(true));
  const int64_t of_head = p.batch * p.tokens;
  const auto stage = [&](int32_t heads, int32_t dim, bool of_value) {
    if (!is_staged(choices_.left, p.heads, heads, of_value)) return static_cast<float *>(nullptr);
    return carver.take<float>(of_head * (of_value ? p.heads : choices_.left.heads) * dim);
  };
  w.staged[0] = stage(p.heads_q, p.head_dim_k, false);
  w.staged[1] = stage(p.heads_k, p.head_dim_k, false);
  w.staged[2] = stage(p.heads_v, p.head_dim_v, true);
  const BackwardBuffers none{};
  const ForwardWorkspace forward{};
  w.launch = carver.take<float>(
      std::max(gpu::delta_reversed_workspace(choices_.reversed, reversed_pass(none, w, gpu::RunFilter::kAll)),
               gpu::delta_forward_workspace(choices_.forward, forward_pass({}, forward, gpu::RunFilter::kAll))));
  w.gradients =
      carver.take<float>(gpu::delta_gradients_workspace(choices_.gradients, gradients_pass(none, w, false)));
  w.bytes = carver.used();
  return w;
}

void DeltaBackend::fill_map(const AffineMapView &map, bool reversed, const float *cached) const {
  gpu::DeltaMaps maps;
  maps.shape = inputs_.state_shape();
  maps.shape.rows = inputs_.partition().rows();
  maps.segments = tables_.segments().data();
  maps.num_segments = tables_.segments().size();
  maps.reversed = reversed;
  maps.state = map.state;
  maps.transition = map.transition;
  maps.cached = cached;
  check_launch(gpu::launch_delta_maps(maps, take_mark(), stream_), "filling a map");
}

// As of a rank without tokens.
void DeltaBackend::fill_identity(const AffineMapView &map) {
  gpu::DeltaMaps maps;
  maps.shape = inputs_.state_shape();
  maps.shape.rows = map_.rows;
  maps.state = map.state;
  maps.transition = map.transition;
  check_launch(gpu::launch_delta_maps(maps, stream_), "filling a map");
}

void DeltaBackend::copy(void *to, const void *from, int64_t floats, const char *what) const {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (from == nullptr) return check(cudaMemsetAsync(to, 0, bytes, stream_), what);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), what);
}

void DeltaBackend::copy_empty_sequences(float *to, const float *from, bool add) {
  tables_.copy_empty_sequences(to, from, inputs_.floats(1), add, stream_);
}

void DeltaBackend::clear_padding(const ForwardBuffers &b) {
  if (!tables_.packed()->may_pad()) return;
  const Padded o = {inputs_.o_of(b.o), problem_.dtype};
  tables_.packed()->zero_padding({&o, 1}, stream_);
}

void DeltaBackend::clear_padding(const BackwardBuffers &b) {
  if (!tables_.packed()->may_pad()) return;
  const Problem &p = problem_;
  std::vector<Padded> results;
  for (const Gradient &gradient : {inputs_.dq(b), inputs_.dk(b), inputs_.dv(b)})
    if (!gradient.adds) results.push_back({gradient.to, gradient.type});
  if (!b.adds(LASP_ADD_D_BETA))
    results.push_back({inputs_.tensor(b.d_beta, p.d_beta_layout, p.heads, 1), p.d_beta_dtype});
  const int32_t channels = p.decay == Decay::kChannel ? p.head_dim_k : 1;
  if (b.d_decay != nullptr && !b.adds(LASP_ADD_D_DECAY) &&
      (p.decay == Decay::kScalar || p.decay == Decay::kChannel))
    results.push_back({inputs_.tensor(b.d_decay, p.d_decay_layout, p.heads, channels), p.d_decay_dtype});
  tables_.packed()->zero_padding(results, stream_);
}

void DeltaBackend::compose(lasp_stream stream, AffineMapView to, std::span<const AffineMapView> later,
                           AffineMapView earlier, int64_t begin, int64_t end) {
  if (!later.empty()) {
    if (!maps_) prepare_to_compose(0, stream);  // which there was no cuBLAS for
    return maps_->compose(stream, to, later.front(), earlier, begin, end);
  }
  const int64_t size = problem_.state_size();
  check(
      cudaMemcpyAsync(to.state + begin * size, earlier.state + begin * size,
                      static_cast<size_t>((end - begin) * size) * sizeof(float), cudaMemcpyDeviceToDevice, stream),
      "copying states");
}

}  // namespace lasp::cuda
