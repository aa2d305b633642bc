// What packing costs: passes over B rows of T tokens, and over the same tokens as B sequences of one row, with
// offsets in host memory and, on a GPU, in device memory; and the host's time for a packing that is new in each
// pass over one that stays. Medians of alternating runs, in milliseconds and microseconds.
//
//   packed_passes [rows [tokens [heads [head_dim [rounds]]]]]        on a GPU where there is one, else on the CPU
#include <lasp/lasp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/device.h"

namespace {

bool on_gpu = false;

void check(lasp_status status, const char *call) {
  if (status == LASP_OK) return;
  std::fprintf(stderr, "%s: %s\n", call, lasp_last_error());
  std::exit(1);
}

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    data_ = on_gpu ? gpu::allocate(bytes + 256) : std::calloc(1, bytes + 256);
    if (on_gpu) gpu::fill(data_, 0, bytes, nullptr);
  }
  ~Memory() { on_gpu ? gpu::release(data_, bytes_ + 256) : std::free(data_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;

  // 16-bit patterns of small bfloat16 numbers, of either sign; or a log decay of -2^-7 in float32.
  void fill(bool decay) {
    std::vector<uint16_t> values(bytes_ / 2);
    uint32_t x = 1;
    for (size_t i = 0; i < values.size(); ++i) {
      x = x * 1664525u + 1013904223u;
      values[i] =
          decay ? (i % 2 == 0 ? 0 : 0xbc00) : static_cast<uint16_t>((x >> 16 & 0x8000) | 0x3d00 | (x >> 20 & 0x7f));
    }
    on_gpu ? gpu::copy(data_, values.data(), bytes_, nullptr)
           : static_cast<void>(std::memcpy(data_, values.data(), bytes_));
    if (on_gpu) gpu::wait(nullptr);
  }
  lasp_buffer out() const { return {data_, bytes_}; }
  lasp_const_buffer in() const { return {data_, bytes_}; }
  void *data() const { return data_; }

 private:
  size_t bytes_;
  void *data_;
};

struct Shape {
  int64_t rows = 8, tokens = 2048, heads = 32, dim = 128;
  int32_t decay = LASP_DECAY_HEAD;
  int64_t elements() const { return rows * tokens * heads * dim; }
};

// A plan of B rows, or of one row that is packed.
class Passes {
 public:
  Passes(lasp_context *context, const Shape &s, bool packed, bool device_offsets)
      : shape_(s), packed_(packed), on_device_(device_offsets) {
    lasp_problem p = LASP_PROBLEM_INIT;
    p.batch = packed ? 1 : s.rows, p.tokens = packed ? s.rows * s.tokens : s.tokens;
    p.max_sequences = packed ? s.rows : 0;
    p.heads_q = p.heads_k = p.heads_v = static_cast<int32_t>(s.heads);
    p.head_dim_k = p.head_dim_v = static_cast<int32_t>(s.dim);
    p.dtype = LASP_BFLOAT16, p.decay = s.decay;
    check(lasp_plan_create(context, &p, &plan_), "lasp_plan_create");
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    check(lasp_plan_get_info(plan_, &info), "lasp_plan_get_info");
    work_ = std::make_unique<Memory>(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
    cache_ = std::make_unique<Memory>(info.state_cache_bytes);
    offsets_ = std::make_unique<Memory>(static_cast<size_t>(s.rows + 1) * 8);
    forward_bytes_ = info.workspace_forward_bytes, backward_bytes_ = info.workspace_backward_bytes;
    for (int64_t n = 0; n <= s.rows; ++n) even_.push_back(n * s.tokens), uneven_.push_back(n * s.tokens);
    for (size_t n = 1; n + 1 < uneven_.size(); ++n) uneven_[n] -= 64;
    set(even_);
  }
  ~Passes() { lasp_plan_destroy(plan_); }

  void set(const std::vector<int64_t> &offsets) {
    packing_.num_sequences = shape_.rows;
    packing_.cu_seqlens = {offsets.data(), offsets.size() * 8};
    if (!on_device_) return;
    gpu::copy(offsets_->data(), offsets.data(), offsets.size() * 8, nullptr);
    packing_.cu_seqlens.data = offsets_->data();
  }
  void forward(const Memory *const (&x)[4], const Memory &o, const Memory &decay) {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = x[0]->in(), a.k = x[1]->in(), a.v = x[2]->in(), a.o = o.out();
    if (shape_.decay != LASP_DECAY_NONE) a.decay = decay.in();
    a.workspace = {work_->data(), forward_bytes_}, a.state_cache = cache_->out();
    if (packed_) a.packing = &packing_;
    check(lasp_forward(plan_, &a, nullptr), "lasp_forward");
  }
  void backward(const Memory *const (&x)[4], const Memory *const (&to)[3], const Memory &decay,
                const Memory &d_decay) {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = x[0]->in(), a.k = x[1]->in(), a.v = x[2]->in(), a.d_o = x[3]->in();
    if (shape_.decay != LASP_DECAY_NONE) a.decay = decay.in(), a.d_decay = d_decay.out();
    a.dq = to[0]->out(), a.dk = to[1]->out(), a.dv = to[2]->out();
    a.workspace = {work_->data(), backward_bytes_}, a.state_cache = cache_->in();
    if (packed_) a.packing = &packing_;
    check(lasp_backward(plan_, &a, nullptr), "lasp_backward");
  }
  const std::vector<int64_t> &offsets(bool even) const { return even ? even_ : uneven_; }

 private:
  const Shape shape_;
  const bool packed_, on_device_;
  lasp_plan *plan_ = nullptr;
  std::unique_ptr<Memory> work_, cache_, offsets_;
  uint64_t forward_bytes_ = 0, backward_bytes_ = 0;
  std::vector<int64_t> even_, uneven_;
  lasp_packing packing_ = LASP_PACKING_INIT;
};

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Of one pass of several one after the other, as a training step has them: on a GPU the host is ahead, then.
template <class Body>
double milliseconds(Body body) {
  constexpr int kPasses = 10;
  if (!on_gpu) {
    const double begin = now_us();
    body();
    return (now_us() - begin) / 1000;
  }
  gpu::Event begin, end;
  body();
  begin.record(nullptr);
  for (int i = 0; i < kPasses; ++i) body();
  end.record(nullptr);
  end.wait();
  return end.milliseconds_since(begin) / kPasses;
}
std::string quantiles(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  char text[64];
  std::snprintf(text, sizeof text, "%8.3f [%.3f, %.3f]", x[x.size() / 2], x[x.size() / 10], x[x.size() * 9 / 10]);
  return text;
}

void measure(lasp_context *context, const Shape &s, int rounds) {
  const size_t bytes = static_cast<size_t>(s.elements()) * 2;
  Memory q(bytes), k(bytes), v(bytes), d_o(bytes), o(bytes), dq(bytes), dk(bytes), dv(bytes);
  const int64_t decays =
      s.decay == LASP_DECAY_HEAD ? s.heads : s.elements() / (s.decay == LASP_DECAY_SCALAR ? s.dim : 1);
  Memory g(static_cast<size_t>(decays) * 4), d_g(static_cast<size_t>(decays) * 4);
  for (Memory *x : {&q, &k, &v, &d_o}) x->fill(false);
  g.fill(true);
  const Memory *const inputs[4] = {&q, &k, &v, &d_o};
  const Memory *const gradients[3] = {&dq, &dk, &dv};
  const char *const names[] = {"rows", "packed, host offsets", "packed, device offsets"};
  const char *const decay_names[] = {"none", "head", "scalar", "channel"};
  std::vector<std::unique_ptr<Passes>> passes;
  for (int kind = 0; kind < (on_gpu ? 3 : 2); ++kind)
    passes.push_back(std::make_unique<Passes>(context, s, kind > 0, kind == 2));
  std::vector<std::vector<double>> forward(passes.size()), backward(passes.size());
  for (int round = -2; round < rounds; ++round)
    for (size_t i = 0; i < passes.size(); ++i) {
      const double f = milliseconds([&] { passes[i]->forward(inputs, o, g); });
      const double b = milliseconds([&] { passes[i]->backward(inputs, gradients, g, d_g); });
      if (round >= 0) forward[i].push_back(f), backward[i].push_back(b);
    }
  for (size_t i = 0; i < passes.size(); ++i)
    std::printf("%-8s %-23s forward ms %s, backward ms %s\n", decay_names[s.decay], names[i],
                quantiles(forward[i]).c_str(), quantiles(backward[i]).c_str());
  if (!on_gpu) return;
  std::vector<double> same, changed;
  for (int round = 0; round < 4 * rounds; ++round) {
    const bool change = round % 2 == 1;
    passes[1]->set(passes[1]->offsets(change ? round % 4 == 1 : true));
    gpu::wait(nullptr);
    const double begin = now_us();
    passes[1]->forward(inputs, o, g);
    (change ? changed : same).push_back(now_us() - begin);
    gpu::wait(nullptr);
  }
  std::printf("%-8s host us of lasp_forward: the last packing again %s, a new one %s\n", decay_names[s.decay],
              quantiles(same).c_str(), quantiles(changed).c_str());
}

}  // namespace

int main(int argc, char **argv) {
  Shape s;
  on_gpu = gpu::why_unusable().empty();
  if (!on_gpu) s.rows = 4, s.tokens = 512, s.heads = 4;
  const auto number = [&](int i, int64_t other) { return argc > i ? std::atoll(argv[i]) : other; };
  s.rows = number(1, s.rows), s.tokens = number(2, s.tokens), s.heads = number(3, s.heads),
  s.dim = number(4, s.dim);
  const int rounds = static_cast<int>(number(5, 30));
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = on_gpu ? LASP_DEVICE_CUDA : LASP_DEVICE_CPU;
  check(lasp_comm_create_self(&comm), "lasp_comm_create_self");
  check(lasp_context_create(LASP_ABI, comm, &options, &context), "lasp_context_create");
  std::printf("%s: %lld sequences of %lld tokens, %lld heads, K = V = %lld, bfloat16; median [10%%, 90%%] of %d\n",
              on_gpu ? gpu::device_name(gpu::current_device()).c_str() : "CPU", static_cast<long long>(s.rows),
              static_cast<long long>(s.tokens), static_cast<long long>(s.heads), static_cast<long long>(s.dim),
              rounds);
  for (const int32_t decay : {LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    s.decay = decay;
    measure(context, s, rounds);
  }
  check(lasp_context_destroy(context), "lasp_context_destroy");
  check(lasp_comm_destroy(comm), "lasp_comm_destroy");
}
