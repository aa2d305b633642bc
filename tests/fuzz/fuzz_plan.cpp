// Plan creation on a group of one: problem structs of plausible, damaged and raw values, of any size, and what a
// plan then says of itself.
#include "one_rank.h"
#include "problems.h"

namespace lasp_fuzz {

void prepare() { one_rank(); }

namespace {

void look_at(Draw &in, Memory &memory, const lasp_problem &p, lasp_plan *plan) {
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  if (checked(lasp_plan_get_info(plan, &info)) != LASP_OK) broken("no info of a live plan");
  if (info.total_tokens != p.tokens || info.token_begin != 0 || info.nranks != 1 || info.rank != 0 ||
      info.forward_bytes_sent != 0 || info.backward_bytes_sent != 0 || info.pieces < 1 || info.chunk < 16)
    broken("a plan of one rank that says otherwise");
  if (info.num_sequences != (p.max_sequences > 0 ? p.max_sequences : p.batch)) broken("another num_sequences");
  checked(lasp_plan_get_info(plan, memory.place(in, info, Memory::End::kAnywhere)));
  const int64_t end = in.rarely(4) ? in.nasty64() : in.below(64);
  int32_t first = -1, last = -1;
  const lasp_status status = checked(lasp_plan_get_owners(plan, 0, end, &first, &last));
  if ((status == LASP_OK) != (end >= 0 && end <= p.tokens)) broken("tokens that the plan does not have");
  if (in.rarely(4)) {
    const size_t capacity = in.take<uint16_t>() % 1500;
    size_t needed = 0;
    auto *text = reinterpret_cast<char *>(memory.take(capacity, 1, 0xff));
    if (checked(lasp_plan_describe(plan, text, capacity, &needed)) != LASP_OK) broken("no description");
    if (capacity > 0 && strnlen(text, capacity) != std::min(capacity, needed) - 1) broken("a text without its end");
    checked(lasp_plan_prepare(plan, in.rarely(4) ? reinterpret_cast<lasp_stream>(&needed) : nullptr));
  }
}

}  // namespace

void one_input(Draw &in) {
  Memory memory;
  lasp_problem p;
  if (in.rarely(4)) {
    p = raw_problem(in);
  } else {
    plausible(in, {&p, 1}, {});
  }
  lasp_problem *const given = in.rarely(64) ? nullptr : memory.place(in, p);
  lasp_plan *plan = nullptr;
  const lasp_status status = checked(lasp_plan_create(one_rank(), given, in.rarely(64) ? nullptr : &plan));
  if ((status == LASP_OK) != (plan != nullptr)) broken("a plan beside an error, or none");
  if (plan == nullptr) return;
  // A shorter struct is one whose last fields are zero.
  lasp_problem known{};
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  look_at(in, memory, known, plan);
  if (checked(lasp_plan_destroy(plan)) != LASP_OK) broken("a plan that cannot be destroyed");
}

}  // namespace lasp_fuzz
