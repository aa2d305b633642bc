// What packing costs: passes over B rows of T tokens, and over the same tokens as B sequences of one row, with
// offsets in host memory and, on a GPU, in device memory; and the host's time for a packing that is new in each
// pass over one that stays. Medians of alternating runs, in milliseconds and microseconds.
//
//   packed_passes [rows [tokens [heads [head_dim [rounds [kind]]]]]]   on a GPU where there is one, else on the CPU
//   packed_passes mixed [sequences [heads [head_dim [rounds [kind]]]]]
//
// kind: none, head, scalar, channel, delta (per head); else all but none. mixed: sequences of 64 to 4,096 tokens,
// as many of 64 to 128 as of 2,048 to 4,096, beside one sequence of as many tokens.
#include <lasp/lasp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
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
    data_ = on_gpu ? gpu::allocate(bytes + 256) : std::aligned_alloc(256, (bytes + 511) / 256 * 256);
    on_gpu ? gpu::fill(data_, 0, bytes, nullptr) : static_cast<void>(std::memset(data_, 0, bytes));
  }
  ~Memory() { on_gpu ? gpu::release(data_, bytes_ + 256) : std::free(data_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;

  // 16-bit patterns of small bfloat16 numbers, of either sign; or a log decay of -2^-7 in float32. The same again
  // after some millions of them.
  void fill(bool decay) {
    std::vector<uint16_t> values(std::min<size_t>(bytes_ / 2, size_t{1} << 24));
    uint32_t x = 1;
    for (size_t i = 0; i < values.size(); ++i) {
      x = x * 1664525u + 1013904223u;
      values[i] =
          decay ? (i % 2 == 0 ? 0 : 0xbc00) : static_cast<uint16_t>((x >> 16 & 0x8000) | 0x3d00 | (x >> 20 & 0x7f));
    }
    for (size_t at = 0; at < bytes_; at += 2 * values.size()) {
      char *const to = static_cast<char *>(data_) + at;
      const size_t size = std::min(bytes_ - at, 2 * values.size());
      on_gpu ? gpu::copy(to, values.data(), size, nullptr)
             : static_cast<void>(std::memcpy(to, values.data(), size));
    }
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
  int64_t rows = 8, tokens = 2048, heads = 32, dim = 128;  // of what is not packed
  std::vector<int64_t> offsets;                            // of what is
  int32_t decay = LASP_DECAY_HEAD;
  bool delta = false;
  int64_t all_tokens() const { return rows * tokens; }
  int64_t elements() const { return all_tokens() * heads * dim; }
  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

// Tensors of all passes.
struct Tensors {
  explicit Tensors(const Shape &s)
      : q(2 * size(s)),
        k(2 * size(s)),
        v(2 * size(s)),
        d_o(2 * size(s)),
        o(2 * size(s)),
        dq(2 * size(s)),
        dk(2 * size(s)),
        dv(2 * size(s)),
        decay(decays(s)),
        d_decay(decays(s)),
        beta(s.delta ? 2 * size(s) / static_cast<size_t>(s.dim) : 2),
        d_beta(s.delta ? 2 * size(s) / static_cast<size_t>(s.dim) : 2) {
    for (Memory *x : {&q, &k, &v, &d_o, &beta}) x->fill(false);
    decay.fill(true);
  }
  static size_t size(const Shape &s) { return static_cast<size_t>(s.elements()); }
  static size_t decays(const Shape &s) {
    if (s.decay == LASP_DECAY_HEAD) return 4 * static_cast<size_t>(s.heads);
    return 4 * size(s) / (s.decay == LASP_DECAY_SCALAR ? static_cast<size_t>(s.dim) : 1);
  }
  Memory q, k, v, d_o, o, dq, dk, dv, decay, d_decay, beta, d_beta;
};

// A plan of B rows, or of one row that is packed.
class Passes {
 public:
  Passes(lasp_context *context, const Shape &s, bool packed, bool device_offsets)
      : shape_(s), packed_(packed), on_device_(device_offsets) {
    lasp_problem p = LASP_PROBLEM_INIT;
    p.batch = packed ? 1 : s.rows, p.tokens = packed ? s.all_tokens() : s.tokens;
    p.max_sequences = packed ? s.sequences() : 0;
    p.heads_q = p.heads_k = p.heads_v = static_cast<int32_t>(s.heads);
    p.head_dim_k = p.head_dim_v = static_cast<int32_t>(s.dim);
    p.dtype = LASP_BFLOAT16, p.decay = s.decay;
    if (s.delta) {
      p.write = LASP_WRITE_DELTA;
      p.beta_layout.dtype = p.d_beta_layout.dtype = LASP_BFLOAT16;
    }
    check(lasp_plan_create(context, &p, &plan_), "lasp_plan_create");
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    check(lasp_plan_get_info(plan_, &info), "lasp_plan_get_info");
    work_ = std::make_unique<Memory>(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
    cache_ = std::make_unique<Memory>(info.state_cache_bytes);
    offsets_ = std::make_unique<Memory>(s.offsets.size() * 8);
    forward_bytes_ = info.workspace_forward_bytes, backward_bytes_ = info.workspace_backward_bytes;
    uneven_ = s.offsets;
    for (size_t n = 1; n + 1 < uneven_.size(); ++n) uneven_[n] -= 64;
    set(shape_.offsets);
  }
  ~Passes() { lasp_plan_destroy(plan_); }

  void set(const std::vector<int64_t> &offsets) {
    packing_.num_sequences = shape_.sequences();
    packing_.cu_seqlens = {offsets.data(), offsets.size() * 8};
    if (!on_device_) return;
    gpu::copy(offsets_->data(), offsets.data(), offsets.size() * 8, nullptr);
    packing_.cu_seqlens.data = offsets_->data();
  }
  void forward(const Tensors &x) {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = x.q.in(), a.k = x.k.in(), a.v = x.v.in(), a.o = x.o.out();
    if (shape_.decay != LASP_DECAY_NONE) a.decay = x.decay.in();
    if (shape_.delta) a.beta = x.beta.in();
    a.workspace = {work_->data(), forward_bytes_}, a.state_cache = cache_->out();
    if (packed_) a.packing = &packing_;
    check(lasp_forward(plan_, &a, nullptr), "lasp_forward");
  }
  void backward(const Tensors &x) {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = x.q.in(), a.k = x.k.in(), a.v = x.v.in(), a.d_o = x.d_o.in();
    if (shape_.decay != LASP_DECAY_NONE) a.decay = x.decay.in(), a.d_decay = x.d_decay.out();
    if (shape_.delta) a.beta = x.beta.in(), a.d_beta = x.d_beta.out();
    a.dq = x.dq.out(), a.dk = x.dk.out(), a.dv = x.dv.out();
    a.workspace = {work_->data(), backward_bytes_}, a.state_cache = cache_->in();
    if (packed_) a.packing = &packing_;
    check(lasp_backward(plan_, &a, nullptr), "lasp_backward");
  }
  const std::vector<int64_t> &offsets(bool even) const { return even ? shape_.offsets : uneven_; }

 private:
  const Shape shape_;
  const bool packed_, on_device_;
  lasp_plan *plan_ = nullptr;
  std::unique_ptr<Memory> work_, cache_, offsets_;
  uint64_t forward_bytes_ = 0, backward_bytes_ = 0;
  std::vector<int64_t> uneven_;
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

struct Kind {
  const char *name;
  int32_t decay;
  bool delta, usual;
};
constexpr Kind kKinds[] = {{"none", LASP_DECAY_NONE, false, false},
                           {"head", LASP_DECAY_HEAD, false, true},
                           {"scalar", LASP_DECAY_SCALAR, false, true},
                           {"channel", LASP_DECAY_CHANNEL, false, true},
                           {"delta", LASP_DECAY_HEAD, true, true}};

void measure(lasp_context *context, const Shape &s, const char *kind, int rounds) {
  const Tensors x(s);
  const char *const names[] = {s.sequences() == s.rows ? "rows" : "one sequence", "packed, host offsets",
                               "packed, device offsets"};
  std::vector<std::unique_ptr<Passes>> passes;
  for (int way = 0; way < (on_gpu ? 3 : 2); ++way)
    passes.push_back(std::make_unique<Passes>(context, s, way > 0, way == 2));
  std::vector<std::vector<double>> forward(passes.size()), backward(passes.size());
  for (int round = -2; round < rounds; ++round)
    for (size_t i = 0; i < passes.size(); ++i) {
      const double f = milliseconds([&] { passes[i]->forward(x); });
      const double b = milliseconds([&] { passes[i]->backward(x); });
      if (round >= 0) forward[i].push_back(f), backward[i].push_back(b);
    }
  for (size_t i = 0; i < passes.size(); ++i)
    std::printf("%-8s %-23s forward ms %s, backward ms %s\n", kind, names[i], quantiles(forward[i]).c_str(),
                quantiles(backward[i]).c_str());
  std::fflush(stdout);
  if (!on_gpu) return;
  std::vector<double> same, changed;
  for (int round = 0; round < 4 * rounds; ++round) {
    const bool change = round % 2 == 1;
    passes[1]->set(passes[1]->offsets(change ? round % 4 == 1 : true));
    gpu::wait(nullptr);
    const double begin = now_us();
    passes[1]->forward(x);
    (change ? changed : same).push_back(now_us() - begin);
    gpu::wait(nullptr);
  }
  std::printf("%-8s host us of lasp_forward: the last packing again %s, a new one %s\n", kind,
              quantiles(same).c_str(), quantiles(changed).c_str());
}

// Of 64 to 4,096 tokens each; the logarithms of the lengths are even.
std::vector<int64_t> mixed_offsets(int64_t sequences) {
  std::vector<int64_t> offsets = {0};
  uint32_t x = 1;
  for (int64_t n = 0; n < sequences; ++n) {
    x = x * 1664525u + 1013904223u;
    offsets.push_back(offsets.back() + static_cast<int64_t>(64 * std::exp2(6.0 * (x >> 8) / 0x1p24)));
  }
  return offsets;
}

}  // namespace

int main(int argc, char **argv) {
  Shape s;
  on_gpu = gpu::why_unusable().empty();
  if (!on_gpu) s.rows = 4, s.tokens = 512, s.heads = 4;
  const bool mixed = argc > 1 && std::strcmp(argv[1], "mixed") == 0;
  int next = mixed ? 2 : 1;
  const auto number = [&](int64_t other) { return argc > next ? std::atoll(argv[next++]) : other; };
  if (mixed) {
    s.offsets = mixed_offsets(number(on_gpu ? 1000 : 20));
    s.rows = 1, s.tokens = s.offsets.back();
  } else {
    s.rows = number(s.rows), s.tokens = number(s.tokens);
    for (int64_t n = 0; n <= s.rows; ++n) s.offsets.push_back(n * s.tokens);
  }
  s.heads = number(mixed && on_gpu ? 8 : s.heads), s.dim = number(s.dim);
  const int rounds = static_cast<int>(number(30));
  const char *const wanted = argc > next ? argv[next] : nullptr;
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = on_gpu ? LASP_DEVICE_CUDA : LASP_DEVICE_CPU;
  check(lasp_comm_create_self(&comm), "lasp_comm_create_self");
  check(lasp_context_create(LASP_ABI, comm, &options, &context), "lasp_context_create");
  std::printf(
      "%s: %lld sequences of %s%lld tokens, %lld heads, K = V = %lld, bfloat16; median [10%%, 90%%] of %d\n",
      on_gpu ? gpu::device_name(gpu::current_device()).c_str() : "CPU", static_cast<long long>(s.sequences()),
      mixed ? "64 to 4,096, in all " : "", static_cast<long long>(s.tokens), static_cast<long long>(s.heads),
      static_cast<long long>(s.dim), rounds);
  for (const Kind &kind : kKinds) {
    if (wanted != nullptr ? std::strcmp(wanted, kind.name) != 0 : !kind.usual) continue;
    s.decay = kind.decay, s.delta = kind.delta;
    measure(context, s, kind.name, rounds);
  }
  check(lasp_context_destroy(context), "lasp_context_destroy");
  check(lasp_comm_destroy(comm), "lasp_comm_destroy");
}
