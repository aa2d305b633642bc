/* The C side of test_speed.py: CPU seconds of one forward in a loop, on a plan without tokens. */
#define _POSIX_C_SOURCE 200809L
#include <lasp/lasp.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* -1: a call failed. */
double time_forward(lasp_plan *plan, long calls);
double time_forward(lasp_plan *plan, long calls) {
  const double begin = now();
  for (long i = 0; i < calls; ++i) {
    lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
    if (lasp_forward(plan, &args, NULL) != LASP_OK) return -1.0;
  }
  return (now() - begin) / (double)calls;
}
