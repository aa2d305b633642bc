// The launches of the delta rule alone, against a float64 recurrence on the CPU; `--time` measures them beside a
// device copy, and a word takes the cases that have it in their names. Exits 0 when all cases hold, 1 when one
// fails, 77 where there is no device.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "delta_launches.h"

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
bool run_case(const DeltaCase &c) {
  DeltaProblem p = make_delta_problem(c);
  const DeltaResults want = delta_recurrence(p);
  const DeltaResults got = launch_delta(p);
  Comparison all(c);
  const double rounding = c.dtype == DType::kBFloat16 ? 2e-3 : c.dtype == DType::kFloat16 ? 3e-4 : 0;
  for (int i = 0; i < DeltaResults::kCount; ++i) {
    const bool rounded = DeltaResults::has_type_of_tensors(i);
    const bool of_gates = i == DeltaResults::kDBeta || i == DeltaResults::kDG;
    const double gate_rounding = i == DeltaResults::kDG && c.decay_dtype != DType::kFloat32 ? 2e-3 : 0;
    std::vector<float> numbers(got.tensors[i].begin(), got.tensors[i].end());
    all.compare(DeltaResults::kNames[i], want.tensors[i], numbers,
                (of_gates ? 1e-5 : 3e-6) + (rounded ? rounding : gate_rounding),
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
  return all;
}

void time_all(KernelSet set, const char *name, int64_t batch, int32_t heads, int64_t tokens, Decay decay) {
  DeltaTimer timer(set, batch, heads, tokens, 128, decay);
  std::printf(
      "%s B%lld H%d T%lld %s: forward %.3f ms, with checkpoints %.3f, reversed %.3f, gradients %.3f, a copy of "
      "k %.3f\n",
      name, (long long)batch, heads, (long long)tokens,
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
  check(load_delta_kernels(KernelSet::kGeneric), "loading kernels");
  if (argc > 1 && std::strcmp(argv[1], "--time") == 0) {
    for (const Decay decay : {Decay::kNone, Decay::kScalar, Decay::kChannel}) {
      time_all(KernelSet::kGeneric, "general", 1, 32, 16384, decay);
      time_all(KernelSet::kGeneric, "general", 8, 32, 2048, decay);
    }
    return 0;
  }
  bool all = true;
  for (const DeltaCase &c : cases()) {
    if (argc > 1 && std::strstr(c.name, argv[1]) == nullptr) continue;
    all = run_case(c) && all;
    std::fflush(stdout);
  }
  return all ? 0 : 1;
}
