// The launches of the delta rule alone, against a float64 recurrence on the CPU; `--time` measures them beside a
// device copy (`--time mma`: those by mma.sync alone), words take the cases that have one of them in their names.
// Exits 0 when all cases hold, 1 when one fails, 77 where there is no device.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "delta_launches.h"
#include "kernel_cases.h"

namespace {

using namespace lasp::gpu;

// What a launch wrote, beside what it should have.
class Comparison {
 public:
  explicit Comparison(const DeltaCase &c) : case_(c) {}
  void compare(const char *name, const std::vector<double> &want, const std::vector<float> &got, double bound,
               double least_norm = 0) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i])) {  // nobody's
        holds_ = holds_ && std::isnan(got[i]);
        continue;
      }
      difference += (got[i] - want[i]) * (got[i] - want[i]), norm += want[i] * want[i];
    }
    norm = std::max(norm, least_norm);
    const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    const bool fits = error <= bound;
    if (!fits) std::printf("%s: %s off by %.2e, bound %.1e\n", case_.name, name, error, bound);
    holds_ = holds_ && fits, worst_ = std::max(worst_, error / bound);
  }
  bool holds() const { return holds_; }
  double worst() const { return worst_; }

 private:
  const DeltaCase &case_;
  bool holds_ = true;
  double worst_ = 0;
};

// Bounds, for keys of length 1 and beta at most 1: sums of up to 128 numbers and states that remember some hundred
// tokens, each rounded to 2^-24, as for the CPU (tests/conformance/delta_test.cpp). 16-bit results are rounded
// once, 2^-9 or 2^-12; relative to all of a tensor half as much.
// By tensor cores states are off by 2.7e-4 and what follows from them by 4e-3 (docs/reference/delta-rule.md).
double bound_of(const DeltaCase &c, int tensor) {
  if (c.forward != KernelSet::kMma) return 0;
  switch (tensor) {
    case DeltaResults::kFinal:
    case DeltaResults::kLeaving:
    case DeltaResults::kTransition:
    case DeltaResults::kDInitial:
    case DeltaResults::kDLeaving: return 2.7e-4;
    case DeltaResults::kDBeta: return 5.7e-3;
    case DeltaResults::kDG: return 8e-3;
    default: return 4e-3;
  }
}

bool run_case(const DeltaCase &c) {
  DeltaProblem p = make_delta_problem(c);
  const DeltaResults want = delta_recurrence(p);
  const DeltaResults got = launch_delta(p);
  Comparison all(c);
  const double rounding = c.dtype == DType::kBFloat16 ? 2e-3 : c.dtype == DType::kFloat16 ? 3e-4 : 0;
  for (int i = 0; i < DeltaResults::kCount; ++i) {
    if (c.strongest < 0 && i != DeltaResults::kDG) continue;  // of states float16 has nothing left
    const bool rounded = DeltaResults::has_type_of_tensors(i);
    const bool of_gates = i == DeltaResults::kDBeta || i == DeltaResults::kDG;
    const double gate_rounding = i == DeltaResults::kDG && c.decay_dtype != DType::kFloat32 ? 2e-3 : 0;
    std::vector<float> numbers(got.tensors[i].begin(), got.tensors[i].end());
    all.compare(DeltaResults::kNames[i], want.tensors[i], numbers,
                std::max(bound_of(c, i), (of_gates ? 1e-5 : 3e-6) + (rounded ? rounding : gate_rounding)),
                i == DeltaResults::kDG ? want.head_shares : 0);
  }
  std::printf("%-40s %s, at worst %.2f of the bound\n", c.name, all.holds() ? "holds" : "FAILS", all.worst());
  return all.holds();
}

std::vector<DeltaCase> cases() {
  std::vector<DeltaCase> all;
  const char *names[] = {"none", "head", "token", "channel"};
  static std::vector<std::string> kept;  // names
  kept.reserve(400);
  const auto add = [&](DeltaCase c, const std::string &name) {
    kept.push_back(name);
    c.name = kept.back().c_str();
    all.push_back(c);
  };
  for (int decay = 0; decay < 4; ++decay) {
    const std::string of = names[decay];
    DeltaCase c;
    c.decay = static_cast<Decay>(decay);
    add(c, of);
    c.dtype = DType::kBFloat16, c.decay_dtype = DType::kBFloat16, c.dim_k = 128, c.dim_v = 128;
    add(c, of + " bfloat16 128");
    c.dtype = DType::kFloat16, c.decay_dtype = DType::kFloat32, c.heads = 4, c.heads_q = 2, c.heads_k = 1,
    c.heads_v = 4;
    add(c, of + " float16 groups");
    c = {}, c.decay = static_cast<Decay>(decay);
    c.correlation = 0.9;
    add(c, of + " alike keys");
    c.strongest = 12;
    add(c, of + " strong");
    c.strongest = 1e-6f;
    add(c, of + " weak");
    for (const auto &[k, v] : {std::pair{8, 8}, {24, 40}, {72, 16}, {200, 24}, {264, 8}, {512, 40}, {40, 512}}) {
      c = {}, c.decay = static_cast<Decay>(decay), c.dim_k = k, c.dim_v = v, c.heads = 1,
      c.heads_q = c.heads_k = c.heads_v = 1;
      add(c, of + " " + std::to_string(k) + " x " + std::to_string(v));
    }
  }
  for (int decay = 0; decay < 3; ++decay) {
    const std::string of = std::string("mma ") + names[decay];
    DeltaCase c;
    c.forward = c.reversed = c.gradients = KernelSet::kMma, c.decay = static_cast<Decay>(decay), c.padding = 8;
    c.dtype = DType::kBFloat16;
    const DeltaCase plain = c;
    add(c, of);
    c.correlation = 0.9;
    add(c, of + " alike keys");
    c.strongest = 12;
    add(c, of + " strong");
    c.strongest = 1e-6f;
    add(c, of + " weak");
    // From token to token less is left than float16 has; d_decay is made of that.
    for (const int32_t k : {128, 144}) {
      c = plain, c.dtype = DType::kFloat16, c.strongest = -19, c.dim_k = k, c.dim_v = 32;
      add(c, of + " strongest float16 " + std::to_string(k));
    }
    c = plain, c.dtype = DType::kFloat16, c.heads = 4, c.heads_q = 2, c.heads_k = 1, c.heads_v = 4;
    c.decay_dtype = DType::kFloat16;
    c.strongest = 0.01f;  // in longer runs M falls below what float16 has
    add(c, of + " float16 groups");
    for (const auto &[k, v] :
         {std::pair{16, 16}, {128, 128}, {96, 192}, {144, 64}, {208, 32}, {256, 256}, {48, 512}, {80, 48}}) {
      c = plain, c.dim_k = k, c.dim_v = v, c.heads = c.heads_q = c.heads_k = c.heads_v = 1;
      add(c, of + " " + std::to_string(k) + " x " + std::to_string(v));
    }
  }
  return all;
}

void time_all(KernelSet set, const char *name, int64_t batch, int32_t heads, int64_t tokens, Decay decay,
              int32_t dim = 128) {
  DeltaTimer timer(set, batch, heads, tokens, dim, decay);
  std::printf(
      "%s B%lld H%d T%lld K %d %s: forward %.3f ms, with checkpoints %.3f, reversed %.3f, gradients %.3f, a copy "
      "of "
      "k %.3f\n",
      name, (long long)batch, heads, (long long)tokens, dim,
      decay == Decay::kNone     ? "none"
      : decay == Decay::kScalar ? "token"
                                : "channel",
      median_ms([&] { timer.forward(false); }), median_ms([&] { timer.forward(true); }),
      median_ms([&] { timer.reversed(); }), median_ms([&] { timer.gradients(); }),
      median_ms([&] { timer.copy(); }));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char **argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no device"), 77;
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "properties");
  const bool tensor_cores = device.major >= 8;
  check(load_delta_kernels(KernelSet::kGeneric), "loading kernels");
  if (tensor_cores) check(load_delta_kernels(KernelSet::kMma), "loading kernels");
  if (argc > 1 && std::strcmp(argv[1], "--time") == 0) {
    const bool all = argc < 3;
    for (const Decay decay : {Decay::kNone, Decay::kScalar, Decay::kChannel})
      for (const KernelSet set : {KernelSet::kMma, KernelSet::kGeneric}) {
        if (set == KernelSet::kMma ? !tensor_cores || decay == Decay::kChannel : !all) continue;
        const char *const name = set == KernelSet::kMma ? "mma" : "general";
        time_all(set, name, 1, 32, 16384, decay);
        time_all(set, name, 8, 32, 2048, decay);
        time_all(set, name, 1, 16, 16384, decay, 256);
      }
    return 0;
  }
  bool all = true, any = false;
  for (DeltaCase c : cases()) {
    if (!is_wanted(c.name, argc, argv)) continue;
    if (c.forward == KernelSet::kMma && !tensor_cores) continue;
    // Where the plan's choice of kernels says so, too: all gradients of many rows need more than 8.6 has.
    if (c.dim_k > 128 && device.sharedMemPerBlockOptin < 128 * 1024) c.gradients = KernelSet::kGeneric;
    all = run_case(c) && all;
    any = true;
    std::fflush(stdout);
  }
  return all && any ? 0 : 1;
}
