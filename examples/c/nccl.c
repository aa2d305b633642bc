/* You have an ncclComm_t and device pointers. Linear attention whose sequence is split over GPUs, one process to a
 * GPU: forward and backward, the same from a CUDA graph, and every rank's results compared with a recurrence on the
 * host.
 *
 *     cc -std=c99 nccl.c $(pkg-config --cflags --libs lasp) -I/usr/local/cuda/include -L/usr/local/cuda/lib64 \
 *        -lnccl -lcudart -lm -o nccl
 *     ./nccl 4             four processes on four GPUs, one sequence over all of them
 *     ./nccl 4 2           two groups of two GPUs, each with a sequence of its own
 *     ./nccl 2 2 lose      rank 0 stops making calls; the others must notice and leave
 *
 * With `mpicc -DWITH_MPI` ranks come from MPI instead, on any number of machines: mpirun -n 4 ./nccl 4 2 */
#define _POSIX_C_SOURCE 200112L
#include <cuda_runtime_api.h>
#include <lasp/lasp.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif

#include "nccl_check.h"

enum { REPLAYS = 20, TIME_LIMIT_MS = 5000, BACKSTOP_S = 120 };

typedef struct rank {
  ncclComm_t world, sequence;
  lasp_groups groups;
  cudaStream_t stream;
  lasp_comm *comm;
  lasp_context *context;
  lasp_plan *plan;
  lasp_plan_info info;
  int64_t tokens;
  void *tensor[TENSORS], *decay, *cache, *workspace; /* device memory */
  lasp_forward_args forward;
  lasp_backward_args backward;
} rank;

/* ---- Errors: one line with the rank, the call and the reason, then every caller returns -1 --------------- */

static int world_rank;

static int failed(const char *call, const char *name, const char *why) {
  fprintf(stderr, "rank %d: %s: %s: %s\n", world_rank, call, name, why);
  return -1;
}
static int lasp_failed(lasp_status status, const char *call) {
  return status == LASP_OK ? 0 : failed(call, lasp_status_name(status), lasp_last_error());
}
static int cuda_failed(cudaError_t error, const char *call) {
  return error == cudaSuccess ? 0 : failed(call, cudaGetErrorName(error), cudaGetErrorString(error));
}
static int nccl_failed(ncclResult_t result, const char *call) {
  return result == ncclSuccess ? 0 : failed(call, "NCCL", ncclGetErrorString(result));
}
/* clang-format off */
#define LASP(call) do { if (lasp_failed(call, #call)) return -1; } while (0)
#define CUDA(call) do { if (cuda_failed(call, #call)) return -1; } while (0)
#define NCCL(call) do { if (nccl_failed(call, #call)) return -1; } while (0)
/* clang-format on */

/* ---- The library, in the order of docs/guide/nccl.md ----------------------------------------------------- */

/* The program has a communicator of all its ranks. Those that share a sequence get one of their own. */
static int split(rank *r, int world_size, int sequence_ranks) {
  lasp_groups g = LASP_GROUPS_INIT;
  LASP(lasp_groups_of_rank(world_size, sequence_ranks, 1, world_rank, &g));
  NCCL(ncclCommSplit(r->world, g.sequence_group, g.sequence_rank, &r->sequence, NULL));
  r->groups = g;
  return 0;
}

static int make_context(rank *r) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.time_limit_ms = TIME_LIMIT_MS;
  LASP(lasp_comm_create_nccl(r->sequence, NULL, &r->comm));
  LASP(lasp_context_create(LASP_ABI, r->comm, &options, &r->context));
  return 0;
}

static int make_plan(rank *r) {
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = r->tokens; /* of this rank; ranks may differ */
  problem.heads_q = problem.heads_k = problem.heads_v = HEADS;
  problem.head_dim_k = problem.head_dim_v = DIM;
  problem.dtype = LASP_BFLOAT16;
  problem.decay = LASP_DECAY_HEAD;
  LASP(lasp_plan_create(r->context, &problem, &r->plan));
  const lasp_plan_info init = LASP_PLAN_INFO_INIT;
  r->info = init;
  LASP(lasp_plan_get_info(r->plan, &r->info));
  return 0;
}

static int allocate(rank *r) {
  const size_t bytes = (size_t)r->tokens * ROW * sizeof(uint16_t);
  const uint64_t workspace = r->info.workspace_forward_bytes > r->info.workspace_backward_bytes
                                 ? r->info.workspace_forward_bytes
                                 : r->info.workspace_backward_bytes;
  for (int i = 0; i < TENSORS; ++i) CUDA(cudaMalloc(&r->tensor[i], bytes));
  CUDA(cudaMalloc(&r->decay, sizeof decay));
  CUDA(cudaMalloc(&r->cache, (size_t)r->info.state_cache_bytes));
  CUDA(cudaMalloc(&r->workspace, (size_t)workspace));

  const lasp_const_buffer q = {r->tensor[Q], bytes}, k = {r->tensor[K], bytes}, v = {r->tensor[V], bytes};
  const lasp_const_buffer g = {r->decay, sizeof decay}, d_o = {r->tensor[DO], bytes};
  const lasp_buffer o = {r->tensor[O], bytes}, dq = {r->tensor[DQ], bytes};
  const lasp_buffer dk = {r->tensor[DK], bytes}, dv = {r->tensor[DV], bytes};
  const lasp_buffer cache = {r->cache, (size_t)r->info.state_cache_bytes};
  const lasp_buffer scratch = {r->workspace, (size_t)workspace};
  const lasp_const_buffer read_cache = {cache.data, cache.bytes};

  const lasp_forward_args forward = LASP_FORWARD_ARGS_INIT;
  r->forward = forward;
  r->forward.q = q, r->forward.k = k, r->forward.v = v, r->forward.decay = g;
  r->forward.o = o, r->forward.state_cache = cache, r->forward.workspace = scratch;

  const lasp_backward_args backward = LASP_BACKWARD_ARGS_INIT;
  r->backward = backward;
  r->backward.q = q, r->backward.k = k, r->backward.v = v, r->backward.decay = g;
  r->backward.d_o = d_o, r->backward.state_cache = read_cache, r->backward.workspace = scratch;
  r->backward.dq = dq, r->backward.dk = dk, r->backward.dv = dv;
  return 0;
}

/* Both calls only enqueue. All ranks of the group make them, in the same order. */
static int passes(rank *r) {
  LASP(lasp_forward(r->plan, &r->forward, r->stream));
  LASP(lasp_backward(r->plan, &r->backward, r->stream));
  return 0;
}

/* In place of cudaStreamSynchronize, which would wait for a lost rank for ever. */
static int wait_for_stream(rank *r) {
  const struct timespec pause = {0, 100 * 1000};
  const time_t end = time(NULL) + 3 * TIME_LIMIT_MS / 1000; /* for graphs and calls of NCCL */
  for (;;) {
    const cudaError_t work = cudaStreamQuery(r->stream);
    if (work == cudaSuccess) return 0;
    if (work != cudaErrorNotReady) return cuda_failed(work, "the stream");
    lasp_status status = LASP_OK;
    char why[512];
    LASP(lasp_context_get_async_error(r->context, &status, why, sizeof why));
    if (status != LASP_OK) return failed("waiting", lasp_status_name(status), why);
    if (time(NULL) > end) return failed("waiting", "time limit", "the stream's work does not end");
    nanosleep(&pause, NULL);
  }
}

/* Captures both passes and replays them. `*microseconds` is the time of one replay. */
static int replay(rank *r, float *microseconds) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  LASP(lasp_plan_prepare(r->plan, r->stream));
  CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
  const int enqueued = passes(r);
  CUDA(cudaStreamEndCapture(r->stream, &graph));
  if (enqueued != 0) return -1;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphLaunch(executable, r->stream)); /* the first launch also uploads the graph */
  CUDA(cudaEventRecord(begin, r->stream));
  for (int i = 0; i < REPLAYS; ++i) CUDA(cudaGraphLaunch(executable, r->stream));
  CUDA(cudaEventRecord(end, r->stream));
  if (wait_for_stream(r) != 0) return -1;
  CUDA(cudaEventElapsedTime(microseconds, begin, end));
  *microseconds *= 1000.0f / REPLAYS;
  CUDA(cudaGraphExecDestroy(executable)); /* before its plan */
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  return 0;
}

static int release(void *device_memory) {
  return device_memory == NULL ? 0 : cuda_failed(cudaFree(device_memory), "cudaFree");
}

/* After a failure, kernels on this GPU may still wait for the other rank's. Aborting the communicators ends them;
 * only then can device memory be freed, which the library does when it destroys the plan. */
static int leave(rank *r, int after_failure) {
  if (after_failure) {
    if (r->context != NULL) lasp_context_abort(r->context);
    if (r->sequence != NULL) ncclCommAbort(r->sequence);
    if (r->world != NULL) ncclCommAbort(r->world);
  }
  LASP(lasp_plan_destroy(r->plan));
  LASP(lasp_context_destroy(r->context));
  LASP(lasp_comm_destroy(r->comm));
  if (!after_failure) {
    NCCL(ncclCommDestroy(r->sequence));
    NCCL(ncclCommDestroy(r->world));
  }
  int result = release(r->decay) + release(r->cache) + release(r->workspace);
  for (int i = 0; i < TENSORS; ++i) result += release(r->tensor[i]);
  if (r->stream != NULL) result += cuda_failed(cudaStreamDestroy(r->stream), "cudaStreamDestroy");
  return result;
}

/* ---- Data ------------------------------------------------------------------------------------------------ */

static int upload(rank *r) {
  const size_t count = (size_t)r->tokens * ROW;
  uint16_t *const host = malloc(count * sizeof *host);
  if (host == NULL) return failed("malloc", "host", "out of memory");
  int result = 0;
  for (int tensor = Q; tensor < TENSORS && result == 0; ++tensor) {
    for (size_t i = 0; i < count; ++i)
      host[i] = to_bfloat16(
          input(tensor, r->groups.sequence_group, r->info.token_begin + (int64_t)(i / ROW), (int)(i % ROW)));
    result = cuda_failed(
        cudaMemcpyAsync(r->tensor[tensor], host, count * sizeof *host, cudaMemcpyHostToDevice, r->stream),
        "upload");
    if (result == 0) result = cuda_failed(cudaStreamSynchronize(r->stream), "upload");
  }
  free(host);
  if (result == 0) CUDA(cudaMemcpyAsync(r->decay, decay, sizeof decay, cudaMemcpyHostToDevice, r->stream));
  return result;
}

static int download(rank *r, uint16_t *results) { /* [RESULTS, tokens, HEADS, DIM] */
  const size_t count = (size_t)r->tokens * ROW;
  for (int i = 0; i < RESULTS; ++i)
    CUDA(cudaMemcpy(results + (size_t)i * count, r->tensor[i], count * sizeof *results, cudaMemcpyDeviceToHost));
  return 0;
}

/* The largest of all ranks' numbers, by the program's own communicator. */
static int largest(rank *r, double *number) {
  double *on_device = r->workspace;
  CUDA(cudaMemcpyAsync(on_device, number, sizeof *number, cudaMemcpyHostToDevice, r->stream));
  NCCL(ncclAllReduce(on_device, on_device, 1, ncclDouble, ncclMax, r->world, r->stream));
  if (wait_for_stream(r) != 0) return -1;
  CUDA(cudaMemcpy(number, on_device, sizeof *number, cudaMemcpyDeviceToHost));
  return 0;
}

/* ---- A rank's life --------------------------------------------------------------------------------------- */

typedef struct job {
  int world_size, sequence_ranks, local_rank, lose;
  ncclUniqueId id;
} job;

/* Rank 0 of each group makes no call any more. The others' calls return, but their streams do not end. */
static int lose_rank_0(rank *r) {
  if (r->groups.sequence_rank == 0) {
    sleep(2 * TIME_LIMIT_MS / 1000);
    return 0;
  }
  if (passes(r) == 0 && wait_for_stream(r) == 0) return failed("lose", "wrong", "nobody missed rank 0");
  lasp_status status = LASP_OK;
  LASP(lasp_context_get_async_error(r->context, &status, NULL, 0));
  if (status != LASP_ERROR_PEER_LOST) return failed("lose", lasp_status_name(status), "not LASP_ERROR_PEER_LOST");
  if (world_rank == 1) puts("PASS: rank 1 was told within the time limit that a rank is lost");
  return 0;
}

static int train(rank *r, const job *j) {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  const int device = j->local_rank % devices;
  CUDA(cudaSetDevice(device));
  CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
  NCCL(ncclCommInitRank(&r->world, j->world_size, j->id, world_rank));
  if (split(r, j->world_size, j->sequence_ranks) != 0 || make_context(r) != 0) return -1;
  r->tokens = 192 + 40 * r->groups.sequence_rank;
  if (make_plan(r) != 0 || allocate(r) != 0 || upload(r) != 0) return -1;

  if (j->lose) return lose_rank_0(r);
  if (passes(r) != 0 || wait_for_stream(r) != 0) return -1;

  const size_t count = (size_t)r->tokens * ROW * RESULTS;
  uint16_t *const eager = malloc(count * sizeof *eager), *const replayed = malloc(count * sizeof *replayed);
  double worst = INFINITY;
  float microseconds = 0;
  int result = eager != NULL && replayed != NULL ? download(r, eager) : failed("malloc", "host", "out of memory");
  for (int i = 0; i < RESULTS && result == 0; ++i)
    result = cuda_failed(cudaMemset(r->tensor[i], 0xff, count / RESULTS * sizeof *eager), "cudaMemset");
  if (result == 0) result = replay(r, &microseconds);
  if (result == 0) result = download(r, replayed);
  if (result == 0) {
    worst = worst_error(&r->groups, &r->info, r->tokens, eager);
    if (memcmp(eager, replayed, count * sizeof *eager) != 0)
      result = failed("replay", "wrong", "a graph's results have other bits than the calls'");
  }
  free(eager);
  free(replayed);
  if (result != 0 || largest(r, &worst) != 0) return -1;
  if (!(worst <= bound)) return failed("compare", "wrong", "the results are not those of the recurrence");
  if (world_rank == 0)
    printf(
        "PASS: %d rank(s), %d to a sequence of %lld tokens: worst relative error %.1e (bound %.0e), forward and "
        "backward %.0f us from a graph, %d replays bit for bit\n",
        j->world_size, j->sequence_ranks, (long long)r->info.total_tokens, worst, bound, (double)microseconds,
        REPLAYS);
  return 0;
}

static int run(const job *j) {
  alarm(BACKSTOP_S); /* NCCL itself waits without a limit for a rank that does not come to ncclCommInitRank */
  rank r;
  memset(&r, 0, sizeof r);
  const int result = train(&r, j);
  return leave(&r, result != 0 || j->lose) != 0 ? -1 : result;
}

/* "./nccl RANKS [SEQUENCE_RANKS] [lose]" */
static int parse(int argc, char **argv, job *j) {
  memset(j, 0, sizeof *j);
  j->lose = argc > 1 && strcmp(argv[argc - 1], "lose") == 0;
  const int numbers = argc - 1 - j->lose;
  j->world_size = numbers > 0 ? atoi(argv[1]) : 0;
  j->sequence_ranks = numbers > 1 ? atoi(argv[2]) : j->world_size;
  if (numbers >= 1 && numbers <= 2 && j->world_size >= 1 && j->sequence_ranks >= (j->lose ? 2 : 1)) return 0;
  fprintf(stderr, "usage: nccl RANKS [SEQUENCE_RANKS] [lose]; `lose` needs two ranks to a sequence\n");
  return -1;
}

#ifdef WITH_MPI
int main(int argc, char **argv) {
  job j;
  int size = 0, result = 0;
  MPI_Comm machine;
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (parse(argc, argv, &j) == 0 && j.world_size == size) {
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &j.local_rank);
    MPI_Comm_free(&machine);
    if (world_rank == 0) result = nccl_failed(ncclGetUniqueId(&j.id), "ncclGetUniqueId");
    if (result != 0) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Bcast(&j.id, sizeof j.id, MPI_BYTE, 0, MPI_COMM_WORLD);
    result = run(&j);
  } else {
    result = failed("main", "arguments", "RANKS is the number of MPI's ranks");
  }
  MPI_Finalize();
  return result == 0 ? 0 : 1;
}
#else
/* One rank, in a process of its own. Rank 0 makes the group's id and writes it into the pipe, once for each other.
 */
static int child(job *j, int id_from, int id_to) {
  if (world_rank == 0) {
    NCCL(ncclGetUniqueId(&j->id));
    for (int i = 1; i < j->world_size; ++i)
      if (write(id_to, &j->id, sizeof j->id) != (ssize_t)sizeof j->id) return failed("write", "id", "pipe");
  }
  close(id_to); /* so that nobody waits for a rank 0 that has failed */
  if (world_rank != 0 && read(id_from, &j->id, sizeof j->id) != (ssize_t)sizeof j->id)
    return failed("read", "id", "rank 0 made none");
  return run(j);
}

/* Starts the ranks. This process uses neither CUDA nor NCCL: neither survives a fork. */
int main(int argc, char **argv) {
  job j;
  int ends[2], worst = 0;
  if (parse(argc, argv, &j) != 0 || pipe(ends) != 0) return 1;
  for (world_rank = 0; world_rank < j.world_size; ++world_rank) {
    const pid_t process = fork();
    if (process < 0) {
      perror("fork");
      return 1; /* the ranks that have begun end by BACKSTOP_S */
    }
    j.local_rank = world_rank;
    if (process == 0) exit(child(&j, ends[0], ends[1]) == 0 ? 0 : 1);
  }
  close(ends[0]);
  close(ends[1]);
  for (int status = 0; wait(&status) > 0;)
    if (status != 0) worst = 1;
  return worst;
}
#endif
