#include "reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "inputs.h"

namespace bench {
namespace {

constexpr int32_t kDims = 4;                            // columns or rows followed
constexpr int64_t kLongestGradient = int64_t{1} << 29;  // B T K V at which a whole state is still followed

std::vector<int32_t> spread_dims(int32_t width) {
  std::vector<int32_t> dims(kDims);
  for (int32_t i = 0; i < kDims; ++i) dims[i] = i * (width - 1) / (kDims - 1);
  return dims;
}

// A head of the state's walk along the sequence: the rows of the inputs at one token, made on demand.
class Walk {
 public:
  Walk(const Shape &shape, int64_t batch_row, int32_t head)
      : shape_(shape),
        inputs_(shape),
        batch_row_(batch_row),
        head_(head),
        q_(shape.head_dim_k),
        k_(shape.head_dim_k),
        a_(shape.head_dim_k, 1.0),
        v_(shape.head_dim_v),
        d_o_(shape.head_dim_v) {
    if (shape.decay == LASP_DECAY_HEAD) a_.assign(a_.size(), std::exp(double{inputs_.log_decay(0, 0, head, 0)}));
  }

  const std::vector<float> &q(int64_t t) {
    return fill(q_, Inputs::kQ, t, head_ * shape_.heads_q / shape_.heads());
  }
  const std::vector<float> &k(int64_t t) {
    return fill(k_, Inputs::kK, t, head_ * shape_.heads_k / shape_.heads());
  }
  const std::vector<float> &v(int64_t t) {
    return fill(v_, Inputs::kV, t, head_ * shape_.heads_v / shape_.heads());
  }
  const std::vector<float> &d_o(int64_t t) { return fill(d_o_, Inputs::kDO, t, head_); }
  // Decay factors of the channels in `rows`; others are not looked at.
  const std::vector<double> &decay(int64_t t, const std::vector<int32_t> &rows) {
    if (shape_.decay == LASP_DECAY_SCALAR)
      a_.assign(a_.size(), std::exp(double{inputs_.log_decay(batch_row_, t, head_, 0)}));
    if (shape_.decay == LASP_DECAY_CHANNEL)
      for (const int32_t r : rows) a_[r] = std::exp(double{inputs_.log_decay(batch_row_, t, head_, r)});
    return a_;
  }

 private:
  const std::vector<float> &fill(std::vector<float> &to, Inputs::Tensor tensor, int64_t t, int32_t head) {
    inputs_.row(tensor, batch_row_, t, head, to.data());
    return to;
  }

  const Shape &shape_;
  Inputs inputs_;
  int64_t batch_row_;
  int32_t head_;
  std::vector<float> q_, k_;
  std::vector<double> a_;
  std::vector<float> v_, d_o_;
};

std::vector<int32_t> all_of(int32_t width) {
  std::vector<int32_t> dims(static_cast<size_t>(width));
  for (int32_t i = 0; i < width; ++i) dims[i] = i;
  return dims;
}

// A state S [rows, columns] that forgets and takes in an outer product at each token, and is read at each token;
// or, unmasked, is read only when it has taken in all.
template <class Visit>
void for_tokens(int64_t tokens, bool reverse, Visit visit) {
  for (int64_t i = 0; i < tokens; ++i) visit(reverse ? tokens - 1 - i : i);
}

// A few value columns: o in the sequence's direction (S = a S + k v), dv against it (S = S + scale q do, read, then
// forgets).
void add_columns(const Shape &shape, int64_t batch_row, int32_t head, bool gradient, Sample &sample) {
  Walk walk(shape, batch_row, head);
  const auto n = static_cast<int32_t>(sample.dims.size());
  const int32_t rows = shape.head_dim_k;
  const std::vector<int32_t> channels = all_of(rows);
  const double scale = shape.scale();
  std::vector<double> state(static_cast<size_t>(rows) * n, 0.0);
  const auto forget = [&](int64_t t) {
    if (shape.decay == LASP_DECAY_NONE) return;
    const std::vector<double> &a = walk.decay(t, channels);
    for (int32_t r = 0; r < rows; ++r)
      for (int32_t c = 0; c < n; ++c) state[r * n + c] *= a[r];
  };
  const auto take_in = [&](int64_t t) {
    const std::vector<float> &left = gradient ? walk.q(t) : walk.k(t);
    const std::vector<float> &right = gradient ? walk.d_o(t) : walk.v(t);
    for (int32_t r = 0; r < rows; ++r)
      for (int32_t c = 0; c < n; ++c) state[r * n + c] += double{left[r]} * right[sample.dims[c]];
  };
  const auto read = [&](int64_t t) {
    const std::vector<float> &left = gradient ? walk.k(t) : walk.q(t);
    double *out = sample.values.data() + t * n;
    for (int32_t r = 0; r < rows; ++r)
      for (int32_t c = 0; c < n; ++c) out[c] += scale * left[r] * state[r * n + c];
  };
  for_tokens(shape.tokens, gradient, [&](int64_t t) {
    if (!gradient) forget(t);
    take_in(t);
    if (!shape.bidirectional()) read(t);
    if (gradient) forget(t);
  });
  if (shape.bidirectional()) for_tokens(shape.tokens, false, read);
}

// A few key rows of one output head's state: what it adds to dq and dk there, [tokens][rows] each.
struct RowGradients {
  std::vector<double> dq, dk;
};

RowGradients follow_rows(const Shape &shape, int64_t batch_row, int32_t head, const std::vector<int32_t> &rows) {
  Walk walk(shape, batch_row, head);
  const size_t n = rows.size();
  const int32_t columns = shape.head_dim_v;
  const double scale = shape.scale();
  RowGradients out;
  const auto follow = [&](bool reverse, std::vector<double> &result) {
    std::vector<double> state(n * columns, 0.0);
    result.assign(static_cast<size_t>(shape.tokens) * n, 0.0);
    const auto forget = [&](int64_t t) {
      if (shape.decay == LASP_DECAY_NONE) return;
      const std::vector<double> &a = walk.decay(t, rows);
      for (size_t r = 0; r < n; ++r)
        for (int32_t c = 0; c < columns; ++c) state[r * columns + c] *= a[rows[r]];
    };
    const auto take_in = [&](int64_t t) {
      const std::vector<float> &left = reverse ? walk.q(t) : walk.k(t);
      const std::vector<float> &right = reverse ? walk.d_o(t) : walk.v(t);
      for (size_t r = 0; r < n; ++r) {
        const double factor = left[rows[r]] * (reverse ? scale : 1.0);
        for (int32_t c = 0; c < columns; ++c) state[r * columns + c] += factor * right[c];
      }
    };
    const auto read = [&](int64_t t) {
      const std::vector<float> &right = reverse ? walk.v(t) : walk.d_o(t);
      for (size_t r = 0; r < n; ++r) {
        double sum = 0;
        for (int32_t c = 0; c < columns; ++c) sum += state[r * columns + c] * right[c];
        result[static_cast<size_t>(t) * n + r] = sum * (reverse ? 1.0 : scale);
      }
    };
    for_tokens(shape.tokens, reverse, [&](int64_t t) {
      if (!reverse) forget(t);
      take_in(t);
      if (!shape.bidirectional()) read(t);
      if (reverse) forget(t);
    });
    if (shape.bidirectional()) for_tokens(shape.tokens, false, read);
  };
  follow(false, out.dq);
  follow(true, out.dk);
  return out;
}

// The gradient of log decay, row by row: dg_t = dg_{t+1} + q_t dq_t - k_t dk_t, where dq and dk are this head's.
std::vector<double> decay_gradient(const Shape &shape, int64_t batch_row, int32_t head,
                                   const std::vector<int32_t> &rows, const RowGradients &gradients) {
  Walk walk(shape, batch_row, head);
  const size_t n = rows.size();
  std::vector<double> dg(static_cast<size_t>(shape.tokens) * n), sum(n, 0.0);
  for_tokens(shape.tokens, true, [&](int64_t t) {
    const std::vector<float> &q = walk.q(t), &k = walk.k(t);
    for (size_t r = 0; r < n; ++r) {
      const size_t i = static_cast<size_t>(t) * n + r;
      sum[r] += q[rows[r]] * gradients.dq[i] - k[rows[r]] * gradients.dk[i];
      dg[i] = sum[r];
    }
  });
  return dg;
}

// The same summed over all rows, [tokens]: what decay per head, or per token and head, needs. Follows the whole
// state.
std::vector<double> whole_decay_gradient(const Shape &shape, int64_t batch_row, int32_t head) {
  constexpr int32_t kBlock = 16;  // rows at a time, to bound memory
  std::vector<double> total(static_cast<size_t>(shape.tokens), 0.0);
  const std::vector<int32_t> all = all_of(shape.head_dim_k);
  for (int32_t first = 0; first < shape.head_dim_k; first += kBlock) {
    const std::vector<int32_t> rows(all.begin() + first, all.begin() + std::min(first + kBlock, shape.head_dim_k));
    const std::vector<double> dg =
        decay_gradient(shape, batch_row, head, rows, follow_rows(shape, batch_row, head, rows));
    for (size_t i = 0; i < dg.size(); ++i) total[i / rows.size()] += dg[i];
  }
  return total;
}

Sample empty_sample(int64_t batch_row, int32_t head, std::vector<int32_t> dims, int64_t tokens) {
  Sample sample{batch_row, head, std::move(dims), {}};
  sample.values.assign(static_cast<size_t>(tokens) * sample.dims.size(), 0.0);
  return sample;
}

// All samples at one batch row, seen from one output head; gradients of shared heads sum over the heads that share.
struct Task {
  const Shape &shape;
  int64_t batch_row;
  int32_t head;
  Reference result;

  bool long_gradient() const {
    return shape.batch * shape.tokens * shape.head_dim_k * shape.head_dim_v > kLongestGradient;
  }

  void forward() {
    Sample o = empty_sample(batch_row, head, spread_dims(shape.head_dim_v), shape.tokens);
    add_columns(shape, batch_row, head, false, o);
    result.o.push_back(std::move(o));
  }

  void value_gradient() {
    const int32_t H = shape.heads(), shared = head * shape.heads_v / H;
    Sample dv = empty_sample(batch_row, shared, spread_dims(shape.head_dim_v), shape.tokens);
    for (int32_t h = 0; h < H; ++h)
      if (h * shape.heads_v / H == shared) add_columns(shape, batch_row, h, true, dv);
    result.dv.push_back(std::move(dv));
  }

  void key_gradients() {
    const int32_t H = shape.heads(), q_head = head * shape.heads_q / H, k_head = head * shape.heads_k / H;
    const std::vector<int32_t> rows = spread_dims(shape.head_dim_k);
    Sample dq = empty_sample(batch_row, q_head, rows, shape.tokens);
    Sample dk = empty_sample(batch_row, k_head, rows, shape.tokens);
    for (int32_t h = 0; h < H; ++h) {
      const bool of_q = h * shape.heads_q / H == q_head, of_k = h * shape.heads_k / H == k_head;
      if (!of_q && !of_k) continue;
      const RowGradients rows_of_h = follow_rows(shape, batch_row, h, rows);
      for (size_t i = 0; of_q && i < dq.values.size(); ++i) dq.values[i] += rows_of_h.dq[i];
      for (size_t i = 0; of_k && i < dk.values.size(); ++i) dk.values[i] += rows_of_h.dk[i];
      if (h == head && shape.decay == LASP_DECAY_CHANNEL)
        result.d_decay.push_back({batch_row, head, rows, decay_gradient(shape, batch_row, h, rows, rows_of_h)});
    }
    result.dq.push_back(std::move(dq));
    result.dk.push_back(std::move(dk));
  }

  void whole_gradient() {
    if (shape.decay != LASP_DECAY_HEAD && shape.decay != LASP_DECAY_SCALAR) return;
    if (long_gradient()) {
      result.left_out = "d_decay (too long to follow the whole state)";
      return;
    }
    if (shape.decay == LASP_DECAY_SCALAR) {
      result.d_decay.push_back({batch_row, head, {0}, whole_decay_gradient(shape, batch_row, head)});
      return;
    }
    double sum = 0, size = 0;
    for (int64_t b = 0; b < shape.batch; ++b)
      for (const double term : whole_decay_gradient(shape, b, head)) {
        sum += term;
        size += std::abs(term);
      }
    result.d_decay.push_back({0, head, {0}, {sum}});
    result.d_decay_size.push_back(size);
  }
};

void run_all(const std::vector<std::function<void()>> &jobs, int threads) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t job; (job = next++) < jobs.size();) jobs[job]();
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread &helper : helpers) helper.join();
}

}  // namespace

Reference make_reference(const Shape &shape, bool backward, int threads) {
  if (shape.delta()) {  // its states mix all rows, so that no few of them can be followed alone
    Reference none;
    none.left_out = "everything (the delta rule: the conformance tests compare it)";
    return none;
  }
  std::vector<Task> tasks;
  tasks.push_back({shape, shape.batch - 1, shape.heads() - 1, {}});
  if (shape.batch > 1 || shape.heads() > 1) tasks.push_back({shape, 0, 0, {}});
  // Four jobs of a task write to different members of its result.
  std::vector<std::function<void()>> jobs;
  for (Task &task : tasks) {
    if (backward && &task == tasks.data()) jobs.emplace_back([&task] { task.whole_gradient(); });
    jobs.emplace_back([&task] { task.forward(); });
    if (!backward) continue;
    jobs.emplace_back([&task] { task.value_gradient(); });
    jobs.emplace_back([&task] { task.key_gradients(); });
  }
  run_all(jobs, threads);

  Reference all;
  for (Task &task : tasks) {
    const auto move_to = [](std::vector<Sample> &to, std::vector<Sample> &from) {
      for (Sample &sample : from) to.push_back(std::move(sample));
    };
    move_to(all.o, task.result.o);
    move_to(all.dq, task.result.dq);
    move_to(all.dk, task.result.dk);
    move_to(all.dv, task.result.dv);
    move_to(all.d_decay, task.result.d_decay);
    for (const double size : task.result.d_decay_size) all.d_decay_size.push_back(size);
    if (!task.result.left_out.empty()) all.left_out = task.result.left_out;
  }
  return all;
}

double tolerance(const Shape &shape, int32_t chunk) {
  constexpr double kUnit = 0x1p-24;
  const double terms = shape.head_dim_k + shape.head_dim_v + chunk + static_cast<double>(shape.tokens) / chunk;
  const double stored = shape.dtype == LASP_FLOAT32 ? 0 : shape.dtype == LASP_BFLOAT16 ? 0x1p-8 : 0x1p-10;
  return 4 * kUnit * std::sqrt(terms) + stored;
}

double tolerance(const Config &config, int32_t chunk) {
  const bool tensor_cores = config.on_cuda() && config.shape.dtype != LASP_FLOAT32;
  return tensor_cores ? 4e-3 : tolerance(config.shape, chunk);
}

}  // namespace bench
