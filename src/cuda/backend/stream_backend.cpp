// The CUDA backend: tables, rooms in the caller's memory, and what forward and backward share.
#include "cuda/backend/stream_backend.h"

#include <algorithm>
#include <numeric>

#include "core/decay.h"

namespace lasp::cuda {
namespace {

gpu::DType dtype_of(DType type) { return static_cast<gpu::DType>(type); }
gpu::Strides strides_of(const Layout &layout) { return {layout.batch, layout.token, layout.head}; }

std::vector<gpu::Run> runs_of_segments(const Work &work) {
  std::vector<gpu::Run> runs;
  for (size_t i = 0; i < work.segments.size(); ++i) {
    const Segment &segment = work.segments[i];
    if (segment.end - segment.begin > kLongestStep) continue;  // step() refuses it
    gpu::Run run;
    run.row = segment.row;
    run.begin = segment.begin;
    run.segment = static_cast<int64_t>(i);
    run.state = segment.sequence;
    run.length = static_cast<int32_t>(segment.end - segment.begin);
    runs.push_back(run);
  }
  return runs;
}

std::vector<gpu::Run> chunks_by_segment(const Work &work) {
  std::vector<gpu::Run> runs;
  for (const Chunk &chunk : work.chunks) {
    gpu::Run run;
    run.row = work.segments[static_cast<size_t>(chunk.segment)].row;
    run.begin = chunk.begin;
    run.segment = run.state = chunk.segment;
    run.length = chunk.length;
    runs.push_back(run);
  }
  return runs;
}

std::vector<float> reset_factors(const std::vector<RowCarry> &rows) {
  std::vector<float> factors;
  for (const RowCarry &row : rows) factors.push_back(row.reset ? kForgetsAll : kKeepsAll);
  return factors;
}

}  // namespace

BackwardBuffers StreamBackend::aligned_buffers() {
  void *const aligned = reinterpret_cast<void *>(kAlignment);
  BackwardBuffers b{};
  b.q = b.k = b.v = b.decay = b.d_o = aligned;
  b.dq = b.dk = b.dv = b.d_decay = aligned;
  return b;
}

StreamBackend::StreamBackend(Tables &tables, const Problem &problem, const Work &work, int32_t compute_capability,
                             int32_t multiprocessors)
    : problem_(problem),
      work_(work),
      compute_capability_(compute_capability),
      multiprocessors_(multiprocessors),
      tensor_cores_(choose_kernels()),
      run_tokens_(choose_run_tokens()),
      state_tokens_(choose_state_tokens()),
      cut_(tables, work, run_tokens_, state_tokens_) {
  whole_segments_ = tables.add(runs_of_segments(work));
  if (problem.bidirectional) by_segment_ = tables.add(chunks_by_segment(work));
  resets_[0] = tables.add(reset_factors(work.forward));
  resets_[1] = tables.add(reset_factors(work.backward));
  empty_sequences_ = tables.add(work.empty_sequences);
  int64_t fused_run_tokens = 0;
  if (problem.backward && tensor_cores_) {
    fused_ = gpu::fused_backward_supported(fused_pass(aligned_buffers(), {}), compute_capability, nullptr);
    if (fused_) {
      check_launch(gpu::load_fused_backward_kernels(), "loading kernels");
      check_launch(gpu::fused_backward_blocks(fused_pass(aligned_buffers(), {}), multiprocessors, &fused_blocks_),
                   "asking how many clusters fit");
      fused_ = fused_blocks_ > 0;
    }
    if (fused_) {
      fused_run_tokens = choose_fused_run_tokens();
      fused_cut_.emplace(tables, work, fused_run_tokens, choose_fused_state_tokens(fused_run_tokens));
    }
  }
  if (problem.backward && !problem.bidirectional) {
    channel_ = gpu::channel_backward_supported(channel_pass(aligned_buffers(), {}), compute_capability, nullptr);
    if (channel_) check_launch(gpu::load_channel_backward_kernels(), "loading kernels");
  }
  if (problem.backward && problem.decay != Decay::kNone) choose_slabs(tables);
  description_ = "CUDA, compute capability " + std::to_string(compute_capability / 10) + "." +
                 std::to_string(compute_capability % 10) + ": ";
  description_ += tensor_cores_ ? std::string("tensor-core kernels")
                                : std::string("recurrent kernels in float32 (") + why_not_ + ")";
  description_ +=
      ", runs of " + std::to_string(std::min(run_tokens_, std::max<int64_t>(problem.tokens, 1))) + " tokens";
  if (fused_cut_)
    description_ +=
        ", backward " + std::to_string(std::min(fused_run_tokens, std::max<int64_t>(problem.tokens, 1)));
  check_launch(gpu::load_generic_pass(), "loading kernels");
  check_launch(gpu::load_decay_gradient(), "loading kernels");
  check_launch(gpu::load_state_kernels(), "loading kernels");
  if (tensor_cores_) check_launch(gpu::load_linear_pass_kernels(), "loading kernels");
  if (tensor_cores_ && problem.decay == Decay::kChannel)
    check_launch(gpu::load_channel_states_kernels(), "loading kernels");
}

gpu::StateShape StreamBackend::shape() const {
  return {work_.rows(), problem_.heads, problem_.head_dim_k, problem_.head_dim_v,
          problem_.decay == Decay::kChannel};
}

gpu::Tensor StreamBackend::tensor(const void *data, const Layout &layout, int32_t heads, int32_t dim) const {
  return {const_cast<void *>(data), strides_of(layout), heads, dim};
}

void StreamBackend::place_scan(Carver &carver, ScanRoom &room, int64_t states, int32_t heads, bool slots) const {
  const bool decays = problem_.decay != Decay::kNone;
  const int64_t count = decays ? states * heads * factor_size() : 0;
  room.slots = carver.take<float>(slots ? states * heads * problem_.state_size() : 0);
  room.factors = carver.take<float>(count);
  room.reach = carver.take<float>(count);
  room.counts = carver.take<int32_t>(count);
  if (!decays) room.factors = room.reach = nullptr;
  if (!decays || problem_.decay == Decay::kChannel) room.counts = nullptr;
}

StreamBackend::ForwardRoom StreamBackend::forward_room(void *workspace, void *cache) const {
  Carver carver(workspace);
  ForwardRoom room{};
  const bool slots_in_cache = problem_.backward && problem_.cache_chunks && !problem_.bidirectional;
  place_scan(carver, room.scan, cut_.num_states(), problem_.heads, !slots_in_cache);
  if (slots_in_cache) room.scan.slots = static_cast<float *>(cache);
  if (slots_in_cache) room.scan.checkpoints = cached_checkpoints(cache);
  room.sums = carver.take<float>(problem_.bidirectional ? floats(cut_.segments.size()) : 0);
  room.bytes = carver.used();
  return room;
}

void StreamBackend::place_gradients(Carver &carver, BackwardRoom &room) const {
  place_scan(carver, room.gradients, cut_.num_states(), problem_.heads, true);
}

void StreamBackend::place_fused_gradients(Carver &carver, BackwardRoom &room) const {
  place_scan(carver, room.fused_gradients, fused_cut_->num_states(), problem_.heads, true);
}

void StreamBackend::place_states(Carver &carver, BackwardRoom &room) const {
  place_scan(carver, room.states, cut_.num_states(), problem_.heads, !problem_.cache_chunks);
}

StreamBackend::BackwardRoom StreamBackend::backward_room(void *workspace, const void *cache) const {
  Carver carver(workspace);
  BackwardRoom room{};
  const Problem &p = problem_;
  if (!p.bidirectional) {
    place_states(carver, room);
    // The cache is only read here: its states are final.
    if (p.cache_chunks) room.states.slots = const_cast<float *>(static_cast<const float *>(cache));
    room.states.checkpoints = cached_checkpoints(const_cast<void *>(cache));
    place_rest(carver, room);
  } else {
    place_gradients(carver, room);
    place_staged(carver, room);
    room.sums = carver.take<float>(floats(cut_.segments.size()));
  }
  room.bytes = carver.used();
  return room;
}

// Ways that share the same memory: which one a call takes depends on its pointers; and what the gradients of shared
// heads wait in is free again for the gradient of the decay.
void StreamBackend::place_rest(Carver &carver, BackwardRoom &room) const {
  Carver fused = carver;
  place_gradients(carver, room);
  if (channel_) place_staged(carver, room);
  Carver slabs = carver, staged = carver;
  if (!channel_) place_staged(staged, room);
  if (short_runs_) {
    place_slab(slabs, room, slab_heads_, short_runs_->most);
  } else {
    room.decay_parts = slabs.take<float>(gpu::decay_gradient_workspace(base_decay_gradient({})));
  }
  if (fused_) {
    place_fused_gradients(fused, room);
    if (!keeps_checkpoints()) room.states.checkpoints = fused.take<std::byte>(checkpoint_bytes());
    if (forgets())
      room.fused_parts = fused.take<float>(gpu::fused_backward_workspace(fused_pass(aligned_buffers(), {})));
  }
  if (channel_) room.channel_ends = carver.take<float>(factors(cut_.runs[0].size()));
  for (const Carver &other : {slabs, staged, fused})
    if (other.used() > carver.used()) carver = other;
}

void StreamBackend::place_slab(Carver &carver, BackwardRoom &room, int32_t heads, int64_t runs) const {
  gpu::DecayGradient pass = base_decay_gradient({});
  pass.heads = heads;
  pass.num_runs = runs;
  pass.run_tokens = decay_run_tokens();
  room.decay_parts = carver.take<float>(gpu::decay_gradient_workspace(pass));
  place_scan(carver, room.slab_states, runs, heads, true);
  place_scan(carver, room.slab_gradients, runs, heads, true);
}

uint64_t StreamBackend::cache_bytes(bool chunks) const {
  const int64_t count = problem_.bidirectional ? cut_.segments.size() : chunks ? cut_.num_states() : work_.rows();
  const int64_t kept = chunks && fused_ ? checkpoint_bytes() : 0;
  return static_cast<uint64_t>(floats(count)) * sizeof(float) + static_cast<uint64_t>(kept);
}

gpu::PassInputs StreamBackend::pass_inputs(const DeviceArray<gpu::Run> &runs, const void *g) const {
  gpu::PassInputs pass;
  pass.batch = problem_.batch;
  pass.tokens = problem_.tokens;
  pass.heads = problem_.heads;
  pass.dtype = dtype_of(problem_.dtype);
  pass.decay = static_cast<gpu::Decay>(problem_.decay);
  pass.decay_dtype = dtype_of(problem_.decay_dtype);
  pass.g = g;
  pass.g_strides = strides_of(problem_.decay_layout);
  pass.runs = runs.data();
  pass.num_runs = runs.size();
  return pass;
}

gpu::GenericPass StreamBackend::base_pass(const DeviceArray<gpu::Run> &runs, const void *g) const {
  return {{pass_inputs(runs, g)}};
}

gpu::BackwardPass StreamBackend::backward_pass(const DeviceArray<gpu::Run> &runs, const BackwardBuffers &b) const {
  gpu::BackwardPass pass{pass_inputs(runs, b.decay)};
  pass.scale = problem_.scale;
  pass.q = q_of(b.q);
  pass.k = k_of(b.k);
  pass.v = v_of(b.v);
  pass.d_o = do_of(b.d_o);
  pass.d_g = b.d_decay;
  pass.d_g_strides = strides_of(problem_.d_decay_layout);
  return pass;
}

bool StreamBackend::tensor_cores(const gpu::GenericPass &pass, const char **why) const {
  if (pass.y_float32 || pass.fixed_state) return false;
  return gpu::linear_pass_supported(pass, compute_capability_, why);
}

void StreamBackend::run_pass(const gpu::GenericPass &pass, const char *what) const {
  if (pass.num_runs == 0) return;
  const char *why = nullptr;
  if (tensor_cores_ && tensor_cores(pass, &why)) return check_launch(gpu::launch_linear_pass(pass, stream_), what);
  check_launch(gpu::launch_generic_pass(pass, stream_), what);
}

gpu::RunFactors StreamBackend::run_factors(const Partition &cut, const void *g, float *to) const {
  gpu::RunFactors factors{pass_inputs(cut.state_runs, g)};
  factors.dim_k = problem_.head_dim_k;
  factors.factors = to;
  return factors;
}

// Of one run to a segment nobody asks for the decay but who gets its end state.
bool StreamBackend::sums_decays(const Partition &cut, const ScanRoom &room, const AffineMapView &carry) const {
  return room.factors != nullptr && (!cut.single_runs || carry.state != nullptr);
}

void StreamBackend::own_states(gpu::GenericPass &pass, const Partition &cut, const ScanRoom &room,
                               const AffineMapView &carry, const char *what) const {
  pass.state_out = room.slots;
  pass.total_runs = cut.num_states();
  if (channel_states_serve(pass)) {
    float *const factors = sums_decays(cut, room, carry) ? room.factors : nullptr;
    return check_launch(gpu::launch_channel_states(pass, factors, stream_), what);
  }
  if (sums_decays(cut, room, carry)) {
    gpu::RunFactors factors = run_factors(cut, pass.g, room.factors);
    factors.reversed = pass.reversed;
    factors.counts = room.counts;
    check_launch(gpu::launch_run_factors(factors, stream_), "summing decays");
    pass.counts = room.counts;
  }
  run_pass(pass, what);
}

// With per-channel decay: states and decays at once.
bool StreamBackend::channel_states_serve(const gpu::LinearPass &pass) const {
  return tensor_cores_ && gpu::channel_states_supported(pass, compute_capability_, nullptr);
}

void StreamBackend::scan(const Partition &cut, const ScanRoom &room, bool reversed, const float *first_state,
                         const AffineMapView &carry) const {
  if (room.slots == nullptr && carry.state == nullptr) return;  // every run begins with zero
  if (cut.single_runs && carry.state == nullptr) {
    zero(room.slots, floats(cut.num_states()), "clearing states");
    if (first_state == nullptr) return;
  }
  gpu::StateScan scan;
  scan.shape = shape();
  scan.segments = cut.segments.data();
  scan.num_segments = cut.segments.size();
  scan.reversed = reversed;
  scan.slots = room.slots;
  if (sums_decays(cut, room, carry)) {
    scan.factors = room.factors;
    scan.counts = room.counts;
  }
  scan.runs = cut.state_runs.data();
  scan.entry_decay = room.reach;
  scan.first_state = first_state;
  scan.map_state = carry.state;
  scan.map_factor = carry.transition;
  check_launch(gpu::launch_state_scan(scan, stream_), "scanning states");
  if (carry.state != nullptr && cut.segments.size() == 0) {  // no tokens: the identity
    zero(carry.state, floats(work_.rows()), "clearing a state");
    fill_carry({nullptr, carry.transition}, resets_[reversed]);
  }
}

void StreamBackend::join(const Partition &cut, const ScanRoom &room, const float *incoming, bool reversed) const {
  const DeviceArray<gpu::Run> &runs = cut.consumers[reversed];
  if (incoming == nullptr || runs.size() == 0) return;
  gpu::StateJoin join;
  join.shape = shape();
  join.runs = runs.data();
  join.num_runs = runs.size();
  join.slots = room.slots;
  join.entry_decay = cut.single_runs ? nullptr : room.reach;
  join.incoming = incoming;
  check_launch(gpu::launch_state_join(join, stream_), "joining the incoming state");
}

void StreamBackend::fill_carry(const AffineMapView &carry, const DeviceArray<float> &resets) const {
  if (carry.transition != nullptr)
    check_launch(gpu::launch_fill_factors(carry.transition, work_.rows(), factors(1), resets.data(), stream_),
                 "filling factors");
}

void StreamBackend::zero(void *to, int64_t count, const char *what) const {
  if (count > 0) check(cudaMemsetAsync(to, 0, static_cast<size_t>(count) * sizeof(float), stream_), what);
}

void StreamBackend::compose(lasp_stream stream, AffineMapView to, std::span<const AffineMapView> later,
                            AffineMapView earlier, int64_t begin, int64_t end) {
  gpu::ComposeMaps maps;
  maps.shape = shape();
  maps.to_state = to.state;
  maps.to_factor = to.transition;
  for (const AffineMapView &map : later) {
    maps.later_state[maps.count] = map.state;
    maps.later_factor[maps.count++] = map.transition;
  }
  maps.earlier_state = earlier.state;
  maps.earlier_factor = earlier.transition;
  maps.begin = begin;
  maps.end = end;
  check_launch(gpu::launch_compose(maps, stream), "composing states");
}

void StreamBackend::fill_known_transition(lasp_stream stream, float *transition, const KnownTransition &known,
                                          const float *log_decay) {
  check_launch(gpu::launch_known_factor(transition, work_.rows(), problem_.heads, known.reset, known.tokens,
                                        log_decay, stream),
               "working out a factor");
}

void StreamBackend::copy_empty_sequences(float *to, const float *from) {
  check_launch(gpu::launch_copy_states(to, from, empty_sequences_.data(), empty_sequences_.size(),
                                       problem_.heads * problem_.state_size(), stream_),
               "handing on the states of empty sequences");
}

}  // namespace lasp::cuda

namespace lasp {

std::unique_ptr<CudaBackend> make_cuda_backend(const Problem &problem, const Work &work, int32_t compute_capability,
                                               int32_t multiprocessors, lasp_stream stream) {
  cuda::Tables tables;
  auto backend = std::make_unique<cuda::StreamBackend>(tables, problem, work, compute_capability, multiprocessors);
  tables.upload(stream);
  return backend;
}

}  // namespace lasp
