// The launches of a rank's passes for delta_test.cpp, with NaN in all gaps and in all that nobody is to write.
#include "delta_launches.h"

namespace lasp::gpu {
namespace {

std::vector<uint8_t> encoded(DType type, const std::vector<float> &numbers) {
  std::vector<uint8_t> bytes(numbers.size() * (type == DType::kFloat32 ? 4 : 2));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint16_t bits = type == DType::kFloat32  ? uint16_t{0}
                          : std::isnan(numbers[i]) ? kNan
                                                   : round_to(type, numbers[i]);
    if (type == DType::kFloat32)
      std::memcpy(&bytes[i * 4], &numbers[i], 4);
    else
      std::memcpy(&bytes[i * 2], &bits, 2);
  }
  return bytes;
}

// A tensor on the device, with gaps between tokens.
class TokenTensor {
 public:
  TokenTensor(DType type, const std::vector<float> *values, int64_t heads, int64_t dim, int64_t padding)
      : type_(type),
        heads_(heads),
        dim_(dim),
        token_(heads * dim + padding),
        memory_(encoded(type, spread(values))) {}
  void *data() const { return memory_.data; }
  Strides strides() const { return {DeltaProblem::kTokens * token_, token_, dim_}; }
  operator Tensor() const { return {memory_.data, strides(), int32_t(heads_), int32_t(dim_)}; }
  std::vector<double> get() const {
    std::vector<double> values;
    const std::vector<uint8_t> bytes = memory_.get<uint8_t>();
    for (int64_t t = 0; t < DeltaProblem::kRows * DeltaProblem::kTokens; ++t)
      for (int64_t i = 0; i < heads_ * dim_; ++i) {
        const size_t at = size_t(t * token_ + i);
        float x = 0;
        uint16_t bits = 0;
        if (type_ == DType::kFloat32) {
          std::memcpy(&x, &bytes[at * 4], 4);
        } else {
          std::memcpy(&bits, &bytes[at * 2], 2);
          x = widen(type_, bits);
        }
        values.push_back(double(x));
      }
    return values;
  }

 private:
  std::vector<float> spread(const std::vector<float> *values) const {
    const int64_t tokens = DeltaProblem::kRows * DeltaProblem::kTokens;
    std::vector<float> all(size_t(tokens * token_), NAN);
    for (int64_t t = 0; values != nullptr && t < tokens; ++t)
      std::copy_n(values->begin() + t * heads_ * dim_, heads_ * dim_, all.begin() + t * token_);
    return all;
  }
  DType type_;
  int64_t heads_, dim_, token_;
  DeviceCopy memory_;
};

std::vector<float> nans(size_t count) { return std::vector<float>(count, NAN); }

}  // namespace

DeltaResults launch_delta(const DeltaProblem &p) {
  const DeltaCase &c = p.c;
  DeltaResults r = empty_results(p, NAN);
  const auto tensor = [&](const std::vector<float> *values, int64_t heads, int64_t dim) {
    return TokenTensor(c.dtype, values, heads, dim, c.padding);
  };
  const TokenTensor q = tensor(&p.q, c.heads_q, c.dim_k), k = tensor(&p.k, c.heads_k, c.dim_k),
                    v = tensor(&p.v, c.heads_v, c.dim_v), d_o = tensor(&p.d_o, c.heads, c.dim_v),
                    o = tensor(nullptr, c.heads, c.dim_v);
  const bool head_decay = c.decay == Decay::kHead;
  const int64_t gate_dim = c.decay == Decay::kChannel ? c.dim_k : 1;
  const TokenTensor g(head_decay ? DType::kFloat32 : c.decay_dtype, &p.g, c.heads, gate_dim, c.padding),
      beta(DType::kFloat32, &p.beta, c.heads, 1, 3);
  const DeviceCopy head_g(p.g), segments(p.segments), forward_runs(p.runs[0]), reversed_runs(p.runs[1]),
      stretches(p.stretches), initial(p.initial), incoming(p.incoming), d_final(p.d_final),
      d_incoming(p.d_incoming);
  const auto state_memory = [&](int which) { return nans(r.tensors[which].size()); };
  const DeviceCopy edge(state_memory(r.kFinal)), leaving(state_memory(r.kLeaving)),
      transition(state_memory(r.kTransition)), d_edge(state_memory(r.kDInitial)),
      d_leaving(state_memory(r.kDLeaving));
  DeltaInputs inputs;
  inputs.batch = p.kRows, inputs.tokens = p.kTokens, inputs.heads = c.heads, inputs.dtype = c.dtype;
  inputs.decay = c.decay, inputs.decay_dtype = head_decay ? DType::kFloat32 : c.decay_dtype;
  inputs.g = head_decay ? head_g.data : g.data(), inputs.g_strides = g.strides(), inputs.scale = kDeltaScale;
  inputs.q = q, inputs.k = k, inputs.v = v;
  inputs.beta = beta.data(), inputs.beta_strides = beta.strides();
  inputs.segments = static_cast<const Segment *>(segments.data);
  inputs.own_checkpoints = c.gradients == KernelSet::kMma;
  const auto kept = [&](bool back) {
    return nans(size_t(p.checkpoints * delta_checkpoint_bytes(c.forward, inputs, back)) / 4);
  };
  const DeviceCopy checkpoints(kept(false)), d_checkpoints(kept(true));
  const auto with_runs = [&](const DeviceMemory &runs, size_t count) {
    inputs.runs = static_cast<const Run *>(runs.data), inputs.num_runs = int64_t(count);
  };
  const auto floats = [](const DeviceMemory &memory) { return static_cast<float *>(memory.data); };

  with_runs(forward_runs, p.runs[0].size());
  DeltaForward own{inputs};
  own.o = o, own.o.data = nullptr;
  own.leaving = floats(leaving), own.transition = floats(transition), own.filter = RunFilter::kDependent;
  const DeviceMemory forward_work(size_t(delta_forward_workspace(c.forward, own)) * 4 + 4);
  own.workspace = floats(forward_work);
  check(launch_delta_forward(c.forward, own, nullptr), "a rank's map");
  for (const bool entered : {false, true}) {
    DeltaForward pass{inputs};
    pass.o = o, pass.checkpoints = checkpoints.data, pass.edge_state = floats(edge),
    pass.workspace = floats(forward_work);
    pass.state_in = floats(entered ? incoming : initial);
    pass.leaving = entered ? nullptr : floats(leaving);
    pass.filter = entered ? RunFilter::kDependent : RunFilter::kIndependent;
    check(launch_delta_forward(c.forward, pass, nullptr), "forward");
  }
  check(cudaDeviceSynchronize(), "forward");

  with_runs(reversed_runs, p.runs[1].size());
  DeltaReversed back{inputs};
  back.d_o = d_o;
  const DeviceMemory reversed_work(size_t(delta_reversed_workspace(c.reversed, back)) * 4 + 4);
  back.workspace = floats(reversed_work);
  back.d_leaving = floats(d_leaving), back.filter = RunFilter::kDependent;
  check(launch_delta_reversed(c.reversed, back, nullptr), "a rank's map back");
  for (const bool entered : {false, true}) {
    DeltaReversed pass{inputs};
    pass.d_o = d_o, pass.d_checkpoints = d_checkpoints.data, pass.d_edge_state = floats(d_edge);
    pass.d_state_in = floats(entered ? d_incoming : d_final), pass.workspace = floats(reversed_work);
    pass.d_leaving = entered ? nullptr : floats(d_leaving);
    pass.filter = entered ? RunFilter::kDependent : RunFilter::kIndependent;
    check(launch_delta_reversed(c.reversed, pass, nullptr), "reversed");
  }
  check(cudaDeviceSynchronize(), "reversed");

  const bool staged[] = {c.heads_q != c.heads, c.heads_k != c.heads, c.heads_v != c.heads};
  const auto type_of = [&](int i) { return staged[i] ? DType::kFloat32 : c.dtype; };
  const TokenTensor d_q(type_of(0), nullptr, c.heads, c.dim_k, c.padding),
      d_k(type_of(1), nullptr, c.heads, c.dim_k, c.padding), d_v(type_of(2), nullptr, c.heads, c.dim_v, c.padding),
      d_g(inputs.decay_dtype, nullptr, c.heads, gate_dim, c.padding),
      d_beta(DType::kFloat32, nullptr, c.heads, 1, 3);
  const DeviceCopy d_head_g(nans(size_t(c.heads)));
  with_runs(stretches, p.stretches.size());
  DeltaGradients pass{inputs};
  pass.d_o = d_o, pass.d_q = d_q, pass.d_k = d_k, pass.d_v = d_v;
  std::copy_n(staged, 3, pass.staged);
  pass.d_g = c.decay == Decay::kNone ? nullptr : head_decay ? d_head_g.data : d_g.data();
  pass.d_g_strides = d_g.strides();
  pass.d_beta = d_beta.data(), pass.d_beta_strides = d_beta.strides();
  pass.checkpoints = checkpoints.data, pass.d_checkpoints = d_checkpoints.data;
  const DeviceMemory work(size_t(delta_gradients_workspace(c.gradients, pass)) * 4 + 4);
  pass.workspace = floats(work);
  for (const bool entered : {false, true}) {
    pass.filter = entered ? RunFilter::kDependent : RunFilter::kIndependent, pass.first = !entered,
    pass.last = entered;
    check(launch_delta_gradients(c.gradients, pass, nullptr), "gradients");
  }
  check(cudaDeviceSynchronize(), "gradients");

  const auto put = [&](int which, const DeviceMemory &memory) {
    const std::vector<float> values = memory.get<float>();
    if (!r.tensors[which].empty()) r.tensors[which].assign(values.begin(), values.end());
  };
  r.tensors[r.kO] = o.get(), r.tensors[r.kDQ] = d_q.get(), r.tensors[r.kDK] = d_k.get(),
  r.tensors[r.kDV] = d_v.get();
  r.tensors[r.kDBeta] = d_beta.get();
  if (head_decay)
    put(r.kDG, d_head_g);
  else if (c.decay != Decay::kNone)
    r.tensors[r.kDG] = d_g.get();
  put(r.kFinal, edge), put(r.kLeaving, leaving), put(r.kTransition, transition), put(r.kDInitial, d_edge);
  put(r.kDLeaving, d_leaving);
  return r;
}

DeltaTimer::DeltaTimer(KernelSet set, int64_t batch, int32_t heads, int64_t tokens, int32_t dim, Decay decay)
    : set_(set),
      decay_(decay),
      bytes_(size_t(batch * tokens * heads * dim) * 2),
      q_(bytes_),
      k_(bytes_),
      v_(bytes_),
      d_o_(bytes_),
      out_(bytes_),
      more_(bytes_),
      last_(bytes_),
      g_(bytes_ * 2),
      d_g_(bytes_ * 2),
      beta_(bytes_ / size_t(dim) * 2),
      d_beta_(bytes_ / size_t(dim) * 2) {
  const int64_t spacing = delta_checkpoint_tokens(set);
  std::vector<Segment> segments;
  std::vector<Run> runs, stretches;
  for (int64_t row = 0; row < batch; ++row) {
    Segment segment;
    segment.path = segment.sequence = row, segment.num_runs = 1, segment.begins[0] = segment.begins[1] = 1;
    Run run = make_run(row, 0, int32_t(tokens), row);
    run.segment = row, run.starts = run.ends = row, run.checkpoint = int32_t(stretches.size());
    for (int64_t at = 0; at < tokens; at += spacing) {
      Run stretch = make_run(row, at, int32_t(std::min(spacing, tokens - at)), int64_t(stretches.size()));
      stretch.segment = row, stretch.checkpoint = int32_t(stretch.state);
      stretches.push_back(stretch);
    }
    segments.push_back(segment), runs.push_back(run);
  }
  segments_.emplace(segments), runs_.emplace(runs), stretches_.emplace(stretches);
  for (const DeviceMemory *x : {&q_, &k_, &v_, &d_o_}) fill_random(*x);
  std::vector<float> gates(g_.bytes / 4), betas(beta_.bytes / 4);
  for (size_t i = 0; i < gates.size(); ++i) gates[i] = -0.01f * float(i % 7);
  for (size_t i = 0; i < betas.size(); ++i) betas[i] = 0.004f * float(i % 3);  // keys are of length 11 here
  g_.put(gates), beta_.put(betas);
  inputs_.batch = batch, inputs_.tokens = tokens, inputs_.heads = heads, inputs_.dtype = DType::kBFloat16;
  inputs_.decay = decay, inputs_.g = g_.data;
  const int64_t each = decay == Decay::kChannel ? dim : 1;
  inputs_.g_strides = {tokens * heads * each, heads * each, each};
  inputs_.beta = beta_.data, inputs_.beta_strides = {tokens * heads, heads, 1};
  inputs_.q = tensor(q_), inputs_.k = tensor(k_), inputs_.v = tensor(v_);
  inputs_.segments = static_cast<const Segment *>(segments_->data);
  inputs_.own_checkpoints = set == KernelSet::kMma;
  const auto kept = [&](bool back) {
    return stretches.size() * size_t(delta_checkpoint_bytes(set, inputs_, back));
  };
  checkpoints_.emplace(kept(false)), d_checkpoints_.emplace(kept(true));
  DeltaForward forward{inputs_};
  DeltaReversed reversed{inputs_};
  DeltaGradients gradients{inputs_};
  forward.num_runs = reversed.num_runs = batch, gradients.num_runs = int64_t(stretches.size());
  forward.o = reversed.d_o = gradients.d_o = tensor(d_o_);
  work_.emplace(size_t(std::max({delta_forward_workspace(set, forward), delta_reversed_workspace(set, reversed),
                                 delta_gradients_workspace(set, gradients)})) *
                    4 +
                4);
}

Tensor DeltaTimer::tensor(const DeviceMemory &memory) const {
  const int64_t dim = int64_t(bytes_) / 2 / (inputs_.batch * inputs_.tokens * inputs_.heads),
                token = inputs_.heads * dim;
  return {memory.data, {inputs_.tokens * token, token, dim}, inputs_.heads, int32_t(dim)};
}

void DeltaTimer::forward(bool keeps) {
  DeltaForward pass{inputs_};
  pass.runs = static_cast<const Run *>(runs_->data), pass.num_runs = inputs_.batch;
  pass.o = tensor(out_), pass.workspace = static_cast<float *>(work_->data);
  if (keeps) pass.checkpoints = checkpoints_->data;
  check(launch_delta_forward(set_, pass, nullptr), "forward");
}

void DeltaTimer::reversed() {
  DeltaReversed pass{inputs_};
  pass.runs = static_cast<const Run *>(runs_->data), pass.num_runs = inputs_.batch;
  pass.d_o = tensor(d_o_), pass.workspace = static_cast<float *>(work_->data);
  pass.d_checkpoints = d_checkpoints_->data;
  check(launch_delta_reversed(set_, pass, nullptr), "reversed");
}

void DeltaTimer::gradients() {
  DeltaGradients pass{inputs_};
  pass.runs = static_cast<const Run *>(stretches_->data), pass.num_runs = int64_t(stretches_->bytes / sizeof(Run));
  pass.d_o = tensor(d_o_), pass.workspace = static_cast<float *>(work_->data);
  pass.d_q = tensor(out_), pass.d_k = tensor(more_), pass.d_v = tensor(last_);
  pass.d_g = decay_ == Decay::kNone ? nullptr : d_g_.data, pass.d_g_strides = inputs_.g_strides;
  pass.d_beta = d_beta_.data, pass.d_beta_strides = inputs_.beta_strides;
  pass.checkpoints = checkpoints_->data, pass.d_checkpoints = d_checkpoints_->data;
  check(launch_delta_gradients(set_, pass, nullptr), "gradients");
}

void DeltaTimer::copy() { check(cudaMemcpyAsync(out_.data, k_.data, bytes_, cudaMemcpyDeviceToDevice), "copy"); }

}  // namespace lasp::gpu
