// The tensor-core linear pass alone, against a float64 recurrence on the CPU; `--time` measures it instead, any
// other argument chooses the cases whose name holds it. Exits 0 when all cases hold, 1 when one fails, 77 where
// there is no device of compute capability 9.0.
#include "../../../kernels/mma/linear_pass.h"
#include "kernel_cases.h"
#include "mma_pass_time.h"
#include "pass_problem.h"

namespace {

using namespace lasp::gpu;

struct Case : PassCase {
  int32_t stages = 4;
};

int64_t most_shared_bytes = 0;  // of a block on this device

void load() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "properties");
  most_shared_bytes = static_cast<int64_t>(device.sharedMemPerBlockOptin);
  check(mma::load_linear_pass_kernels(), "loading kernels");
}

bool run_case(const Case &c) {
  const PassProblem p(c);
  DevicePass device(p), again(p);
  const char *why = mma::refusal(device.pass);
  if (mma::least_shared_bytes(device.pass) > most_shared_bytes) why = "the device has too little shared memory";
  if (why) {
    std::printf("%s: refused: %s\n", c.name, why);
    return false;
  }
  for (DevicePass *const one : {&device, &again})
    check(mma::launch_linear_pass(one->pass, c.stages, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);
  return report(p, device, again);
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char *name, auto change) {
    Case c{plain_case(name)};
    change(c);
    cases.push_back(c);
  };
  const auto ragged = [](Case &c) { make_ragged(c); };
  const auto grouped = [&](Case &c) { c.heads = 4, c.a_heads = 4, c.b_heads = 2, c.c_heads = 1, c.padding = 24; };
  add("one chunk, none", [](Case &c) { c.runs[0].length = 16; });
  add("one token, per channel", [](Case &c) { c.runs[0].length = 1, c.decay = Decay::kChannel; });
  const struct {
    const char *names[2];
    Decay decay;
  } kinds[] = {{{"none", "none, reversed, transposed"}, Decay::kNone},
               {{"per head", "per head, reversed, transposed"}, Decay::kHead},
               {{"per token", "per token, reversed, transposed"}, Decay::kScalar}};
  for (const auto &kind : kinds)
    for (const bool reversed : {false, true})
      add(kind.names[reversed], [&](Case &c) {
        ragged(c), grouped(c);
        c.decay = kind.decay, c.reversed = c.transposed = reversed;
      });
  // The four passes: o, dq, dv, dk.
  const char *const passes[] = {"per channel: o", "per channel: dq", "per channel: dv", "per channel: dk"};
  for (int pass = 0; pass < 4; ++pass) {
    const auto channel = [=](Case &c) {
      c.decay = Decay::kChannel, c.transposed = pass % 2, c.reversed = pass > 1;
    };
    add(passes[pass], [&](Case &c) { channel(c); });
    add("  ragged, grouped, padded", [&](Case &c) { channel(c), ragged(c), grouped(c); });
    add("  very weak", [&](Case &c) {
      channel(c), c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.heads = 1,
                  c.a_heads = c.b_heads = c.c_heads = 1;
      c.strongest = 2e-6f;
    });
    add("  strong", [&](Case &c) { channel(c), ragged(c), c.strongest = 3; });
    add("  very strong", [&](Case &c) { channel(c), ragged(c), c.strongest = 300; });
    add("  forgotten now and then", [&](Case &c) { channel(c), ragged(c), c.forgotten = 1e-3f; });
    add("  forgotten often", [&](Case &c) { channel(c), ragged(c), c.forgotten = 0.1f, c.stages = 3; });
    add("  float16", [&](Case &c) { channel(c), ragged(c), c.dtype = DType::kFloat16; });
    add("  float16, strong", [&](Case &c) { channel(c), ragged(c), c.dtype = DType::kFloat16, c.strongest = 2; });
    add("  decay in bfloat16", [&](Case &c) { channel(c), ragged(c), c.decay_dtype = DType::kBFloat16; });
    add("  decay in float16, steep now and then",
        [&](Case &c) { channel(c), ragged(c), c.decay_dtype = DType::kFloat16, c.forgotten = 2e-3f; });
    add("  dims 64, 64", [&](Case &c) { channel(c), ragged(c), c.a_dim = c.y_dim = 64; });
    add("  dims 32, 96, five stages",
        [&](Case &c) { channel(c), ragged(c), c.a_dim = 32, c.y_dim = 96, c.stages = 5; });
    add("  dims 96, 32", [&](Case &c) { channel(c), ragged(c), c.a_dim = 96, c.y_dim = 32; });
    add("  dims 256, 256", [&](Case &c) { channel(c), ragged(c), c.a_dim = c.y_dim = 256, c.stages = 3; });
    add("  dims 256, 72, strong",
        [&](Case &c) { channel(c), ragged(c), c.a_dim = 256, c.y_dim = 72, c.strongest = 20, c.stages = 3; });
    add("  dims 264, 40", [&](Case &c) { channel(c), ragged(c), c.a_dim = 264, c.y_dim = 40, c.stages = 3; });
    add("  dims 512, 136, grouped", [&](Case &c) {
      channel(c), ragged(c), grouped(c), c.a_dim = 512, c.y_dim = 136, c.strongest = 3, c.stages = 3;
    });
    add("  dims 384, 72, states only",
        [&](Case &c) { channel(c), ragged(c), c.a_dim = 384, c.y_dim = 72, c.output = false, c.stages = 3; });
    add("  dims 40, 200", [&](Case &c) { channel(c), ragged(c), c.a_dim = 40, c.y_dim = 200; });
    add("  states only", [&](Case &c) { channel(c), ragged(c), c.output = false; });
    add("  states only, strong", [&](Case &c) { channel(c), ragged(c), c.output = false, c.strongest = 30; });
    add("  no states", [&](Case &c) { channel(c), ragged(c), c.state_in = c.state_out = false; });
    add("  state in place", [&](Case &c) { channel(c), ragged(c), c.in_place = true; });
  }
  for (const bool transposed : {false, true})
    add(transposed ? "NaN in a channel's decay, rows" : "NaN in a channel's decay, columns",
        [&](Case &c) { c.decay = Decay::kChannel, c.transposed = transposed, c.nan_token = 64; });
  add("float16, per token", [&](Case &c) { ragged(c), c.dtype = DType::kFloat16, c.decay = Decay::kScalar; });
  add("decay in bfloat16", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.decay_dtype = c.dtype; });
  add("strong decay", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.strongest = 300, c.forgotten = 0.1f; });
  add("strong decay per head, reversed",
      [&](Case &c) { ragged(c), c.decay = Decay::kHead, c.strongest = 20, c.reversed = true; });
  add("states only, per token", [&](Case &c) { ragged(c), c.output = false, c.decay = Decay::kScalar; });
  add("none, dims 256, 512", [&](Case &c) {
    ragged(c), c.a_dim = 256, c.y_dim = 512, c.heads = 1, c.a_heads = 1, c.b_heads = 1, c.c_heads = 1;
  });
  add("per token, dims 512, 512, state in place", [&](Case &c) {
    ragged(c), c.a_dim = 512, c.y_dim = 512, c.decay = Decay::kScalar, c.in_place = true;
    c.heads = c.a_heads = c.b_heads = c.c_heads = 1;
  });
  add("per token, dims 16, 8", [&](Case &c) { ragged(c), c.a_dim = 16, c.y_dim = 8, c.decay = Decay::kScalar; });
  add("long, per head", [&](Case &c) {
    c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.decay = Decay::kHead, c.strongest = 0.01f;
  });
  return cases;
}

}  // namespace

int main(int argc, char **argv) {
  return run_kernel_cases(argc, argv, Needs::kTensorCores, load, time_mma_pass, make_cases, run_case);
}
