#include "cuda/choice/delta_choices.h"

namespace lasp::cuda {
namespace {

void fill_inputs(gpu::DeltaInputs &to, const PlanInputs &inputs, const RunSpan &runs, const void *decay,
                 const void *beta) {
  const Problem &p = inputs.problem();
  static_cast<gpu::PassInputs &>(to) = inputs.pass_inputs(runs, decay);
  to.scale = p.scale;
  to.beta = beta;
  to.beta_dtype = dtype_of(p.beta_dtype);
  to.beta_strides = inputs.strides(p.beta_layout);
}

template <class Pass>
Pass backward_pass(const PlanInputs &inputs, const RunSpan &runs, const BackwardBuffers &b) {
  Pass pass;
  fill_inputs(pass, inputs, runs, b.decay, b.beta);
  pass.q = inputs.q_of(b.q);
  pass.k = inputs.k_of(b.k);
  pass.v = inputs.v_of(b.v);
  pass.d_o = inputs.do_of(b.d_o);
  return pass;
}

// Where all launches go by kHopper. False: they do not, `made` says why.
bool choose_hopper(const PlanInputs &inputs, const KernelFinder &kernels, DeltaChoices &made) {
  using enum gpu::KernelSet;
  const ForwardBuffers forward{};  // addresses are looked at in each call
  const BackwardBuffers backward{};
  float *const staged[3] = {};
  const Problem &p = inputs.problem();
  made.forward = kernels.delta(delta_forward_pass(inputs, {}, forward), kHopper, &made.why_not);
  if (made.forward != kHopper || !p.backward) return made.forward == kHopper;
  made.reversed = kernels.delta(delta_reversed_pass(inputs, {}, backward), kHopper, &made.why_not);
  if (made.reversed != kHopper) return false;
  const bool in_pairs = p.heads / p.heads_q % 2 == 0 && p.heads / p.heads_k % 2 == 0;
  for (const int32_t heads : {p.heads / 2, p.heads})
    for (const bool float32 : {false, true}) {
      made.left = {heads, float32};
      if (heads < p.heads && !in_pairs) continue;
      made.gradients =
          kernels.delta(delta_gradients_pass(inputs, {}, backward, staged, made.left), kHopper, &made.why_not);
      if (made.gradients == kHopper) return true;
    }
  return false;
}

DeltaChoices choose_sets(const PlanInputs &inputs, const KernelFinder &kernels) {
  using enum gpu::KernelSet;
  const Problem &p = inputs.problem();
  DeltaChoices made;
  if (choose_hopper(inputs, kernels, made)) return made;
  const std::string why_not_hopper = made.why_not;
  const ForwardBuffers forward{};
  const BackwardBuffers backward{};
  float *const staged[3] = {};
  made = {};
  made.left = {p.heads, false};
  std::string why;
  const auto chosen = [&](gpu::KernelSet set) {
    if (set == kGeneric) made.why_not = why.empty() ? why_not_hopper : why;
    return set;
  };
  made.forward = chosen(kernels.delta(delta_forward_pass(inputs, {}, forward), kMma, &why));
  if (!p.backward) return made;
  made.reversed = chosen(kernels.delta(delta_reversed_pass(inputs, {}, backward), kMma, &why));
  if (made.forward != kMma || made.reversed != kMma) return made;
  gpu::DeltaGradients gradients = delta_gradients_pass(inputs, {}, backward, staged, made.left);
  gradients.own_checkpoints = true;
  made.gradients = chosen(kernels.delta(gradients, kMma, &why));
  made.own_checkpoints = made.gradients == kMma;
  return made;
}

}  // namespace

DeltaChoices make_delta_choices(const PlanInputs &inputs, const KernelFinder &kernels) {
  const Problem &p = inputs.problem();
  DeltaChoices made = choose_sets(inputs, kernels);
  if (!p.backward) made.left = {p.heads, false};
  made.left_once = {made.left.heads, false};
  made.spacing = gpu::delta_spacing(made.forward, p.batch * p.tokens, p.heads);
  return made;
}

std::string DeltaChoices::describe(int32_t compute_capability, bool backward) const {
  using enum gpu::KernelSet;
  std::string text = "CUDA, compute capability " + std::to_string(compute_capability / 10) + "." +
                     std::to_string(compute_capability % 10) + ": ";
  const std::string walks = "walks in float32, token by token (" + why_not + ")";
  if (forward == kGeneric) {
    text += "delta rule by " + walks;
  } else {
    text += "tensor-core kernels of the delta rule";
    if (backward && gradients == kGeneric)
      text += std::string(" for outputs") +
              (reversed == kGeneric ? ", gradients by " : " and gradients of states, the others by ") + walks;
  }
  return text + ", checkpoints every " + std::to_string(spacing) + " tokens";
}

gpu::DeltaForward delta_forward_pass(const PlanInputs &inputs, const RunSpan &runs, const ForwardBuffers &b) {
  gpu::DeltaForward pass;
  fill_inputs(pass, inputs, runs, b.decay, b.beta);
  pass.q = inputs.q_of(b.q);
  pass.k = inputs.k_of(b.k);
  pass.v = inputs.v_of(b.v);
  pass.o = inputs.o_of(b.o);
  return pass;
}

gpu::DeltaReversed delta_reversed_pass(const PlanInputs &inputs, const RunSpan &runs, const BackwardBuffers &b) {
  return backward_pass<gpu::DeltaReversed>(inputs, runs, b);
}

bool is_staged(const LeftGradients &left, int32_t heads_of_output, int32_t heads, bool of_value) {
  return of_value ? heads != heads_of_output : left.float32 || heads != left.heads;
}

gpu::DeltaGradients delta_gradients_pass(const PlanInputs &inputs, const RunSpan &stretches,
                                         const BackwardBuffers &b, float *const (&staged)[3],
                                         const LeftGradients &left) {
  const Problem &p = inputs.problem();
  auto pass = backward_pass<gpu::DeltaGradients>(inputs, stretches, b);
  const Gradient gradients[] = {inputs.dq(b), inputs.dk(b), inputs.dv(b)};
  gpu::Tensor *const to[] = {&pass.d_q, &pass.d_k, &pass.d_v};
  for (int i = 0; i < 3; ++i) {
    const auto &[tensor, type, adds] = gradients[i];
    const bool waits = is_staged(left, p.heads, tensor.heads, i == 2);
    pass.staged[i] = waits || type == DType::kFloat32;
    pass.adds[i] = !waits && adds;
    *to[i] = waits ? inputs.by_output_head(staged[i], i == 2 ? p.heads : left.heads, tensor.dim) : tensor;
  }
  pass.exact = inputs.has_wide_gradients();
  pass.d_g = b.d_decay;
  pass.d_g_strides = inputs.strides(p.d_decay_layout);
  pass.d_g_float32 = p.d_decay_dtype == DType::kFloat32;
  pass.d_g_adds = b.adds(LASP_ADD_D_DECAY);
  pass.d_beta_adds = b.adds(LASP_ADD_D_BETA);
  pass.d_beta = b.d_beta;
  pass.d_beta_dtype = dtype_of(p.d_beta_dtype);
  pass.d_beta_strides = inputs.strides(p.d_beta_layout);
  return pass;
}

}  // namespace lasp::cuda
