// Ranks that are threads, each of which traces itself and writes FOLDER/trace-RANK.json: passes of one problem, and
// before each of them one rank may sleep.
//     trace_ranks FOLDER [--schedule NAME] [--slow RANK MS] [--limit MS] [--records N] [--tokens N] [--passes N]
//     [--ranks N] [--heads N] [--dim N] [--warmup N] [--cuda | --nccl]
// --cuda: all on GPU 0. --nccl: a GPU to each. --warmup: passes before the trace begins.
// With a time limit shorter than the sleep the group breaks, which is no failure of this program.
#include <lasp/lasp.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/device.h"
#include "support/nccl.h"

namespace {

struct Settings {
  std::string folder;
  int32_t schedule = LASP_SCHEDULE_RING, slow = -1;
  int64_t sleep_ms = 0, limit_ms = 0, records = 0, tokens = 512, passes = 2, warmup = 0;
  int32_t ranks = 4, heads = 4, dim = 64;
  bool cuda = false, nccl = false;
};

void must(lasp_status status) {
  if (status != LASP_OK) throw std::runtime_error(lasp_last_error());
}

// Zeros: only the time counts.
class Buffer {
 public:
  Buffer(const Settings &s, size_t bytes) : cuda_(s.cuda), host_(s.cuda ? 0 : bytes + 64), bytes_(bytes) {
    if (cuda_) {
      data_ = gpu::allocate(bytes + 64);
      gpu::fill(data_, 0, bytes, nullptr);
      gpu::wait(nullptr);
    } else {
      data_ = host_.data() + (64 - reinterpret_cast<uintptr_t>(host_.data()) % 64);
    }
  }
  ~Buffer() {
    if (cuda_) gpu::release(data_, bytes_ + 64);
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  operator lasp_buffer() const { return {data_, bytes_}; }
  operator lasp_const_buffer() const { return {data_, bytes_}; }

 private:
  bool cuda_;
  std::vector<unsigned char> host_;
  void *data_ = nullptr;
  size_t bytes_;
};

void run_passes(const Settings &s, int32_t rank, lasp_plan *plan, const std::function<void()> &warm) {
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  must(lasp_plan_get_info(plan, &info));
  const size_t bytes = static_cast<size_t>(s.tokens * s.heads * s.dim) * 2;
  const Buffer q(s, bytes), k(s, bytes), v(s, bytes), o(s, bytes), dq(s, bytes), dk(s, bytes), dv(s, bytes);
  const Buffer decay(s, static_cast<size_t>(s.heads) * sizeof(float)), cache(s, info.state_cache_bytes);
  const Buffer work(s, std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
  lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
  f.q = q, f.k = k, f.v = v, f.decay = decay, f.o = o, f.state_cache = cache, f.workspace = work;
  lasp_backward_args b = LASP_BACKWARD_ARGS_INIT;
  b.q = q, b.k = k, b.v = v, b.decay = decay, b.d_o = o, b.dq = dq, b.dk = dk, b.dv = dv, b.state_cache = cache;
  b.workspace = work;
  const lasp_stream stream = s.cuda ? gpu::make_stream() : nullptr;
  for (int64_t pass = -s.warmup; pass < s.passes; ++pass) {
    if (pass == 0) {
      if (s.cuda) gpu::wait(stream);
      warm();
    }
    if (rank == s.slow) std::this_thread::sleep_for(std::chrono::milliseconds(s.sleep_ms));
    if (lasp_forward(plan, &f, stream) != LASP_OK || lasp_backward(plan, &b, stream) != LASP_OK) {
      if (s.limit_ms == 0) must(LASP_ERROR_INTERNAL);
      break;
    }
  }
  if (s.cuda) gpu::wait(stream), gpu::destroy_stream(stream);
}

void run_rank(const Settings &s, int32_t rank, lasp_comm *comm, std::barrier<> &meeting) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = s.cuda ? LASP_DEVICE_CUDA : LASP_DEVICE_CPU;
  options.cpu_threads = 1;
  options.time_limit_ms = s.limit_ms;
  lasp_context *context = nullptr;
  must(lasp_context_create(LASP_ABI, comm, &options, &context));
  lasp_trace_options trace = LASP_TRACE_OPTIONS_INIT;
  trace.max_records = s.records;
  if (s.warmup == 0) must(lasp_trace_start(context, &trace));
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = s.tokens;
  problem.heads_q = problem.heads_k = problem.heads_v = s.heads;
  problem.head_dim_k = problem.head_dim_v = s.dim;
  problem.dtype = LASP_BFLOAT16;
  problem.decay = LASP_DECAY_HEAD;
  problem.schedule = s.schedule;
  lasp_plan *plan = nullptr;
  must(lasp_plan_create(context, &problem, &plan));
  run_passes(s, rank, plan, [&] {
    if (s.warmup == 0) return;
    meeting.arrive_and_wait();  // so that nobody waits for what is before the trace
    must(lasp_trace_start(context, &trace));
  });
  meeting.arrive_and_wait();  // within one process, memory is given back when no rank's kernels wait for another's
  must(lasp_trace_stop(context));
  must(lasp_trace_write(context, (s.folder + "/trace-" + std::to_string(rank) + ".json").c_str()));
  must(lasp_plan_destroy(plan));
  must(lasp_context_destroy(context));
}

int32_t schedule_named(const std::string &name) {
  const char *const names[] = {"auto", "ring", "all-gather", "all-scan", "doubling", "head-scatter", "relay"};
  for (int32_t i = 0; i < 7; ++i)
    if (name == names[i]) return i;
  throw std::runtime_error("no schedule " + name);
}

Settings parse(const std::vector<std::string> &words) {
  Settings s;
  s.folder = words.at(0);
  for (size_t i = 1; i < words.size(); ++i) {
    const auto number = [&] { return std::stoll(words.at(++i)); };
    if (words[i] == "--schedule") s.schedule = schedule_named(words.at(++i));
    if (words[i] == "--slow") s.slow = static_cast<int32_t>(number()), s.sleep_ms = number();
    if (words[i] == "--limit") s.limit_ms = number();
    if (words[i] == "--records") s.records = number();
    if (words[i] == "--tokens") s.tokens = number();
    if (words[i] == "--passes") s.passes = number();
    if (words[i] == "--ranks") s.ranks = static_cast<int32_t>(number());
    if (words[i] == "--heads") s.heads = static_cast<int32_t>(number());
    if (words[i] == "--dim") s.dim = static_cast<int32_t>(number());
    if (words[i] == "--warmup") s.warmup = number();
    if (words[i] == "--cuda") s.cuda = true;
    if (words[i] == "--nccl") s.cuda = s.nccl = true;
  }
  return s;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    const Settings settings = parse({argv + 1, argv + argc});
    const auto ranks = static_cast<size_t>(settings.ranks);
    std::vector<std::unique_ptr<gpu::NcclRank>> nccl;
    if (settings.nccl) nccl = gpu::make_nccl_group(settings.ranks);
    std::vector<lasp_comm *> comms(ranks);
    if (!settings.nccl) must(lasp_comm_create_threads(settings.ranks, comms.data()));
    std::barrier<> meeting(settings.ranks);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          if (settings.cuda) gpu::use_device(settings.nccl ? static_cast<int32_t>(rank) : 0);
          if (settings.nccl) must(lasp_comm_create_nccl(nccl[rank]->get(), nullptr, &comms[rank]));
          run_rank(settings, static_cast<int32_t>(rank), comms[rank], meeting);
        } catch (const std::exception &error) {
          std::fprintf(stderr, "trace_ranks: %s\n", error.what());
          std::_Exit(1);
        }
      });
    for (std::thread &thread : threads) thread.join();
    for (lasp_comm *comm : comms) must(lasp_comm_destroy(comm));
  } catch (const std::exception &error) {
    std::fprintf(stderr, "trace_ranks: %s\n", error.what());
    return 1;
  }
  return 0;
}
