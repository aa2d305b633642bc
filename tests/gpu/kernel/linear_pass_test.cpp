// The tensor-core linear pass alone, against a float64 recurrence on the CPU; `--time` measures it instead, any
// other argument chooses the cases whose name holds it. Exits 0 when all cases hold, 1 when one fails, 77 where
// there is no device of compute capability 9.0.
#include "../../../kernels/hopper/linear_pass.h"
#include "kernel_cases.h"
#include "linear_pass_time.h"
#include "pass_problem.h"

namespace {

using namespace lasp::gpu;
using hopper::PassShape;

struct Case : PassCase {
  PassShape shape = {32, 1};
};

// Bounds: y carries four roundings to 8 (11) bits, each 2^-9 (2^-12) / sqrt(3) of its term: under 2.3e-3 (3e-4).
// The state is float32 but for products of the tensor cores, which cut off below the 24th bit, and factors of 16
// (22) bits.
bool run_case(const Case &c) {
  const PassProblem p(c);
  DevicePass device(p);
  if (const char *const why = hopper::refusal(device.pass)) {
    std::printf("%s: refused: %s\n", c.name, why);
    return false;
  }
  check(hopper::launch_linear_pass(device.pass, c.shape, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);
  const PassErrors errors = compare(p, device);
  const double output_bound = c.dtype == DType::kBFloat16 ? 4e-3 : 5e-4,
               state_bound = c.decay == Decay::kNone ? 2e-6 : 1e-5,
               rounding = c.dtype == DType::kBFloat16 ? 2e-3 : 2.5e-4;  // half a unit in the last place
  const bool good =
      errors.y <= output_bound && errors.state <= state_bound && errors.checkpoint <= rounding && errors.stray == 0;
  std::printf("%-44s slice %2d cluster %d  y %.2e  state %.2e  stray %lld  %s\n", c.name, c.shape.slice,
              c.shape.cluster, errors.y, errors.state, static_cast<long long>(errors.stray),
              good ? "ok" : "FAILED");
  return good;
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char *name, auto change) {
    Case c{plain_case(name)};
    change(c);
    cases.push_back(c);
  };
  const auto ragged = [](Case &c) { make_ragged(c); };
  add("none", [](Case &) {});
  add("none, one chunk", [](Case &c) { c.runs[0].length = 64; });
  add("none, reversed", [](Case &c) { c.reversed = true; });
  add("per head", [](Case &c) { c.decay = Decay::kHead; });
  add("per head, reversed, transposed", [](Case &c) { c.decay = Decay::kHead, c.reversed = c.transposed = true; });
  add("per token", [](Case &c) { c.decay = Decay::kScalar; });
  add("per token, reversed", [](Case &c) { c.decay = Decay::kScalar, c.reversed = true; });
  for (const PassShape shape :
       {PassShape{32, 1}, PassShape{32, 2}, PassShape{32, 4}, PassShape{64, 1}, PassShape{64, 2}})
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
      for (const bool reversed : {false, true})
        add(reversed ? "ragged, grouped, padded, reversed" : "ragged, grouped, padded", [&](Case &c) {
          ragged(c);
          c.heads = 4, c.a_heads = 4, c.b_heads = 2, c.c_heads = 1, c.padding = 24;
          c.decay = decay, c.reversed = reversed, c.transposed = reversed, c.shape = shape;
        });
  add("float16, ragged", [&](Case &c) {
    ragged(c), c.dtype = DType::kFloat16, c.decay = Decay::kScalar, c.shape = {32, 4};
  });
  add("float16, wide, reversed", [&](Case &c) {
    ragged(c), c.dtype = DType::kFloat16, c.decay = Decay::kHead, c.reversed = true, c.shape = {64, 2};
  });
  add("decay in bfloat16", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.decay_dtype = c.dtype; });
  add("strong decay", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.strongest = 300; });
  add("strong decay per head, reversed",
      [&](Case &c) { ragged(c), c.decay = Decay::kHead, c.strongest = 20, c.reversed = true; });
  add("states only", [&](Case &c) { ragged(c), c.output = false, c.decay = Decay::kScalar, c.shape = {32, 4}; });
  add("states only, wide, reversed", [&](Case &c) {
    ragged(c), c.output = false, c.decay = Decay::kHead, c.reversed = true, c.shape = {64, 2};
  });
  for (const auto &[a_dim, y_dim] : {std::pair{128, 128}, {96, 64}, {160, 192}})
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
      for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
        for (const bool reversed : {false, true})
          add(reversed ? "own states, reversed" : "own states", [&, a = a_dim, y = y_dim](Case &c) {
            ragged(c), c.a_dim = a, c.y_dim = y, c.dtype = dtype, c.decay = decay, c.reversed = reversed;
            c.heads = 4, c.a_heads = 4, c.b_heads = 2, c.c_heads = 1, c.padding = 24;
            c.output = c.state_in = false;
          });
  add("own states, long", [&](Case &c) {
    c.tokens = 6000, c.runs = {make_run(0, 0, 6000)}, c.decay = Decay::kScalar, c.strongest = 0.01f;
    c.output = c.state_in = false;
  });
  for (const PassShape shape : {PassShape{32, 1}, PassShape{32, 4}, PassShape{64, 2}})
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
      for (const bool output : {true, false})
        add(output ? "checkpoints" : "checkpoints, states only", [&](Case &c) {
          c.tokens = 1000, c.runs = {make_run(0, 0, 769, 1), make_run(0, 769, 200, 0)};
          c.keep = true, c.output = output, c.decay = decay, c.shape = shape, c.strongest = 0.02f;
        });
  for (const Decay decay : {Decay::kHead, Decay::kScalar})
    for (const int32_t slice : {32, 64})
      add("a decay that is NaN", [&](Case &c) { c.nan_token = 100, c.decay = decay, c.shape.slice = slice; });
  add("no states", [&](Case &c) { ragged(c), c.state_in = c.state_out = false, c.decay = Decay::kHead; });
  add("state in place", [&](Case &c) {
    ragged(c), c.in_place = true, c.decay = Decay::kScalar, c.shape = {32, 4};
  });
  add("dims 64, 64", [&](Case &c) {
    ragged(c), c.a_dim = c.y_dim = 64, c.decay = Decay::kHead, c.shape = {32, 2};
  });
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
      for (const bool reversed : {false, true})
        add(reversed ? "dims 64, 64 in one slice, reversed" : "dims 64, 64 in one slice", [&](Case &c) {
          ragged(c), c.dtype = dtype, c.a_dim = c.y_dim = 64, c.decay = decay, c.shape = {64, 1};
          c.reversed = c.transposed = reversed, c.keep = !reversed;
        });
  add("dims 32, 128 in slices of 64, states only", [&](Case &c) {
    ragged(c), c.a_dim = 32, c.y_dim = 128, c.decay = Decay::kScalar, c.shape = {64, 2}, c.output = false;
  });
  for (const auto &[a_dim, y_dim] : {std::pair{96, 96}, {32, 32}, {160, 64}})  // the state has not all the rows
    for (const bool transposed : {false, true})
      add("rows that are not there", [&, a = a_dim, y = y_dim](Case &c) {
        ragged(c), c.a_dim = a, c.y_dim = y, c.padding = 24, c.decay = Decay::kScalar, c.keep = !transposed;
        c.transposed = c.reversed = transposed;
      });
  add("dims 64, 96", [&](Case &c) { ragged(c), c.a_dim = 64, c.y_dim = 96, c.decay = Decay::kScalar; });
  add("dims 128, 256", [&](Case &c) { ragged(c), c.y_dim = 256, c.decay = Decay::kScalar, c.shape = {64, 4}; });
  add("dims 128, 32", [&](Case &c) { ragged(c), c.y_dim = 32, c.decay = Decay::kScalar, c.reversed = true; });
  add("long", [&](Case &c) {
    c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.decay = Decay::kHead, c.strongest = 0.01f,
    c.shape = {32, 4};
  });
  for (const PassShape shape : {PassShape{32, 2}, PassShape{64, 2}})
    for (const bool output : {true, false})
      add(output ? "long, per token, reversed" : "long, states only", [&](Case &c) {
        c.tokens = 6000, c.runs = {make_run(0, 0, 6000)}, c.decay = Decay::kScalar, c.strongest = 0.01f;
        c.reversed = output, c.output = output, c.shape = shape;
      });
  // The decay of a chunk in the middle between two float32: 2^-25 of the state, lost or won 4,096 times, would be
  // 6e-5 on average. Of float32 sums 1.6e-6 are due.
  for (const Decay decay : {Decay::kHead, Decay::kScalar})
    add("long, weak decay", [&](Case &c) {
      c.heads = c.a_heads = c.b_heads = c.c_heads = 1, c.a_dim = c.y_dim = 64, c.tokens = 64 * 4096;
      c.runs = {make_run(0, 0, 64 * 4096)}, c.decay = decay, c.constant = -1.5f * 0x1p-24f / 64;
      c.output = false, c.reversed = decay == Decay::kScalar;
    });
  add("long, none, reversed", [&](Case &c) {
    c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.reversed = true, c.shape = {32, 4};
  });
  return cases;
}

}  // namespace

int main(int argc, char **argv) {
  return run_kernel_cases(argc, argv, Needs::kHopper, nullptr, time_linear_pass, make_cases, run_case);
}
