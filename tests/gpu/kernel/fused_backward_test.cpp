// The fused backward kernel alone, against a float64 recurrence on the CPU; `--time` measures it beside a device
// copy, any other argument chooses the cases whose name holds it. Exits 0 when all cases hold, 1 when one fails, 77
// where there is no device of compute capability 9.0.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../../kernels/launch.h"
#include "device_memory.h"
#include "fused_backward_time.h"
#include "kernel_cases.h"
#include "relative_error.h"

namespace {

using namespace lasp::gpu;

struct Case {
  const char *name = "";
  DType dtype = DType::kBFloat16;
  int32_t heads = 2, members = 1;  // that share a head of k and v
  int32_t queries = 1;             // that share a head of q and k, where each has a v, dq and dk of its own
  int64_t k_dim = 128, v_dim = 128;
  int64_t batch = 1, tokens = 256;
  std::vector<Run> runs;
  Decay decay = Decay::kNone;
  DType decay_dtype = DType::kFloat32;
  float strongest = 0.2f;  // log decays are drawn from [-strongest, 0]
  bool decay_gradient = true, state_in = true, state_out = true;
  int64_t padding = 0;  // elements between tokens
};

// The tensors' gaps of `padding` elements between tokens hold NaN, as do tokens of no run.
struct Problem {
  Case c;
  std::vector<uint16_t> q, k, v, d_o, d_q, d_k, d_v;
  std::vector<uint16_t> checkpoints;
  std::vector<float> g, d_state, d_g;
  float scale = 0.09f;
  // Of a tensor of as many heads; and the element where head h's numbers begin, of q or of k and v.
  int64_t token(int32_t heads, int64_t dim) const { return heads * dim + c.padding; }
  Strides strides(int32_t heads, int64_t dim) const {
    return {c.tokens * token(heads, dim), token(heads, dim), dim};
  }
  int64_t at(int64_t row, int64_t t, int64_t h, int64_t dim) const {
    return (row * c.tokens + t) * token(c.heads, dim) + h * dim;
  }
  int64_t shared_at(int64_t row, int64_t t, int64_t h, int64_t dim) const {
    return (row * c.tokens + t) * token(shared_heads(), dim) + h / c.members * dim;
  }
  int64_t state() const { return c.k_dim * c.v_dim; }
  int64_t dim_of(const std::vector<uint16_t> &x) const {
    return &x == &v || &x == &d_o || &x == &d_v ? c.v_dim : c.k_dim;
  }
  int32_t shared_heads() const { return c.heads / c.members; }
  // Output heads to a head of q, k, v or d_o; and where one's numbers begin.
  int32_t sharing(const std::vector<uint16_t> &x) const {
    if (c.members > 1) return &x == &k || &x == &v ? c.members : 1;
    return &x == &q || &x == &k ? c.queries : 1;
  }
  int64_t input_at(const std::vector<uint16_t> &x, int64_t row, int64_t t, int64_t h) const {
    const int32_t group = sharing(x);
    return (row * c.tokens + t) * token(c.heads / group, dim_of(x)) + h / group * dim_of(x);
  }
  int64_t g_at(int64_t row, int64_t t, int64_t h) const { return (row * c.tokens + t) * c.heads + h; }
  float decay(int64_t row, int64_t t, int32_t h) const {
    if (c.decay == Decay::kNone) return 0;
    return c.decay == Decay::kHead ? g[h] : g[g_at(row, t, h)];
  }
};

// What the kernel should give for one run and head; and the checkpoints that it needs.
struct Answer {
  std::vector<double> d_q, d_k, d_v, d_g, d_state;
  std::vector<double> checkpoints;
};

// The recurrences themselves, in float64 but for the states kept in between, which only d_g and dq read.
Answer reference(const Problem &p, size_t r, int32_t h) {
  const Run &run = p.c.runs[r];
  const int32_t n = run.length;
  const int64_t dim_k = p.c.k_dim, dim_v = p.c.v_dim;
  Answer a;
  for (auto *x : {&a.d_q, &a.d_k}) x->assign(size_t(n * dim_k), 0);
  a.d_v.assign(size_t(n * dim_v), 0);
  a.d_g.assign(n, 0);
  const auto row = [&](const std::vector<uint16_t> &x, int32_t t) {
    const int64_t dim = p.dim_of(x), at = p.input_at(x, run.row, run.begin + t, h);
    std::vector<double> y(dim);
    for (int i = 0; i < dim; ++i) y[i] = widen(p.c.dtype, x[at + i]);
    return y;
  };
  std::mt19937 random(uint32_t(7 + 131 * r + h));
  std::normal_distribution<double> normal;
  std::vector<double> s(p.state());
  for (double &x : s) x = float(2 * normal(random));
  std::vector<std::vector<double>> before(n);  // S_{t-1}
  for (int32_t t = 0; t < n; ++t) {
    if (t % kFusedCheckpoint == 0) a.checkpoints.insert(a.checkpoints.end(), s.begin(), s.end());
    before[t] = s;
    const double e = std::exp(double(p.decay(run.row, run.begin + t, h)));
    const auto k = row(p.k, t), v = row(p.v, t), d_o = row(p.d_o, t);
    for (int i = 0; i < dim_k; ++i)
      for (int j = 0; j < dim_v; ++j) {
        s[i * dim_v + j] = e * s[i * dim_v + j] + k[i] * v[j];
        a.d_q[t * dim_k + i] += p.scale * s[i * dim_v + j] * d_o[j];
      }
  }
  std::vector<double> d(p.state(), 0);
  const float *in = p.d_state.data() + (run.state * p.c.heads + h) * p.state();
  if (p.c.state_in) d.assign(in, in + p.state());
  for (int32_t t = n - 1; t >= 0; --t) {
    const double e = std::exp(double(p.decay(run.row, run.begin + t, h)));
    const auto q = row(p.q, t), k = row(p.k, t), v = row(p.v, t), d_o = row(p.d_o, t);
    double sum = 0;
    for (int i = 0; i < dim_k; ++i)
      for (int j = 0; j < dim_v; ++j) {
        double &x = d[i * dim_v + j];
        x += p.scale * q[i] * d_o[j];
        a.d_k[t * dim_k + i] += x * v[j];
        a.d_v[t * dim_v + j] += x * k[i];
        sum += before[t][i * dim_v + j] * x;
        x *= e;
      }
    a.d_g[t] = e * sum;
  }
  a.d_state = d;
  return a;
}

Problem make_problem(const Case &c) {
  std::mt19937 random(1234);
  std::normal_distribution<float> normal;
  Problem p;
  p.c = c;
  for (auto *x : {&p.q, &p.k, &p.v, &p.d_o}) {
    const int32_t heads = c.heads / p.sharing(*x);
    const int64_t dim = p.dim_of(*x);
    x->assign(size_t(c.batch * c.tokens * p.token(heads, dim)), kNan);
    for (const Run &run : c.runs)
      for (int64_t t = run.begin; t < run.begin + run.length; ++t)
        for (int64_t i = 0; i < heads * dim; ++i)
          (*x)[(run.row * c.tokens + t) * p.token(heads, dim) + i] = round_to(c.dtype, normal(random));
  }
  const auto rows = [&](int32_t heads, int64_t dim) { return size_t(c.batch * c.tokens * p.token(heads, dim)); };
  p.d_q.assign(rows(c.heads, c.k_dim), kNan), p.d_k.assign(rows(p.shared_heads(), c.k_dim), kNan);
  p.d_v.assign(rows(p.shared_heads(), c.v_dim), kNan);
  std::uniform_real_distribution<float> uniform(-c.strongest, 0);
  p.g.resize(c.decay == Decay::kHead ? c.heads : size_t(c.batch * c.tokens * c.heads));
  for (float &g : p.g)
    g = c.decay_dtype == DType::kFloat32 ? uniform(random) : widen(c.dtype, round_to(c.dtype, uniform(random)));
  p.d_state.resize(c.runs.size() * size_t(c.heads * p.state()));
  for (float &s : p.d_state) s = 0.2f * normal(random);
  return p;
}

std::vector<std::vector<Answer>> solve(Problem &p) {
  std::vector<std::vector<Answer>> answers(p.c.runs.size(), std::vector<Answer>(p.c.heads));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < p.c.runs.size(); ++r)
    for (int32_t h = 0; h < p.c.heads; ++h) threads.emplace_back([&, r, h] { answers[r][h] = reference(p, r, h); });
  for (auto &thread : threads) thread.join();
  int64_t index = 0;
  for (size_t r = 0; r < p.c.runs.size(); ++r) {
    p.c.runs[r].checkpoint = int32_t(index);
    const int64_t count = (p.c.runs[r].length + kFusedCheckpoint - 1) / kFusedCheckpoint;
    for (int64_t i = 0; i < count; ++i)
      for (int32_t h = 0; h < p.c.heads; ++h) {
        const auto from = answers[r][h].checkpoints.begin() + i * p.state();
        for (int64_t j = 0; j < p.state(); ++j) p.checkpoints.push_back(round_to(p.c.dtype, float(from[j])));
      }
    index += count;
  }
  return answers;
}

// Runs the kernel; outputs are filled with NaN before.
std::vector<float> run_kernel(Problem &p) {
  const Case &c = p.c;
  std::vector<Run> beginning = c.runs;  // each run begins a sequence of its own, whose gradient is asked for
  for (Run &run : beginning) run.starts = run.state;
  DeviceCopy q(p.q), k(p.k), v(p.v), d_o(p.d_o), d_q(p.d_q), d_k(p.d_k), d_v(p.d_v), runs(beginning), in(p.d_state),
      out(std::vector<float>(p.d_state.size(), NAN)), checkpoints(p.checkpoints);
  std::vector<uint16_t> rounded;
  for (float x : p.g) rounded.push_back(round_to(c.dtype, x));
  const bool wide = c.decay_dtype == DType::kFloat32;
  DeviceCopy g32(p.g), g16(rounded), d_g32(std::vector<float>(p.g.size(), NAN)),
      d_g16(std::vector<uint16_t>(p.g.size(), kNan));
  FusedBackward pass;
  const auto tensor = [&](const DeviceMemory &memory, int32_t heads, int64_t dim) {
    return Tensor{memory.data, p.strides(heads, dim), heads, int32_t(dim)};
  };
  const int32_t shared = p.shared_heads();
  pass.q = tensor(q, c.heads / p.sharing(p.q), c.k_dim), pass.k = tensor(k, c.heads / p.sharing(p.k), c.k_dim);
  pass.v = tensor(v, shared, c.v_dim), pass.d_o = tensor(d_o, c.heads, c.v_dim);
  pass.d_q = tensor(d_q, c.heads, c.k_dim), pass.d_k = tensor(d_k, shared, c.k_dim),
  pass.d_v = tensor(d_v, shared, c.v_dim);
  pass.batch = c.batch, pass.tokens = c.tokens, pass.heads = c.heads;
  pass.dtype = c.dtype, pass.decay = c.decay, pass.decay_dtype = c.decay_dtype;
  pass.g = wide ? g32.data : g16.data;
  pass.g_strides = pass.d_g_strides = {c.tokens * c.heads, c.heads, 1};
  pass.scale = p.scale;
  pass.runs = static_cast<const Run *>(runs.data), pass.num_runs = int64_t(c.runs.size());
  pass.checkpoints = checkpoints.data;
  pass.d_state_in = c.state_in ? static_cast<const float *>(in.data) : nullptr;
  pass.d_edge_state = c.state_out ? static_cast<float *>(out.data) : nullptr;
  pass.num_checkpoints = int64_t(p.checkpoints.size()) / p.state() / c.heads;
  DeviceCopy workspace(std::vector<float>(size_t(fused_backward_workspace(pass)), NAN));
  pass.workspace = static_cast<float *>(workspace.data);
  pass.d_g = c.decay_gradient ? (wide ? d_g32.data : d_g16.data) : nullptr;
  if (const char *const why = fused_backward_refusal(pass)) {
    std::printf("%s: refused: %s\n", c.name, why);
    std::exit(1);
  }
  check(launch_fused_backward(pass, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);
  p.d_q = d_q.get<uint16_t>(), p.d_k = d_k.get<uint16_t>(), p.d_v = d_v.get<uint16_t>();
  p.d_g = d_g32.get<float>();
  if (!wide) {
    p.d_g.clear();
    for (uint16_t x : d_g16.get<uint16_t>()) p.d_g.push_back(widen(c.dtype, x));
  }
  return out.get<float>();
}

// The same with heads of q, k and v for each output head: all but dk and dv of grouped heads of v is to have the
// same bits.
bool same_bits_without_groups(const Problem &p, const std::vector<float> &d_state) {
  Problem alone = p;
  alone.c.members = alone.c.queries = 1;
  const auto size = [&](int64_t dim) { return size_t(p.c.batch * p.c.tokens * p.token(p.c.heads, dim)); };
  for (auto Problem::*x : {&Problem::q, &Problem::k, &Problem::v}) {
    const int64_t dim = p.dim_of(p.*x);
    (alone.*x).assign(size(dim), kNan);
    for (const Run &run : p.c.runs)
      for (int64_t t = run.begin; t < run.begin + run.length; ++t)
        for (int32_t h = 0; h < p.c.heads; ++h)
          std::copy_n((p.*x).begin() + p.input_at(p.*x, run.row, t, h), dim,
                      (alone.*x).begin() + p.at(run.row, t, h, dim));
  }
  for (auto Problem::*x : {&Problem::d_q, &Problem::d_k, &Problem::d_v})
    (alone.*x).assign(size(p.dim_of(p.*x)), kNan);
  const std::vector<float> alone_d_state = run_kernel(alone);
  const auto same = [](const auto &x, const auto &y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0;
  };
  return same(alone.d_q, p.d_q) && same(alone.d_g, p.d_g) && same(alone_d_state, d_state) &&
         (p.c.members > 1 || (same(alone.d_k, p.d_k) && same(alone.d_v, p.d_v)));
}

// d_g of a head is measured against the sizes of the terms it sums: they cancel (docs/reference/numerics.md).
// Bounds: a gradient carries five roundings to 8 (11) bits (scores, weighted operands or none without decay, the
// state, the output), each 2^-9 (2^-12) / sqrt(3) of its term: sqrt(5) of that is 2.5e-3 (3.2e-4).
bool run_case(const Case &c) {
  Problem p = make_problem(c);
  const auto answers = solve(p);
  const std::vector<float> d_state = run_kernel(p);
  RelativeError d_q, d_k, d_v, d_g, state;
  int64_t stray = 0;
  std::vector<char> ours(p.d_q.size()), ours_k(p.d_k.size()), ours_v(p.d_v.size()), ours_g(p.d_g.size());
  std::vector<double> per_head(c.heads), size_of_head(c.heads);
  for (size_t r = 0; r < c.runs.size(); ++r)
    for (int32_t h = 0; h < c.heads; ++h) {
      const Answer &a = answers[r][h];
      const Run &run = c.runs[r];
      for (int32_t t = 0; t < run.length; ++t) {
        const int64_t at = p.at(run.row, run.begin + t, h, c.k_dim), g_at = p.g_at(run.row, run.begin + t, h);
        for (int64_t i = 0; i < c.k_dim; ++i)
          ours[at + i] = 1, d_q.add(widen(c.dtype, p.d_q[at + i]), a.d_q[t * c.k_dim + i]);
        // Of a group, the sum.
        const auto add_shared = [&](std::vector<char> &its, RelativeError &error,
                                    const std::vector<uint16_t> &found, std::vector<double> Answer::*of,
                                    int64_t dim) {
          const int64_t shared_at = p.shared_at(run.row, run.begin + t, h, dim);
          for (int64_t i = 0; i < dim && h % c.members == 0; ++i) {
            double sum = 0;
            for (int32_t m = 0; m < c.members; ++m) sum += (answers[r][h + m].*of)[t * dim + i];
            its[shared_at + i] = 1, error.add(widen(c.dtype, found[shared_at + i]), sum);
          }
        };
        add_shared(ours_k, d_k, p.d_k, &Answer::d_k, c.k_dim);
        add_shared(ours_v, d_v, p.d_v, &Answer::d_v, c.v_dim);
        per_head[h] += a.d_g[t], size_of_head[h] += std::abs(a.d_g[t]);
        if (c.decay != Decay::kHead) ours_g[g_at] = 1, d_g.add(p.d_g[g_at], a.d_g[t]);
      }
      for (int64_t i = 0; i < p.state(); ++i)
        state.add(d_state[(run.state * c.heads + h) * p.state() + i], a.d_state[i]);
    }
  if (c.decay == Decay::kHead)
    for (int32_t h = 0; h < c.heads; ++h) ours_g[h] = 1, d_g.add(p.d_g[h], per_head[h], size_of_head[h]);
  for (size_t i = 0; i < ours.size(); ++i) stray += !ours[i] && p.d_q[i] != kNan;
  for (size_t i = 0; i < ours_k.size(); ++i) stray += !ours_k[i] && p.d_k[i] != kNan;
  for (size_t i = 0; i < ours_v.size(); ++i) stray += !ours_v[i] && p.d_v[i] != kNan;
  for (size_t i = 0; i < ours_g.size(); ++i) stray += (!c.decay_gradient || !ours_g[i]) && !std::isnan(p.d_g[i]);
  const double bound = c.dtype == DType::kBFloat16 ? 4e-3 : 5e-4;
  bool good = stray == 0;
  if (c.members * c.queries > 1 && !same_bits_without_groups(p, d_state)) {
    std::printf("%s: other bits than without groups\n", c.name);
    good = false;
  }
  for (const RelativeError *e : {&d_q, &d_k, &d_v}) good &= e->relative() <= bound;
  good &= !c.state_out || state.relative() <= bound;
  good &= !c.decay_gradient || d_g.relative() <= bound;
  std::printf("%-28s dq %.2e  dk %.2e  dv %.2e  dg %.2e  dS %.2e  stray %lld  %s\n", c.name, d_q.relative(),
              d_k.relative(), d_v.relative(), c.decay_gradient ? d_g.relative() : 0.0,
              c.state_out ? state.relative() : 0.0, static_cast<long long>(stray), good ? "ok" : "FAILED");
  return good;
}

std::vector<Case> make_cases() {
  const std::vector<Run> odd = {make_run(0, 0, 64, 2), make_run(0, 64, 1, 3), make_run(0, 70, 593, 0),
                                make_run(1, 3, 600, 1)};
  const std::vector<Run> whole = {make_run(0, 0, 65, 2), make_run(0, 65, 615, 0), make_run(1, 0, 680, 1)};
  std::vector<Case> cases;
  const auto add = [&](const char *name, auto change) {
    Case c;
    c.name = name;
    c.runs = {make_run(0, 0, 256)};
    change(c);
    if (c.decay == Decay::kHead && c.batch == 2) c.runs = whole;  // a head's gradient sums all tokens
    cases.push_back(c);
  };
  const auto ragged = [&](Case &c) { c.batch = 2, c.tokens = 680, c.runs = odd; };
  add("none, one chunk", [](Case &c) { c.runs[0].length = 64; });
  add("none", [](Case &) {});
  add("per head", [](Case &c) { c.decay = Decay::kHead; });
  add("per token", [](Case &c) { c.decay = Decay::kScalar; });
  add("three segments", [](Case &c) {
    c.tokens = 1536, c.runs = {make_run(0, 0, 1536)}, c.decay = Decay::kScalar, c.strongest = 0.02f;
  });
  for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
    add("ragged, padded", [&](Case &c) { ragged(c), c.padding = 24, c.decay = decay; });
  add("more blocks than at once", [&](Case &c) {
    c.heads = 8, c.tokens = 20 * 70, c.decay = Decay::kScalar, c.runs.clear();
    for (int64_t i = 0; i < 20; ++i) c.runs.push_back(make_run(0, 70 * i, 70 - int32_t(i), i));
  });
  add("float16, ragged", [&](Case &c) { ragged(c), c.dtype = DType::kFloat16, c.decay = Decay::kScalar; });
  add("float16, none", [&](Case &c) { ragged(c), c.dtype = DType::kFloat16; });
  add("decay in bfloat16", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.decay_dtype = c.dtype; });
  add("strong decay", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.strongest = 300; });
  add("quite strong decay", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.strongest = 5; });
  add("strong decay per head", [&](Case &c) { ragged(c), c.decay = Decay::kHead, c.strongest = 20; });
  add("no decay gradient", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.decay_gradient = false; });
  add("no states", [&](Case &c) { ragged(c), c.state_in = c.state_out = false, c.decay = Decay::kHead; });
  add("many heads",
      [&](Case &c) { ragged(c), c.heads = 35, c.decay = Decay::kScalar, c.runs = {make_run(0, 30, 100)}; });
  // By tiles of the state.
  const int64_t dims[][2] = {{64, 64},  {64, 128},  {128, 64},  {128, 256}, {256, 64}, {32, 32}, {64, 32},
                             {64, 192}, {256, 128}, {256, 256}, {192, 512}, {96, 96},  {96, 64}, {160, 288}};
  for (const auto &dim : dims) {
    const auto tiles = [&](Case &c) { ragged(c), c.k_dim = dim[0], c.v_dim = dim[1]; };
    static std::vector<std::string> names;
    names.reserve(std::size(dims));
    const char *const name =
        names.emplace_back("K " + std::to_string(dim[0]) + ", V " + std::to_string(dim[1])).c_str();
    add(name, [&](Case &c) { tiles(c), c.padding = 24, c.decay = Decay::kScalar; });
    add(name, [&](Case &c) { tiles(c), c.decay = Decay::kHead, c.strongest = 20; });
    if (dim[1] <= 64) {  // not by pairs of heads; and what none of them has
      add(name, [&](Case &c) { tiles(c), c.heads = 3, c.decay = Decay::kScalar, c.padding = 8; });
      add(name, [&](Case &c) { tiles(c), c.decay_gradient = false; });
    }
    if (dim[0] == 256 || dim[1] == 256) continue;
    add(name, [&](Case &c) { tiles(c), c.dtype = DType::kFloat16, c.decay = Decay::kScalar, c.strongest = 5; });
    add(name, [&](Case &c) { tiles(c), c.decay = Decay::kScalar, c.decay_gradient = false, c.state_out = false; });
  }
  for (const auto &dim : {std::pair{64, 64}, {128, 64}, {256, 64}, {128, 128}, {192, 256}}) {
    const auto sharing = [&](Case &c) { ragged(c), c.k_dim = dim.first, c.v_dim = dim.second; };
    for (const int32_t queries : {2, 3, 6})
      add(dim.second == 64 && dim.first < 256 ? "shared q and k, narrow" : "shared q and k", [&](Case &c) {
        sharing(c), c.heads = 6, c.queries = queries, c.decay = queries == 3 ? Decay::kHead : Decay::kScalar;
      });
  }
  for (const int32_t members : {2, 4, 8}) {
    const auto grouped = [&](Case &c) { c.heads = 8, c.members = members; };
    add("grouped, none, one chunk", [&](Case &c) { grouped(c), c.runs[0].length = 64; });
    add("grouped, three segments", [&](Case &c) {
      grouped(c), c.tokens = 1536, c.runs = {make_run(0, 0, 1536)}, c.decay = Decay::kScalar, c.strongest = 0.02f;
    });
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
      add("grouped, ragged, padded", [&](Case &c) { ragged(c), grouped(c), c.padding = 24, c.decay = decay; });
    add("grouped, no decay gradient",
        [&](Case &c) { ragged(c), grouped(c), c.decay = Decay::kScalar, c.decay_gradient = false; });
    add("grouped, float16",
        [&](Case &c) { ragged(c), grouped(c), c.dtype = DType::kFloat16, c.decay = Decay::kScalar; });
    add("grouped, more than at once", [&](Case &c) {
      grouped(c), c.heads = 16, c.tokens = 20 * 70, c.decay = Decay::kScalar, c.runs.clear();
      for (int64_t i = 0; i < 20; ++i) c.runs.push_back(make_run(0, 70 * i, 70 - int32_t(i), i));
    });
  }
  return cases;
}

}  // namespace

int main(int argc, char **argv) {
  return run_kernel_cases(argc, argv, Needs::kHopper, nullptr, time_fused_backward, make_cases, run_case);
}
