// The linear pass of decay per channel by wgmma alone, against a float64 recurrence on the CPU; `--time` measures
// it beside the one by mma.sync, any other argument chooses the cases whose name holds it. Exits 0 when all cases
// hold, 1 when one fails, 77 where there is no device of compute capability 9.0.
#include "../../../kernels/hopper/channel_pass.h"
#include "channel_pass_time.h"
#include "kernel_cases.h"
#include "pass_problem.h"

namespace {

using namespace lasp::gpu;

bool run_case(const PassCase &c) {
  const PassProblem p(c);
  DevicePass device(p), again(p);
  if (const char *const why = hopper::channel_refusal(device.pass)) {
    std::printf("%s: refused: %s\n", c.name, why);
    return false;
  }
  for (DevicePass *const one : {&device, &again}) check(hopper::launch_channel_pass(one->pass, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);
  return report(p, device, again);
}

std::vector<PassCase> make_cases() {
  std::vector<PassCase> cases;
  const auto add = [&](const char *name, auto change) {
    PassCase c{plain_case(name)};
    c.decay = Decay::kChannel;
    change(c);
    cases.push_back(c);
  };
  const auto ragged = [](PassCase &c) { make_ragged(c); };
  const auto grouped = [](PassCase &c) {
    c.heads = 4, c.a_heads = 4, c.b_heads = 2, c.c_heads = 1, c.padding = 24;
  };
  const auto dims = [](PassCase &c, int32_t a, int32_t y) { c.a_dim = a, c.y_dim = y; };
  add("one token", [](PassCase &c) { c.runs[0].length = 1; });
  add("one chunk", [](PassCase &c) { c.runs[0].length = 32; });
  for (const bool reversed : {false, true}) {
    const auto pass = [=](PassCase &c) { c.reversed = reversed; };
    add(reversed ? "dv" : "o", [&](PassCase &c) { pass(c); });
    add("  ragged, grouped, padded", [&](PassCase &c) { pass(c), ragged(c), grouped(c); });
    add("  very weak", [&](PassCase &c) {
      pass(c), c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.heads = 1, c.a_heads = c.b_heads = c.c_heads = 1;
      c.strongest = 2e-6f;
    });
    add("  weaker than the pivot's limit", [&](PassCase &c) { pass(c), ragged(c), c.strongest = 2.2f; });
    add("  around the pivot's limit", [&](PassCase &c) { pass(c), ragged(c), c.strongest = 3.35f; });
    add("  strong", [&](PassCase &c) { pass(c), ragged(c), c.strongest = 5; });
    add("  very strong", [&](PassCase &c) { pass(c), ragged(c), c.strongest = 300; });
    add("  forgotten now and then", [&](PassCase &c) { pass(c), ragged(c), c.forgotten = 2e-4f; });
    add("  forgotten often", [&](PassCase &c) { pass(c), ragged(c), c.forgotten = 0.1f; });
    add("  float16", [&](PassCase &c) { pass(c), ragged(c), c.dtype = DType::kFloat16; });
    add("  float16, strong", [&](PassCase &c) { pass(c), ragged(c), c.dtype = DType::kFloat16, c.strongest = 2; });
    add("  decay in bfloat16", [&](PassCase &c) { pass(c), ragged(c), c.decay_dtype = DType::kBFloat16; });
    add("  decay in float16, steep now and then",
        [&](PassCase &c) { pass(c), ragged(c), c.decay_dtype = DType::kFloat16, c.forgotten = 2e-4f; });
    add("  dims 128, 64", [&](PassCase &c) { pass(c), ragged(c), c.y_dim = 64; });
    add("  dims 128, 192", [&](PassCase &c) { pass(c), ragged(c), c.y_dim = 192; });
    add("  dims 256, 256, strong",
        [&](PassCase &c) { pass(c), ragged(c), c.a_dim = c.y_dim = 256, c.strongest = 5; });
    add("  dims 256, 128, grouped", [&](PassCase &c) { pass(c), ragged(c), grouped(c), c.a_dim = 256; });
    // Two heads, or 64 columns each of one, go to a block.
    add("  dims 64, 64", [&](PassCase &c) { pass(c), dims(c, 64, 64); });
    add("  dims 64, 64, ragged, grouped, padded",
        [&](PassCase &c) { pass(c), ragged(c), grouped(c), dims(c, 64, 64); });
    add("  dims 64, 64, three heads, mixed", [&](PassCase &c) {
      pass(c), ragged(c), dims(c, 64, 64), c.heads = c.a_heads = c.b_heads = c.c_heads = 3, c.forgotten = 2e-4f;
    });
    add("  dims 64, 192, three heads, strong", [&](PassCase &c) {
      pass(c), ragged(c), dims(c, 64, 192), c.heads = c.a_heads = c.b_heads = c.c_heads = 3, c.strongest = 5;
    });
    add("  dims 64, 128, very strong",
        [&](PassCase &c) { pass(c), ragged(c), dims(c, 64, 128), c.strongest = 300; });
    add("  dims 64, 64, around the pivot's limit",
        [&](PassCase &c) { pass(c), ragged(c), dims(c, 64, 64), c.strongest = 3.35f; });
    add("  dims 64, 64, float16, decay in bfloat16", [&](PassCase &c) {
      pass(c), ragged(c), dims(c, 64, 64), c.dtype = DType::kFloat16, c.decay_dtype = DType::kBFloat16;
    });
    add("  dims 192, 64, grouped", [&](PassCase &c) { pass(c), ragged(c), grouped(c), dims(c, 192, 64); });
    add("  dims 64, 64, a decay that is NaN", [&](PassCase &c) { pass(c), dims(c, 64, 64), c.nan_token = 64; });
    add("  no states", [&](PassCase &c) { pass(c), ragged(c), c.state_in = c.state_out = false; });
    add("  state in place", [&](PassCase &c) { pass(c), ragged(c), c.in_place = true; });
    add("  a decay that is NaN", [&](PassCase &c) { pass(c), c.nan_token = 64; });
  }
  return cases;
}

void load() { check(hopper::load_channel_kernels(), "loading kernels"); }

}  // namespace

int main(int argc, char **argv) {
  return run_kernel_cases(argc, argv, Needs::kHopper, load, time_channel_pass, make_cases, run_case);
}
