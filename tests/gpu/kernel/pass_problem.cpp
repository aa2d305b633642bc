#include "pass_problem.h"

#include <algorithm>
#include <cmath>

#include "relative_error.h"

namespace lasp::gpu {

namespace {

HostTensor draw(const PassCase &c, int32_t heads, int32_t dim, std::mt19937 &random) {
  HostTensor x{c.batch, c.tokens, c.padding, heads, dim, {}};
  x.data.assign(size_t(c.batch * c.tokens * x.token()), kNan);
  std::normal_distribution<float> normal;
  for (const Run &run : c.runs)
    for (int64_t t = run.begin; t < run.begin + run.length; ++t)
      for (int32_t i = 0; i < heads * dim; ++i) x.data[x.at(run.row, t, 0) + i] = round_to(c.dtype, normal(random));
  return x;
}

LinearPass describe(const PassProblem &p) {
  const PassCase &c = p.c;
  LinearPass pass;
  pass.a = {nullptr, p.a.strides(), c.a_heads, c.a_dim};
  pass.b = {nullptr, p.b.strides(), c.b_heads, c.a_dim};
  pass.c = {nullptr, p.v.strides(), c.c_heads, c.y_dim};
  pass.y = {nullptr, p.y.strides(), c.heads, c.y_dim};
  pass.batch = c.batch, pass.tokens = c.tokens, pass.heads = c.heads;
  pass.dtype = c.dtype, pass.decay = c.decay, pass.decay_dtype = c.decay_dtype;
  pass.g_strides = {c.tokens * p.decay_token(), p.decay_token(), p.channels()};
  pass.reversed = c.reversed, pass.state_transposed = c.transposed;
  pass.scale = p.scale, pass.in_scale = p.in_scale, pass.out_scale = p.out_scale;
  pass.num_runs = int64_t(c.runs.size());
  return pass;
}

}  // namespace

int32_t checkpoints(const Run &run) { return (run.length + kFusedCheckpoint - 1) / kFusedCheckpoint; }

PassProblem::PassProblem(const PassCase &wanted) : c(wanted) {
  for (size_t r = 1; r < c.runs.size(); ++r)
    c.runs[r].checkpoint = c.runs[r - 1].checkpoint + checkpoints(c.runs[r - 1]);
  std::mt19937 random(1234);
  a = draw(c, c.a_heads, c.a_dim, random);
  b = draw(c, c.b_heads, c.a_dim, random);
  v = draw(c, c.c_heads, c.y_dim, random);
  y = {c.batch, c.tokens, c.padding, c.heads, c.y_dim, {}};
  y.data.assign(size_t(c.batch * c.tokens * y.token()), kNan);
  std::uniform_real_distribution<float> uniform(-c.strongest, 0), chance(0, 1);
  g.resize(c.decay == Decay::kHead ? c.heads : size_t(c.batch * c.tokens * decay_token()));
  for (float &x : g) {
    x = c.constant != 0 ? c.constant : uniform(random);
    if (chance(random) < c.forgotten) x = chance(random) < 0.5f ? -INFINITY : -1e4f;
    if (c.decay_dtype != DType::kFloat32) x = widen(c.decay_dtype, round_to(c.decay_dtype, x));
  }
  if (c.nan_token >= 0) g[c.decay == Decay::kHead ? 0 : size_t(c.nan_token * decay_token())] = NAN;
  state_in.resize(size_t(c.runs.size()) * c.heads * state_size());
  std::normal_distribution<float> normal;
  for (float &s : state_in) s = 4 * normal(random);
}

float PassProblem::decay(int64_t row, int64_t t, int32_t h, int32_t channel) const {
  if (c.decay == Decay::kNone) return 0;
  if (c.decay == Decay::kHead) return g[h];
  return g[(row * c.tokens + t) * decay_token() + h * channels() + channel];
}

PassAnswer reference(const PassProblem &p, size_t r, int32_t h) {
  const PassCase &c = p.c;
  const Run &run = c.runs[r];
  const auto head_of = [&](int32_t heads) { return int64_t(h) * heads / c.heads; };
  const float *in = p.state_in.data() + (run.state * c.heads + h) * p.state_size();
  PassAnswer answer;
  answer.state.assign(size_t(p.state_size()), 0);
  for (int64_t k = 0; k < c.a_dim && c.state_in; ++k)
    for (int64_t n = 0; n < c.y_dim; ++n)
      answer.state[k * c.y_dim + n] = double(p.in_scale) * in[c.transposed ? n * c.a_dim + k : k * c.y_dim + n];
  answer.y.assign(size_t(run.length) * c.y_dim, 0);
  for (int32_t i = 0; i < run.length; ++i) {
    const int64_t t = c.reversed ? run.length - 1 - i : i, token = run.begin + t;
    if (c.keep && i % kFusedCheckpoint == 0)
      answer.checkpoints.insert(answer.checkpoints.end(), answer.state.begin(), answer.state.end());
    // Going backwards, a token's decay acts after its own write.
    const bool first = c.reversed && i == 0;
    std::vector<double> decays(p.channels());
    for (int32_t d = 0; d < p.channels(); ++d)
      decays[d] = first ? 1 : std::exp(double(p.decay(run.row, c.reversed ? token + 1 : token, h, d)));
    const uint16_t *a = &p.a.data[p.a.at(run.row, token, head_of(c.a_heads))];
    const uint16_t *b = &p.b.data[p.b.at(run.row, token, head_of(c.b_heads))];
    const uint16_t *v = &p.v.data[p.v.at(run.row, token, head_of(c.c_heads))];
    std::vector<double> row(c.y_dim);
    for (int32_t n = 0; n < c.y_dim; ++n) row[n] = widen(c.dtype, v[n]);
    for (int32_t k = 0; k < c.a_dim; ++k) {
      const double bk = widen(c.dtype, b[k]), ak = widen(c.dtype, a[k]) * double(p.scale);
      double *s = &answer.state[size_t(k) * c.y_dim], *out = &answer.y[size_t(t) * c.y_dim];
      for (int32_t n = 0; n < c.y_dim; ++n) {
        s[n] = decays[p.channels() == 1 ? 0 : c.transposed ? n : k] * s[n] + bk * row[n];
        out[n] += ak * s[n];
      }
    }
  }
  for (int64_t k = 0; k < c.a_dim; ++k)
    for (int32_t n = 0; n < c.y_dim; ++n) {
      const int32_t channel = p.channels() == 1 ? 0 : c.transposed ? n : int32_t(k);
      const double last = c.reversed ? std::exp(double(p.decay(run.row, run.begin, h, channel))) : 1;
      answer.state[k * c.y_dim + n] *= last * double(p.out_scale);
    }
  return answer;
}

DevicePass::DevicePass(const PassProblem &p)
    : a(p.a.data),
      b(p.b.data),
      v(p.v.data),
      y(p.y.data),
      runs(p.c.runs),
      in(p.state_in),
      g(std::max<size_t>(p.g.size(), 1) * 4),
      out(p.state_in.size() * 4),
      keep(size_t(p.c.runs.back().checkpoint + checkpoints(p.c.runs.back())) * p.c.heads * p.state_size() * 2),
      pass(describe(p)) {
  const PassCase &c = p.c;
  if (c.decay_dtype == DType::kFloat32) {
    g.put(p.g);
  } else {
    std::vector<uint16_t> rounded;
    for (float x : p.g) rounded.push_back(round_to(c.decay_dtype, x));
    g.put(rounded);
  }
  check(cudaMemset(out.data, 0xff, out.bytes), "poison");
  check(cudaMemset(keep.data, 0xff, keep.bytes), "poison");
  pass.a.data = a.data, pass.b.data = b.data, pass.c.data = v.data, pass.g = g.data;
  pass.y.data = c.output ? y.data : nullptr;
  pass.runs = static_cast<const Run *>(runs.data);
  pass.state_in = c.state_in ? static_cast<const float *>(in.data) : nullptr;
  pass.state_out = c.state_out ? static_cast<float *>(c.in_place ? in.data : out.data) : nullptr;
  pass.checkpoints = c.keep ? keep.data : nullptr;
}

PassErrors compare(const PassProblem &p, const DevicePass &d) {
  const PassCase &c = p.c;
  const std::vector<uint16_t> y = d.y.get<uint16_t>(), kept = d.keep.get<uint16_t>();
  const std::vector<float> states = c.in_place ? d.in.get<float>() : d.out.get<float>();
  RelativeError output, state, checkpoint;
  std::vector<char> ours(y.size());
  for (size_t r = 0; r < c.runs.size(); ++r)
    for (int32_t h = 0; h < c.heads; ++h) {
      const Run &run = c.runs[r];
      const PassAnswer want = reference(p, r, h);
      for (int32_t t = 0; t < run.length; ++t) {
        const int64_t at = p.y.at(run.row, run.begin + t, h);
        for (int32_t n = 0; n < c.y_dim; ++n) {
          ours[at + n] = 1;
          output.add(widen(c.dtype, y[at + n]), want.y[size_t(t) * c.y_dim + n]);
        }
      }
      const float *out = states.data() + (run.state * c.heads + h) * p.state_size();
      for (int64_t k = 0; k < c.a_dim; ++k)
        for (int64_t n = 0; n < c.y_dim; ++n)
          state.add(out[c.transposed ? n * c.a_dim + k : k * c.y_dim + n], want.state[k * c.y_dim + n]);
      for (size_t i = 0; i < want.checkpoints.size(); ++i) {
        const int64_t index = (run.checkpoint + int64_t(i) / p.state_size()) * c.heads + h;
        checkpoint.add(widen(c.dtype, kept[index * p.state_size() + int64_t(i) % p.state_size()]),
                       want.checkpoints[i]);
      }
    }
  PassErrors errors;
  for (size_t i = 0; i < ours.size(); ++i) errors.stray += (!c.output || !ours[i]) && y[i] != kNan;
  if (c.output) errors.y = output.relative();
  if (c.state_out) errors.state = state.relative();
  if (c.keep) errors.checkpoint = checkpoint.relative();
  return errors;
}

bool report(const PassProblem &p, const DevicePass &device, const DevicePass &again) {
  const PassCase &c = p.c;
  const bool repeats =
      device.y.get<uint16_t>() == again.y.get<uint16_t>() &&
      (c.in_place ? device.in : device.out).get<uint32_t>() == (c.in_place ? again.in : again.out).get<uint32_t>();
  const PassErrors errors = compare(p, device);
  const double output_bound = c.dtype == DType::kBFloat16 ? 4e-3 : 5e-4,
               state_bound = c.decay == Decay::kNone ? 2e-6 : 1e-5;
  const bool good = errors.y <= output_bound && errors.state <= state_bound && errors.stray == 0 && repeats;
  std::printf("%-52s y %.2e  state %.2e  stray %lld  %s%s\n", c.name, errors.y, errors.state,
              static_cast<long long>(errors.stray), good ? "ok" : "FAILED",
              repeats ? "" : " (another time: other bits)");
  return good;
}

PassCase plain_case(const char *name) {
  PassCase c;
  c.name = name;
  c.runs = {make_run(0, 0, 256)};
  return c;
}

void make_ragged(PassCase &c) {
  c.batch = 2, c.tokens = 320;
  c.runs = {make_run(0, 0, 64, 2), make_run(0, 64, 1, 3), make_run(0, 70, 193, 0), make_run(1, 3, 300, 1)};
}

}  // namespace lasp::gpu
