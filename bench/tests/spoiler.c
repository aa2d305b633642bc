/* Stands before liblasp by LD_PRELOAD and spoils what the environment variable LASP_SPOIL names: an output, one
 * element of which comes back a little wrong ("o", "dk", "d_decay") or not at all ("unwritten"), or the count of
 * bytes sent ("bytes"); of a token by itself ("step"), of a halo ("halo"). For the tests of lasp-bench and of
 * lasp-info --check, which have to notice each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <lasp/lasp.h>
#include <stdlib.h>
#include <string.h>

static int spoils(const char *what) {
  const char *chosen = getenv("LASP_SPOIL");
  return chosen != NULL && strcmp(chosen, what) == 0;
}

/* The function of this name in the libraries after this one. */
static void next_function(const char *name, void *function) {
  void *address = dlsym(RTLD_NEXT, name);
  memcpy(function, &address, sizeof address);
}

/* One part in a thousand: far above float32's rounding, far below what a plot would show. */
static void bend(lasp_buffer buffer) {
  float *values = buffer.data;
  const size_t count = buffer.bytes / sizeof(float);
  for (size_t i = 0; i < count; ++i) values[i] *= 1.001f;
}

lasp_status lasp_plan_create(lasp_context *context, const lasp_problem *problem, lasp_plan **plan) {
  lasp_status (*real)(lasp_context *, const lasp_problem *, lasp_plan **);
  next_function("lasp_plan_create", &real);
  lasp_problem changed = *problem;
  if (spoils("plan")) changed.write = LASP_WRITE_DELTA, changed.mask = LASP_MASK_BIDIRECTIONAL;
  return real(context, &changed, plan);
}

lasp_status lasp_forward(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream) {
  lasp_status (*real)(lasp_plan *, const lasp_forward_args *, lasp_stream);
  static int calls;
  next_function("lasp_forward", &real);
  if (spoils("failure") && __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) == 2) return real(NULL, args, stream);
  const lasp_status status = real(plan, args, stream);
  if (spoils("o")) bend(args->o);
  if (spoils("unwritten")) memset(args->o.data, 0xff, sizeof(float)); /* a NaN, as lasp-bench left it there */
  return status;
}

lasp_status lasp_backward(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream) {
  lasp_status (*real)(lasp_plan *, const lasp_backward_args *, lasp_stream);
  next_function("lasp_backward", &real);
  const lasp_status status = real(plan, args, stream);
  if (spoils("dk")) bend(args->dk);
  if (spoils("d_decay")) bend(args->d_decay);
  return status;
}

lasp_status lasp_step(lasp_plan *plan, const lasp_step_args *args, lasp_stream stream) {
  lasp_status (*real)(lasp_plan *, const lasp_step_args *, lasp_stream);
  next_function("lasp_step", &real);
  const lasp_status status = real(plan, args, stream);
  if (spoils("step")) bend(args->o);
  return status;
}

lasp_status lasp_halo_backward(lasp_halo *halo, const lasp_halo_args *args, lasp_stream stream) {
  lasp_status (*real)(lasp_halo *, const lasp_halo_args *, lasp_stream);
  next_function("lasp_halo_backward", &real);
  const lasp_status status = real(halo, args, stream);
  if (spoils("halo")) bend(args->d_x);
  return status;
}

lasp_status lasp_comm_get_traffic(const lasp_comm *comm, lasp_traffic *traffic) {
  static __thread uint64_t calls;
  lasp_status (*real)(const lasp_comm *, lasp_traffic *);
  next_function("lasp_comm_get_traffic", &real);
  const lasp_status status = real(comm, traffic);
  if (spoils("bytes")) traffic->bytes_sent += 4 * calls++;
  return status;
}
