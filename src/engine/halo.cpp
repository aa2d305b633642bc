#include "engine/halo.h"

#include <algorithm>

#include "base/checksum.h"
#include "core/names.h"
#include "engine/plan.h"
#include "exchange/agreement.h"

namespace lasp {
namespace {

std::string number(int64_t value) { return std::to_string(value); }

// What the plans of all ranks must have in common here, as one number: which rows go where follows from it.
int64_t split_of(const Plan &plan) {
  const Problem &p = plan.problem();
  const std::vector<int64_t> &begin = plan.ranges().begin;
  const std::vector<int32_t> &owner = plan.ranges().owner;
  uint64_t sum = checksum(begin.data(), begin.size() * sizeof begin[0], static_cast<uint64_t>(p.map_rows()));
  sum = checksum(owner.data(), owner.size() * sizeof owner[0], sum);
  const bool kinds[] = {p.packed, p.each};
  return static_cast<int64_t>(checksum(kinds, sizeof kinds, sum));
}

}  // namespace

HaloPasses::HaloPasses(const HaloPlan &plan) : plan_(plan), offsets_(plan.shape.most_sequences) {
  group_.reserve(plan.given.size() + plan.wanted.size());
  added_.reserve(plan.given.size() * static_cast<size_t>(plan.ranges.each ? plan.shape.lines : 1));
}

void HaloPasses::take_packing(const Packing &packing) {
  if (plan_.shape.packed) offsets_.take(packing);
}

// What other ranks had of this one's rows, without the rows that lie before their sequence's beginning. A packed
// batch has one row.
std::span<const HaloPart> HaloPasses::added(DType type) {
  if (!plan_.shape.packed) return plan_.given;
  const int64_t row_bytes = plan_.shape.channels * size_of(type);
  added_.clear();
  for (HaloPart part : plan_.given) {
    const int64_t first = plan_.ranges.begin[static_cast<size_t>(part.to)] - plan_.shape.rows;  // row 0 before it
    const int64_t end = plan_.ranges.begin[static_cast<size_t>(part.from) + 1];  // what is given is the last there
    const int64_t skip =
        std::clamp<int64_t>(first + plan_.missing(part.to, offsets_.values()) - (end - part.count), 0, part.count);
    part.begin += skip;
    part.count -= skip;
    part.place += skip * row_bytes;
    if (part.count > 0) added_.push_back(part);
  }
  return added_;
}

// Where each sequence is cut by itself: of each that is there the last rows of a run, as they lie in its message.
std::span<const HaloPart> HaloPasses::given_of_each(DType type) {
  const std::vector<int64_t> &offsets = offsets_.values();
  const int64_t bytes = plan_.shape.rows * plan_.shape.channels * size_of(type);  // of a sequence
  added_.clear();
  for (const HaloPart &given : plan_.given) {
    const bool first = given.from == plan_.positions.front();
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      const auto [begin, end] = run_of_each(plan_.ranges, plan_.rank, first ? 0 : 1, offsets[n], offsets[n + 1]);
      if (begin == end) continue;
      HaloPart part = given;
      part.begin = end - given.count;
      part.place += static_cast<int64_t>(n) * bytes;
      added_.push_back(part);
    }
  }
  return added_;
}

// Zero before the beginnings of sequences, and where there is none.
void HaloPasses::clear_each(const HaloRows &before) {
  const HaloShape &shape = plan_.shape;
  const std::vector<int64_t> &offsets = offsets_.values();
  const auto given = [&](int64_t run, int64_t n) {
    const auto at = static_cast<size_t>(n);
    return static_cast<size_t>(run) < plan_.positions.size() && plan_.positions[static_cast<size_t>(run)] > 0 &&
           at + 1 < offsets.size() && offsets[at] < offsets[at + 1];
  };
  for (int64_t run = 0; run < shape.runs; ++run)
    for (int64_t n = 0; n < shape.lines; ++n) {
      int64_t end = n;
      while (end < shape.lines && !given(run, end)) ++end;
      const int64_t rows = (end - n) * shape.rows, first = (run * shape.lines + n) * shape.rows * shape.channels;
      if (rows > 0)
        clear({static_cast<std::byte *>(before.data) + first * size_of(before.dtype),
               {rows * shape.channels, shape.channels, 0},
               before.dtype},
              rows);
      n = end;
    }
}

std::vector<Transfer> HaloPasses::messages(bool forward) const {
  std::vector<Transfer> messages;
  for (const auto *parts : {&plan_.given, &plan_.wanted})
    for (const HaloPart &part : *parts)
      if (plan_.is_message(part)) messages.push_back({(parts == &plan_.given) == forward, part.peer, nullptr, 0});
  return messages;
}

// Forward what is given is sent and what is wanted received; backward the other way round. All ranks count the
// operation, also those without messages, so that their tags stay the same.
void HaloPasses::send_and_receive(OperationKind kind, DType type, void *workspace, void *before) {
  if (comm().nranks() == 1) return;
  const bool forward = kind == OperationKind::kHaloForward;
  const int32_t operation = comm().next_operation(kind);
  ExchangeLog exchange_log(log(), comm());
  group_.clear();
  for (const auto *parts : {&plan_.wanted, &plan_.given})
    for (const HaloPart &part : *parts) {
      if (!plan_.is_message(part)) continue;
      const bool is_send = (parts == &plan_.given) == forward;
      const uint64_t bytes = plan_.bytes(part, type);
      group_.push_back({is_send, part.peer, plan_.message(part, type, workspace, before), bytes});
      exchange_log.add(is_send, part.peer, bytes);
    }
  if (!group_.empty()) exchange(group_, operation, exchange_log);
}

void HaloPasses::forward(const HaloForward &b, lasp_stream stream) {
  const HaloShape &shape = plan_.shape;
  run("lasp halo forward", stream, [&] {
    const HaloRows x{const_cast<void *>(b.x), shape.x, shape.dtype};  // only read
    const HaloRows before{b.before, shape.before(), shape.dtype};
    take_packing(b.packing);
    gather(plan_.ranges.each ? given_of_each(shape.dtype) : std::span<const HaloPart>(plan_.given), x, b.workspace);
    send_and_receive(OperationKind::kHaloForward, shape.dtype, b.workspace, b.before);
    scatter(plan_.wanted, before, b.workspace);
    if (plan_.ranges.each) return clear_each(before);
    const int64_t run_bytes = static_cast<int64_t>(plan_.bytes({.count = shape.rows}, shape.dtype));
    for (int64_t run = 0; run < shape.runs; ++run) {
      const auto n = static_cast<size_t>(run);
      const int64_t missing =
          n < plan_.positions.size() ? plan_.missing(plan_.positions[n], offsets_.values()) : shape.rows;
      clear({static_cast<std::byte *>(b.before) + run * run_bytes, before.layout, before.dtype}, missing);
    }
  });
}

void HaloPasses::backward(const HaloBackward &b, lasp_stream stream) {
  const HaloShape &shape = plan_.shape;
  run("lasp halo backward", stream, [&] {
    take_packing(b.packing);
    void *d_before = const_cast<void *>(b.d_before);  // only read
    gather(plan_.wanted, {d_before, shape.before(), shape.d_dtype}, b.workspace);
    send_and_receive(OperationKind::kHaloBackward, shape.d_dtype, b.workspace, d_before);
    if (plan_.ranges.each) {  // of one token there is but one part
      for (const HaloPart &part : given_of_each(shape.d_dtype))
        add({&part, 1}, {b.d_x, shape.d_x, shape.d_dtype}, b.workspace);
      return;
    }
    // Of one run after the other: what is added to a token comes at once.
    const std::span<const HaloPart> parts = added(shape.d_dtype);
    for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
      while (end < parts.size() && parts[end].from == parts[begin].from) ++end;
      add(parts.subspan(begin, end - begin), {b.d_x, shape.d_x, shape.d_dtype}, b.workspace);
    }
  });
}

Halo::Halo(Plan &plan, const lasp_halo_options &options, std::optional<Error> refusal) {
  Context &context = plan.context();
  Comm &comm = context.comm();
  HaloShape shape;
  if (!refusal) {
    try {
      shape = validate(options, plan.problem());
    } catch (...) {
      refusal = current_error();
    }
  }
  const bool tells = refusal && refusal->status / 100 == 4 && comm.tells_others();  // as in Plan
  if (refusal && (comm.nranks() == 1 || tells)) throw *refusal;
  const auto gather = [&](const void *own, void *all, size_t bytes) { context.gather(own, all, bytes); };
  const CommonValue values[] = {{"plan", nullptr, split_of(plan)},
                                {"rows", number, shape.rows},
                                {"channels", number, shape.channels},
                                {"x.dtype", dtype_name, static_cast<int64_t>(shape.dtype)},
                                {"d_x.dtype", dtype_name, static_cast<int64_t>(shape.d_dtype)}};
  agree_on_values(comm, values, refusal, gather);
  plan_ = make_halo_plan(shape, plan.ranges(), comm.rank());
  passes_ = context.device().make_halo(plan_, gather);
  context.log().write(
      LASP_LOG_INFO, "halo: %lld rows of %lld channels, %s; this rank takes %zu part(s) and gives %zu",
      static_cast<long long>(shape.rows), static_cast<long long>(shape.channels),
      dtype_name(static_cast<int64_t>(shape.dtype)).c_str(), plan_.wanted.size(), plan_.given.size());
}

}  // namespace lasp
