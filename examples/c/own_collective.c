/* Linear attention over a split sequence where the program itself moves the states: the passes in two stages, and a
 * collective of the program's own between them. Here four ranks are played one after the other in one thread, so
 * that the all-gather is only a place in an array; a trainer has MPI_Allgather or ncclAllGather there.
 *
 *     cc -std=c99 own_collective.c $(pkg-config --cflags --libs lasp) -lm */
#define _POSIX_C_SOURCE 200112L
#include <lasp/lasp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, TOKENS = 200, HEADS = 4, DIM = 32, ROW = HEADS * DIM, ALL = RANKS * TOKENS * ROW };
static float q[ALL], k[ALL], v[ALL], one[ALL], four[ALL];
static const float decay[HEADS] = {-0.001f, -0.01f, -0.1f, -0.5f};

typedef struct rank {
  lasp_comm *comm;
  lasp_context *context;
  lasp_plan *plan;
  lasp_plan_info info;
  lasp_forward_args forward;
} rank;

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

/* A rank of `nranks` without a transport, with its tokens of the tensors; o goes to `to`. */
static void make_rank(rank *r, int32_t number, int32_t nranks, float *to) {
  const size_t tokens = (size_t)(RANKS * TOKENS / nranks), bytes = tokens * ROW * sizeof(float);
  const size_t begin = (size_t)number * tokens * ROW;
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = (int64_t)tokens;
  problem.heads_q = problem.heads_k = problem.heads_v = HEADS;
  problem.head_dim_k = problem.head_dim_v = DIM;
  problem.decay = LASP_DECAY_HEAD;
  problem.backward = 0;
  CHECK(lasp_comm_create_detached(number, nranks, &r->comm));
  CHECK(lasp_context_create(LASP_ABI, r->comm, NULL, &r->context));
  CHECK(lasp_plan_create(r->context, &problem, &r->plan));
  const lasp_plan_info info = LASP_PLAN_INFO_INIT;
  r->info = info;
  CHECK(lasp_plan_get_info(r->plan, &r->info));
  const lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  r->forward = args;
  r->forward.q.data = q + begin, r->forward.k.data = k + begin, r->forward.v.data = v + begin;
  r->forward.q.bytes = r->forward.k.bytes = r->forward.v.bytes = bytes;
  r->forward.decay.data = decay, r->forward.decay.bytes = sizeof decay;
  r->forward.o.data = to + begin, r->forward.o.bytes = bytes;
  r->forward.workspace = memory(r->info.workspace_forward_bytes, r->info.alignment);
  r->forward.carry = memory(r->info.carry_forward_bytes, r->info.alignment);
}

static void free_rank(rank *r) {
  free(r->forward.workspace.data);
  free(r->forward.carry.data);
  CHECK(lasp_plan_destroy(r->plan));
  CHECK(lasp_context_destroy(r->context));
  CHECK(lasp_comm_destroy(r->comm));
}

/* The forward pass of all ranks. */
static void run(int32_t nranks, float *to) {
  rank ranks[RANKS];
  memset(ranks, 0, sizeof ranks);
  for (int32_t r = 0; r < nranks; ++r) make_rank(&ranks[r], r, nranks, to);
  const uint64_t map_bytes = ranks[0].info.map_bytes;
  const lasp_buffer maps = memory((uint64_t)nranks * map_bytes, ranks[0].info.alignment);
  const lasp_buffer incoming = memory(sizeof(float) * HEADS * DIM * DIM, ranks[0].info.alignment);

  for (int32_t r = 0; r < nranks; ++r) {
    lasp_forward_args args = ranks[r].forward;
    args.maps.data = (char *)maps.data + (uint64_t)r * map_bytes; /* where an all-gather would put it */
    args.maps.bytes = (size_t)map_bytes;
    CHECK(lasp_forward_summarize(ranks[r].plan, &args, NULL));
  }
  for (int32_t r = 0; r < nranks; ++r) {
    lasp_maps_args fold = LASP_MAPS_ARGS_INIT;
    fold.maps.data = maps.data, fold.maps.bytes = maps.bytes;
    fold.incoming = incoming;
    CHECK(lasp_maps_apply(ranks[r].plan, &fold, NULL));
    lasp_forward_args args = ranks[r].forward;
    args.incoming.data = incoming.data, args.incoming.bytes = incoming.bytes;
    CHECK(lasp_forward_apply(ranks[r].plan, &args, NULL));
  }
  for (int32_t r = 0; r < nranks; ++r) free_rank(&ranks[r]);
  free(maps.data);
  free(incoming.data);
}

int main(void) {
  for (int i = 0; i < ALL; ++i) {
    q[i] = (float)sin(0.37 * i), k[i] = (float)sin(0.73 * i + 1.0), v[i] = (float)sin(0.11 * i + 2.0);
  }
  run(1, one);
  run(RANKS, four);
  double difference = 0, size = 0;
  for (size_t i = 0; i < ALL; ++i) {
    difference += ((double)one[i] - (double)four[i]) * ((double)one[i] - (double)four[i]);
    size += (double)one[i] * (double)one[i];
  }
  /* Both are right to 2e-6 by the library's own bound, and so differ by 4e-6 at most. */
  const double relative = sqrt(difference / size);
  printf("one rank and four differ by %.1e\n", relative);
  puts(relative <= 4e-6 ? "the program's own collective gives what one rank gives" : "FAILED");
  return relative <= 4e-6 ? 0 : 1; /* not a number fails too */
}
