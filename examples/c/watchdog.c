/* A watchdog: a thread of the program's own that ends a job whose peer has stopped, before anybody's patience does.
 *
 *     cc -std=c99 watchdog.c $(pkg-config --cflags --libs lasp) -pthread
 *
 * Two ranks, here threads of this process, train without a time limit. Rank 0 stops after a few steps, as a machine
 * does that swaps or a process in a debugger. Rank 1 then waits for it, and would for ever. The watchdog sees that
 * no step has ended for PATIENCE_MS and calls lasp_context_abort. A program with processes has one watchdog in
 * each. */
#define _POSIX_C_SOURCE 200809L
#include <lasp/lasp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RANKS = 2, TOKENS = 64, HEADS = 2, DIM = 16, STEPS = 20, PATIENCE_MS = 1000, LOOK_EVERY_MS = 100 };

typedef struct rank {
  lasp_context *context;
  int number;
  int steps;   /* that have ended; read by the watchdog */
  int stopped; /* 1: rank 0 may go home */
  lasp_status status;
  pthread_mutex_t mutex; /* of steps and stopped */
} rank;

static void check(lasp_status status, const char *call) {
  if (status == LASP_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, lasp_status_name(status), lasp_last_error());
  exit(1);
}
#define CHECK(call) check(call, #call)

static void sleep_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}
static int get(rank *r, const int *field) {
  pthread_mutex_lock(&r->mutex);
  const int value = *field;
  pthread_mutex_unlock(&r->mutex);
  return value;
}
static void set(rank *r, int *field, int value) {
  pthread_mutex_lock(&r->mutex);
  *field = value;
  pthread_mutex_unlock(&r->mutex);
}

static void *train(void *argument) {
  rank *const r = argument;
  lasp_plan *plan = NULL;
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = TOKENS;
  problem.heads_q = problem.heads_k = problem.heads_v = HEADS;
  problem.head_dim_k = problem.head_dim_v = DIM;
  problem.backward = 0;
  CHECK(lasp_plan_create(r->context, &problem, &plan));
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  CHECK(lasp_plan_get_info(plan, &info));
  static float x[RANKS][TOKENS * HEADS * DIM], o[RANKS][TOKENS * HEADS * DIM];
  void *workspace = NULL;
  if (posix_memalign(&workspace, (size_t)info.alignment, (size_t)info.workspace_forward_bytes + 1) != 0) exit(1);

  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  args.q.data = args.k.data = args.v.data = x[r->number];
  args.q.bytes = args.k.bytes = args.v.bytes = sizeof x[0];
  args.o.data = o[r->number];
  args.o.bytes = sizeof o[0];
  args.workspace.data = workspace;
  args.workspace.bytes = (size_t)info.workspace_forward_bytes;
  for (int step = 1; step <= STEPS && r->status == LASP_OK; ++step) {
    if (r->number == 0 && step == STEPS / 2) /* it stops here; what it waits for never comes of itself */
      while (!get(r, &r->stopped)) sleep_ms(10);
    r->status = lasp_forward(plan, &args, NULL);
    if (r->status == LASP_OK) set(r, &r->steps, step);
  }
  if (r->status != LASP_OK)
    printf("rank %d, after %d steps: %s: %s\n", r->number, r->steps, lasp_status_name(r->status),
           lasp_last_error());
  free(workspace);
  CHECK(lasp_plan_destroy(plan));
  return NULL;
}

/* Looks after rank 1 until it has ended its steps, or for as long as it gets on; 1: it had to be ended. */
static int watch(rank *r) {
  int steps = 0;
  for (long idle_ms = 0; idle_ms < PATIENCE_MS; idle_ms += LOOK_EVERY_MS) {
    sleep_ms(LOOK_EVERY_MS);
    lasp_status status = LASP_OK;
    char sentence[512];
    CHECK(lasp_context_get_async_error(r->context, &status, sentence, sizeof sentence));
    if (status != LASP_OK) { /* somebody else has found it out; the call that waits returns */
      printf("watchdog: %s: %s\n", lasp_status_name(status), sentence);
      return 0;
    }
    const int now = get(r, &r->steps);
    if (now == STEPS) return 0;
    if (now != steps) idle_ms = 0;
    steps = now;
  }
  printf("watchdog: no step for %d ms, %d have ended: the job is over\n", PATIENCE_MS, steps);
  CHECK(lasp_context_abort(r->context));
  return 1;
}

int main(void) {
  lasp_comm *comms[RANKS];
  static rank ranks[RANKS];
  pthread_t threads[RANKS];
  CHECK(lasp_comm_create_threads(RANKS, comms));
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.time_limit_ms = -1; /* the watchdog decides */
  for (int i = 0; i < RANKS; ++i) {
    ranks[i].number = i;
    pthread_mutex_init(&ranks[i].mutex, NULL);
    CHECK(lasp_context_create(LASP_ABI, comms[i], &options, &ranks[i].context));
    if (pthread_create(&threads[i], NULL, train, &ranks[i]) != 0) return 1;
  }
  const int ended = watch(&ranks[1]);
  pthread_join(threads[1], NULL);
  set(&ranks[0], &ranks[0].stopped, 1);
  pthread_join(threads[0], NULL);
  const int right = ended && ranks[0].status == LASP_ERROR_ABORTED && ranks[1].status == LASP_ERROR_ABORTED;
  for (int i = 0; i < RANKS; ++i) {
    CHECK(lasp_context_destroy(ranks[i].context));
    CHECK(lasp_comm_destroy(comms[i]));
    pthread_mutex_destroy(&ranks[i].mutex);
  }
  return right ? 0 : 1;
}
