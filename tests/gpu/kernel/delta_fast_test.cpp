// The fast kernels of the delta rule alone, against a float64 recurrence on the CPU; `--time` (`--time channel`: of
// that decay alone) measures them beside a device copy, other arguments choose the cases whose name holds one of
// them.
// `--mma` first: those by mma.sync in place of those for 9.0. Exits 0 when all cases hold, 1 when one fails, 77
// where there is no device of compute capability 9.0 (--mma: 8.0 or later).
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../../kernels/delta/cuts.h"
#include "../../../kernels/delta/passes.h"
#include "../../../kernels/mma/delta_kept.h"
#include "delta_fast_cases.h"
#include "delta_fast_errors.h"
#include "delta_fast_problem.h"
#include "delta_fast_reference.h"
#include "delta_fast_time.h"
#include "device_memory.h"
#include "kernel_cases.h"

namespace {

using namespace lasp::gpu;
using Case = DeltaFastCase;

KernelSet set = KernelSet::kHopper;
bool with_gradients = true;  // --walks: the walks alone

DeltaAnswer solve(const Problem &p, const Run &run, int32_t h) {
  const Case &c = p.c;
  DeltaTokens x;
  x.n = run.length, x.columns = c.columns, x.scale = p.scale, x.channel = c.decay == Decay::kChannel;
  const auto read = [&](const std::vector<uint16_t> &from, std::vector<double> &to) {
    const Rows rows = p.rows_of(from);
    for (int64_t t = run.begin; t < run.begin + run.length; ++t)
      for (int i = 0; i < rows.dim; ++i) to.push_back(widen(c.dtype, from[p.at(rows, run.row, t, h) + i]));
  };
  read(p.q, x.q), read(p.k, x.k), read(p.v, x.v), read(p.d_o, x.d_o);
  for (int64_t t = run.begin; t < run.begin + run.length; ++t) {
    x.beta.push_back(p.beta[p.beta_at(run.row, t, h)]);
    const int64_t at = c.decay == Decay::kHead ? h : p.g_at(run.row, t, h);
    for (int64_t i = 0; i < p.channels(); ++i) x.g.push_back(c.decay == Decay::kNone ? 0 : p.g[at + i]);
  }
  const int64_t of_state = p.of_state(), first = (run.state * c.heads + h) * of_state;
  std::vector<double> s(of_state), ds(of_state);
  for (int64_t i = 0; c.state && i < of_state; ++i) s[i] = p.state[first + i], ds[i] = p.d_state[first + i];
  return solve_delta(x, s, ds, c.spacing, c.transition, c.backward);
}

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
  const Rows of_v = p.rows_of(p.v);
  const int64_t states = int64_t(c.runs.size()) * c.heads, of_state = p.of_state(), of_map = int64_t{kDim} * kDim;
  const std::vector<float> no_states(states * of_state, NAN), no_maps(states * of_map, NAN);
  const auto fill = [&](DeltaInputs &pass) {
    d.fill(pass);
    pass.own_checkpoints = set == KernelSet::kMma;
  };
  DeltaForward f;
  fill(f);
  const auto none_kept = [&](bool back) {
    return std::vector<uint16_t>(size_t(checkpoints * delta_checkpoint_bytes(set, f, back)) / 2, kNan);
  };
  DeviceCopy o(std::vector<uint16_t>(p.elements(of_v), kNan)), out(no_states), edge(no_states), leaving(no_states),
      transition(no_maps), kept(none_kept(false));
  f.o = d.tensor(o, of_v);
  f.state_in = c.state ? static_cast<const float *>(d.state.data) : nullptr;
  f.state_out = static_cast<float *>(out.data), f.edge_state = static_cast<float *>(edge.data);
  f.leaving = static_cast<float *>(leaving.data);
  f.transition = c.transition ? static_cast<float *>(transition.data) : nullptr;
  f.checkpoints = kept.data;
  check_refusal(delta_forward_refusal(set, f));
  if (c.beside && !(delta_hopper::cut_of(f, f.num_runs, false).early > 0 &&
                    delta_hopper::cut_of(f, f.num_runs, true).early > 0)) {
    std::printf("%s: not walked beside the preparation\n", c.name);
    return false;
  }
  DeviceMemory workspace(size_t(delta_forward_workspace(set, f)) * 4);
  poison(workspace);
  f.workspace = static_cast<float *>(workspace.data);
  DeviceMemory maps(size_t(delta_maps_floats(set, f)) * 4 + 4);
  poison(maps);
  if (c.maps) f.maps = static_cast<float *>(maps.data);
  check(launch_delta_forward(set, f, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);

  DeviceCopy d_out(no_states), d_edge(no_states), d_leaving(no_states), d_kept(none_kept(true));
  DeltaReversed b;
  fill(b);
  b.d_o = d.tensor(d.d_o, of_v);
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
  DeviceCopy d_g(std::vector<float>(p.g.size(), NAN)), d_beta(std::vector<float>(p.beta.size(), NAN)),
      of_stretches(stretches);
  DeltaGradients x;
  fill(x);
  x.exact = c.exact;
  x.runs = static_cast<const Run *>(of_stretches.data), x.num_runs = int64_t(stretches.size());
  x.d_o = b.d_o;
  const bool wide_g = c.decay_dtype == DType::kFloat32;
  x.d_g = c.decay == Decay::kNone ? nullptr : d_g.data, x.d_beta = d_beta.data;
  x.d_g_strides = x.g_strides, x.d_beta_strides = x.beta_strides;
  x.checkpoints = kept.data, x.d_checkpoints = d_kept.data;
  const int32_t members = c.pairs ? 2 : 1;
  const Rows of_sums{c.heads / members, kDim};  // of dq and dk
  std::unique_ptr<DeviceMemory> d_q, d_k, d_v, gradients_workspace;
  const auto allocate = [&](bool staged) {  // dq, dk and dv in float32 or in 16 bits
    const auto make = [&](Rows rows) {
      return std::make_unique<DeviceMemory>(p.elements(rows) * (staged ? 4 : 2));
    };
    d_q = make(of_sums), d_k = make(of_sums), d_v = make(of_v);
    x.d_q = d.tensor(*d_q, of_sums), x.d_k = d.tensor(*d_k, of_sums), x.d_v = d.tensor(*d_v, of_v);
    for (bool &to : x.staged) to = staged;
    gradients_workspace = std::make_unique<DeviceMemory>(size_t(delta_gradients_workspace(set, x)) * 4);
    x.workspace = static_cast<float *>(gradients_workspace->data);
  };
  const auto results = [&] {
    return std::vector<const DeviceMemory *>{d_q.get(), d_k.get(), d_v.get(), &d_g, &d_beta};
  };
  const auto poison_gradients = [&] {
    for (const DeviceMemory *to : results()) poison(*to);
    poison(*gradients_workspace);
  };
  const auto find_gradients = [&] {
    std::vector<std::vector<uint8_t>> found;
    poison_gradients();
    if (with_gradients) check(launch_delta_gradients(set, x, nullptr), "launch");
    check(cudaDeviceSynchronize(), c.name);
    for (const DeviceMemory *from : results()) found.push_back(from->get<uint8_t>());
    return found;
  };
  allocate(c.staged);
  if (with_gradients) check_refusal(delta_gradients_refusal(set, x));
  const auto alone = find_gradients();
  x.prepared = b.workspace, x.prepared_runs = b.num_runs;
  const bool same = alone == find_gradients();
  if (!same) std::printf("NOT THE SAME from what the walk back has left: ");

  // Then all of it in one walk back, where that can be. Above 128 columns stretches add dq and dk up from launch to
  // launch, in float32. One walk back has all columns at once, and must give 16 bits, too.
  struct Round {
    const char *name;
    bool once, staged;
  };
  std::vector<Round> rounds = {{"", false, c.staged}, {", one walk back", true, c.staged}};
  if (c.columns > kDim && !c.exact) rounds.push_back({", one walk back, 16 bits", true, false});
  bool good = same;
  for (const Round &round : rounds) {
    if (round.once) {
      if (set != KernelSet::kHopper || !with_gradients) break;
      allocate(round.staged);
      if (!delta_hopper::can_walk_once(b, x)) continue;
      poison_gradients();
      for (const DeviceMemory *to :
           std::initializer_list<const DeviceMemory *>{&d_out, &d_edge, &d_leaving, &d_kept, &reversed_workspace})
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
      if (round.staged) return memory.get<float>();
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
    // Where in what is kept an element of a state lies.
    const auto kept_at = [&](bool back, int64_t checkpoint, int32_t h, int64_t element) {
      if (set != KernelSet::kMma) return (checkpoint * c.heads + h) * of_state + element;
      const int64_t row = element / c.columns, column = element % c.columns;
      return mma_delta::kept_at(f, back, checkpoint, h) / 2 + column / 8 * mma_delta::kept_columns(f, back) / 2 +
             row / 8 * (mma_delta::kMatrix / 2) + column % 8 * 8 + row % 8;
    };
    const double kept_scale = set == KernelSet::kMma ? f.scale : 1;  // of gradients
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
          for (int i = 0; i < c.columns; ++i)
            errors.add("o", o_limit, widen(c.dtype, o_found[p.at(of_v, run.row, run.begin + t, h) + i]),
                       a.o[t * c.columns + i]);
        for (int32_t t = 0; with_gradients && t < run.length; ++t) {
          for (int i = 0; i < kDim; ++i) {
            const int64_t at = p.at(of_sums, run.row, run.begin + t, h) + i, to = t * kDim + i;
            double d_q_right = 0, d_k_right = 0;
            for (int32_t m = 0; m < members; ++m) {
              const DeltaAnswer &of_head = answers[r][h / members * members + m];
              d_q_right += of_head.d_q[to], d_k_right += of_head.d_k[to];
            }
            errors.add("dq", o_limit, d_q_found[at], d_q_right);
            errors.add("dk", o_limit, d_k_found[at], d_k_right);
          }
          for (int i = 0; i < c.columns; ++i)
            errors.add("dv", c.staged && set == KernelSet::kMma ? 3e-4 : o_limit,
                       d_v_found[p.at(of_v, run.row, run.begin + t, h) + i], a.d_v[t * c.columns + i]);
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
        const int64_t place = int64_t(r) * c.heads + h, at = place * of_state;
        for (int64_t i = 0; i < of_state; ++i) {
          errors.add("end", state_limit, out_found[at + i], a.end[i]);
          errors.add("edge", state_limit, edge_found[at + i], a.end[i]);
          errors.add("leaving", state_limit, leaving_found[at + i], a.end[i]);
        }
        for (int64_t i = 0; c.transition && i < of_map; ++i) {
          const float found = m_found[place * of_map + i];
          const bool forgotten = found == 0 && std::abs(a.transition[i]) < double{kDecayCutoff};
          if (!forgotten) errors.add("M", 3e-4, found, a.transition[i]);
        }
        for (int64_t i = 0; i < of_state; ++i) {
          errors.add("dS", 3e-3, d_out_found[at + i], a.d_start[i]);
          errors.add("dedge", 3e-3, d_edge_found[at + i], a.d_start[i]);
          errors.add("dleaving", 3e-3, d_leaving_found[at + i], a.d_start[i]);
        }
        for (size_t n = 0; n < a.checkpoints.size() / of_state; ++n)
          for (int64_t i = 0; i < of_state; ++i) {
            const size_t right = n * of_state + i;
            const auto at_checkpoint = int64_t{run.checkpoint} + int64_t(n);
            if (!round.once)
              errors.add("dkept", 4e-3,
                         kept_scale * widen(c.dtype, d_kept_found[kept_at(true, at_checkpoint, h, i)]),
                         a.d_checkpoints[right]);
            errors.add("kept", 3e-3, widen(c.dtype, kept_found[kept_at(false, at_checkpoint, h, i)]),
                       a.checkpoints[right]);
          }
      }
    if (c.decay == Decay::kHead && with_gradients)
      for (int32_t h = 0; h < c.heads; ++h) errors.add("dg", g_limit, d_g_found[h], d_head[h]);
    good &= errors.print((std::string(c.name) + round.name).c_str());
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
