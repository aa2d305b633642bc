#include "injected_group.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/checksum.h"
#include "comm/transport.h"
#include "support/mailboxes.h"

namespace lasp_fault {
namespace {

using lasp_kill::Clock;
using lasp_kill::Guarded;
using lasp_kill::ms_since;
using lasp_kill::Random;

constexpr int64_t kTokens = 32;
constexpr int32_t kHeads = 2, kDim = 8;

// Where the ranks wait for each other between calls; one that has stopped counts as come. So nobody waits in one
// call for a rank that waits in another, and who is lost is not a matter of luck.
class Meeting {
 public:
  explicit Meeting(int32_t nranks) : met_(static_cast<size_t>(nranks), 0) {}
  // Until every rank has come as often as this one, or has left.
  void come(int32_t rank) {
    std::unique_lock lock(mutex_);
    const int mine = ++met_[static_cast<size_t>(rank)];
    changed_.notify_all();
    changed_.wait(lock, [&] { return std::all_of(met_.begin(), met_.end(), [&](int m) { return m >= mine; }); });
  }
  void leave(int32_t rank) {
    const std::lock_guard lock(mutex_);
    met_[static_cast<size_t>(rank)] = kLeft;
    changed_.notify_all();
  }
  void outwait_others(int32_t rank) {
    leave(rank);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::all_of(met_.begin(), met_.end(), [](int m) { return m == kLeft; }); });
  }

 private:
  static constexpr int kLeft = 1 << 30;
  std::vector<int> met_;  // by rank
  std::mutex mutex_;
  std::condition_variable changed_;
};

class InjectedRank {
 public:
  InjectedRank(const Setup &setup, FaultyEnd &end, uint64_t seed) : setup_(setup), end_(end) {
    const lasp_transport table = end.table();
    if (lasp_comm_create_custom(&table, &end, &comm_) != LASP_OK) defect("no comm");
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.time_limit_ms = setup.limit_ms;
    options.cpu_threads = 1;
    options.verify_messages = setup.verify;
    if (lasp_context_create(LASP_ABI, comm_, &options, &context_) != LASP_OK) defect(lasp_last_error());
    size_tensors(seed);
  }

  Outcome call(Call which) {
    const auto start = Clock::now();
    const lasp_status status = which == Call::kPlan ? plan() : which == Call::kForward ? forward() : backward();
    Outcome outcome{which, status, ms_since(start), status == LASP_OK ? "" : lasp_last_error()};
    if (which == Call::kPlan && status == LASP_OK) size_memory();
    if (end_.open() != 0) defect("requests are open after a call");
    return outcome;
  }

  // After a failure nothing may touch the buffers any more.
  void note_memory() { memory_ = hash(); }
  void check_memory(bool noted) {
    if (noted && hash() != memory_) defect("a buffer was written after the call had failed");
    for (const Guarded *b :
         {&q_, &k_, &v_, &d_o_, &decay_, &o_, &dq_, &dk_, &dv_, &d_decay_, &final_, &cache_, &work_})
      if (!b->intact()) defect("a byte outside the buffers was written");
    if (inputs() != inputs_) defect("an input was changed");
  }
  lasp_status async_error() {
    lasp_status status = -1;
    if (lasp_context_get_async_error(context_, &status, nullptr, 0) != LASP_OK) defect("no async error");
    return status;
  }
  uint64_t results(Call call) {
    uint64_t h = 0;
    for (Guarded *b : call == Call::kForward ? std::vector<Guarded *>{&o_, &final_}
                                             : std::vector<Guarded *>{&dq_, &dk_, &dv_, &d_decay_})
      h = lasp::checksum(b->data(), b->in().bytes, h);
    return h;
  }
  void destroy() {
    const auto start = Clock::now();
    if (lasp_plan_destroy(plan_) != LASP_OK) defect("the plan cannot be destroyed");
    if (lasp_context_destroy(context_) != LASP_OK) defect("the context cannot be destroyed");
    if (lasp_comm_destroy(comm_) != LASP_OK) defect("the comm cannot be destroyed");
    if (ms_since(start) > 2000) defect("destroying took over two seconds");
  }
  void defect(const std::string &what) { defects_ += defects_.empty() ? what : "; " + what; }
  const std::string &defects() const { return defects_; }
  bool has_plan() const { return plan_ != nullptr; }

 private:
  lasp_status plan() {
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = kTokens;
    p.heads_q = p.heads_k = p.heads_v = kHeads;
    p.head_dim_k = p.head_dim_v = kDim;
    p.decay = setup_.decay;
    p.schedule = setup_.schedule;
    p.pieces = setup_.schedule == LASP_SCHEDULE_ALL_SCAN ? 3 : 0;
    p.chunk = 16;
    p.segment = setup_.segment;
    p.mask = setup_.bidirectional ? LASP_MASK_BIDIRECTIONAL : LASP_MASK_CAUSAL;
    p.broadcast_final_state = setup_.broadcast;
    lasp_plan *made = nullptr;
    const lasp_status status = lasp_plan_create(context_, &p, &made);
    if (status != LASP_OK && made != nullptr) defect("a plan was written though none was made");
    if (made != nullptr) plan_ = made;
    return status;
  }
  lasp_status forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = q_.in(), a.k = k_.in(), a.v = v_.in();
    if (setup_.decay != LASP_DECAY_NONE) a.decay = decay_.in();
    a.o = o_.out();
    a.final_state = final_.out();
    a.state_cache = cache_.out();
    a.workspace = work_.out();
    return lasp_forward(plan_, &a, nullptr);
  }
  lasp_status backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = q_.in(), a.k = k_.in(), a.v = v_.in(), a.d_o = d_o_.in();
    if (setup_.decay != LASP_DECAY_NONE) a.decay = decay_.in(), a.d_decay = d_decay_.out();
    a.state_cache = cache_.in();
    a.dq = dq_.out(), a.dk = dk_.out(), a.dv = dv_.out();
    a.workspace = work_.out();
    return lasp_backward(plan_, &a, nullptr);
  }

  void size_tensors(uint64_t seed) {
    Random random{seed};
    const auto fill = [&](Guarded &b, int64_t floats, float low, float high) {
      b.resize(static_cast<size_t>(floats) * sizeof(float));
      for (int64_t i = 0; i < floats; ++i) {
        const float x = low + (high - low) * static_cast<float>(random.below(1000)) / 1000;
        std::memcpy(b.data() + 4 * i, &x, sizeof x);
      }
    };
    const int64_t floats = kTokens * kHeads * kDim;
    for (Guarded *b : {&q_, &k_, &v_, &d_o_}) fill(*b, floats, -1, 1);
    for (Guarded *b : {&o_, &dq_, &dk_, &dv_}) b->resize(static_cast<size_t>(floats) * sizeof(float));
    const int64_t decays = setup_.decay == LASP_DECAY_NONE     ? 0
                           : setup_.decay == LASP_DECAY_HEAD   ? kHeads
                           : setup_.decay == LASP_DECAY_SCALAR ? kTokens * kHeads
                                                               : floats;
    // Per head it is a parameter, the same on all ranks.
    if (setup_.decay == LASP_DECAY_HEAD) random.state = 7;
    fill(decay_, decays, -0.5f, 0);
    d_decay_.resize(static_cast<size_t>(decays) * sizeof(float));
    final_.resize(sizeof(float) * kHeads * kDim * kDim);
    inputs_ = inputs();
  }
  void size_memory() {
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    if (lasp_plan_get_info(plan_, &info) != LASP_OK) defect("no plan info");
    cache_.resize(info.state_cache_bytes);
    work_.resize(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
  }
  uint64_t inputs() {
    uint64_t h = 0;
    for (const Guarded *b : {&q_, &k_, &v_, &d_o_, &decay_}) h = b->hash(h);
    return h;
  }
  uint64_t hash() {
    uint64_t h = 0;
    for (const Guarded *b : {&o_, &dq_, &dk_, &dv_, &d_decay_, &final_, &cache_, &work_}) h = b->hash(h);
    return h;
  }

  const Setup &setup_;
  FaultyEnd &end_;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  Guarded q_, k_, v_, d_o_, decay_, o_, dq_, dk_, dv_, d_decay_, final_, cache_, work_;
  uint64_t memory_ = 0, inputs_ = 0;
  std::string defects_;
};

// One rank's thread.
void run_rank(const Place &place, int calls, int32_t r, InjectedRank &rank, FaultyEnd &end, Meeting &meeting,
              RankReport &report) {
  end.stopped = [&] { meeting.outwait_others(r); };
  for (int i = 0; i < calls; ++i) {
    meeting.come(r);
    const Call which = i == 0 ? Call::kPlan : i % 2 == 1 ? Call::kForward : Call::kBackward;
    const bool armed = place.rank == kEverywhere || (r == place.rank && which == place.call && i < 3);
    end.arm(armed ? place.injection : Injection{});
    report.outcomes.push_back(rank.call(which));
    if (i < 3) report.counts[i] = end.counts();
    if (armed && end.reached()) report.reached = true, report.peer = end.affected_peer();
    if (report.last().status != LASP_OK) break;
    if (i == 1 || i == 2) report.results[i - 1] = rank.results(which);
  }
  if (report.last().status != LASP_OK) {
    rank.note_memory();
    report.async_error = rank.async_error();
    report.again = rank.call(rank.has_plan() ? Call::kForward : Call::kPlan);
  }
  meeting.leave(r);
}

}  // namespace

std::string Setup::name() const {
  const char *const decays[] = {"none", "head", "scalar", "channel"};
  return std::string(lasp_kill::schedule_name(schedule)) + (bidirectional ? " unmasked" : "") +
         (segment > 0 ? " by segments" : "") + ", decay " + decays[decay] + ", " + std::to_string(nranks) +
         " ranks, " + (verify ? "verified, " : "") + (inner == Inner::kThreads ? "threads" : "mailboxes");
}

const char *call_function(Call call) {
  return call == Call::kPlan ? "lasp_plan_create" : call == Call::kForward ? "lasp_forward" : "lasp_backward";
}

const Outcome *RankReport::of(Call call) const {
  const auto i = static_cast<size_t>(call);
  return i < outcomes.size() ? &outcomes[i] : nullptr;
}

Report run_group(const Setup &setup, const Place &place, bool passes_after) {
  const auto n = static_cast<size_t>(setup.nranks);
  lasp_test::Mailboxes boxes(setup.nranks);
  std::vector<lasp::TransportEnd> inner;
  if (setup.inner == Inner::kThreads) {
    inner = lasp::make_thread_transport(setup.nranks);
  } else {
    for (int32_t r = 0; r < setup.nranks; ++r) inner.push_back({boxes.table(r), boxes.user(r)});
  }
  std::vector<std::unique_ptr<FaultyEnd>> ends;
  std::vector<std::unique_ptr<InjectedRank>> ranks;
  for (size_t r = 0; r < n; ++r) {
    ends.push_back(std::make_unique<FaultyEnd>(inner[r].table, inner[r].user, r + 1));
    ranks.push_back(std::make_unique<InjectedRank>(setup, *ends[r], 1000 + r));
  }
  Report report;
  report.ranks.resize(n);
  Meeting meeting(setup.nranks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      run_rank(place, passes_after ? 3 + kPassesAfter : 3, static_cast<int32_t>(r), *ranks[r], *ends[r], meeting,
               report.ranks[r]);
    });
  for (std::thread &thread : threads) thread.join();
  for (size_t r = 0; r < n; ++r) {
    RankReport &mine = report.ranks[r];
    ranks[r]->check_memory(mine.last().status != LASP_OK);
    ranks[r]->destroy();
    if (!ends[r]->destroyed()) ranks[r]->defect("the end was not destroyed");
    mine.defects = ranks[r]->defects();
    if (!ends[r]->misuse().empty()) mine.defects += (mine.defects.empty() ? "" : "; ") + ends[r]->misuse();
    if (mine.reached) report.reached = true, report.peer = mine.peer;
  }
  return report;
}

}  // namespace lasp_fault
