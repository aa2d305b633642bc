// How many launches a pass is, counted in a captured graph, and what it costs on the host. One GPU is enough: in a
// group the other ranks are played, and a group of NCCL's messages counts as the one launch that it is.
//
//   pass_launches             the page docs/internals/launches.md
//   pass_launches --check FILE   compares the numbers of such a page with what is counted here; 1 where they differ
//   pass_launches --host      microseconds that a call takes on the host, as comma separated values
//   pass_launches --names     the launches themselves
//   pass_launches --times T   microseconds on the GPU, with T tokens a rank: of calls, and of a graph of them
//
// All by the public interface, for the shapes of lasp-bench --shapes models in bfloat16.
#include <lasp/lasp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "lasp_bench/config.h"
#include "lasp_bench/options.h"
#include "support/device.h"
#include "support/played_nccl.h"

namespace {

using bench::Shape;

constexpr int32_t kRank = 1, kRanks = 4;
constexpr int64_t kSequences = 8;

void check(lasp_status status, const char *call) {
  if (status == LASP_OK) return;
  std::fprintf(stderr, "%s: %s\n", call, lasp_last_error());
  std::exit(1);
}

// Zeros: what a pass launches does not depend on them.
class Memory {
 public:
  explicit Memory(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)), data_(bytes_ == 0 ? nullptr : gpu::allocate(bytes_)) {
    if (bytes_ > 0) gpu::fill(data_, 0, bytes_, nullptr);
  }
  ~Memory() {
    if (bytes_ > 0) gpu::release(data_, bytes_);
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  lasp_buffer out() const { return {data_, bytes_}; }
  lasp_const_buffer in() const { return {data_, bytes_}; }

 private:
  size_t bytes_;
  void *data_;
};

enum class Kind { kRows, kPackedHost, kPackedDevice, kGroup, kStep };

struct Tensors {
  explicit Tensors(const Shape &s)
      : q(elements(s, s.heads_q, s.head_dim_k)),
        k(elements(s, s.heads_k, s.head_dim_k)),
        v(elements(s, s.heads_v, s.head_dim_v)),
        o(elements(s, s.heads(), s.head_dim_v)),
        d_o(elements(s, s.heads(), s.head_dim_v)),
        dq(elements(s, s.heads_q, s.head_dim_k)),
        dk(elements(s, s.heads_k, s.head_dim_k)),
        dv(elements(s, s.heads_v, s.head_dim_v)),
        decay(decays(s)),
        d_decay(decays(s)),
        beta(s.delta() ? 2 * elements(s, s.heads(), 1) : 0),
        d_beta(s.delta() ? 2 * elements(s, s.heads(), 1) : 0),
        state(static_cast<int64_t>(s.state_bytes())) {}
  static int64_t elements(const Shape &s, int64_t heads, int64_t width) {
    return 2 * s.batch * s.tokens * heads * width;
  }
  static int64_t decays(const Shape &s) {
    if (s.decay == LASP_DECAY_NONE) return 0;
    if (s.decay == LASP_DECAY_HEAD) return 4 * int64_t{s.heads()};
    const int64_t width = s.decay == LASP_DECAY_CHANNEL ? s.head_dim_k : 1;
    return elements(s, s.heads(), width) * (s.rounded_decay ? 1 : 2);
  }
  Memory q, k, v, o, d_o, dq, dk, dv, decay, d_decay, beta, d_beta, state;
};

class Case {
 public:
  Case(const bench::Config &config, Kind kind, const Tensors &x, int32_t schedule = LASP_SCHEDULE_AUTO)
      : kind_(kind), x_(x), nccl_{kRank, kRanks, nullptr, 0}, stream_(gpu::make_stream()) {
    if (kind == Kind::kGroup) {
      comm_ = gpu::played_comm(nccl_);
      if (comm_ == nullptr) check(LASP_ERROR_INTERNAL, "lasp_comm_create_nccl");
    } else {
      check(lasp_comm_create_self(&comm_), "lasp_comm_create_self");
    }
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.device = LASP_DEVICE_CUDA;
    check(lasp_context_create(LASP_ABI, comm_, &options, &context_), "lasp_context_create");
    lasp_problem p = config.problem(0);
    p.schedule = schedule;
    if (packed()) p.max_sequences = kSequences;
    if (p.write == LASP_WRITE_DELTA) p.beta_layout.dtype = p.d_beta_layout.dtype = LASP_FLOAT32;
    if (kind == Kind::kStep) p.tokens = 1, p.backward = 0;
    check(lasp_plan_create(context_, &p, &plan_), "lasp_plan_create");
    check(lasp_plan_get_info(plan_, &info_), "lasp_plan_get_info");
    work_ = std::make_unique<Memory>(
        static_cast<int64_t>(std::max(info_.workspace_forward_bytes, info_.workspace_backward_bytes)));
    cache_ = std::make_unique<Memory>(static_cast<int64_t>(info_.state_cache_bytes));
    for (int64_t n = 0; n <= kSequences; ++n) offsets_.push_back(p.tokens * n / kSequences);
    const auto bytes = static_cast<size_t>(8 * (kSequences + 1));
    device_offsets_ = std::make_unique<Memory>(static_cast<int64_t>(bytes));
    gpu::copy(device_offsets_->out().data, offsets_.data(), bytes, nullptr);
    packing_.num_sequences = kSequences;
    packing_.cu_seqlens =
        kind == Kind::kPackedDevice ? device_offsets_->in() : lasp_const_buffer{offsets_.data(), bytes};
    packing_.memory = kind == Kind::kPackedDevice ? LASP_DEVICE_CUDA : LASP_DEVICE_CPU;
    gpu::wait(nullptr);
  }
  ~Case() {
    gpu::wait(stream_);
    lasp_plan_destroy(plan_);
    lasp_context_destroy(context_);
    lasp_comm_destroy(comm_);
    gpu::destroy_stream(stream_);
  }
  Case(const Case &) = delete;
  Case &operator=(const Case &) = delete;

  int32_t schedule() const { return info_.schedule; }

  void run(bool backward) {
    if (kind_ == Kind::kStep) return step();
    backward ? run_backward() : forward();
  }

  std::vector<std::string> launches(bool backward) {
    run(backward);  // what happens once is not counted
    gpu::wait(stream_);
    const int32_t groups = nccl_.groups;
    gpu::Graph graph;
    graph.begin(stream_);
    run(backward);
    graph.end(stream_);
    std::vector<std::string> names = graph.launches();
    names.insert(names.end(), static_cast<size_t>(nccl_.groups - groups), "NCCL");
    return names;
  }

  // Of one call, while the GPU is busy with those before: the median of ten means.
  double host_us(bool backward) {
    constexpr int kCalls = 20, kMeans = 10;
    std::vector<double> means;
    for (int i = 0; i < kMeans; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < kCalls; ++call) run(backward);
      const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
      means.push_back(spent.count() / kCalls);
      gpu::wait(stream_);
    }
    std::nth_element(means.begin(), means.begin() + kMeans / 2, means.end());
    return means[kMeans / 2];
  }

  // On the GPU, of one call among calls and among replays of a graph of it: the least of three means.
  struct Times {
    double call = 0, replay = 0;
  };
  Times device_us(bool backward) {
    launches(backward);
    gpu::Graph graph;
    graph.begin(stream_);
    run(backward);
    graph.end(stream_);
    return {mean_us([&] { run(backward); }), mean_us([&] { graph.launch(stream_); })};
  }

 private:
  template <class Body>
  double mean_us(const Body &body) {
    constexpr int kCalls = 20, kMeans = 3;
    gpu::Event begin, end;
    double least = 0;
    for (int i = 0; i < kMeans; ++i) {
      gpu::delay(stream_);  // while the host gets ahead
      begin.record(stream_);
      for (int call = 0; call < kCalls; ++call) body();
      end.record(stream_);
      end.wait();
      const double mean = 1e3 * end.milliseconds_since(begin) / kCalls;
      least = i == 0 ? mean : std::min(least, mean);
    }
    return least;
  }

  bool packed() const { return kind_ == Kind::kPackedHost || kind_ == Kind::kPackedDevice; }

  void forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = x_.q.in(), a.k = x_.k.in(), a.v = x_.v.in(), a.o = x_.o.out();
    a.decay = x_.decay.in(), a.beta = x_.beta.in();
    a.workspace = {work_->out().data, info_.workspace_forward_bytes}, a.state_cache = cache_->out();
    if (packed()) a.packing = &packing_;
    check(lasp_forward(plan_, &a, stream_), "lasp_forward");
  }
  void run_backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = x_.q.in(), a.k = x_.k.in(), a.v = x_.v.in(), a.d_o = x_.d_o.in();
    a.decay = x_.decay.in(), a.beta = x_.beta.in();
    a.dq = x_.dq.out(), a.dk = x_.dk.out(), a.dv = x_.dv.out();
    a.d_decay = x_.d_decay.out(), a.d_beta = x_.d_beta.out();
    a.workspace = {work_->out().data, info_.workspace_backward_bytes}, a.state_cache = cache_->in();
    if (packed()) a.packing = &packing_;
    check(lasp_backward(plan_, &a, stream_), "lasp_backward");
  }
  void step() {
    lasp_step_args a = LASP_STEP_ARGS_INIT;
    a.q = x_.q.in(), a.k = x_.k.in(), a.v = x_.v.in(), a.o = x_.o.out();
    a.decay = x_.decay.in(), a.beta = x_.beta.in();
    a.state = x_.state.out();
    check(lasp_step(plan_, &a, stream_), "lasp_step");
  }

  const Kind kind_;
  const Tensors &x_;
  gpu::PlayedNccl nccl_;
  lasp_stream stream_;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
  std::unique_ptr<Memory> work_, cache_, device_offsets_;
  std::vector<int64_t> offsets_;
  lasp_packing packing_ = LASP_PACKING_INIT;
};

struct Column {
  const char *name;
  Kind kind;
  int32_t schedule = LASP_SCHEDULE_AUTO;
};
constexpr Column kColumns[] = {{"rows", Kind::kRows},
                               {"packed, host offsets", Kind::kPackedHost},
                               {"packed, device offsets", Kind::kPackedDevice},
                               {"ring", Kind::kGroup, LASP_SCHEDULE_RING},
                               {"all-gather", Kind::kGroup, LASP_SCHEDULE_ALL_GATHER},
                               {"doubling", Kind::kGroup, LASP_SCHEDULE_DOUBLING},
                               {"step", Kind::kStep}};

std::vector<bench::Config> shapes(int64_t tokens = 0) {
  bench::Options options;
  options.device = LASP_DEVICE_CUDA;
  options.dtype = {LASP_BFLOAT16};
  options.model_tokens = tokens;
  return bench::model_configs(options, 1);
}

// What the test of LASP's own code has on each rank.
bench::Config shape_of_lasp() {
  bench::Config config = shapes()[1];
  Shape &s = config.shape;
  config.name = "LASP's test: 128 x 64, per head, batch 8";
  s.batch = 8, s.tokens = 512, s.heads_q = s.heads_k = s.heads_v = 12, s.head_dim_v = 64;
  return config;
}

bool serves(const bench::Config &config, const Column &column) {
  const bool packed = column.kind == Kind::kPackedHost || column.kind == Kind::kPackedDevice;
  return !packed || config.shape.batch == 1;
}

template <class Body>
void each_case(const Body &body) {
  for (const bench::Config &config : shapes()) {
    const Tensors tensors(config.shape);
    for (const Column &column : kColumns) {
      if (!serves(config, column)) continue;
      Case one(config, column.kind, tensors, column.schedule);
      body(config, column, one);
    }
  }
}

std::string page() {
  std::string text =
      "# Launches of a pass\n\n"
      "Made by `pass_launches` (bench/pass_launches.cpp) on an H200, which counts the nodes of a graph that\n"
      "it captures: kernels, and memory that is set or copied; a group of NCCL's messages is one. The shapes\n"
      "are those of `lasp-bench --shapes models`, bfloat16, with the gradient of the decay. A cell is\n"
      "forward + backward. Packed: 8 sequences of the same tokens. In a group: rank 1 of 4, each with the\n"
      "tokens of the row, by each schedule. `tests/gpu/run` compares the numbers with what it counts.\n\n"
      "| shape |";
  std::string line = "|---|";
  for (const Column &column : kColumns) text += std::string(" ") + column.name + " |", line += "---|";
  text += "\n" + line;
  std::string last;
  each_case([&](const bench::Config &config, const Column &column, Case &one) {
    if (config.name != last) text += "\n| " + config.name + " |";
    last = config.name;
    text += " " + std::to_string(one.launches(false).size());
    if (column.kind != Kind::kStep) text += " + " + std::to_string(one.launches(true).size());
    text += " |";
    if (column.kind == Kind::kRows && config.shape.batch > 1) text += " | |";
    std::fprintf(stderr, ".");
  });
  std::fprintf(stderr, "\n");
  return text + "\n";
}

std::string table_of(const std::string &text) {
  const size_t begin = text.find("| shape |");
  if (begin == std::string::npos) return "";
  const size_t end = text.find("\n\n", begin);
  return text.substr(begin, end == std::string::npos ? end : end - begin + 1);
}

int compare(const char *path) {
  if (gpu::capability() != 90 || gpu::multiprocessors() != 132)
    return std::printf("skipped: the page is of an H100 or H200\n"), 0;
  std::ifstream file(path);
  const std::string there = table_of({std::istreambuf_iterator<char>(file), {}}), counted = table_of(page());
  if (!there.empty() && there == counted) return 0;
  std::fprintf(stderr, "%s has other numbers than these:\n%s", path, counted.c_str());
  return 1;
}

void print_names() {
  each_case([&](const bench::Config &config, const Column &column, Case &one) {
    for (const bool backward : {false, true}) {
      if (backward && column.kind == Kind::kStep) continue;
      std::printf("%s, %s, %s:", config.name.c_str(), column.name, backward ? "backward" : "forward");
      for (const std::string &name : one.launches(backward)) std::printf(" %s", name.c_str());
      std::printf("\n");
    }
  });
}

void print_host() {
  std::printf("device,%s\nshape,case,forward_us,backward_us\n", gpu::device_name(0).c_str());
  each_case([&](const bench::Config &config, const Column &column, Case &one) {
    one.launches(false), one.launches(column.kind != Kind::kStep);
    const double forward = one.host_us(false), backward = column.kind == Kind::kStep ? 0 : one.host_us(true);
    std::printf("\"%s\",\"%s\",%.1f,%.1f\n", config.name.c_str(), column.name, forward, backward);
    std::fflush(stdout);
  });
}

void print_times(int64_t tokens) {
  std::printf("shape,case,tokens,forward_us,backward_us,forward_graph_us,backward_graph_us\n");
  std::vector<bench::Config> configs = shapes(tokens);
  configs.push_back(shape_of_lasp());
  for (const bench::Config &config : configs) {
    const Tensors tensors(config.shape);
    for (const Column &column : kColumns) {
      if (column.kind != Kind::kRows && column.schedule != LASP_SCHEDULE_RING) continue;
      Case one(config, column.kind, tensors, column.schedule);
      const Case::Times forward = one.device_us(false), backward = one.device_us(true);
      std::printf("\"%s\",\"%s\",%lld,%.1f,%.1f,%.1f,%.1f\n", config.name.c_str(), column.name,
                  static_cast<long long>(config.shape.tokens), forward.call, backward.call, forward.replay,
                  backward.replay);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char **argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const bool takes_word = mode == "--check" || mode == "--times";
  const bool known = mode.empty() || takes_word || mode == "--host" || mode == "--names";
  const long long tokens = mode == "--times" && argc == 3 ? std::atoll(argv[2]) : 1;
  if (!known || argc != (mode.empty() ? 1 : takes_word ? 3 : 2) || tokens < 1)
    return std::fprintf(stderr, "usage: pass_launches [--check FILE | --host | --names | --times TOKENS]\n"), 2;
  if (const std::string why = gpu::why_unusable(); !why.empty())
    return std::fprintf(stderr, "pass_launches: %s\n", why.c_str()), 1;
  if (mode == "--check") return compare(argv[2]);
  if (mode.empty()) std::fputs(page().c_str(), stdout);
  if (mode == "--host") print_host();
  if (mode == "--names") print_names();
  if (mode == "--times") print_times(tokens);
  return 0;
}
