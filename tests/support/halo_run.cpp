#include "support/halo_run.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "support/device.h"
#include "support/dtype.h"
#include "support/group.h"
#include "support/guarded_buffer.h"
#include "support/packing.h"

namespace lasp_test {
namespace {

using Bytes = std::vector<uint8_t>;

// Any value of the type, by place: thirds and the like, which round when they are added.
float value_at(uint32_t tensor, int64_t b, int64_t t, int64_t c, int32_t dtype) {
  auto x = static_cast<uint32_t>(tensor * 2654435761u + static_cast<uint32_t>(b) * 40503u +
                                 static_cast<uint32_t>(t) * 69069u + static_cast<uint32_t>(c) * 1664525u);
  x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
  return round_to_dtype((static_cast<double>(x % 20001) - 10000) / 3000.0, dtype);
}
enum : uint32_t { kX, kDx, kDBefore };  // the last and later ones: of run 0, 1 ...

// Tokens of the whole buffer that follow each other on a rank, from its token `local` on. No two of a rank's are
// neighbours.
struct HaloTokens {
  int32_t rank;
  int64_t begin, count, local;
};

// Of each sequence the runs of a zigzag of its own.
std::vector<HaloTokens> runs_of_each(const HaloCase &c) {
  std::vector<HaloTokens> runs;
  const auto nranks = static_cast<int32_t>(c.tokens.size());
  for (size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n) {
    int64_t begin = c.cu_seqlens[n];
    const int64_t part = (c.cu_seqlens[n + 1] - begin) / (2 * nranks), local = begin / nranks;
    for (int32_t p = 0; p < 2 * nranks - 1; begin += runs.back().count, ++p) {
      const int32_t rank = std::min(p, 2 * nranks - 2 - p);
      runs.push_back({rank, begin, rank == nranks - 1 ? 2 * part : part, p < nranks ? local : local + part});
    }
  }
  return runs;
}

std::vector<HaloTokens> runs_of(const HaloCase &c) {
  if (c.each) return runs_of_each(c);
  std::vector<HaloTokens> runs;
  const auto nranks = static_cast<int32_t>(c.tokens.size());
  int64_t begin = 0;
  if (!c.zigzag || nranks == 1) {
    for (int32_t r = 0; r < nranks; begin += c.tokens[r++]) runs.push_back({r, begin, c.tokens[r], 0});
    return runs;
  }
  for (int32_t p = 0; p < 2 * nranks - 1; begin += runs.back().count, ++p) {
    const int32_t rank = std::min(p, 2 * nranks - 2 - p);
    const int64_t part = c.tokens[0] / 2;
    runs.push_back({rank, begin, rank == nranks - 1 ? 2 * part : part, p < nranks ? 0 : part});
  }
  return runs;
}

class HaloRun {
 public:
  HaloRun(const HaloCase &c, lasp_comm *comm, const HaloRunOptions &options)
      : case_(c), comm_(comm), options_(options) {
    if (!on_cuda()) return;
    gpu::use_device(options.device_index);
    if (options.own_stream || options.graph_replays > 0) stream_ = gpu::make_stream();
  }
  ~HaloRun() {
    lasp_halo_destroy(halo_);
    lasp_plan_destroy(plan_);
    lasp_context_destroy(context_);
    if (stream_ != nullptr) gpu::destroy_stream(stream_);
  }

  std::string run() {
    const bool ready = set_up();
    options_.meet();
    if (ready && !calls()) lasp_context_abort(context_);
    options_.meet();
    return complaints_;
  }

 private:
  bool ok(lasp_status status, const char *call) {
    if (status != LASP_OK)
      complaints_ += std::string(call) + ": " + lasp_status_name(status) + ": " + lasp_last_error() + "\n";
    return status == LASP_OK;
  }
  void require(bool right, const std::string &what) {
    if (!right) complaints_ += what + "\n";
  }

  // -- What is expected.
  int64_t token_of(int64_t local) const {
    for (const HaloTokens &run : runs_)
      if (run.rank == rank_ && local >= run.local && local < run.local + run.count)
        return run.begin + local - run.local;
    return -1;
  }
  // Past the token where that is padding.
  int64_t beginning_of_sequence(int64_t token) const {
    int64_t begin = 0;
    if (!case_.cu_seqlens.empty() && token >= case_.cu_seqlens.back()) return token + 1;
    for (const int64_t offset : case_.cu_seqlens)
      if (offset <= token) begin = offset;
    return begin;
  }
  // Whether a run gets token t: its sequence may have begun since.
  bool travels(const HaloTokens &run, int64_t t) const {
    return run.count > 0 && t >= 0 && t < run.begin && t >= run.begin - case_.rows;
  }
  // Whether a row before a run is token `t` of the sequence's, and not zero.
  bool reaches(const HaloTokens &run, int64_t t) const {
    return travels(run, t) && t >= beginning_of_sequence(run.begin);
  }
  float x_at(int64_t b, int64_t t, int64_t c) const {
    // With token stride 0 a rank's tokens are all the same; the value must not depend on the rank alone then.
    return value_at(kX, b, case_.one_row ? 0 : t, c, case_.dtype);
  }

  // -- Layouts.
  bool strided() const { return case_.gap > 0 || case_.token_major || case_.one_row; }
  lasp_layout layout(int32_t dtype, bool is_input) const {
    lasp_layout l = LASP_LAYOUT_INIT;
    l.dtype = dtype;
    if (!strided()) return l;
    const int64_t row = case_.channels + case_.gap, tokens = case_.tokens[rank_];
    l.flags = LASP_LAYOUT_STRIDED;
    l.token = case_.token_major ? case_.batch * row : row;
    l.batch = case_.token_major ? row : std::max<int64_t>(tokens, 1) * row;
    if (is_input && case_.one_row) l.token = 0;
    return l;
  }
  int64_t place(const lasp_layout &l, int64_t b, int64_t t) const {
    if (!strided()) return (b * case_.tokens[rank_] + t) * case_.channels;
    return b * l.batch + t * l.token;
  }
  // Calls visit(element, b, t, c) for each element of a tensor of this rank's tokens.
  template <class Visit>
  void each(const lasp_layout &l, Visit visit) const {
    for (int64_t b = 0; b < case_.batch; ++b)
      for (int64_t t = 0; t < case_.tokens[rank_]; ++t)
        for (int64_t c = 0; c < case_.channels; ++c) visit(place(l, b, t) + c, b, t, c);
  }
  int64_t elements(const lasp_layout &l) const {
    const int64_t tokens = case_.tokens[rank_];
    return tokens == 0 ? 0 : place(l, case_.batch - 1, tokens - 1) + case_.channels;
  }
  std::unique_ptr<GuardedBuffer> buffer(int64_t elements, int32_t dtype) const {
    // Aligned to its element and no better.
    const size_t element = dtype_bytes(dtype);
    return std::make_unique<GuardedBuffer>(elements * element, 64, element);
  }

  bool set_up() {
    int32_t nranks = 0;
    if (!ok(lasp_comm_get_rank(comm_, &rank_, &nranks), "lasp_comm_get_rank")) return false;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    if (on_cuda()) options.device = LASP_DEVICE_CUDA, options.device_index = options_.device_index;
    options.time_limit_ms = 20000;
    options.cpu_threads = 1;
    options.verify_messages = options_.verify_messages ? 1 : 0;
    if (!ok(lasp_context_create(LASP_ABI, comm_, &options, &context_), "lasp_context_create")) return false;
    lasp_problem p = LASP_PROBLEM_INIT;
    p.batch = case_.batch, p.tokens = case_.tokens[rank_], p.head_dim_k = p.head_dim_v = 8;
    p.dtype = case_.dtype, p.ownership = case_.each     ? LASP_OWN_ZIGZAG_EACH
                                         : case_.zigzag ? LASP_OWN_ZIGZAG
                                                        : LASP_OWN_CONTIGUOUS;
    if (!case_.cu_seqlens.empty()) p.max_sequences = static_cast<int64_t>(case_.cu_seqlens.size()) - 1;
    if (!ok(lasp_plan_create(context_, &p, &plan_), "lasp_plan_create")) return false;
    lasp_halo_options o = LASP_HALO_OPTIONS_INIT;
    o.rows = case_.rows, o.channels = case_.channels;
    o.x = x_layout_ = layout(LASP_DTYPE_DEFAULT, true);
    o.d_x = d_x_layout_ = layout(case_.d_dtype, false);
    if (!ok(lasp_halo_create(plan_, &o, &halo_), "lasp_halo_create")) return false;
    if (!ok(lasp_halo_get_info(halo_, &info_), "lasp_halo_get_info")) return false;
    check_info();
    check_info_without_a_group(p, o);
    x_ = buffer(elements(x_layout_), case_.dtype);
    d_x_ = buffer(elements(d_x_layout_), case_.d_dtype);
    before_ = buffer(elements_before(), case_.dtype);
    d_before_ = buffer(elements_before(), case_.d_dtype);
    workspace_ = std::make_unique<GuardedBuffer>(info_.workspace_bytes, 64);
    return true;
  }

  void check_info() {
    uint64_t sent = 0, sent_back = 0, messages = 0, messages_back = 0;
    if (case_.each && case_.tokens[0] > 0) {  // to the next position and from the one before, of all sequences
      const auto positions = 2 * static_cast<int32_t>(case_.tokens.size()) - 1;
      for (int32_t p = 0; p < positions; ++p) {
        const auto elements = static_cast<uint64_t>(lines() * case_.rows * case_.channels);
        if (std::min(p, positions - 1 - p) != rank_) continue;
        if (p + 1 < positions) sent += elements * dtype_bytes(case_.dtype), messages += 1;
        if (p > 0) sent_back += elements * dtype_bytes(case_.d_dtype), messages_back += 1;
      }
    }
    for (const HaloTokens &from : case_.each ? std::vector<HaloTokens>() : runs_)
      for (const HaloTokens &to : runs_) {
        uint64_t tokens = 0;
        for (int64_t t = from.begin; t < from.begin + from.count; ++t) tokens += travels(to, t);
        const uint64_t elements = from.rank == to.rank ? 0 : tokens * case_.batch * case_.channels;
        if (elements > 0 && from.rank == rank_) sent += elements * dtype_bytes(case_.dtype), messages += 1;
        if (elements > 0 && to.rank == rank_)
          sent_back += elements * dtype_bytes(case_.d_dtype), messages_back += 1;
      }
    require(info_.forward_bytes_sent == sent && info_.forward_messages_sent == messages,
            "info: forward " + std::to_string(info_.forward_bytes_sent) + " bytes in " +
                std::to_string(info_.forward_messages_sent) + " messages, expected " + std::to_string(sent) +
                " in " + std::to_string(messages));
    require(info_.backward_bytes_sent == sent_back && info_.backward_messages_sent == messages_back,
            "info: backward " + std::to_string(info_.backward_bytes_sent) + " bytes, expected " +
                std::to_string(sent_back));
    const auto all = static_cast<uint64_t>(elements_before());
    require(info_.before_bytes == all * dtype_bytes(case_.dtype), "info: before_bytes");
    require(info_.d_before_bytes == all * dtype_bytes(case_.d_dtype), "info: d_before_bytes");
  }

  // Where all ranks have as many tokens, which is what it takes them to have.
  void check_info_without_a_group(const lasp_problem &p, const lasp_halo_options &o) {
    for (const int64_t tokens : case_.tokens)
      if (tokens != case_.tokens[0]) return;
    lasp_placement at = LASP_PLACEMENT_INIT;
    at.rank = rank_, at.nranks = static_cast<int32_t>(case_.tokens.size());
    if (on_cuda()) {
      at.device = LASP_DEVICE_CUDA;
      at.capability = gpu::capability(), at.multiprocessors = gpu::multiprocessors();
    }
    lasp_halo_info assumed = LASP_HALO_INFO_INIT;
    if (!ok(lasp_problem_get_halo_info(&p, &at, &o, &assumed), "lasp_problem_get_halo_info")) return;
    require(std::memcmp(&assumed, &info_, sizeof info_) == 0, "lasp_problem_get_halo_info says otherwise");
  }

  bool calls() {
    for (int32_t repeat = 0; repeat < 2; ++repeat)
      if (!forward(repeat) || !backward(repeat)) return false;
    return options_.graph_replays == 0 || replay();
  }

  // Inputs, and the bytes that all buffers hold afterwards.
  void fill(int32_t repeat) {
    for (GuardedBuffer *b : {x_.get(), d_x_.get(), before_.get(), d_before_.get()}) b->poison();
    workspace_->poison(repeat % 2 == 0 ? kPoison : 0);
    each(x_layout_, [&](int64_t at, int64_t b, int64_t t, int64_t c) {
      store(*x_, at, x_at(b, token_of(t), c), case_.dtype);
    });
    each(d_x_layout_, [&](int64_t at, int64_t b, int64_t t, int64_t c) {
      store(*d_x_, at, value_at(kDx, b, token_of(t), c, case_.d_dtype), case_.d_dtype);
    });
    each_before([&](int64_t at, const HaloTokens *run, int64_t b, int64_t i, int64_t c) {
      const uint32_t position = run == nullptr ? 99 : static_cast<uint32_t>(run - runs_.data());
      store(*d_before_, at, value_at(kDBefore + position, b, i, c, case_.d_dtype), case_.d_dtype);
    });
  }
  int64_t most_runs() const { return (case_.zigzag || case_.each) && case_.tokens.size() > 1 ? 2 : 1; }
  int64_t lines() const { return case_.each ? static_cast<int64_t>(case_.cu_seqlens.size()) - 1 : case_.batch; }
  int64_t elements_before() const { return most_runs() * lines() * case_.rows * case_.channels; }
  // Of a run that the rank has not: null.
  template <class Visit>
  void each_before(Visit visit) const {
    int64_t at = 0;
    std::vector<const HaloTokens *> own;
    for (const HaloTokens &run : runs_)
      if (run.rank == rank_) own.push_back(&run);
    if (case_.each) {  // the first runs of all sequences, then the second ones
      const size_t count = own.size() / static_cast<size_t>(lines());
      std::vector<const HaloTokens *> turned;
      for (size_t n = 0; n < count; ++n)
        for (size_t i = n; i < own.size(); i += count) turned.push_back(own[i]);
      own = turned;
    }
    own.resize(static_cast<size_t>(most_runs() * (case_.each ? lines() : 1)), nullptr);
    for (const HaloTokens *run : own)
      for (int64_t b = 0; b < case_.batch; ++b)
        for (int64_t i = 0; i < case_.rows; ++i)
          for (int64_t c = 0; c < case_.channels; ++c) visit(at++, run, b, i, c);
  }
  static void store(GuardedBuffer &buffer, int64_t at, float value, int32_t dtype) {
    store_element(buffer.data() + at * dtype_bytes(dtype), value, dtype);
  }
  static Bytes bytes_of(const GuardedBuffer &buffer) {
    return Bytes(buffer.data(), buffer.data() + buffer.bytes());
  }

  Bytes expected_before() const {
    Bytes bytes = bytes_of(*before_);
    each_before([&](int64_t at, const HaloTokens *run, int64_t b, int64_t i, int64_t c) {
      const int64_t t = run == nullptr ? -1 : run->begin - case_.rows + i;
      const bool comes = run != nullptr && reaches(*run, t);
      store_element(bytes.data() + at * dtype_bytes(case_.dtype), comes ? x_at(b, t, c) : 0.0f, case_.dtype);
    });
    return bytes;
  }
  Bytes expected_d_x() const {
    Bytes bytes = bytes_of(*d_x_);
    each(d_x_layout_, [&](int64_t at, int64_t b, int64_t local, int64_t c) {
      const int64_t t = token_of(local);
      float sum = value_at(kDx, b, t, c, case_.d_dtype);
      bool touched = false;
      for (size_t r = 0; r < runs_.size(); ++r) {
        if (!reaches(runs_[r], t)) continue;
        sum +=
            value_at(kDBefore + static_cast<uint32_t>(r), b, t - (runs_[r].begin - case_.rows), c, case_.d_dtype);
        touched = true;
      }
      if (touched) store_element(bytes.data() + at * dtype_bytes(case_.d_dtype), sum, case_.d_dtype);
    });
    return bytes;
  }

  void upload() {
    if (options_.late_inputs) {
      for_each_buffer([](GuardedBuffer &b) { b.stage(); });
      gpu::delay(stream_);
    }
    for_each_buffer([&](GuardedBuffer &b) { b.upload(stream_); });
  }
  void download(const char *call) {
    if (on_cuda() && options_.late_inputs && !options_.may_wait)
      require(!gpu::finished(stream_), std::string(call) + " returned only after the stream's work was done");
    for_each_buffer([&](GuardedBuffer &b) {
      b.download(stream_);
      require(b.canaries_intact(), std::string(call) + " wrote around a buffer");
    });
  }
  template <class Visit>
  void for_each_buffer(Visit visit) {
    for (GuardedBuffer *b : {x_.get(), d_x_.get(), before_.get(), d_before_.get(), workspace_.get()}) visit(*b);
  }

  lasp_halo_args args(bool forward) const {
    lasp_halo_args a = LASP_HALO_ARGS_INIT;
    a.packing = packing_.get();
    // Of the other direction nothing is looked at; a rank without tokens may leave out its tensor.
    const bool none = case_.tokens[rank_] == 0;
    if (forward) {
      if (!none) a.x = {x_->call_data(), x_->bytes()};
      a.before = {before_->call_data(), before_->bytes()};
    } else {
      a.d_before = {d_before_->call_data(), d_before_->bytes()};
      if (!none) a.d_x = {d_x_->call_data(), d_x_->bytes()};
    }
    a.workspace = {workspace_->call_data(), workspace_->bytes()};
    return a;
  }
  lasp_traffic traffic() {
    lasp_traffic t = LASP_TRAFFIC_INIT;
    ok(lasp_comm_get_traffic(comm_, &t), "lasp_comm_get_traffic");
    return t;
  }
  void check_traffic(const char *call, const lasp_traffic &before, uint64_t bytes, uint64_t messages) {
    const lasp_traffic after = traffic();
    require(after.bytes_sent - before.bytes_sent == bytes && after.messages_sent - before.messages_sent == messages,
            std::string(call) + " sent " + std::to_string(after.bytes_sent - before.bytes_sent) + " bytes in " +
                std::to_string(after.messages_sent - before.messages_sent) + " messages, the info said otherwise");
  }

  bool forward(int32_t repeat) {
    fill(repeat);
    upload();
    const Bytes x = bytes_of(*x_), d_x = bytes_of(*d_x_), expected = expected_before();
    const lasp_traffic before = traffic();
    const lasp_halo_args a = args(true);
    if (!ok(lasp_halo_forward(halo_, &a, stream_), "lasp_halo_forward")) return false;
    download("lasp_halo_forward");
    check_traffic("lasp_halo_forward", before, info_.forward_bytes_sent, info_.forward_messages_sent);
    require(bytes_of(*before_) == expected, "before is wrong");
    require(bytes_of(*x_) == x && bytes_of(*d_x_) == d_x, "lasp_halo_forward wrote x or d_x");
    return true;
  }
  bool backward(int32_t repeat) {
    fill(repeat);
    upload();
    const Bytes d_before = bytes_of(*d_before_), expected = expected_d_x();
    const lasp_traffic before = traffic();
    const lasp_halo_args a = args(false);
    if (!ok(lasp_halo_backward(halo_, &a, stream_), "lasp_halo_backward")) return false;
    download("lasp_halo_backward");
    check_traffic("lasp_halo_backward", before, info_.backward_bytes_sent, info_.backward_messages_sent);
    require(bytes_of(*d_x_) == expected, "d_x is wrong");
    require(bytes_of(*d_before_) == d_before, "lasp_halo_backward wrote d_before");
    return true;
  }
  bool replay() {
    gpu::Graph graph;
    const lasp_halo_args there = args(true), back = args(false);
    graph.begin(stream_);
    if (!ok(lasp_halo_forward(halo_, &there, stream_), "lasp_halo_forward, captured")) return false;
    if (!ok(lasp_halo_backward(halo_, &back, stream_), "lasp_halo_backward, captured")) return false;
    graph.end(stream_);
    for (int32_t i = 0; i < options_.graph_replays; ++i) {
      fill(i);
      upload();
      const Bytes before = expected_before(), d_x = expected_d_x();
      graph.launch(stream_);
      download("a graph of the calls");
      require(bytes_of(*before_) == before, "before is wrong in a graph");
      require(bytes_of(*d_x_) == d_x, "d_x is wrong in a graph");
    }
    return true;
  }

  const HaloCase &case_;
  lasp_comm *comm_;
  const HaloRunOptions &options_;
  const std::vector<HaloTokens> runs_ = runs_of(case_);
  const PackingOf packing_{case_.cu_seqlens};
  lasp_stream stream_ = nullptr;
  int32_t rank_ = 0;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  lasp_halo *halo_ = nullptr;
  lasp_halo_info info_ = LASP_HALO_INFO_INIT;
  lasp_layout x_layout_ = LASP_LAYOUT_INIT, d_x_layout_ = LASP_LAYOUT_INIT;
  std::unique_ptr<GuardedBuffer> x_, d_x_, before_, d_before_, workspace_;
  std::string complaints_;
};

}  // namespace

std::string run_halo(const HaloCase &c, lasp_comm *comm, const HaloRunOptions &options) {
  try {
    return HaloRun(c, comm, options).run();
  } catch (const std::exception &error) {
    return std::string(error.what()) + "\n";
  }
}

std::string run_halo_on_threads(const HaloCase &c, const HaloRunOptions &options) {
  const auto nranks = static_cast<int32_t>(c.tokens.size());
  std::vector<lasp_comm *> comms(nranks);
  if (lasp_comm_create_threads(nranks, comms.data()) != LASP_OK) return lasp_last_error();
  std::vector<std::string> complaints(nranks);
  on_threads(nranks, [&](int32_t rank) { complaints[rank] = run_halo(c, comms[rank], options); });
  std::string all;
  for (int32_t rank = 0; rank < nranks; ++rank) {
    if (!complaints[rank].empty()) all += "rank " + std::to_string(rank) + ": " + complaints[rank];
    if (lasp_comm_destroy(comms[rank]) != LASP_OK) all += std::string("lasp_comm_destroy: ") + lasp_last_error();
  }
  return all;
}

}  // namespace lasp_test
