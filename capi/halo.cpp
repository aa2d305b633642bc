// lasp_halo_*.
#include "engine/halo.h"

#include <memory>
#include <optional>
#include <utility>

#include "buffers.h"
#include "handles.h"
#include "packing.h"
#include "structs.h"

using namespace lasp;

namespace {

// A tensor [B, T, C], and [runs, B or sequences, n, C] in one piece.
Extent tokens_of(const HaloShape &s, const Layout &layout, DType type) {
  return {layout, s.batch, s.tokens, 1, s.channels, size_of(type)};
}
Extent before_of(const HaloShape &s, DType type) {
  return {s.before(), s.runs * s.lines, s.rows, 1, s.channels, size_of(type)};
}

// That no part of a sequence has fewer tokens than there are rows, where each is cut by itself.
Packing check_parts(BufferCheck &check, const lasp_halo_args &a, const lasp_halo &halo) {
  const Packing packing = check_host_packing(check, a.packing, halo.plan->engine);
  const TokenRanges &ranges = halo.plan->engine.ranges();
  for (int64_t n = 0; ranges.each && n < packing.sequences; ++n) {
    const int64_t tokens = packing[n + 1] - packing[n], part = tokens / parts_of_each(ranges);
    if (tokens > 0 && part < halo.engine.plan().shape.rows)
      throw fail(LASP_ERROR_UNSUPPORTED,
                 "packing.cu_seqlens: sequence %lld has parts of %lld tokens, which are fewer than the %lld rows",
                 static_cast<long long>(n), static_cast<long long>(part),
                 static_cast<long long>(halo.engine.plan().shape.rows));
  }
  return packing;
}

HaloForward check_forward(const lasp_halo_args &a, const lasp_halo &halo) {
  const HaloPlan &plan = halo.engine.plan();
  const HaloShape &s = plan.shape;
  BufferCheck check;
  HaloForward b{};
  b.x = check.input("x", a.x, tokens_of(s, s.x, s.dtype));
  b.before = check.output("before", a.before, before_of(s, s.dtype));
  b.packing = check_parts(check, a, halo);
  b.workspace = check.block_output("workspace", a.workspace, halo.plan->engine.info(), plan.workspace_bytes);
  check.finish();
  return b;
}

HaloBackward check_backward(const lasp_halo_args &a, const lasp_halo &halo) {
  const HaloPlan &plan = halo.engine.plan();
  const HaloShape &s = plan.shape;
  BufferCheck check;
  HaloBackward b{};
  b.d_before = check.input("d_before", a.d_before, before_of(s, s.d_dtype));
  b.d_x = check.output("d_x", a.d_x, tokens_of(s, s.d_x, s.d_dtype));
  b.packing = check_parts(check, a, halo);
  b.workspace = check.block_output("workspace", a.workspace, halo.plan->engine.info(), plan.workspace_bytes);
  check.finish();
  return b;
}

// Either call; `body` is given the halo and the caller's struct.
template <class Body>
lasp_status run(lasp_halo *halo, const char *call, const lasp_halo_args *args, lasp_stream stream, Body body) {
  return guarded([&] {
    lasp_halo &handle = live(halo, "halo");
    Comm &comm = handle.plan->context->comm->engine;
    const InUse in_use(comm, call);
    comm.require_usable();
    collective(comm, true, [&] {
      const lasp_halo_args a = read_struct(args, "args");
      require_stream(*handle.plan, stream);
      body(handle, a);
    });
  });
}

}  // namespace

lasp_status lasp_halo_create(lasp_plan *plan, const lasp_halo_options *options, lasp_halo **halo) {
  return guarded([&] {
    lasp_plan &p = live(plan, "plan");
    Comm &comm = p.context->comm->engine;
    const InUse in_use(comm, "lasp_halo_create");
    comm.require_usable();
    if (comm.detached())
      throw fail(LASP_ERROR_UNSUPPORTED,
                 "plan: its comm is detached and sends nothing; bring the rows by a collective of your own");
    std::unique_ptr<lasp_halo> made;
    collective(comm, false, [&] {
      p.context->engine.device().check();
      lasp_halo_options given{};
      std::optional<Error> refusal;  // the other ranks are to learn of it
      try {
        require_pointer(halo, "halo");
        given = read_struct(options, "options");
      } catch (const Error &error) {
        refusal = error;
      }
      made.reset(new lasp_halo{.plan = &p, .engine = Halo(p.engine, given, std::move(refusal))});
      register_handle(made.get(), Kind::kHalo);
    });
    ++p.users;
    *halo = made.release();
  });
}

lasp_status lasp_halo_get_info(const lasp_halo *halo, lasp_halo_info *info) {
  return guarded([&] { write_struct(info, live(halo, "halo").engine.info(), "info"); });
}

lasp_status lasp_problem_get_halo_info(const lasp_problem *problem, const lasp_placement *placement,
                                       const lasp_halo_options *options, lasp_halo_info *info) {
  return guarded([&] {
    const lasp_problem given = read_struct(problem, "problem");
    const lasp_placement at = read_struct(placement, "placement");
    const lasp_halo_options wanted = read_struct(options, "options");
    require_placement(at);
    write_struct(info, info_of(given, at, wanted), "info");
  });
}

lasp_status lasp_halo_forward(lasp_halo *halo, const lasp_halo_args *args, lasp_stream stream) {
  return run(halo, "lasp_halo_forward", args, stream, [&](lasp_halo &h, const lasp_halo_args &a) {
    h.engine.passes().forward(check_forward(a, h), stream);
  });
}

lasp_status lasp_halo_backward(lasp_halo *halo, const lasp_halo_args *args, lasp_stream stream) {
  return run(halo, "lasp_halo_backward", args, stream, [&](lasp_halo &h, const lasp_halo_args &a) {
    h.engine.passes().backward(check_backward(a, h), stream);
  });
}

lasp_status lasp_halo_destroy(lasp_halo *halo) {
  return guarded([&] {
    if (halo == nullptr) return;
    lasp_halo &h = live(halo, "halo");
    lasp_plan &p = *h.plan;
    {
      const InUse in_use(p.context->comm->engine, "lasp_halo_destroy");
      unregister_handle(halo);
      delete halo;
    }
    --p.users;
  });
}
