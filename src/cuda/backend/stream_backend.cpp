// What a plan on a GPU is made of, the layout of its workspace and cache, and the small operations on states.
#include "cuda/backend/stream_backend.h"

#include "cuda/backend/delta_backend.h"
#include "cuda/choice/predicted_time.h"
#include "cuda/cut/runs.h"
#include "kernels/known_factors.h"

namespace lasp::cuda {
namespace {

std::vector<gpu::Run> runs_of_segments(const TokenPartition &partition) {
  std::vector<gpu::Run> runs;
  for (size_t i = 0; i < partition.segments.size(); ++i) {
    const Segment &segment = partition.segments[i];
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

}  // namespace

StreamBackend::StreamBackend(Tables &tables, const BackendPlan &plan)
    : plan_(tables, plan),
      scan_(plan_),
      outputs_(plan_),
      three_passes_(plan_),
      fused_(tables, plan_),
      channel_(plan_),
      bidirectional_(tables, plan_),
      whole_segments_(tables.add(runs_of_segments(plan.partition))),
      empty_sequences_(tables.add(plan.partition.empty_sequences)),
      description_(plan_.choices.describe(plan.problem.tokens, plan.compute_capability) +
                   predicted_times(plan_.inputs, plan_.choices, plan_.kernels, plan.copy_bytes_per_us)) {
  const Problem &problem = plan.problem;
  if (problem.backward && problem.decay != Decay::kNone) plan_decay_gradients(tables);
}

void StreamBackend::load_kernels() const {
  const Choices &choices = plan_.choices;
  const bool channel = plan_.problem().decay == Decay::kChannel;
  const auto load = [](bool wanted, int (*kernels)()) {
    if (wanted) check_allocation(static_cast<cudaError_t>(kernels()), "loading kernels");
  };
  load(true, gpu::load_generic_pass);
  load(true, gpu::load_decay_gradient);
  load(true, gpu::load_state_kernels);
  load(plan_.packed != nullptr, gpu::load_packed_tables);
  load(choices.tensor_cores, gpu::load_linear_pass_kernels);
  load(choices.tensor_cores && channel, gpu::load_channel_states_kernels);
  load(choices.fused, gpu::load_fused_backward_kernels);
  load(choices.channel, gpu::load_channel_backward_kernels);
}

void StreamBackend::plan_decay_gradients(Tables &tables) {
  const Choices &choices = plan_.choices;
  const int32_t heads = plan_.problem().heads;
  BackwardWorkspace w;
  Carver taken(nullptr);
  w.states.place(taken, plan_.inputs, plan_.cut.num_states, heads, !plan_.problem().cache_chunks);
  Carver fused = taken, staged(nullptr);
  w.gradients.place(taken, plan_.inputs, plan_.cut.num_states, heads, true);
  fused_.place_gradients(fused, w.fused);
  if (!choices.channel) w.staged.place(staged, plan_.inputs, choices);
  decay_gradients_.emplace(tables, plan_, choices.fused || choices.channel, std::max(taken.used(), fused.used()),
                           staged.used());
}

bool StreamBackend::slots_in_cache() const {
  const Problem &p = plan_.problem();
  return p.backward && p.cache_chunks && !p.bidirectional;
}

StreamBackend::ForwardWorkspace StreamBackend::forward_workspace(void *workspace, void *cache) const {
  const Problem &p = plan_.problem();
  Carver carver(workspace);
  ForwardWorkspace w;
  carver.take<std::byte>(static_cast<int64_t>(plan_.tables_in_workspace(true)));
  w.scan.place(carver, plan_.inputs, plan_.cut.num_states, p.heads, !slots_in_cache());
  if (slots_in_cache()) w.scan.slots = static_cast<float *>(cache);
  if (slots_in_cache()) w.checkpoints = fused_.cached_checkpoints(cache);
  w.sums = carver.take<float>(p.bidirectional ? plan_.inputs.floats(plan_.cut.segments.size()) : 0);
  w.bytes = carver.used();
  return w;
}

StreamBackend::BackwardWorkspace StreamBackend::backward_workspace(void *workspace, const void *cache) const {
  const Problem &p = plan_.problem();
  Carver carver(workspace);
  BackwardWorkspace w;
  carver.take<std::byte>(static_cast<int64_t>(plan_.tables_in_workspace(false)));
  if (!p.bidirectional) {
    w.states.place(carver, plan_.inputs, plan_.cut.num_states, p.heads, !p.cache_chunks);
    // The cache is only read here: its states are final.
    if (p.cache_chunks) w.states.slots = const_cast<float *>(static_cast<const float *>(cache));
    place_causal(carver, w, cache);
  } else {
    w.gradients.place(carver, plan_.inputs, plan_.cut.num_states, p.heads, true);
    w.staged.place(carver, plan_.inputs, plan_.choices);
    w.sums = carver.take<float>(plan_.inputs.floats(plan_.cut.segments.size()));
  }
  w.bytes = carver.used();
  return w;
}

// In a carry lies the scan's workspace: all that finish wants of it.
StreamBackend::ForwardWorkspace StreamBackend::forward_workspace(const ForwardBuffers &b) const {
  ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  if (b.carry == nullptr) return w;
  float *const slots = w.scan.slots;
  Carver carry(b.carry);
  w.scan.place(carry, plan_.inputs, plan_.cut.num_states, plan_.problem().heads, !slots_in_cache());
  if (slots_in_cache()) w.scan.slots = slots;
  return w;
}

StreamBackend::BackwardWorkspace StreamBackend::backward_workspace(const BackwardBuffers &b) const {
  BackwardWorkspace w = backward_workspace(b.workspace, b.state_cache);
  if (b.carry == nullptr || adds_apart(b)) return w;
  Carver carry(b.carry);
  place_gradients(carry, w);
  return w;
}

void StreamBackend::place_gradients(Carver &carver, BackwardWorkspace &w) const {
  if (fused_.serves_plan()) return fused_.place_gradients(carver, w.fused);
  w.gradients.place(carver, plan_.inputs, plan_.cut.num_states, plan_.problem().heads, true);
}

uint64_t StreamBackend::forward_carry_bytes() const {
  Carver count(nullptr);
  ScanWorkspace w;
  w.place(count, plan_.inputs, plan_.cut.num_states, plan_.problem().heads, !slots_in_cache());
  return count.used();
}

uint64_t StreamBackend::backward_carry_bytes() const {
  Carver count(nullptr);
  BackwardWorkspace w;
  place_gradients(count, w);
  return count.used();
}

// Strategies that share the same memory: which one a call takes depends on its pointers; and what the gradients of
// shared heads wait in is free again for the gradient of the decay.
void StreamBackend::place_causal(Carver &carver, BackwardWorkspace &w, const void *cache) const {
  const bool channel = plan_.choices.channel;
  Carver fused = carver;
  w.gradients.place(carver, plan_.inputs, plan_.cut.num_states, plan_.problem().heads, true);
  if (channel) w.staged.place(carver, plan_.inputs, plan_.choices);
  Carver decay = carver, staged = carver;
  if (!channel) w.staged.place(staged, plan_.inputs, plan_.choices);
  if (decay_gradients_) decay_gradients_->place(decay, w.decay);
  fused_.place(fused, w.fused, cache);
  w.channel_ends = channel_.place_ends(carver);
  for (const Carver &other : {decay, staged, fused})
    if (other.used() > carver.used()) carver = other;
}

uint64_t StreamBackend::state_bytes(bool chunks) const {
  const int64_t count = plan_.problem().bidirectional ? plan_.cut.segments.size()
                        : chunks                      ? plan_.cut.num_states
                                                      : plan_.partition().rows();
  Carver kept(nullptr);
  kept.take<float>(plan_.inputs.floats(count));
  if (chunks && plan_.choices.fused) kept.take<std::byte>(fused_.checkpoint_bytes());
  return kept.used();
}

uint64_t StreamBackend::cache_bytes(bool chunks) const { return state_bytes(chunks) + plan_.tables_in_cache(); }

uint64_t StreamBackend::forward_result_bytes() const {
  const Problem &p = plan_.problem();
  const bool ahead = p.packed || plan_.filters_runs(false) || plan_.cut.independent[0].size() > 0;
  return p.bidirectional || ahead ? 0 : plan_.inputs.dense_bytes(p.o, p.heads, p.head_dim_v, p.dtype);
}

uint64_t StreamBackend::backward_result_bytes() const {
  const Problem &p = plan_.problem();
  return p.bidirectional || p.packed || plan_.filters_runs(true)
             ? 0
             : plan_.inputs.dense_bytes(p.dv, p.heads_v, p.head_dim_v, p.dv_dtype);
}

void StreamBackend::compose(lasp_stream stream, AffineMapView to, std::span<const AffineMapView> later,
                            AffineMapView earlier, int64_t begin, int64_t end) {
  gpu::ComposeMaps maps;
  maps.shape = plan_.inputs.state_shape();
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

void StreamBackend::compose_known(lasp_stream stream, float *to, std::span<const KnownMap> later,
                                  const float *earlier, const float *log_decay, int64_t begin, int64_t end) {
  gpu::ComposeKnownMaps maps;
  maps.shape = plan_.inputs.state_shape();
  maps.to_state = to;
  for (const KnownMap &map : later) {
    maps.later_state[maps.count] = map.state;
    maps.known[maps.count++] = {map.transition.reset, map.transition.tokens};
  }
  maps.earlier_state = earlier;
  maps.head_decay = log_decay;
  maps.begin = begin;
  maps.end = end;
  check_launch(gpu::launch_compose_known(maps, stream), "composing states");
}

void StreamBackend::fill_known_transition(lasp_stream stream, float *transition, const KnownTransition &known,
                                          const float *log_decay) {
  check_launch(gpu::launch_known_factor(transition, plan_.problem().batch, plan_.problem().heads, known.reset,
                                        known.tokens, log_decay, stream),
               "working out a factor");
}

void StreamBackend::copy_empty_sequences(float *to, const float *from, bool add) {
  if (plan_.packed) return plan_.packed->copy_empty_sequences(to, from, plan_.inputs.floats(1), add, plan_.stream);
  check_launch(gpu::launch_copy_states(to, from, empty_sequences_.data(), empty_sequences_.size(),
                                       plan_.inputs.floats(1), add, plan_.stream),
               "handing on the states of empty sequences");
}

}  // namespace lasp::cuda

namespace lasp {

std::unique_ptr<CudaBackend> make_cuda_backend(const BackendPlan &plan, lasp_stream stream) {
  cuda::Tables tables;
  if (plan.problem.delta) {
    auto backend = std::make_unique<cuda::DeltaBackend>(tables, plan);
    backend->load_kernels();
    tables.upload(stream);
    backend->adapt_tables(stream);
    return backend;
  }
  auto backend = std::make_unique<cuda::StreamBackend>(tables, plan);
  backend->load_kernels();
  tables.upload(stream);
  return backend;
}

std::unique_ptr<CudaBackend> make_assumed_backend(const BackendPlan &plan) {
  cuda::Tables tables;
  if (plan.problem.delta) return std::make_unique<cuda::DeltaBackend>(tables, plan);
  return std::make_unique<cuda::StreamBackend>(tables, plan);
}

}  // namespace lasp
