// The pure helpers: which groups a world rank belongs to and back, and the exchange model; the init functions of
// all structs; names of statuses; versions.
#include <cmath>

#include "memory.h"

namespace lasp_fuzz {

void prepare() {}

namespace {

int32_t number(Draw &in) { return in.rarely(4) ? in.nasty32() : in.below(40); }

void groups(Draw &in, Memory &memory) {
  int32_t world = number(in), ranks = number(in), stride = number(in);
  if (!in.rarely(3)) {  // a grid: what must divide does
    ranks = 1 + in.below(12), stride = 1 + in.below(6);
    const int64_t product = int64_t{ranks} * stride * (in.rarely(4) ? in.take<uint16_t>() : 1 + in.below(9));
    world = product <= INT32_MAX ? static_cast<int32_t>(product) : world;
  }
  const int32_t rank = !in.rarely(4) && world > 0 ? in.take<uint16_t>() % world : number(in);
  lasp_groups g = LASP_GROUPS_INIT;
  const lasp_status status = checked(lasp_groups_of_rank(world, ranks, stride, rank, &g));
  if (in.rarely(8)) {
    lasp_groups *const sized =
        in.rarely(8) ? nullptr : memory.place(in, lasp_groups(LASP_GROUPS_INIT), Memory::End::kAnywhere);
    checked(lasp_groups_of_rank(world, ranks, stride, rank, sized));
  }
  if (status == LASP_OK) {
    if (g.sequence_ranks != ranks || int64_t{g.data_ranks} * ranks != world || g.data_group != g.sequence_rank ||
        g.data_rank != g.sequence_group || g.sequence_rank < 0 || g.sequence_rank >= ranks ||
        g.sequence_group < 0 || g.sequence_group >= g.data_ranks)
      broken("groups that do not make a grid");
    int32_t back = -1, next = -1;
    if (lasp_groups_world_rank(world, ranks, stride, g.sequence_group, g.sequence_rank, &back) || back != rank)
      broken("the inverse is none");
    if (g.sequence_rank + 1 < ranks &&
        (lasp_groups_world_rank(world, ranks, stride, g.sequence_group, g.sequence_rank + 1, &next) ||
         next - rank != stride))
      broken("neighbours that are not a stride apart");
  } else if (status != LASP_ERROR_INVALID_ARGUMENT) {
    broken("a pure function with another status");
  }
  int32_t member = -1;
  const int32_t group = number(in), place = number(in);
  if (checked(lasp_groups_world_rank(world, ranks, stride, group, place, in.rarely(16) ? nullptr : &member)) ==
      LASP_OK) {
    if (member < 0 || member >= world) broken("a member outside the world");
    if (lasp_groups_of_rank(world, ranks, stride, member, &g) || g.sequence_group != group ||
        g.sequence_rank != place)
      broken("a member of another group");
  } else if (member != -1) {
    broken("a refusal that writes");
  }
}

double positive(Draw &in) {
  constexpr double kValues[] = {10, 1, 250, 1e-3, 5e-324, 1.7e308, 0, -1, HUGE_VAL};
  return in.rarely(4) ? in.take<double>() : in.one_of(kValues);
}

void model(Draw &in) {
  const int32_t nranks = number(in), pieces = number(in);
  const uint64_t payload = in.rarely(2) ? in.take<uint64_t>() : in.take<uint32_t>();
  const double latency = positive(in), bandwidth = positive(in);
  double predicted[6];
  for (int32_t schedule = 0; schedule < 6; ++schedule) {
    predicted[schedule] = -1;
    const int32_t asked = schedule == 5 ? in.nasty32() : schedule;
    const lasp_status status =
        checked(lasp_predict_exchange(asked, nranks, payload, pieces, latency, bandwidth, &predicted[schedule]));
    if ((status == LASP_OK) != (predicted[schedule] >= 0)) broken("no time, or one beside a refusal");
  }
  for (int32_t schedule = 1; schedule < 5; ++schedule)
    if (predicted[0] > predicted[schedule]) broken("a schedule faster than the fastest");
  if (nranks == 1 && predicted[0] > 0) broken("alone, yet exchanging");
}

template <class T>
void initialise(Draw &in, Memory &memory, lasp_status (*init)(T *, size_t), const T &macro) {
  const size_t size = in.rarely(4) ? in.take<size_t>() : in.take<uint16_t>() % (2 * sizeof(T));
  const size_t room = std::min<size_t>(size, size_t{1} << 16);
  auto *const at = in.rarely(32) ? nullptr : reinterpret_cast<T *>(memory.take(room, 8, 0xee));
  const lasp_status status = checked(init(at, size));
  if (status != LASP_OK || at == nullptr) return;
  T expected = macro;
  expected.size = size;
  if (std::memcmp(static_cast<const void *>(at), &expected, std::min(size, sizeof(T))) != 0)
    broken("an init function that writes what its macro does not");
}

void structs(Draw &in, Memory &memory) {
  switch (in.below(6)) {
    case 0: initialise(in, memory, lasp_problem_init, lasp_problem(LASP_PROBLEM_INIT)); break;
    case 1: initialise(in, memory, lasp_forward_args_init, lasp_forward_args(LASP_FORWARD_ARGS_INIT)); break;
    case 2: initialise(in, memory, lasp_backward_args_init, lasp_backward_args(LASP_BACKWARD_ARGS_INIT)); break;
    case 3: initialise(in, memory, lasp_step_args_init, lasp_step_args(LASP_STEP_ARGS_INIT)); break;
    case 4:
      initialise(in, memory, lasp_context_options_init, lasp_context_options(LASP_CONTEXT_OPTIONS_INIT));
      break;
    default:
      if (lasp_status_name(in.take<int32_t>()) == nullptr) broken("a status without a name");
      int32_t abi = 0;
      if (lasp_version(nullptr, nullptr, nullptr, in.rarely(2) ? nullptr : &abi) != LASP_OK) broken("no version");
  }
}

}  // namespace

void one_input(Draw &in) {
  Memory memory;
  switch (in.below(4)) {
    case 1: model(in); break;
    case 2: structs(in, memory); break;
    default: groups(in, memory);
  }
}

}  // namespace lasp_fuzz
