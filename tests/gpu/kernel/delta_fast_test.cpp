// The fast kernels of the delta rule alone, against a float64 recurrence on the CPU; `--time` (`--time channel`: of
// that decay alone) measures them beside a device copy, other arguments choose the cases whose name holds one of
// them.
// `--mma` first: those by mma.sync in place of those for 9.0. Exits 0 when all cases hold, 1 when one fails, 77
// where there is no device of compute capability 9.0 (--mma: 8.0 or later).
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../../kernels/delta/passes.h"
#include "delta_fast_cases.h"
#include "delta_fast_errors.h"
#include "delta_fast_reference.h"
#include "delta_fast_time.h"
#include "device_memory.h"
#include "kernel_cases.h"

namespace {

using namespace lasp::gpu;
using Case = DeltaFastCase;

constexpr int64_t kDim = 128, kState = kDim * kDim;

KernelSet set = KernelSet::kHopper;
bool with_gradients = true;  // --walks: the walks alone

double random_normal(std::mt19937 &random) { return std::normal_distribution<double>()(random); }

// Tensors with their gaps and tokens of no run holding NaN.
struct Problem {
  Case c;
  std::vector<uint16_t> q, k, v, d_o;
  std::vector<float> g, beta, state, d_state;
  float scale = 0.09f;
  int32_t heads_of(const std::vector<uint16_t> &x) const {
    return &x == &q ? c.heads_q : &x == &k ? c.heads_k : c.heads;
  }
  int64_t token(int32_t heads) const { return heads * kDim + c.padding; }
  Strides strides(int32_t heads) const { return {c.tokens * token(heads), token(heads), kDim}; }
  int64_t at(int32_t heads, int64_t row, int64_t t, int64_t h) const {
    return (row * c.tokens + t) * token(heads) + h * heads / c.heads * kDim;
  }
  int64_t beta_at(int64_t row, int64_t t, int64_t h) const { return (row * c.tokens + t) * c.heads + h; }
  int64_t channels() const { return c.decay == Decay::kChannel ? kDim : 1; }
  int64_t g_at(int64_t row, int64_t t, int64_t h) const { return beta_at(row, t, h) * channels(); }
};

Problem make_problem(Case c) {
  if (!c.heads_q) c.heads_q = c.heads;
  if (!c.heads_k) c.heads_k = c.heads;
  std::mt19937 random(1234);
  Problem p;
  p.c = c;
  for (auto *x : {&p.q, &p.k, &p.v, &p.d_o}) {
    const int32_t heads = p.heads_of(*x);
    x->assign(size_t(c.batch * c.tokens * p.token(heads)), kNan);
    std::vector<double> common(kDim);
    for (double &y : common) y = random_normal(random);
    for (const Run &run : c.runs)
      for (int64_t t = run.begin; t < run.begin + run.length; ++t)
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<double> y(kDim);
          double norm = 0;
          for (int i = 0; i < kDim; ++i) {
            y[i] = random_normal(random);
            if (x == &p.k) y[i] = std::sqrt(c.alike) * common[i] + std::sqrt(1 - c.alike) * y[i];
            norm += y[i] * y[i];
          }
          for (int i = 0; i < kDim; ++i)
            (*x)[(run.row * c.tokens + t) * p.token(heads) + h * kDim + i] =
                round_to(c.dtype, float(x == &p.q   ? y[i] / std::sqrt(norm)
                                        : x == &p.k ? c.length * y[i] / std::sqrt(norm)
                                                    : y[i]));
        }
  }
  std::uniform_real_distribution<float> uniform(0, 1);
  p.g.resize(c.decay == Decay::kHead ? c.heads : size_t(c.batch * c.tokens * c.heads * p.channels()));
  for (float &g : p.g) {
    g = c.strongest < 0 ? c.strongest : -c.strongest * uniform(random);
    const int64_t each = c.decay == Decay::kChannel ? kDim : c.heads;
    if (c.mixed) g *= std::pow(10.0f, -4 * float((&g - &p.g[0]) % each * 37 % each) / float(each));
    if (c.grows) {  // along its key a token multiplies by exp(g) (1 - |k|^2)
      const float log2 = (&g - &p.g[0]) / c.heads % 576 < 256 ? 40.0f / 256 : -42.0f / 320;
      g = float(M_LN2) * log2 - std::log(c.length * c.length - 1);
    }
    if (c.decay_dtype != DType::kFloat32) g = widen(c.dtype, round_to(c.dtype, g));
  }
  p.beta.resize(size_t(c.batch * c.tokens * c.heads));
  for (float &b : p.beta) b = c.beta < 0 ? -c.beta : random() % 16 == 0 ? 0 : c.beta * uniform(random);
  for (auto *s : {&p.state, &p.d_state}) {
    s->resize(c.runs.size() * size_t(c.heads) * kState);
    for (float &x : *s) x = 0.3f * float(random_normal(random));
  }
  return p;
}

DeltaAnswer solve(const Problem &p, const Run &run, int32_t h) {
  const Case &c = p.c;
  DeltaTokens x;
  x.n = run.length, x.scale = p.scale, x.channel = c.decay == Decay::kChannel;
  const auto rows = [&](const std::vector<uint16_t> &from, std::vector<double> &to) {
    for (int64_t t = run.begin; t < run.begin + run.length; ++t)
      for (int i = 0; i < kDim; ++i) to.push_back(widen(c.dtype, from[p.at(p.heads_of(from), run.row, t, h) + i]));
  };
  rows(p.q, x.q), rows(p.k, x.k), rows(p.v, x.v), rows(p.d_o, x.d_o);
  for (int64_t t = run.begin; t < run.begin + run.length; ++t) {
    x.beta.push_back(p.beta[p.beta_at(run.row, t, h)]);
    const int64_t at = c.decay == Decay::kHead ? h : p.g_at(run.row, t, h);
    for (int64_t i = 0; i < p.channels(); ++i) x.g.push_back(c.decay == Decay::kNone ? 0 : p.g[at + i]);
  }
  std::vector<double> s(kState), ds(kState);
  for (int64_t i = 0; c.state && i < kState; ++i) {
    s[i] = p.state[(run.state * c.heads + h) * kState + i];
    ds[i] = p.d_state[(run.state * c.heads + h) * kState + i];
  }
  return solve_delta(x, s, ds, c.spacing, c.transition, c.backward);
}

struct Device {
  const Problem &p;
  DeviceCopy q, k, v, d_o, g32, g16, beta, runs, segments, state, d_state;
  static std::vector<uint16_t> rounded(const Problem &p) {
    std::vector<uint16_t> to;
    for (float x : p.g) to.push_back(round_to(p.c.dtype, x));
    return to;
  }
  static std::vector<Segment> make_segments(const Problem &p) {
    std::vector<Segment> to(p.c.runs.size());
    for (size_t r = 0; r < to.size(); ++r) {
      to[r].first_run = 3 * int64_t(r), to[r].num_runs = 3;  // of a finer cut: not what walks have
      to[r].produces[0] = to[r].produces[1] = 1;
    }
    return to;
  }
  explicit Device(const Problem &problem)
      : p(problem),
        q(p.q),
        k(p.k),
        v(p.v),
        d_o(p.d_o),
        g32(p.g),
        g16(rounded(p)),
        beta(p.beta),
        runs(p.c.runs),
        segments(make_segments(p)),
        state(p.state),
        d_state(p.d_state) {}
  Tensor tensor(const DeviceMemory &memory, int32_t heads) const {
    return Tensor{memory.data, p.strides(heads), heads, int32_t(kDim)};
  }
  void fill(DeltaInputs &x) const {
    const Case &c = p.c;
    x.q = tensor(q, c.heads_q), x.k = tensor(k, c.heads_k), x.v = tensor(v, c.heads);
    x.batch = c.batch, x.tokens = c.tokens, x.heads = c.heads, x.dtype = c.dtype;
    x.decay = c.decay, x.decay_dtype = c.decay_dtype;
    x.g = c.decay_dtype == DType::kFloat32 ? g32.data : g16.data;
    x.beta_strides = {c.tokens * c.heads, c.heads, 1};
    const int64_t each = p.channels();
    x.g_strides = {c.tokens * c.heads * each, c.heads * each, each};
    x.beta = beta.data;
    x.scale = p.scale, x.spacing = c.spacing;
    x.runs = static_cast<const Run *>(runs.data), x.num_runs = int64_t(c.runs.size());
    x.segments = static_cast<const Segment *>(segments.data);
  }
};

void poison(const DeviceMemory &memory) { check(cudaMemset(memory.data, 0xff, memory.bytes), "memset"); }

void check_refusal(const char *why) {
  if (!why) return;
  std::printf("refused: %s\n", why);
  std::exit(1);
}

bool run_case(Case c) {
  int32_t checkpoints = 0;
  for (size_t r = 0; r < c.runs.size(); ++r) {
    Run &run = c.runs[r];
    run.state = int64_t(r), run.segment = int64_t(r), run.checkpoint = checkpoints;
    run.ends = run.starts = int64_t(r);
    run.path = int32_t(r);  // what leaves it, and M, in a place of its own
    checkpoints += (run.length + c.spacing - 1) / c.spacing;
  }
  const Problem p = make_problem(c);
  std::vector<std::vector<DeltaAnswer>> answers(c.runs.size(), std::vector<DeltaAnswer>(c.heads));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < c.runs.size(); ++r)
    for (int32_t h = 0; h < c.heads; ++h)
      threads.emplace_back([&, r, h] { answers[r][h] = solve(p, p.c.runs[r], h); });
  for (auto &t : threads) t.join();

  const Device d(p);
  const int64_t states = int64_t(c.runs.size()) * c.heads;
  const std::vector<float> no_states(states * kState, NAN);
  DeviceCopy o(std::vector<uint16_t>(size_t(c.batch * c.tokens * p.token(c.heads)), kNan)), out(no_states),
      edge(no_states), leaving(no_states), transition(no_states),
      kept(std::vector<uint16_t>(size_t(checkpoints) * c.heads * kState * (set == KernelSet::kMma ? 2 : 1), kNan));
  DeltaForward f;
  d.fill(f);
  f.o = d.tensor(o, c.heads);
  f.state_in = c.state ? static_cast<const float *>(d.state.data) : nullptr;
  f.state_out = static_cast<float *>(out.data), f.edge_state = static_cast<float *>(edge.data);
  f.leaving = static_cast<float *>(leaving.data);
  f.transition = c.transition ? static_cast<float *>(transition.data) : nullptr;
  f.checkpoints = kept.data;
  check_refusal(delta_forward_refusal(set, f));
  DeviceMemory workspace(size_t(delta_forward_workspace(set, f)) * 4);
  poison(workspace);
  f.workspace = static_cast<float *>(workspace.data);
  DeviceMemory maps(size_t(delta_maps_floats(set, f)) * 4 + 4);
  poison(maps);
  if (c.maps) f.maps = static_cast<float *>(maps.data);
  check(launch_delta_forward(set, f, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);

  DeviceCopy d_out(no_states), d_edge(no_states), d_leaving(no_states),
      d_kept(std::vector<uint16_t>(kept.bytes / 2, kNan));
  DeltaReversed b;
  d.fill(b);
  b.d_o = d.tensor(d.d_o, c.heads);
  b.d_state_in = c.state ? static_cast<const float *>(d.d_state.data) : nullptr;
  b.d_state_out = static_cast<float *>(d_out.data), b.d_edge_state = static_cast<float *>(d_edge.data);
  b.d_leaving = static_cast<float *>(d_leaving.data), b.d_checkpoints = d_kept.data;
  if (c.maps) b.maps = f.maps, b.maps_runs = f.num_runs;
  check_refusal(delta_reversed_refusal(set, b));
  DeviceMemory reversed_workspace(size_t(delta_reversed_workspace(set, b)) * 4 + 4);
  poison(reversed_workspace);
  b.workspace = static_cast<float *>(reversed_workspace.data);
  check(launch_delta_reversed(set, b, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);

  // Gradients, of stretches between checkpoints.
  std::vector<Run> stretches;
  for (const Run &run : p.c.runs)
    for (int32_t t = 0; t < run.length; t += c.spacing) {
      Run part = run;
      part.begin += t, part.length = std::min(c.spacing, run.length - t), part.checkpoint += t / c.spacing;
      part.state = part.checkpoint;
      stretches.push_back(part);
      if (t == 0) part.length = 0, stretches.push_back(part);  // an empty entry
    }
  const std::vector<uint16_t> no_tokens(size_t(c.batch * c.tokens * p.token(c.heads)), kNan);
  const std::vector<float> no_floats(c.staged ? no_tokens.size() : 0, NAN);
  const auto make = [&] {
    return c.staged ? std::make_unique<DeviceCopy>(no_floats) : std::make_unique<DeviceCopy>(no_tokens);
  };
  const auto d_q = make(), d_k = make(), d_v = make();
  DeviceCopy d_g(std::vector<float>(p.g.size(), NAN)), d_beta(std::vector<float>(p.beta.size(), NAN)),
      of_stretches(stretches);
  DeltaGradients x;
  d.fill(x);
  x.runs = static_cast<const Run *>(of_stretches.data), x.num_runs = int64_t(stretches.size());
  x.d_o = b.d_o;
  const int32_t members = c.pairs ? 2 : 1, left = c.heads / members;  // heads of dq and dk
  x.d_q = d.tensor(*d_q, left), x.d_k = d.tensor(*d_k, left), x.d_v = d.tensor(*d_v, c.heads);
  for (bool &staged : x.staged) staged = c.staged;
  x.exact = c.exact;
  const bool wide_g = c.decay_dtype == DType::kFloat32;
  x.d_g = c.decay == Decay::kNone ? nullptr : d_g.data, x.d_beta = d_beta.data;
  x.d_g_strides = x.g_strides, x.d_beta_strides = x.beta_strides;
  x.checkpoints = kept.data, x.d_checkpoints = d_kept.data;
  if (with_gradients) check_refusal(delta_gradients_refusal(set, x));
  DeviceMemory gradients_workspace(size_t(delta_gradients_workspace(set, x)) * 4);
  x.workspace = static_cast<float *>(gradients_workspace.data);
  const DeviceMemory *const results[] = {d_q.get(), d_k.get(), d_v.get(), &d_g, &d_beta};
  const auto find_gradients = [&] {
    std::vector<std::vector<uint8_t>> found;
    for (const DeviceMemory *to : results) poison(*to);
    poison(gradients_workspace);
    if (with_gradients) check(launch_delta_gradients(set, x, nullptr), "launch");
    check(cudaDeviceSynchronize(), c.name);
    for (const DeviceMemory *from : results) found.push_back(from->get<uint8_t>());
    return found;
  };
  const auto alone = find_gradients();
  x.prepared = b.workspace, x.prepared_runs = b.num_runs;
  const bool same = alone == find_gradients();
  if (!same) std::printf("NOT THE SAME from what the walk back has left: ");

  // Then all of it in one walk back, where that can be.
  bool good = same;
  for (const bool once : {false, true}) {
    if (once) {
      if (set != KernelSet::kHopper || !with_gradients || !delta_hopper::can_walk_once(b, x)) break;
      for (const DeviceMemory *to : results) poison(*to);
      for (const DeviceMemory *to : std::initializer_list<const DeviceMemory *>{
               &d_out, &d_edge, &d_leaving, &d_kept, &gradients_workspace, &reversed_workspace})
        poison(*to);
      b.gradients = &x;
      check(launch_delta_reversed(set, b, nullptr), "launch");
      DeltaGradients rest = x;
      rest.walked = true;
      check(launch_delta_gradients(set, rest, nullptr), "launch");
      check(cudaDeviceSynchronize(), c.name);
    }
    Errors errors;
    std::vector<double> d_head(c.heads, 0);
    const auto values = [&](const DeviceMemory &memory) {
      if (c.staged) return memory.get<float>();
      std::vector<float> to;
      for (const uint16_t y : memory.get<uint16_t>()) to.push_back(widen(c.dtype, y));
      return to;
    };
    const auto d_q_found = values(*d_q), d_k_found = values(*d_k), d_v_found = values(*d_v);
    const auto d_g_found = d_g.get<float>(), d_beta_found = d_beta.get<float>();
    const auto d_g_narrow = d_g.get<uint16_t>();
    const auto d_kept_found = d_kept.get<uint16_t>();
    const auto d_out_found = d_out.get<float>(), d_edge_found = d_edge.get<float>(),
               d_leaving_found = d_leaving.get<float>();
    const auto o_found = o.get<uint16_t>(), kept_found = kept.get<uint16_t>();
    const bool wide = set == KernelSet::kMma;
    const auto kept_wide = wide ? kept.get<float>() : std::vector<float>(),
               d_kept_wide = wide ? d_kept.get<float>() : std::vector<float>();
    const auto out_found = out.get<float>(), edge_found = edge.get<float>(), m_found = transition.get<float>(),
               leaving_found = leaving.get<float>();
    // What is promised by beta is so of keys of length 1.
    const double o_limit = std::abs(c.beta) * c.length * c.length > 1 ? 8e-3 : 4e-3, g_limit = 8e-3;
    // What lives through all chunks takes the rounding of each along: 2^-16 for N and Y in two parts, doubled where
    // 1
    // - 3 is what multiplies, and again by what tensor cores cut off.
    const double state_limit = c.grows ? double(c.tokens) / 64 * 0x1p-14 : 3e-4;
    for (size_t r = 0; r < c.runs.size(); ++r)
      for (int32_t h = 0; h < c.heads; ++h) {
        const Run &run = p.c.runs[r];
        if (run.length == 0) continue;
        const DeltaAnswer &a = answers[r][h];
        for (int32_t t = 0; t < run.length; ++t)
          for (int i = 0; i < kDim; ++i)
            errors.add("o", o_limit, widen(c.dtype, o_found[p.at(c.heads, run.row, run.begin + t, h) + i]),
                       a.o[t * kDim + i]);
        for (int32_t t = 0; with_gradients && t < run.length; ++t) {
          for (int i = 0; i < kDim; ++i) {
            const int64_t from = p.at(c.heads, run.row, run.begin + t, h) + i, to = t * kDim + i;
            double d_q_right = 0, d_k_right = 0;
            for (int32_t m = 0; m < members; ++m) {
              const DeltaAnswer &of_head = answers[r][h / members * members + m];
              d_q_right += of_head.d_q[to], d_k_right += of_head.d_k[to];
            }
            const int64_t at = p.at(left, run.row, run.begin + t, h) + i;
            errors.add("dq", o_limit, d_q_found[at], d_q_right);
            errors.add("dk", o_limit, d_k_found[at], d_k_right);
            errors.add("dv", o_limit, d_v_found[from], a.d_v[to]);
          }
          errors.add("dbeta", o_limit, d_beta_found[p.beta_at(run.row, run.begin + t, h)], a.d_beta[t]);
          const int64_t from = p.g_at(run.row, run.begin + t, h), each = p.channels();
          for (int64_t i = 0; i < each; ++i) {
            const double right = a.d_g[t * each + i];
            if (c.decay == Decay::kScalar || c.decay == Decay::kChannel)
              errors.add("dg", g_limit, wide_g ? d_g_found[from + i] : widen(c.decay_dtype, d_g_narrow[from + i]),
                         right);
            d_head[h] += right;
          }
        }
        const int64_t at = (int64_t(r) * c.heads + h) * kState;
        for (int64_t i = 0; i < kState; ++i) {
          errors.add("end", state_limit, out_found[at + i], a.end[i]);
          errors.add("edge", state_limit, edge_found[at + i], a.end[i]);
          errors.add("leaving", state_limit, leaving_found[at + i], a.end[i]);
          const bool forgotten = m_found[at + i] == 0 && std::abs(a.transition[i]) < double{kDecayCutoff};
          if (c.transition && !forgotten) errors.add("M", 3e-4, m_found[at + i], a.transition[i]);
        }
        for (int64_t i = 0; i < kState; ++i) {
          errors.add("dS", 3e-3, d_out_found[at + i], a.d_start[i]);
          errors.add("dedge", 3e-3, d_edge_found[at + i], a.d_start[i]);
          errors.add("dleaving", 3e-3, d_leaving_found[at + i], a.d_start[i]);
        }
        for (size_t n = 0; n < a.checkpoints.size() / kState; ++n)
          for (int64_t i = 0; i < kState; ++i) {
            const size_t from = size_t(((run.checkpoint + n) * c.heads + h) * kState + i), right = n * kState + i;
            if (!once)
              errors.add("dkept", wide ? 3e-4 : 4e-3, wide ? d_kept_wide[from] : widen(c.dtype, d_kept_found[from]),
                         a.d_checkpoints[right]);
            errors.add("kept", wide ? 3e-4 : 3e-3, wide ? kept_wide[from] : widen(c.dtype, kept_found[from]),
                       a.checkpoints[right]);
          }
      }
    if (c.decay == Decay::kHead && with_gradients)
      for (int32_t h = 0; h < c.heads; ++h) errors.add("dg", g_limit, d_g_found[h], d_head[h]);
    good &= errors.print((std::string(c.name) + (once ? ", one walk back" : "")).c_str());
  }
  return good;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc > 1 && !std::strcmp(argv[1], "--mma")) set = KernelSet::kMma, --argc, ++argv;
  const bool mma = set == KernelSet::kMma;
  int count = 0;
  cudaDeviceProp device;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
      cudaGetDeviceProperties(&device, 0) != cudaSuccess || (mma ? device.major < 8 : device.major != 9)) {
    std::printf("no device of compute capability %s\n", mma ? "8.0 or later" : "9.0");
    return 77;
  }
  check(load_delta_kernels(set), "load");
  if (argc > 1 && !std::strcmp(argv[1], "--walks")) with_gradients = false, --argc, ++argv;
  if (!mma && argc > 1 && !std::strcmp(argv[1], "--time")) {
    std::printf("%s\n", device.name);
    time_delta_fast(with_gradients, argc > 2 && !std::strcmp(argv[2], "channel"));
    return 0;
  }
  int ran = 0, wrong = 0;
  for (Case c : delta_fast_cases())
    if (is_wanted(c.name, argc, argv)) {
      if (mma && c.decay == Decay::kChannel) continue;
      ++ran;
      c.spacing = delta_checkpoint_tokens(set), c.pairs &= !mma;  // which it does not add up
      wrong += !run_case(c);
      if (mma || c.tokens <= 500 || c.heads > 64) continue;  // the last ones take the CPU long
      c.spacing = 512, c.maps = true;
      wrong += !run_case(c);
    }
  std::printf("%d cases wrong\n", wrong);
  return wrong != 0 || ran == 0;
}
