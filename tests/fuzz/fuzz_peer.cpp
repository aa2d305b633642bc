// Hostile peers and failing transports: two or three ranks plan, go forward and backward while one message is
// changed, or one transport call fails, or a rank aborts. Each call answers with a status; what the context then
// says of itself is true; nothing is written outside a buffer; every request is ended.
#include <optional>

#include "group.h"
#include "problems.h"
#include "tensors.h"

namespace lasp_fuzz {
namespace {

constexpr int32_t kMostRanks = 3;

// The one thing that goes wrong, at the n-th chance.
struct Fault {
  enum Kind { kNone, kMessage, kAnswer } kind = kNone;
  int32_t at = 0, function = 0;
  lasp_status status = LASP_OK;
  int32_t changed_to = -1;  // the rank that was given a changed message
};

Fault drawn_fault(Draw &in) {
  constexpr lasp_status kAnswers[] = {LASP_ERROR_PEER_LOST, LASP_ERROR_ABORTED, LASP_ERROR_TRANSPORT, 7, -1};
  Fault fault;
  const int32_t kind = in.below(8);
  fault.kind = kind == 0 ? Fault::kNone : kind < 6 ? Fault::kMessage : Fault::kAnswer;
  fault.at = in.below(24);
  fault.function = in.below(4);
  fault.status = in.one_of(kAnswers);
  return fault;
}

void change(Draw &in, unsigned char *bytes, uint64_t size) {
  const uint64_t place = in.take<uint16_t>() % size;
  switch (in.below(4)) {
    case 0: bytes[place] ^= static_cast<unsigned char>(1 << in.below(8)); break;
    case 1: {  // a word of the record, or of a state
      const int64_t value = in.nasty64();
      const uint64_t word = place / 8 * 8;
      std::memcpy(bytes + word, &value, std::min<uint64_t>(sizeof value, size - word));
      break;
    }
    case 2: in.take(bytes + place, std::min<uint64_t>(size - place, 1 + in.byte())); break;
    default: std::memset(bytes, in.byte(), size);
  }
}

class Session {
 public:
  Session(Draw &in, Memory &memory)
      : in_(in),
        memory_(memory),
        nranks_(2 + in.below(8) / 6),
        verify_(in.below(2) == 1),
        fault_(drawn_fault(in)),
        group_({.nranks = nranks_, .verify_messages = verify_, .sums_up = false, .hooks = hooks()}) {}
  ~Session() {
    for (lasp_plan *plan : plans_)
      if (lasp_plan_destroy(plan) != LASP_OK) broken("a plan that cannot be destroyed");
  }

  void run() {
    const std::span<lasp_problem> problems(problems_, static_cast<size_t>(nranks_));
    plausible(in_, problems, {.damage = in_.rarely(4), .most_dim = 8});
    stage(0, [&](int32_t r) { return lasp_plan_create(group_.context(r), &problems_[r], &plans_[r]); });
    for (int32_t r = 0; r < nranks_; ++r) {
      if (plans_[r] == nullptr) continue;
      lasp_plan_info info = LASP_PLAN_INFO_INIT;
      if (lasp_plan_get_info(plans_[r], &info) != LASP_OK) broken("no info of a live plan");
      tensors_[r].emplace(in_, memory_, problems_[r], info);
    }
    const int32_t aborting = in_.rarely(16) ? in_.below(nranks_) : -1;
    if (aborting >= 0) lasp_context_abort(group_.context(aborting));
    const auto runs = [&](int32_t r) { return plans_[r] != nullptr && tensors_[r]->whole(); };
    stage(1, [&](int32_t r) {
      if (!runs(r)) return lasp_status{LASP_OK};
      lasp_forward_args args = tensors_[r]->forward();
      args.packing = packing(r);
      const lasp_status status = lasp_forward(plans_[r], &args, nullptr);
      if (r == aborting && status != LASP_ERROR_ABORTED) broken("an aborted context that goes on");
      return status;
    });
    if (aborting >= 0) return;
    stage(2, [&](int32_t r) {
      if (!runs(r) || problems_[r].backward == 0) return lasp_status{LASP_OK};
      lasp_backward_args args = tensors_[r]->backward();
      args.packing = packing(r);
      return lasp_backward(plans_[r], &args, nullptr);
    });
  }

 private:
  Hooks hooks() {
    return {.deliver =
                [this](int32_t, int32_t to, unsigned char *bytes, uint64_t size) {
                  if (fault_.kind != Fault::kMessage || fault_.at-- != 0 || size == 0) return;
                  const std::vector<unsigned char> before(bytes, bytes + size);
                  change(in_, bytes, size);
                  if (std::memcmp(before.data(), bytes, size) != 0) fault_.changed_to = to;
                },
            .answer =
                [this](int32_t, int32_t function) {
                  if (fault_.kind != Fault::kAnswer || function != fault_.function || fault_.at-- != 0)
                    return lasp_status{LASP_OK};
                  return fault_.status;
                }};
  }

  // One sequence of about half of all tokens, and padding. Null for a plan that is not packed.
  const lasp_packing *packing(int32_t r) {
    if (problems_[r].max_sequences <= 0) return nullptr;
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    if (lasp_plan_get_info(plans_[r], &info) != LASP_OK) broken("no info of a live plan");
    offsets_[r][0] = 0, offsets_[r][1] = info.total_tokens / 2 + 1 - (info.total_tokens == 0);
    packings_[r] = LASP_PACKING_INIT;
    packings_[r].cu_seqlens = {offsets_[r], sizeof offsets_[r]}, packings_[r].num_sequences = 1;
    return &packings_[r];
  }

  void stage(int32_t number, const Group::Call &call) {
    const auto &statuses = group_.all(call, in_.below(nranks_));
    for (int32_t r = 0; r < nranks_; ++r) {
      const lasp_status status = statuses[static_cast<size_t>(r)];
      lasp_status state = -1;
      if (lasp_context_get_async_error(group_.context(r), &state, nullptr, 0) != LASP_OK)
        broken("a context that cannot be asked");
      if (status >= 500 && state == LASP_OK) broken("a context that takes itself for whole");
      if (status >= 500) seen(3072 + number * 64 + (status - 500) * 16 + (problems_[r].schedule & 7) * 2 + (r > 0));
      if (status < 500 && number == 0 && state != LASP_OK) broken("a context that takes itself for broken");
      if (tensors_[r].has_value() && tensors_[r]->whole() && !tensors_[r]->inputs_intact())
        broken("a call has written to an input");
    }
    // A record carries a checksum always, other messages on request: no change goes unnoticed.
    if (fault_.changed_to >= 0 && (number == 0 || verify_) &&
        statuses[static_cast<size_t>(fault_.changed_to)] == LASP_OK)
      broken("a changed message that was believed");
    fault_.changed_to = -1;
  }

  Draw &in_;
  Memory &memory_;
  int32_t nranks_;
  bool verify_;
  Fault fault_;
  Group group_;
  lasp_problem problems_[kMostRanks];
  lasp_plan *plans_[kMostRanks] = {};
  std::optional<Tensors> tensors_[kMostRanks];
  int64_t offsets_[kMostRanks][2];
  lasp_packing packings_[kMostRanks];
};

}  // namespace

void prepare() {}

void one_input(Draw &in) {
  Memory memory;
  Session(in, memory).run();
}

}  // namespace lasp_fuzz
