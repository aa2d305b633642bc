// The decay cutoff: which tokens count in a state that leaves (RunFactors::counts), that nothing else is read and
// nothing is missed, and that runs that another rank's state does not change neither wait for it nor see it. Exits
// 0 when all cases hold, 1 when one fails, 77 where there is no device of compute capability 9.0.
#include <algorithm>
#include <cmath>
#include <random>

#include "device_memory.h"

namespace {

using namespace lasp::gpu;

constexpr int kHeads = 5, kDim = 64, kTokens = 2000, kRun = 1024, kPart = 256;  // a run and a shorter one
constexpr int kParts = (kTokens + kPart - 1) / kPart, kState = kDim * kDim, kStates = kParts * kHeads * kState;
constexpr double kForgotten = -40 * 0.69314718055994530942;  // log kDecayCutoff
// Strong; the bound met just beyond a run and just within it; weak; growing.
constexpr double kSlopes[kHeads] = {-0.7, 1.002 * kForgotten / kRun, 0.998 * kForgotten / kRun, -1e-4, 1e-3};
constexpr float kScale = 0.1f;

struct Setting {
  Decay decay;
  bool reversed, tensor_cores;
};

int failures = 0;
void expect(bool good, const Setting &s, const char *what) {
  if (good) return;
  ++failures;
  std::printf("FAILED: %s (%s%s%s)\n", what, s.decay == Decay::kHead ? "per head" : "per token",
              s.reversed ? ", reversed" : "", s.tensor_cores ? ", tensor cores" : "");
}

double relative(const float *got, const std::vector<double> &want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i)
    difference += (got[i] - want[i]) * (got[i] - want[i]), norm += want[i] * want[i];
  return std::sqrt(difference / norm);
}

std::vector<Run> cut(int tokens, bool reversed) {
  std::vector<Run> runs;
  for (int begin = 0; begin < kTokens; begin += tokens) {
    const int length = std::min(tokens, kTokens - begin), parts = (length + kPart - 1) / kPart;
    const int first = begin / kPart, whole_begin = begin / kRun * kRun;
    Run run = make_run(0, begin, length, reversed ? first + parts - 1 : first);
    run.before = begin - whole_begin;
    run.after = std::min(whole_begin + kRun, kTokens) - begin - length;
    run.entered = 1;
    runs.push_back(run);
  }
  return runs;
}

struct Problem {
  explicit Problem(const Setting &setting)
      : s(setting), parts(cut(kPart, s.reversed)), runs(cut(kRun, s.reversed)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0, 2);
    for (auto *x : {&a, &b, &c})
      for (int i = 0; i < kTokens * kHeads * kDim; ++i) x->push_back(round_to(DType::kBFloat16, normal(random)));
    incoming.resize(kHeads * kState);
    for (float &x : incoming) x = 10 * normal(random);
    for (int t = 0; t < (s.decay == Decay::kHead ? 1 : kTokens); ++t)
      for (const double slope : kSlopes)
        g.push_back(float(s.decay == Decay::kHead ? slope : slope * uniform(random)));
  }
  double log_decay(int t, int h) const { return g[s.decay == Decay::kHead ? h : t * kHeads + h]; }
  // What a token at distance `n` from the end of [begin, end) that the state leaves by has been through.
  std::vector<double> behind(int begin, int end, int h) const {
    std::vector<double> sums;
    double sum = 0;
    for (int n = 0; n < end - begin; ++n) {
      const int t = s.reversed ? begin + n : end - 1 - n;
      sums.push_back(s.reversed ? sum + log_decay(t, h) : sum);
      sum += log_decay(t, h);
    }
    return sums;
  }
  // The state that leaves [begin, end), in float64, of one head.
  std::vector<double> state(int begin, int end, int h) const {
    std::vector<double> state(kState), sums = behind(begin, end, h);
    for (int n = 0; n < end - begin; ++n) {
      const size_t row = size_t((s.reversed ? begin + n : end - 1 - n) * kHeads + h) * kDim;
      const double factor = std::exp(sums[n]);
      for (int i = 0; factor > 0 && i < kDim; ++i)
        for (int j = 0; j < kDim; ++j)
          state[i * kDim + j] += factor * widen(DType::kBFloat16, b[row + i]) * widen(DType::kBFloat16, c[row + j]);
    }
    return state;
  }

  Setting s;
  std::vector<Run> parts, runs;
  std::vector<uint16_t> a, b, c;
  std::vector<float> g, incoming;
};

// The same on the device, and the launches.
struct Device {
  explicit Device(const Problem &p)
      : s(p.s),
        a(p.a.size() * 2),
        b(a.bytes),
        c(a.bytes),
        y(a.bytes),
        g(p.g.size() * 4),
        slots(kStates * 4),
        ends(kStates * 4),
        factors(kParts * kHeads * 4),
        entry_decay(factors.bytes),
        counts(factors.bytes),
        map_state(kHeads * kState * 4),
        map_factor(kHeads * 4),
        incoming(map_state.bytes),
        parts(p.parts.size() * sizeof(Run)),
        runs(p.runs.size() * sizeof(Run)),
        segment(sizeof(Segment)) {
    a.put(p.a), b.put(p.b), c.put(p.c), g.put(p.g), parts.put(p.parts), runs.put(p.runs), incoming.put(p.incoming);
    Segment whole;
    whole.num_runs = kParts;
    whole.produces[0] = whole.produces[1] = whole.consumes[0] = whole.consumes[1] = 1;
    segment.put(std::vector<Segment>{whole});
    poison(y), poison(slots), poison(ends), poison(counts);
  }
  static void poison(const DeviceMemory &m) { check(cudaMemset(m.data, 0xff, m.bytes), "poison"); }
  template <class T>
  static T *as(const DeviceMemory &m) {
    return static_cast<T *>(m.data);
  }

  GenericPass pass() const {
    GenericPass pass;
    const Strides strides = {kTokens * kHeads * kDim, kHeads * kDim, kDim};
    pass.a = {a.data, strides, kHeads, kDim}, pass.b = {b.data, strides, kHeads, kDim};
    pass.c = {c.data, strides, kHeads, kDim}, pass.y = {y.data, strides, kHeads, kDim};
    pass.batch = 1, pass.tokens = kTokens, pass.heads = kHeads, pass.dtype = DType::kBFloat16;
    pass.decay = s.decay, pass.g = g.data, pass.g_strides = {kTokens * kHeads, kHeads, 1};
    pass.reversed = s.reversed, pass.scale = kScale;
    return pass;
  }
  void launch(const GenericPass &pass) const {
    check(
        s.tensor_cores ? launch_linear_pass(KernelSet::kHopper, pass, nullptr) : launch_generic_pass(pass, nullptr),
        "a pass");
    check(cudaDeviceSynchronize(), "a pass");
  }
  void find_counts(const Problem &p) {
    if (s.decay == Decay::kHead) {  // kernels find them as they go: these are what they should find
      std::vector<int32_t> by_head;
      for (const Run &run : p.parts)
        for (const float slope : p.g) {
          const double counted = std::floor(kForgotten / slope) + 1 - (s.reversed ? run.before : run.after);
          by_head.push_back(slope < 0 ? int32_t(std::clamp(counted, 0.0, double(run.length))) : run.length);
        }
      return counts.put(by_head);
    }
    RunFactors f;
    f.runs = as<Run>(parts), f.num_runs = kParts, f.heads = kHeads, f.dim_k = kDim, f.decay = s.decay;
    f.g = g.data, f.g_strides = {kTokens * kHeads, kHeads, 1}, f.reversed = s.reversed;
    f.factors = as<float>(factors), f.counts = as<int32_t>(counts);
    check(launch_run_factors(f, nullptr), "factors");
  }
  void find_states() const {
    GenericPass states = pass();
    states.y.data = nullptr, states.runs = as<Run>(parts), states.num_runs = kParts;
    states.state_out = as<float>(slots);
    const bool by_head = s.decay == Decay::kHead;
    by_head ? void(states.counts_by_head = true) : void(states.counts = as<int32_t>(counts));
    launch(states);
    StateScan scan;
    scan.shape = {1, kHeads, kDim, kDim, false};
    scan.segments = as<Segment>(segment), scan.num_segments = 1, scan.reversed = s.reversed;
    scan.runs = as<Run>(parts), scan.slots = as<float>(slots), scan.entry_decay = as<float>(entry_decay);
    if (by_head)
      scan.head_decay = as<float>(g);
    else
      scan.counts = as<int32_t>(counts), scan.factors = as<float>(factors);
    scan.map_state = as<float>(map_state), scan.map_factor = as<float>(map_factor);
    check(launch_state_scan(scan, nullptr), "scan");
  }
  void join(const DeviceMemory &from) const {
    StateJoin join;
    join.shape = {1, kHeads, kDim, kDim, false};
    join.runs = as<Run>(runs), join.num_runs = int64_t(runs.bytes / sizeof(Run));
    join.slots = as<float>(slots), join.entry_decay = as<float>(entry_decay), join.incoming = as<float>(from);
    check(launch_state_join(join, nullptr), "join");
  }
  void outputs(RunFilter which) const {
    GenericPass out = pass();
    out.runs = as<Run>(runs), out.num_runs = int64_t(runs.bytes / sizeof(Run));
    out.state_in = as<float>(slots), out.state_out = as<float>(ends);
    out.filter = which, out.entry_decay = as<float>(entry_decay);
    launch(out);
  }

  Setting s;
  DeviceMemory a, b, c, y, g, slots, ends, factors, entry_decay, counts, map_state, map_factor, incoming, parts,
      runs, segment;
};

// What launch_run_factors counts, per token: uncounted tokens are forgotten, counted ones are not, to a piece
// of 16. (Sums that meet the bound within rounding may fall on either side.)
void check_counts(const Problem &p, const std::vector<int32_t> &counts) {
  constexpr int kPiece = 16;
  const double slack = 1e-5 * -kForgotten;
  for (int r = 0; r < kParts; ++r)
    for (int h = 0; h < kHeads; ++h) {
      const Run &run = p.parts[r];
      const int begin = int(run.begin) - (p.s.reversed ? run.before : 0);
      const int end = int(run.begin) + run.length + (p.s.reversed ? 0 : run.after);
      const int skip = p.s.reversed ? run.before : run.after, count = counts[r * kHeads + h];
      const std::vector<double> sums = p.behind(begin, end, h);
      bool missed = count < 0 || count > run.length, idle = false;
      for (int n = std::max(count, 0); n < run.length; ++n) missed |= sums[skip + n] > kForgotten + slack;
      // Reversed, a token's own decay is left out of the question, so that one more may count.
      if (count > kPiece) idle = sums[skip + count - kPiece - 1] < kForgotten - slack;
      expect(!missed, p.s, "a token that counts is not counted");
      expect(!idle, p.s, "forgotten tokens are counted");
    }
}

void run(const Setting &setting) {
  Problem p(setting);
  Device d(p);
  d.find_counts(p);
  const std::vector<int32_t> counts = d.counts.get<int32_t>();
  if (setting.decay != Decay::kHead) check_counts(p, counts);  // per head they are this test's own

  // What does not count is not read by the tensor cores: with NaN there the states are right.
  std::vector<uint16_t> poisoned_b = p.b, poisoned_c = p.c;
  int poisoned = 0;
  for (int r = 0; r < kParts && p.s.tensor_cores; ++r)
    for (int h = 0; h < kHeads; ++h)
      for (int n = (counts[r * kHeads + h] + 63) / 64 * 64 + 64; n < p.parts[r].length; ++n, ++poisoned) {
        const int t = int(p.parts[r].begin) + (p.s.reversed ? n : p.parts[r].length - 1 - n);
        for (auto *x : {&poisoned_b, &poisoned_c}) std::fill_n(x->begin() + (t * kHeads + h) * kDim, kDim, kNan);
      }
  expect(poisoned > 0 || !p.s.tensor_cores, p.s, "nothing is below the cutoff: the test tests nothing");
  d.b.put(poisoned_b), d.c.put(poisoned_c);
  d.find_states();
  d.b.put(p.b), d.c.put(p.c);
  const std::vector<float> slots = d.slots.get<float>(), entry_decay = d.entry_decay.get<float>();
  const std::vector<float> map_state = d.map_state.get<float>();
  const int last = p.s.reversed ? 0 : int(p.runs.size()) - 1, inner = p.s.reversed ? kRun : 0;
  double worst = 0;
  for (int h = 0; h < kHeads; ++h) {
    const std::vector<double> entering = p.state(inner, p.s.reversed ? kTokens : kRun, h),
                              leaving = p.state(0, kTokens, h);
    for (const double error : {relative(&slots[(p.runs[last].state * kHeads + h) * kState], entering),
                               relative(&map_state[h * kState], leaving)}) {
      if (!(error <= worst) && !std::isnan(worst)) worst = error;  // a NaN stays the worst
    }
  }
  // The factors of products have 16 bits and more; what is forgotten adds 2^-40 of a term.
  expect(worst < 1e-5, p.s, "a state is not what all tokens make it");

  // All at once, as if nothing had to wait.
  d.join(d.incoming);
  d.outputs(RunFilter::kAll);
  const std::vector<uint16_t> want = d.y.get<uint16_t>();
  const std::vector<uint32_t> want_ends = d.ends.get<uint32_t>();  // bits: what is not written is no number

  // Ahead: only independent runs are written, and the incoming state, whatever it is, does not get there.
  d.slots.put(slots);
  Device::poison(d.y), Device::poison(d.ends);
  d.outputs(RunFilter::kIndependent);
  const std::vector<uint16_t> ahead = d.y.get<uint16_t>();
  DeviceMemory nothing(d.incoming.bytes);
  Device::poison(nothing);
  d.join(nothing);
  const std::vector<float> joined = d.slots.get<float>();
  int beyond = 0, within = 0;
  for (const Run &run : p.runs)
    for (int h = 0; h < kHeads; ++h) {
      const bool forgotten = is_below_cutoff(entry_decay[run.state * kHeads + h]);
      double way = 0;  // from the edge that the incoming state enters by
      for (int t = p.s.reversed ? int(run.begin) + run.length : 0; t < (p.s.reversed ? kTokens : run.begin); ++t)
        way += p.log_decay(t, h);
      if (std::abs(way / kForgotten - 1) > 1e-5)
        expect(forgotten == (way < kForgotten), p.s, "not the entry decay that the decays give");
      const size_t at = size_t(run.state * kHeads + h) * kState;
      (forgotten ? beyond : within)++;
      bool same = true, untouched = true;
      for (int t = int(run.begin); t < run.begin + run.length; ++t)
        for (int i = 0; i < kDim; ++i) {
          const size_t y = size_t(t * kHeads + h) * kDim + i;
          same &= ahead[y] == want[y], untouched &= ahead[y] == 0xffff;
        }
      bool kept = true, poisoned_all = true;
      for (int i = 0; i < kState; ++i)
        kept &= joined[at + i] == slots[at + i], poisoned_all &= std::isnan(joined[at + i]);
      expect(forgotten ? same : untouched, p.s,
             forgotten ? "independent: not as by one launch" : "it did not wait");
      expect(forgotten ? kept : poisoned_all, p.s,
             "the incoming state changed an independent run, or missed a dependent one");
    }
  expect(beyond > 0 && within > 0, p.s, "all wait or none: the test tests nothing");

  // And the rest: together the same bits as at once.
  d.slots.put(slots);
  d.join(d.incoming);
  d.outputs(RunFilter::kDependent);
  expect(d.y.get<uint16_t>() == want && d.ends.get<uint32_t>() == want_ends, p.s,
         "in two launches not the same bits");
  std::printf("%s%s%s: states %.1e, tokens left out %d, %d of %d runs independent\n",
              p.s.decay == Decay::kHead ? "per head" : "per token", p.s.reversed ? ", reversed" : "",
              p.s.tensor_cores ? ", tensor cores" : "", worst, poisoned, beyond, beyond + within);
}

}  // namespace

int main() {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9 || properties.minor != 0) {
    std::printf("skipped: no device of compute capability 9.0\n");
    return 77;
  }
  for (const Decay decay : {Decay::kHead, Decay::kScalar})
    for (const bool reversed : {false, true})
      for (const bool tensor_cores : {false, true}) run({decay, reversed, tensor_cores});
  std::printf(failures == 0 ? "all cases hold\n" : "some cases FAILED\n");
  return failures == 0 ? 0 : 1;
}
