/* A transport of one's own: four processes, one sequence over all of them, and messages over sockets between them.
 *
 *     cc -std=c99 transport.c $(pkg-config --cflags --libs lasp) -lm -o transport
 *     ./transport             every rank compares its tokens with what one rank alone computes
 *     ./transport --lose 2    rank 2 ends before its pass: the others are told so, and do not hang */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <lasp/lasp.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, TOKENS = 200, HEADS = 8, DIM = 64, ROW = HEADS * DIM, ALL = RANKS * TOKENS * ROW };
enum { TIME_LIMIT_MS = 10000 };

/* ---- What the transport knows ---- */

typedef struct header { /* goes before every message */
  int32_t tag, unused;
  uint64_t bytes;
} header;

typedef struct request { /* a message that was asked for, or one that came before it was */
  struct request *next;
  unsigned char *data;
  uint64_t gone; /* bytes that have been sent or have come, a sender's header included */
  header head;
  int32_t peer, complete;
} request;

typedef struct peer {
  int socket;
  request *sends, *receives, *early; /* the oldest first; `early` came before a receive asked for it */
  header head;                       /* of the message that is coming */
  size_t head_bytes;                 /* of it that are here */
  request *into;                     /* where its bytes go */
  int lost;
} peer;

typedef struct group {
  int32_t rank;
  volatile int32_t aborted;
  volatile int32_t *first_lost; /* in memory that all ranks share: -1, or the rank that was lost first */
  peer peers[RANKS];
} group;

static void append(request **list, request *r) {
  while (*list != NULL) list = &(*list)->next;
  r->next = NULL;
  *list = r;
}

static void take_out(request **list, const request *r) {
  while (*list != NULL && *list != r) list = &(*list)->next;
  if (*list != NULL) *list = r->next;
}

static request *find(request *list, int32_t tag, int complete) {
  while (list != NULL && (list->head.tag != tag || list->complete != complete)) list = list->next;
  return list;
}

static request *make_request(int32_t of, int32_t tag, void *data, uint64_t bytes) {
  request *r = calloc(1, sizeof *r);
  if (r == NULL) return NULL;
  r->peer = of, r->head.tag = tag, r->head.bytes = bytes, r->data = data;
  return r;
}

/* ---- Moving bytes, as far as they go at once ---- */

/* Moves bytes until the socket would block; says how many. */
static size_t move(peer *p, void *data, size_t bytes, int sends) {
  size_t moved = 0;
  while (moved < bytes && !p->lost) {
    char *const at = (char *)data + moved;
    const ssize_t n =
        sends ? send(p->socket, at, bytes - moved, MSG_NOSIGNAL) : recv(p->socket, at, bytes - moved, 0);
    if (n > 0) {
      moved += (size_t)n;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      p->lost = 1; /* its end is closed */
    } else if (errno == EAGAIN) {
      break;
    }
  }
  return moved;
}

static void push_out(peer *p) {
  while (p->sends != NULL && !p->lost) {
    request *const r = p->sends;
    const size_t head = sizeof r->head, whole = head + (size_t)r->head.bytes;
    if (r->gone < head) r->gone += move(p, (char *)&r->head + r->gone, head - (size_t)r->gone, 1);
    if (r->gone >= head) r->gone += move(p, r->data + (r->gone - head), whole - (size_t)r->gone, 1);
    if (r->gone < whole) return;
    r->complete = 1;
    take_out(&p->sends, r);
  }
}

/* Gives a receive the message that came before it was asked for. */
static void hand_over(peer *p, request *r, request *came) {
  memcpy(r->data, came->data, (size_t)r->head.bytes);
  r->complete = 1;
  take_out(&p->receives, r);
  take_out(&p->early, came);
  free(came->data);
  free(came);
}

static void take_in(peer *p, int32_t of) {
  while (!p->lost) {
    p->head_bytes += move(p, (char *)&p->head + p->head_bytes, sizeof p->head - p->head_bytes, 0);
    if (p->head_bytes < sizeof p->head) return;
    if (p->into == NULL) p->into = find(p->receives, p->head.tag, 0);
    if (p->into == NULL) {
      p->into = make_request(of, p->head.tag, malloc((size_t)p->head.bytes), p->head.bytes);
      if (p->into == NULL || p->into->data == NULL) {
        p->lost = 1;
        return;
      }
      append(&p->early, p->into);
    }
    request *const r = p->into;
    r->gone += move(p, r->data + r->gone, (size_t)(r->head.bytes - r->gone), 0);
    if (r->gone < r->head.bytes) return;
    r->complete = 1;
    p->head_bytes = 0, p->into = NULL;
    take_out(&p->receives, r);
    request *const asked = find(p->receives, r->head.tag, 0);
    if (find(p->early, r->head.tag, 1) == r && asked != NULL) hand_over(p, asked, r);
  }
}

static void advance(group *g) {
  for (int32_t r = 0; r < RANKS; ++r) {
    if (r == g->rank || g->peers[r].lost) continue;
    push_out(&g->peers[r]);
    take_in(&g->peers[r], r);
  }
}

/* ---- The table's functions ---- */

static lasp_status begin_send(void *user, const void *data, uint64_t bytes, int32_t to, int32_t tag,
                              lasp_stream stream, void **made) {
  group *const g = user;
  (void)stream; /* memory = LASP_DEVICE_CPU: there is none */
  request *const r = make_request(to, tag, (void *)data, bytes);
  if (r == NULL) return LASP_ERROR_TRANSPORT;
  append(&g->peers[to].sends, r);
  advance(g);
  *made = r;
  return LASP_OK;
}

static lasp_status begin_receive(void *user, void *data, uint64_t bytes, int32_t from, int32_t tag,
                                 lasp_stream stream, void **made) {
  group *const g = user;
  peer *const p = &g->peers[from];
  (void)stream;
  request *const r = make_request(from, tag, data, bytes);
  if (r == NULL) return LASP_ERROR_TRANSPORT;
  append(&p->receives, r);
  request *const came = find(p->early, tag, 1);
  if (came != NULL) hand_over(p, r, came);
  *made = r;
  return LASP_OK;
}

/* What is to be said of a request that is not complete: LASP_OK as long as it may still become so. */
static lasp_status trouble(group *g, const request *r, int32_t *lost_rank) {
  const int32_t first = *g->first_lost;
  if (g->aborted) return LASP_ERROR_ABORTED;
  if (first < 0 && !g->peers[r->peer].lost) return LASP_OK;
  *lost_rank = first < 0 ? r->peer : first;
  return LASP_ERROR_PEER_LOST;
}

static lasp_status test(void *user, void *given, int32_t *done) {
  group *const g = user;
  request *const r = given;
  int32_t lost = -1;
  advance(g);
  *done = r->complete;
  return r->complete ? LASP_OK : trouble(g, r, &lost);
}

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Sleeps until a socket has something to do, at most so long. */
static void sleep_on_sockets(group *g, int64_t most_ms) {
  struct pollfd fds[RANKS];
  for (int32_t r = 0; r < RANKS; ++r) {
    const peer *const p = &g->peers[r];
    fds[r].fd = r == g->rank || p->lost ? -1 : p->socket;
    fds[r].events = (short)(POLLIN | (p->sends != NULL ? POLLOUT : 0));
  }
  poll(fds, RANKS, (int)(most_ms < 50 ? most_ms : 50)); /* looks at `aborted` now and then */
}

static lasp_status wait_for(void *user, void *given, int64_t most_ms, int32_t *done, int32_t *lost_rank) {
  group *const g = user;
  request *const r = given;
  const int64_t until = now_ms() + most_ms;
  for (;;) {
    advance(g);
    *done = r->complete;
    if (r->complete) {
      free(r);
      return LASP_OK;
    }
    const lasp_status status = trouble(g, r, lost_rank);
    const int64_t left = until - now_ms();
    if (status != LASP_OK || left <= 0) return status;
    sleep_on_sockets(g, left);
  }
}

static lasp_status wait_until(void *user, void *given, int64_t time_limit_ms, int32_t *lost_rank) {
  int32_t done = 0;
  const lasp_status status = wait_for(user, given, time_limit_ms < 0 ? INT32_MAX : time_limit_ms, &done, lost_rank);
  if (status != LASP_OK || done) return status;
  *lost_rank = ((request *)given)->peer; /* late */
  return LASP_ERROR_PEER_LOST;
}

static void cancel(void *user, void *given) {
  group *const g = user;
  request *const r = given;
  peer *const p = &g->peers[r->peer];
  if (r->gone > 0 && !r->complete) p->lost = 1; /* the rest of this message has no place any more */
  if (p->into == r) p->into = NULL;
  take_out(&p->sends, r);
  take_out(&p->receives, r);
  free(r);
}

/* May come from any thread: it sets two numbers and closes sockets for sending, which wakes the others. */
static void abort_group(void *user, int32_t lost_rank) {
  group *const g = user;
  if (lost_rank >= 0) __sync_val_compare_and_swap(g->first_lost, -1, lost_rank);
  g->aborted = 1;
  for (int32_t r = 0; r < RANKS; ++r)
    if (r != g->rank) shutdown(g->peers[r].socket, SHUT_RDWR);
}

static void destroy(void *user) {
  group *const g = user;
  for (int32_t r = 0; r < RANKS; ++r) {
    if (r == g->rank) continue;
    close(g->peers[r].socket);
    for (request *each = g->peers[r].early, *next; each != NULL; each = next) {
      next = each->next;
      free(each->data);
      free(each);
    }
  }
}

static lasp_status make_comm(group *g, lasp_comm **comm) {
  lasp_transport table = LASP_TRANSPORT_INIT;
  table.name = "sockets";
  table.rank = g->rank, table.nranks = RANKS, table.local_ranks = RANKS;
  table.latency_us = 20, table.bandwidth_gbs = 2; /* for the automatic schedule */
  table.send = begin_send, table.receive = begin_receive;
  table.test = test, table.wait = wait_until, table.wait_for = wait_for;
  table.cancel = cancel, table.abort = abort_group, table.destroy = destroy;
  return lasp_comm_create_custom(&table, g, comm);
}

/* ---- A program that uses it ---- */

static float q[ALL], k[ALL], v[ALL], one[ALL], mine[ALL];
static const float decay[HEADS] = {-0.001f, -0.002f, -0.005f, -0.01f, -0.02f, -0.05f, -0.1f, -0.5f};

/* The forward pass over `tokens` tokens from `begin` on; `comm` is destroyed. */
static lasp_status run(lasp_comm *comm, int tokens, int begin, float *to) {
  lasp_context *context = NULL;
  lasp_plan *plan = NULL;
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = tokens;
  problem.heads_q = problem.heads_k = problem.heads_v = HEADS;
  problem.head_dim_k = problem.head_dim_v = DIM;
  problem.decay = LASP_DECAY_HEAD;
  problem.backward = 0;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.time_limit_ms = TIME_LIMIT_MS;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  lasp_status status = lasp_context_create(LASP_ABI, comm, &options, &context);
  if (status == LASP_OK) status = lasp_plan_create(context, &problem, &plan);
  if (status == LASP_OK) status = lasp_plan_get_info(plan, &info);
  if (status == LASP_OK) {
    const size_t first = (size_t)begin * ROW, bytes = (size_t)tokens * ROW * sizeof(float);
    args.q.data = q + first, args.k.data = k + first, args.v.data = v + first, args.o.data = to + first;
    args.q.bytes = args.k.bytes = args.v.bytes = args.o.bytes = bytes;
    args.decay.data = decay, args.decay.bytes = sizeof decay;
    args.workspace.bytes = (size_t)info.workspace_forward_bytes;
    if (posix_memalign(&args.workspace.data, (size_t)info.alignment, args.workspace.bytes + 1) != 0) exit(1);
    status = lasp_forward(plan, &args, NULL);
  }
  if (status != LASP_OK) printf("%s: %s\n", lasp_status_name(status), lasp_last_error());
  free(args.workspace.data);
  lasp_plan_destroy(plan);
  lasp_context_destroy(context);
  lasp_comm_destroy(comm);
  return status;
}

static int rank_main(group *g, int lost) {
  lasp_comm *comm = NULL;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (g->rank == lost) return 0;
  if (lasp_comm_create_self(&comm) != LASP_OK || run(comm, RANKS * TOKENS, 0, one) != LASP_OK) return 1;
  if (make_comm(g, &comm) != LASP_OK) {
    printf("%s\n", lasp_last_error());
    return 1;
  }
  const int64_t began = now_ms();
  const lasp_status status = run(comm, TOKENS, g->rank * TOKENS, mine);
  if (lost >= 0) {
    char named[32];
    snprintf(named, sizeof named, "rank %d did not come", lost);
    const int told = status == LASP_ERROR_PEER_LOST && strstr(lasp_last_error(), named) != NULL;
    return told && now_ms() - began < TIME_LIMIT_MS / 2 ? 0 : 1; /* at once, not when the time is over */
  }
  if (status != LASP_OK) return 1;
  double difference = 0, size = 0;
  for (int i = 0; i < ALL; ++i) {
    const double apart = i / (TOKENS * ROW) == g->rank ? (double)one[i] - (double)mine[i] : 0;
    difference += apart * apart;
    size += (double)one[i] * (double)one[i];
  }
  /* Both are right to 2e-6 of the whole by the library's own bound, and so differ by 4e-6 at most. */
  const double relative = sqrt(difference / size);
  printf("rank %d differs from one rank alone by %.1e\n", g->rank, relative);
  return relative <= 4e-6 ? 0 : 1; /* not a number fails too */
}

int main(int argc, char **argv) {
  const int lost = argc == 3 && strcmp(argv[1], "--lose") == 0 ? atoi(argv[2]) : -1;
  static int sockets[RANKS][RANKS]; /* [r][s]: rank r's end of its line to rank s */
  int32_t *const first_lost =
      mmap(NULL, sizeof *first_lost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int failed = first_lost == MAP_FAILED;
  for (int i = 0; i < ALL; ++i)
    q[i] = (float)sin(0.37 * i), k[i] = (float)sin(0.73 * i + 1.0), v[i] = (float)sin(0.11 * i + 2.0);
  for (int r = 0; r < RANKS; ++r) {
    for (int s = 0; s < r; ++s) {
      int pair[2];
      if (failed || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) return 1;
      sockets[r][s] = pair[0], sockets[s][r] = pair[1];
    }
  }
  *first_lost = -1;
  for (int r = 0; r < RANKS; ++r) {
    if (fork() != 0) continue;
    static group g;
    g.rank = r, g.first_lost = first_lost;
    for (int s = 0; s < RANKS;
         ++s) /* others' ends are closed: a rank that is gone must leave nobody who holds its own */
      for (int t = 0; t < RANKS; ++t)
        if (s != t && s != r) close(sockets[s][t]);
    for (int s = 0; s < RANKS; ++s) g.peers[s].socket = sockets[r][s];
    exit(rank_main(&g, lost));
  }
  for (int r = 0; r < RANKS; ++r)
    for (int s = 0; s < RANKS; ++s)
      if (r != s) close(sockets[r][s]);
  for (int status; wait(&status) > 0;) failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  puts(failed ? "FAILED" : lost < 0 ? "the split sequence gives what one rank gives" : "every other rank was told");
  return failed;
}
