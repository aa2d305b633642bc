// Lives of handles: comms, contexts, plans and halos made with any options and transports, used, aborted and
// destroyed in any order, dead and foreign handles among them. A model of what lives says what each call must
// answer.
#include <algorithm>
#include <optional>
#include <vector>

#include "memory.h"

namespace lasp_fuzz {

void prepare() {}

namespace {

enum class Kind { kComm, kContext, kPlan, kHalo };

struct Object {
  Kind kind;
  void *handle;
  int32_t owner = -1;  // index of the comm of a context, of the context of a plan, of the plan of a halo
  int32_t users = 0;
  bool waits = false;                 // a comm whose other ranks, never to come, would be waited for
  bool alive = true, broken = false;  // `broken`: a comm
};

lasp_transport some_table(Draw &in) {
  lasp_transport t = LASP_TRANSPORT_INIT;
  t.send = [](void *, const void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
    return lasp_status{LASP_ERROR_TRANSPORT};
  };
  t.receive = [](void *, void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
    return lasp_status{LASP_ERROR_TRANSPORT};
  };
  t.test = [](void *, void *, int32_t *) { return lasp_status{LASP_ERROR_TRANSPORT}; };
  t.wait = [](void *, void *, int64_t, int32_t *) { return lasp_status{LASP_ERROR_TRANSPORT}; };
  t.cancel = [](void *, void *) {};
  if (in.rarely(8)) t.receive = nullptr;
  if (in.rarely(8)) t.abort = [](void *, int32_t) {};
  if (in.rarely(4)) t.name = "a transport";
  const auto number = [&](int32_t plain) { return in.rarely(6) ? in.nasty32() : plain; };
  t.nranks = number(1 + in.below(3));
  if (t.nranks > 64 && t.nranks <= 65536) t.nranks = 64;
  t.rank = number(in.below(3));
  t.local_ranks = number(in.below(2));
  t.memory = in.rarely(8) ? in.nasty32() & ~2 : LASP_DEVICE_CPU;  // never 2: a GPU of this machine
  if (in.rarely(4)) t.latency_us = in.take<double>();
  if (in.rarely(4)) t.bandwidth_gbs = in.take<double>();
  return t;
}

lasp_context_options some_options(Draw &in) {
  lasp_context_options o = LASP_CONTEXT_OPTIONS_INIT;
  o.cpu_threads = 1;
  for (int32_t times = in.below(4); times > 0; --times) switch (in.below(9)) {
      case 0: o.device = in.nasty32() & ~2; break;  // never 2
      case 1: o.device_index = in.nasty32(); break;
      case 2: o.time_limit_ms = in.nasty64(); break;
      case 3: o.cpu_threads = in.rarely(16) ? 2 : std::min(in.nasty32(), -1); break;
      case 4: o.log_level = in.nasty32(); break;
      case 5: o.latency_us = in.take<double>(); break;
      case 6: o.bandwidth_gbs = in.take<double>(); break;
      case 7: o.profiler_ranges = in.nasty32(); break;
      default: o.verify_messages = in.rarely(2) ? in.nasty32() : 1;
    }
  return o;
}

class Life {
 public:
  Life(Draw &in, Memory &memory) : in_(in), memory_(memory) {}
  ~Life() {  // in order: nothing may be left
    for (const Kind kind : {Kind::kHalo, Kind::kPlan, Kind::kContext, Kind::kComm})
      for (Object &object : objects_)
        if (object.alive && object.kind == kind && destroy(object.kind, object.handle) != LASP_OK)
          broken("a live handle without users that cannot be destroyed");
  }

  void act() {
    const int32_t what = in_.below(14);
    if (what < 3) {
      make_comm(what);
    } else if (what < 5) {
      make_context();
    } else if (what < 7) {
      make_plan();
    } else if (what < 10) {
      end_one();
    } else if (what < 12) {
      look();
    } else {
      make_halo();
    }
  }

 private:
  void add(Kind kind, void *handle, int32_t owner = -1) {
    for (Object &dead : objects_)
      if (!dead.alive && dead.handle == handle) dead.handle = nullptr;  // memory used again
    if (owner >= 0) ++objects_[static_cast<size_t>(owner)].users;
    objects_.push_back({kind, handle, owner});
    seen(3600 + static_cast<int32_t>(kind) * 8 + std::min<int32_t>(static_cast<int32_t>(objects_.size()), 7));
  }

  // Any object, or none: an index.
  int32_t any() {
    return objects_.empty() || in_.rarely(16) ? -1 : in_.below(256) % static_cast<int32_t>(objects_.size());
  }
  // Mostly one of this kind.
  int32_t pick(Kind kind) {
    const int32_t first = any();
    if (first < 0 || in_.rarely(8)) return first;
    const auto count = static_cast<int32_t>(objects_.size());
    for (int32_t i = 0; i < count; ++i)
      if (objects_[static_cast<size_t>((first + i) % count)].kind == kind) return (first + i) % count;
    return first;
  }
  Object *at(int32_t index) { return index < 0 ? nullptr : &objects_[static_cast<size_t>(index)]; }
  static bool lives(const Object *object, Kind kind) {
    return object != nullptr && object->alive && object->kind == kind;
  }
  static void *handle(const Object *object) { return object == nullptr ? nullptr : object->handle; }

  // A dead handle, one of another kind, or none, is told from a live one.
  static void compare(lasp_status status, const Object *object, Kind kind) {
    if (lives(object, kind)) {
      if (status == LASP_ERROR_INVALID_HANDLE) broken("a live handle taken for a dead one");
    } else if (status != LASP_ERROR_INVALID_HANDLE && status != LASP_ERROR_INVALID_ARGUMENT) {
      broken("a dead handle taken for a live one");
    }
  }

  void make_comm(int32_t how) {
    lasp_comm *made[4] = {};
    const int32_t count = how == 2 ? in_.below(4) + (in_.rarely(16) ? 5000 : 0) : 1;
    lasp_status status;
    if (how == 0) {
      status = lasp_comm_create_self(in_.rarely(16) ? nullptr : made);
    } else if (how == 1) {
      const lasp_transport *const table = in_.rarely(32) ? nullptr : memory_.place(in_, some_table(in_));
      status = lasp_comm_create_custom(table, this, in_.rarely(32) ? nullptr : made);
    } else {
      status = lasp_comm_create_threads(count, made);
    }
    checked(status);
    if ((status == LASP_OK) != (made[0] != nullptr)) broken("a comm beside an error, or none");
    for (lasp_comm *comm : made) {
      if (comm == nullptr) continue;
      add(Kind::kComm, comm);
      objects_.back().waits = how == 2 && count > 1;
    }
  }

  void make_context() {
    const int32_t index = pick(Kind::kComm);
    Object *const comm = at(index);
    lasp_context *made = nullptr;
    const lasp_context_options *const options = in_.rarely(2) ? nullptr : memory_.place(in_, some_options(in_));
    // Defaults mean a thread for each CPU: only a comm that refuses at once is tried with them.
    const bool defaults = options == nullptr || options->size < offsetof(lasp_context_options, log_level);
    if (defaults && lives(comm, Kind::kComm)) return;
    const int32_t abi = in_.rarely(16) ? in_.nasty32() : LASP_ABI;
    const lasp_status status =
        checked(lasp_context_create(abi, static_cast<lasp_comm *>(handle(comm)), options, &made));
    if ((status == LASP_OK) != (made != nullptr)) broken("a context beside an error, or none");
    if (abi != LASP_ABI) {
      if (status != LASP_ERROR_ABI_MISMATCH) broken("another ABI that is not refused");
      return;
    }
    compare(status, comm, Kind::kComm);
    if (made == nullptr) return;
    if (comm->broken) broken("a context on a broken comm");
    add(Kind::kContext, made, index);
  }

  void make_plan() {
    const int32_t index = pick(Kind::kContext);
    Object *const context = at(index);
    if (lives(context, Kind::kContext)) {
      const Object &comm = objects_[static_cast<size_t>(context->owner)];
      if (comm.waits && !comm.broken) return;
    }
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = in_.below(20);
    p.head_dim_k = p.head_dim_v = 8;
    p.chunk = 16;
    lasp_plan *made = nullptr;
    const lasp_status status =
        checked(lasp_plan_create(static_cast<lasp_context *>(handle(context)), memory_.place(in_, p), &made));
    compare(status, context, Kind::kContext);
    if ((status == LASP_OK) != (made != nullptr)) broken("a plan beside an error, or none");
    if (made != nullptr) add(Kind::kPlan, made, index);
    // Alone on the threads transport of several, or over one that fails, the group breaks.
    if (status >= 500) objects_[static_cast<size_t>(context->owner)].broken = true;
  }

  void make_halo() {
    const int32_t index = pick(Kind::kPlan);
    Object *const plan = at(index);
    if (lives(plan, Kind::kPlan)) {
      const Object &comm = comm_of(*plan);
      if (comm.waits && !comm.broken) return;
    }
    lasp_halo_options o = LASP_HALO_OPTIONS_INIT;
    o.rows = in_.rarely(8) ? in_.nasty64() : 1 + in_.below(64);
    o.channels = in_.rarely(8) ? in_.nasty64() : 1 + in_.below(40);
    for (lasp_layout *layout : {&o.x, &o.d_x}) {
      if (!in_.rarely(4)) continue;
      layout->dtype = in_.nasty32(), layout->flags = in_.nasty32();
      layout->batch = in_.nasty64(), layout->token = in_.nasty64();
    }
    lasp_halo *made = nullptr;
    const lasp_status status =
        checked(lasp_halo_create(static_cast<lasp_plan *>(handle(plan)), memory_.place(in_, o), &made));
    compare(status, plan, Kind::kPlan);
    if ((status == LASP_OK) != (made != nullptr)) broken("a halo beside an error, or none");
    if (made != nullptr) add(Kind::kHalo, made, index);
    if (status >= 500) comm_of(*plan).broken = true;
  }

  // Of a plan.
  Object &comm_of(const Object &plan) {
    return objects_[static_cast<size_t>(objects_[static_cast<size_t>(plan.owner)].owner)];
  }

  static lasp_status destroy(Kind as, void *handle) {
    if (as == Kind::kHalo) return lasp_halo_destroy(static_cast<lasp_halo *>(handle));
    if (as == Kind::kComm) return lasp_comm_destroy(static_cast<lasp_comm *>(handle));
    if (as == Kind::kContext) return lasp_context_destroy(static_cast<lasp_context *>(handle));
    return lasp_plan_destroy(static_cast<lasp_plan *>(handle));
  }

  void end_one() {
    Object *const object = at(any());
    const Kind as = object == nullptr || in_.rarely(8) ? static_cast<Kind>(in_.below(4)) : object->kind;
    const lasp_status status = checked(destroy(as, handle(object)));
    if (handle(object) == nullptr) {
      if (status != LASP_OK) broken("destroy(NULL) is no error");
      return;
    }
    compare(status, object, as);
    if (!lives(object, as)) return;
    if ((object->users > 0) != (status == LASP_ERROR_IN_USE)) broken("users miscounted");
    if (status != LASP_OK) return;
    object->alive = false;
    if (object->owner >= 0) --objects_[static_cast<size_t>(object->owner)].users;
  }

  void look() {
    Object *const object = at(any());
    const auto comm = static_cast<lasp_comm *>(handle(object));
    const auto context = static_cast<lasp_context *>(handle(object));
    switch (in_.below(6)) {
      case 0: {
        int32_t rank = -1, nranks = -1;
        compare(checked(lasp_comm_get_rank(comm, &rank, in_.rarely(2) ? nullptr : &nranks)), object, Kind::kComm);
        break;
      }
      case 1: {
        const auto at = memory_.place(in_, lasp_traffic(LASP_TRAFFIC_INIT), Memory::End::kAnywhere);
        compare(checked(lasp_comm_get_traffic(comm, at)), object, Kind::kComm);
        break;
      }
      case 2: {
        lasp_status state = LASP_OK;
        const lasp_status status = checked(lasp_context_get_async_error(context, &state, nullptr, 0));
        compare(status, object, Kind::kContext);
        if (status == LASP_OK && (state != LASP_OK) != objects_[static_cast<size_t>(object->owner)].broken)
          broken("a context that does not know whether it lives");
        break;
      }
      case 3: {
        const lasp_status status = checked(lasp_context_abort(context));
        compare(status, object, Kind::kContext);
        if (status == LASP_OK) objects_[static_cast<size_t>(object->owner)].broken = true;
        break;
      }
      case 4: {
        const auto at = memory_.place(in_, lasp_halo_info(LASP_HALO_INFO_INIT), Memory::End::kAnywhere);
        compare(checked(lasp_halo_get_info(static_cast<lasp_halo *>(handle(object)), at)), object, Kind::kHalo);
        break;
      }
      default: {
        const auto at = memory_.place(in_, lasp_build_info(LASP_BUILD_INFO_INIT));
        checked(lasp_get_build_info(at));
      }
    }
  }

  Draw &in_;
  Memory &memory_;
  std::vector<Object> objects_;
};

}  // namespace

void one_input(Draw &in) {
  Memory memory;
  Life life(in, memory);
  for (int32_t calls = 2 + in.below(14); calls > 0; --calls) life.act();
}

}  // namespace lasp_fuzz
