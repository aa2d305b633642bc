/* See naive.h. */
#include "naive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

float element(int what, long i) { return (float)sin(0.37 * (double)i + 1.7 * what); }

float head_decay(int head) { return head == 0 ? -0.01f : -0.2f; }

/* o of the tokens [begin, begin + TOKENS), from the recurrence over all tokens before. */
static void naive(long begin, double *o) {
  static const double scale = 0.35355339059327373; /* 1/sqrt(DIM_K) */
  int h, i, j;
  long t;
  for (h = 0; h < HEADS; ++h) {
    double state[DIM_K][DIM_V] = {{0}};
    const double decay = exp((double)head_decay(h));
    for (t = 0; t < begin + TOKENS; ++t) {
      const long k_at = (t * HEADS + h) * DIM_K, v_at = (t * HEADS + h) * DIM_V;
      for (i = 0; i < DIM_K; ++i)
        for (j = 0; j < DIM_V; ++j)
          state[i][j] = decay * state[i][j] + (double)element(1, k_at + i) * (double)element(2, v_at + j);
      if (t < begin) continue;
      for (j = 0; j < DIM_V; ++j) {
        double sum = 0;
        for (i = 0; i < DIM_K; ++i) sum += (double)element(0, k_at + i) * state[i][j];
        o[((t - begin) * HEADS + h) * DIM_V + j] = scale * sum;
      }
    }
  }
}

static int check(lasp_status status, const char *what) {
  if (status == LASP_OK) return 0;
  fprintf(stderr, "%s: %s: %s\n", what, lasp_status_name(status), lasp_last_error());
  return 1;
}

/* The largest difference from the recurrence, against a bound of float32: each o is a sum of at most
 * RANKS * TOKENS * DIM_K products of size 1 or less, in any order. */
static int compare(const float *o, long begin) {
  static const double bound = (double)RANKS * TOKENS * DIM_K * 1.2e-7;
  double expected[TOKENS * HEADS * DIM_V], worst = 0, size = 0;
  int i;
  naive(begin, expected);
  for (i = 0; i < TOKENS * HEADS * DIM_V; ++i) {
    worst = fmax(worst, fabs((double)o[i] - expected[i]));
    size = fmax(size, fabs(expected[i]));
  }
  printf("tokens %ld to %ld: largest |o| %.3f, largest difference %.2e (bound %.2e)\n", begin, begin + TOKENS - 1,
         size, worst, bound);
  return worst <= bound && size > 0.1 ? 0 : 1;
}

int attend(lasp_comm *comm) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  lasp_problem problem = LASP_PROBLEM_INIT;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  lasp_context *context = NULL;
  lasp_plan *plan = NULL;
  void *workspace = NULL;
  float q[TOKENS * HEADS * DIM_K], k[TOKENS * HEADS * DIM_K], v[TOKENS * HEADS * DIM_V], o[TOKENS * HEADS * DIM_V];
  float decay[HEADS];
  long i;
  int failed = 1;

  options.time_limit_ms = 30000;
  problem.tokens = TOKENS;
  problem.heads_q = problem.heads_k = problem.heads_v = HEADS;
  problem.head_dim_k = DIM_K;
  problem.head_dim_v = DIM_V;
  problem.decay = LASP_DECAY_HEAD;
  problem.chunk = 16;
  problem.backward = 0;
  if (check(lasp_context_create(LASP_ABI, comm, &options, &context), "context")) goto end;
  if (check(lasp_plan_create(context, &problem, &plan), "plan")) goto end;
  if (check(lasp_plan_get_info(plan, &info), "info")) goto end;

  for (i = 0; i < TOKENS * HEADS * DIM_K; ++i) {
    q[i] = element(0, info.token_begin * HEADS * DIM_K + i);
    k[i] = element(1, info.token_begin * HEADS * DIM_K + i);
  }
  for (i = 0; i < TOKENS * HEADS * DIM_V; ++i) v[i] = element(2, info.token_begin * HEADS * DIM_V + i);
  for (i = 0; i < HEADS; ++i) decay[i] = head_decay((int)i);
  workspace = malloc((size_t)info.workspace_forward_bytes + (size_t)info.alignment);
  if (workspace == NULL) goto end;

  args.q.data = q, args.q.bytes = sizeof q;
  args.k.data = k, args.k.bytes = sizeof k;
  args.v.data = v, args.v.bytes = sizeof v;
  args.o.data = o, args.o.bytes = sizeof o;
  args.decay.data = decay, args.decay.bytes = sizeof decay;
  args.workspace.data = (void *)(((uintptr_t)workspace + info.alignment - 1) / info.alignment * info.alignment);
  args.workspace.bytes = (size_t)info.workspace_forward_bytes;
  if (check(lasp_forward(plan, &args, NULL), "forward")) goto end;
  failed = compare(o, (long)info.token_begin);

end:
  free(workspace);
  failed |= check(lasp_plan_destroy(plan), "plan_destroy");
  failed |= check(lasp_context_destroy(context), "context_destroy");
  return failed;
}
