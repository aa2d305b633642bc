// Plan creation: from a caller's problem to everything that a pass needs.
#include "engine/plan.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/status.h"
#include "core/schedules.h"
#include "exchange/agreement.h"
#include "exchange/cost_model.h"

namespace lasp {
namespace {

constexpr int32_t kMaxPieces = 256;  // beyond, pieces are a few rows and only cost messages

// On a detached comm a plan is there for its stages.
void require_detached(const Problem &problem) {
  if (const char *why = MapLayout(problem).why_not)
    throw fail(LASP_ERROR_UNSUPPORTED, "%s; a plan on a detached comm needs stages, which this one has not", why);
  if (problem.broadcast_final_state)
    throw fail(LASP_ERROR_UNSUPPORTED, "broadcast_final_state = 1: a detached comm sends nothing");
}

}  // namespace

Plan::Plan(Context &context, const lasp_problem &given, std::optional<Error> refusal) : context_(context) {
  Comm &comm = context.comm();
  if (!refusal) {
    try {
      problem_ = validate(given, comm.nranks());
      require_own_tokens(given, comm.rank());
      context.device().require_served(problem_);
      if (comm.detached()) require_detached(problem_);
    } catch (...) {
      refusal = current_error();
    }
  }
  // Alone there is nobody to tell. Otherwise a refusing rank still takes part, so that the others need not wait;
  // but one that failed (4xx) breaks the group, which tells them where that is possible.
  const bool tells = refusal && refusal->status / 100 == 4 && comm.tells_others();
  if (refusal && (comm.nranks() == 1 || comm.assumes_others() || tells)) throw *refusal;
  const auto gather = [&](const void *own, void *all, size_t bytes) { context.gather(own, all, bytes); };
  const Setting setting{context.device_kind(), context.verify_messages(), context.link()};
  Agreed agreed = comm.assumes_others() ? assume_agreement(comm, given, problem_, setting)
                                        : agree(comm, given, problem_, setting, refusal, gather);
  ranges_ = std::move(agreed.ranges);
  link_ = agreed.link;
  problem_.runs = ranges_.runs_of(comm.rank());
  problem_.token_begin = problem_.runs == 0
                             ? ranges_.total()
                             : ranges_.begin[static_cast<size_t>(ranges_.position_of(comm.rank(), 0))];
  partition_ = make_token_partition(problem_, ranges_, comm.rank());
  choose_schedule(link_);
  plan_exchanges();
  plan_broadcast();
  if (!comm.assumes_others()) context.device().meet();
  passes_ = context.device().make_passes(pass_plan(), gather);
  fill_info();
  if (context.log().wants(LASP_LOG_INFO)) context.log().write(LASP_LOG_INFO, "plan: %s", summary().c_str());
}

void Plan::choose_schedule(const Link &link) {
  const int32_t nranks = ranges_.positions();  // what the model counts
  const AffineMap map = affine_map_of(problem_);
  // A transition that is not dense makes a map larger by 1/V at most: left out of the model.
  const double state = double(map.state_floats()) * sizeof(float), whole = double(map.floats()) * sizeof(float);
  Payload payload(state, map.kind == Transition::kDense ? whole : state);
  payload.heads = map.rows * map.heads;
  payload.dense_rows = map.kind == Transition::kDense ? map.head_dim_k : 0;
  const auto most = static_cast<int32_t>(std::min<int64_t>(kMaxPieces, map.slices()));
  pieces_ = problem_.pieces != 0 ? static_cast<int32_t>(std::min<int64_t>(problem_.pieces, map.slices()))
                                 : best_pieces(nranks, payload, most, link);
  if (nranks == 1) {
    schedule_ = problem_.schedule != LASP_SCHEDULE_AUTO ? problem_.schedule : LASP_SCHEDULE_RING;
    reason_ = "a group of one exchanges nothing";
  } else if (problem_.schedule != LASP_SCHEDULE_AUTO) {
    schedule_ = problem_.schedule;
    reason_ = "asked for by the problem";
  } else {
    // On GPUs head-scatter has not been measured over NCCL yet: there a caller asks for it.
    const bool on_gpu = context_.device_kind() == LASP_DEVICE_CUDA;
    schedule_ = best_schedule(nranks, payload, pieces_, link, {problem_.segment > 0, !on_gpu});
    reason_ = problem_.segment > 0 ? "faster by the model of the two that keep one order of sums"
                                   : "fastest by the model";
  }
  std::fill(std::begin(info_.predicted_us), std::end(info_.predicted_us), -1.0);
  for (const ScheduleEntry &each : kSchedules)
    if ((problem_.segment == 0 || each.serial) && (!each.waits || problem_.may_relay()))
      info_.predicted_us[each.value] = predict_exchange_us(each.value, nranks, payload, pieces_, link);
  info_.predicted_us[0] = info_.predicted_us[schedule_];
  if (schedule_ != LASP_SCHEDULE_ALL_SCAN) pieces_ = 1;
}

void Plan::plan_exchanges() {
  const int32_t rank = context_.comm().rank();
  if (schedule_ == LASP_SCHEDULE_RELAY && ranges_.nranks() > 1) {
    relay_.emplace(problem_, ranges_, rank);
    relayed_.begin = {0, problem_.tokens};
    partition_ = make_token_partition(problem_, relayed_, 0);
  }
  // With a relay nothing is exchanged: what is described is the map.
  left_ = make_exchange_plan(problem_, ranges_, rank, Direction::kLeftToRight, schedule_, pieces_);
  right_ = make_exchange_plan(problem_, ranges_, rank, Direction::kRightToLeft, schedule_, pieces_);
}

PassPlan Plan::pass_plan() const {
  const int32_t rank = context_.comm().rank();
  return {problem_,
          partition_,
          relay_ ? relayed_ : ranges_,
          relay_ ? 0 : rank,
          exchanges(Pass::kForward),
          exchanges(Pass::kBackward),
          relay_ ? &*relay_ : nullptr,
          broadcast_,
          left_,
          right_,
          stage_plan()};
}

// The rank with the last token, which writes the final states, sends them to every other. Packed sequences, whose
// owners a host does not know, have no broadcast.
void Plan::plan_broadcast() {
  if (!problem_.broadcast_final_state) return;
  const int32_t rank = context_.comm().rank(), writer = owners_of(ranges_, 0, ranges_.total()).last;
  const auto bytes =
      static_cast<uint64_t>(problem_.num_sequences * problem_.heads * problem_.state_size()) * sizeof(float);
  if (rank != writer) {
    broadcast_.push_back({false, writer, 0, bytes});
    return;
  }
  for (int32_t peer = 0; peer < ranges_.nranks(); ++peer)
    if (peer != rank) broadcast_.push_back({true, peer, 0, bytes});
}

StagePlan Plan::stage_plan() const {
  StagePlan plan{MapLayout(problem_), ranges_.most_runs(), {}};
  std::vector<int32_t> seen(static_cast<size_t>(ranges_.nranks()), 0);
  for (int32_t position = 0; position < ranges_.positions(); ++position) {
    const int32_t rank = ranges_.owner_of(position);
    plan.map_of.push_back(rank * plan.most_runs + seen[static_cast<size_t>(rank)]++);
  }
  return plan;
}

PassExchanges Plan::exchanges(Pass pass) const {
  if (ranges_.nranks() == 1 || context_.comm().detached() || relay_) return {};
  const bool both = problem_.bidirectional;
  const bool forward = pass == Pass::kForward;
  return {both || forward ? &left_ : nullptr, both || !forward ? &right_ : nullptr};
}

// `adds`: in memory of the result's there is no room for maps.
uint64_t Plan::workspace_bytes(Pass pass, bool adds) const {
  const bool forward = pass == Pass::kForward;
  const Backend &backend = passes_->backend();
  Carver count(nullptr);
  const uint64_t result = forward ? backend.forward_result_bytes() : backend.backward_result_bytes();
  const PassMaps maps(exchanges(pass), count, {nullptr, adds ? 0 : result});
  Carver cache(nullptr);
  if (relay_) relay_->place(pass, count, problem_.backward ? &cache : nullptr);
  if (Carver of_stages(nullptr); ranges_.most_runs() > 1) {
    const RunMaps of_runs(left_.map, problem_.runs, of_stages);
    if (of_stages.used() > count.used()) count = of_stages;
  }
  return count.used() + (forward ? backend.forward_workspace_bytes() : backend.backward_workspace_bytes());
}

uint64_t Plan::cache_bytes(bool chunks) const {
  Carver workspace(nullptr), cache(nullptr);
  if (relay_) relay_->place(Pass::kForward, workspace, &cache);
  return cache.used() + passes_->backend().cache_bytes(chunks);
}

void Plan::fill_info() {
  const int32_t rank = context_.comm().rank(), nranks = ranges_.nranks();
  lasp_plan_info &i = info_;
  i.workspace_forward_bytes = workspace_bytes(Pass::kForward);
  i.workspace_backward_bytes = problem_.backward ? workspace_bytes(Pass::kBackward) : 0;
  i.workspace_add_bytes = problem_.backward ? workspace_bytes(Pass::kBackward, true) : 0;
  i.state_cache_incoming_bytes = cache_bytes(false);
  i.state_cache_chunks_bytes = cache_bytes(true);
  i.state_cache_bytes = !problem_.backward      ? 0
                        : problem_.cache_chunks ? i.state_cache_chunks_bytes
                                                : i.state_cache_incoming_bytes;
  i.alignment = kAlignment;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    uint64_t &bytes = pass == Pass::kForward ? i.forward_bytes_sent : i.backward_bytes_sent;
    uint64_t &messages = pass == Pass::kForward ? i.forward_messages_sent : i.backward_messages_sent;
    const PassExchanges of_pass = exchanges(pass);
    for (const ExchangePlan *plan : {of_pass.left, of_pass.right}) {
      if (plan == nullptr) continue;
      bytes += plan->bytes_sent();
      messages += plan->messages_sent();
    }
    if (relay_ && relay_->to(pass) >= 0) bytes += relay_->state_bytes(), messages += 1;
  }
  for (const StateMessage &message : broadcast_) {
    if (!message.is_send) continue;
    i.forward_bytes_sent += message.bytes;
    i.forward_messages_sent += 1;
  }
  i.token_begin = problem_.token_begin;
  i.total_tokens = ranges_.total();
  i.num_sequences = problem_.num_sequences;
  i.local_chunks = problem_.packed ? most_of(problem_).chunks : static_cast<int64_t>(partition_.chunks.size());
  i.rank = rank;
  i.nranks = nranks;
  i.heads = problem_.heads;
  i.chunk = problem_.chunk;
  i.schedule = schedule_;
  i.pieces = pieces_;
  fill_stages();
}

void Plan::fill_stages() {
  const MapLayout &layout = map_layout();
  info_.num_runs = passes_->stages().most_runs;
  if (layout.why_not != nullptr) return;
  lasp_plan_info &i = info_;
  const bool alone = i.nranks == 1;  // then the second stage is the whole pass
  i.carry_forward_bytes = alone ? 0 : passes_->backend().forward_carry_bytes();
  i.carry_backward_bytes = alone || !problem_.backward ? 0 : passes_->backend().backward_carry_bytes();
  i.map_bytes = layout.bytes;
  i.map_transition_offset = layout.transition_offset;
  i.transition = layout.transition;
}

Owners Plan::owners(int64_t begin, int64_t end) const {
  const auto ll = [](int64_t value) { return static_cast<long long>(value); };
  if (begin < 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "begin = %lld: must not be negative", ll(begin));
  if (end < begin)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "end = %lld: must be at least begin, %lld", ll(end), ll(begin));
  if (end > ranges_.total())
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "end = %lld: the ranks hold %lld tokens", ll(end), ll(ranges_.total()));
  return owners_of(ranges_, begin, end);
}

}  // namespace lasp
