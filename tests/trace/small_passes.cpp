// Passes that are as small as can be, of one rank, with no trace: cost.sh counts their instructions.
//     small_passes COUNT
#include <lasp/lasp.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace {

void must(lasp_status status) {
  if (status != LASP_OK) throw std::runtime_error(lasp_last_error());
}

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes), floats_(bytes / sizeof(float) + 32) {}
  lasp_buffer out() { return {at(), bytes_}; }
  lasp_const_buffer in() { return {at(), bytes_}; }

 private:
  float *at() { return floats_.data() + (64 - reinterpret_cast<uintptr_t>(floats_.data()) % 64) / sizeof(float); }
  size_t bytes_;
  std::vector<float> floats_;
};

void pass(int count) {
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.cpu_threads = 1;
  must(lasp_comm_create_self(&comm));
  must(lasp_context_create(LASP_ABI, comm, &options, &context));
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = 1;
  problem.heads_q = problem.heads_k = problem.heads_v = 1;
  problem.head_dim_k = problem.head_dim_v = 8;
  must(lasp_plan_create(context, &problem, &plan));
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  must(lasp_plan_get_info(plan, &info));
  Memory tensor(8 * sizeof(float)), o(8 * sizeof(float)), dq(8 * sizeof(float)), dk(8 * sizeof(float)),
      dv(8 * sizeof(float)), cache(info.state_cache_bytes),
      work(info.workspace_forward_bytes + info.workspace_backward_bytes);
  lasp_forward_args forward = LASP_FORWARD_ARGS_INIT;
  forward.q = forward.k = forward.v = tensor.in();
  forward.o = o.out();
  forward.state_cache = cache.out();
  forward.workspace = work.out();
  lasp_backward_args backward = LASP_BACKWARD_ARGS_INIT;
  backward.q = backward.k = backward.v = backward.d_o = tensor.in();
  backward.state_cache = cache.in();
  backward.dq = dq.out();
  backward.dk = dk.out();
  backward.dv = dv.out();
  backward.workspace = work.out();
  for (int i = 0; i < count; ++i) {
    must(lasp_forward(plan, &forward, nullptr));
    must(lasp_backward(plan, &backward, nullptr));
  }
  must(lasp_plan_destroy(plan));
  must(lasp_context_destroy(context));
  must(lasp_comm_destroy(comm));
}

}  // namespace

int main(int argc, char **argv) try {
  pass(argc > 1 ? std::atoi(argv[1]) : 1);
} catch (const std::exception &error) {
  std::fprintf(stderr, "small_passes: %s\n", error.what());
  return 1;
}
