/* Linear attention whose sequence is split over four ranks, here threads of this process: a forward and a backward
 * pass as training has them, compared with the same on one rank.
 *
 *     cc -std=c99 attention.c $(pkg-config --cflags --libs lasp) -pthread -lm
 *
 * Every rank works in place on its own run of tokens of the global tensors [tokens, heads, dim]; the ranks have
 * 100, 400, 0 and 500 tokens. Only states of [dim, dim] per head travel between them. */
#define _POSIX_C_SOURCE 200112L
#include <lasp/lasp.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 4, TOKENS = 1000, HEADS = 4, DIM = 32, ROW = HEADS * DIM };
static const int64_t tokens_of_rank[RANKS] = {100, 400, 0, 500};

typedef float tensor[TOKENS * ROW];
static tensor q, k, v, target;
static const float decay[HEADS] = {-0.001f, -0.01f, -0.1f, -0.5f}; /* log of what a token leaves of the state */

typedef struct results {
  tensor o, d_o, dq, dk, dv;
} results;
typedef struct job {
  lasp_comm *comm;
  int64_t tokens;
  results *out;
} job;

static void check(lasp_status status, const char *call) {
  if (status == LASP_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, lasp_status_name(status), lasp_last_error());
  exit(1);
}
#define CHECK(call) check(call, #call)

static lasp_buffer memory(uint64_t bytes, uint64_t alignment) {
  lasp_buffer buffer = LASP_BUFFER_INIT;
  buffer.bytes = (size_t)bytes;
  if (posix_memalign(&buffer.data, (size_t)alignment, buffer.bytes + 1) != 0) exit(1);
  return buffer;
}

/* One rank: plan, forward, the gradient of half the squared distance to the target, backward. */
static void *run_rank(void *argument) {
  const job *const j = argument;
  lasp_context *context = NULL;
  lasp_plan *plan = NULL;
  CHECK(lasp_context_create(LASP_ABI, j->comm, NULL, &context));

  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = j->tokens;
  problem.heads_q = problem.heads_k = problem.heads_v = HEADS;
  problem.head_dim_k = problem.head_dim_v = DIM;
  problem.decay = LASP_DECAY_HEAD;
  CHECK(lasp_plan_create(context, &problem, &plan));
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  CHECK(lasp_plan_get_info(plan, &info));

  const size_t begin = (size_t)info.token_begin * ROW, count = (size_t)j->tokens * ROW,
               bytes = count * sizeof(float);
  const uint64_t scratch_bytes = info.workspace_forward_bytes > info.workspace_backward_bytes
                                     ? info.workspace_forward_bytes
                                     : info.workspace_backward_bytes;
  const lasp_buffer cache = memory(info.state_cache_bytes, info.alignment);
  const lasp_buffer workspace = memory(scratch_bytes, info.alignment);
  const lasp_const_buffer q_here = {q + begin, bytes}, k_here = {k + begin, bytes}, v_here = {v + begin, bytes};
  const lasp_const_buffer decay_here = {decay, sizeof decay};

  lasp_forward_args forward = LASP_FORWARD_ARGS_INIT;
  forward.q = q_here, forward.k = k_here, forward.v = v_here, forward.decay = decay_here;
  forward.o.data = j->out->o + begin, forward.o.bytes = bytes;
  forward.state_cache = cache, forward.workspace = workspace;
  CHECK(lasp_forward(plan, &forward, NULL));

  for (size_t i = begin; i < begin + count; ++i) j->out->d_o[i] = j->out->o[i] - target[i];

  lasp_backward_args backward = LASP_BACKWARD_ARGS_INIT;
  backward.q = q_here, backward.k = k_here, backward.v = v_here, backward.decay = decay_here;
  backward.d_o.data = j->out->d_o + begin, backward.d_o.bytes = bytes;
  backward.state_cache.data = cache.data, backward.state_cache.bytes = cache.bytes;
  backward.dq.data = j->out->dq + begin, backward.dq.bytes = bytes;
  backward.dk.data = j->out->dk + begin, backward.dk.bytes = bytes;
  backward.dv.data = j->out->dv + begin, backward.dv.bytes = bytes;
  backward.workspace = workspace;
  CHECK(lasp_backward(plan, &backward, NULL));

  free(cache.data);
  free(workspace.data);
  CHECK(lasp_plan_destroy(plan));
  CHECK(lasp_context_destroy(context));
  CHECK(lasp_comm_destroy(j->comm));
  return NULL;
}

/* Both are right to 2e-6 by the library's own bound, and so differ by 4e-6 at most; a gradient inherits o's error
 * too. */
static int compare(const char *name, const float *one, const float *four) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < TOKENS * ROW; ++i) {
    difference += ((double)one[i] - (double)four[i]) * ((double)one[i] - (double)four[i]);
    size += (double)one[i] * (double)one[i];
  }
  const double relative = sqrt(difference / size);
  printf("%-3s one rank and four differ by %.1e\n", name, relative);
  return relative <= 1e-5 ? 0 : 1; /* not a number fails too */
}

int main(void) {
  static results one, four;
  for (int i = 0; i < TOKENS * ROW; ++i) {
    q[i] = (float)sin(0.37 * i), k[i] = (float)sin(0.73 * i + 1.0), v[i] = (float)sin(0.11 * i + 2.0);
    target[i] = (float)sin(0.05 * i);
  }
  job alone = {NULL, TOKENS, &one};
  CHECK(lasp_comm_create_self(&alone.comm));
  run_rank(&alone);

  lasp_comm *comms[RANKS];
  job jobs[RANKS];
  pthread_t threads[RANKS];
  CHECK(lasp_comm_create_threads(RANKS, comms));
  for (int r = 0; r < RANKS; ++r) {
    jobs[r].comm = comms[r], jobs[r].tokens = tokens_of_rank[r], jobs[r].out = &four;
    if (pthread_create(&threads[r], NULL, run_rank, &jobs[r]) != 0) return 1;
  }
  for (int r = 0; r < RANKS; ++r) pthread_join(threads[r], NULL);

  const int wrong = compare("o", one.o, four.o) + compare("dq", one.dq, four.dq) + compare("dk", one.dk, four.dk) +
                    compare("dv", one.dv, four.dv);
  puts(wrong ? "FAILED" : "the split sequence gives what one rank gives");
  return wrong != 0;
}
