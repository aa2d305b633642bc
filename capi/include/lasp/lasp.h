/* liblasp: linear attention over a sequence that is split along its length across ranks.
 *
 * A rank keeps its own tokens; only a small [K, V] state per sequence and head travels. This header is
 * the whole stable interface, in the order of a program's calls:
 *
 *     comm      one rank's end of one sequence-parallel group   lasp_comm_create_*
 *     context   comm + device + settings                        lasp_context_create
 *     plan      one validated problem; creation is collective   lasp_plan_create
 *     forward, backward, step   enqueue work on buffers you own lasp_forward, lasp_backward, lasp_step
 *     halo      the rows before a rank's first token; collective lasp_halo_create, lasp_halo_forward ...
 *     trace     what a rank did when, for a picture of it       lasp_trace_start, lasp_trace_write
 *
 * What is computed, for output head h and token t, with a state S of shape [K, V] per sequence:
 *
 *     S_t = A_t S_{t-1} + k_t v_t^T                                       LASP_WRITE_ADDITIVE
 *     S_t = (I - beta_t k_t k_t^T) A_t S_{t-1} + beta_t k_t v_t^T         LASP_WRITE_DELTA
 *     o_t = scale * S_t^T q_t          (inclusive: token t sees itself)
 *
 * with A_t = diag(exp(g_t)), g in natural log and normally <= 0 (LASP, arXiv 2404.02882, eq. 4-7; RetNet,
 * 2307.08621; Mamba-2, 2405.21060; GLA, 2312.06635; delta rule, 2406.06484). The unmasked form is
 * o_t = scale * (S_0 + sum over the whole sequence of k v^T)^T q_t.
 *
 * Conventions, true of everything below unless a declaration says otherwise:
 *
 * - Status. Every function that can fail returns a lasp_status and writes its results through pointers. On any
 *   status but LASP_OK those results were not written. A call that was refused (1xx, 2xx, 3xx) has written nothing at
 *   all; after 4xx and 5xx the outputs, state cache and workspace of a pass have contents that mean nothing.
 *   lasp_last_error() then holds one sentence that names the argument and the reason.
 * - Errors. The comment of each function names the errors that it returns, or says that it cannot fail. Many
 *   functions share the same errors. So four lists have names, and stand here once:
 * - Usual errors. LASP_ERROR_INVALID_ARGUMENT: a pointer or handle is NULL and must not be, or a value is out of its
 *   range. LASP_ERROR_INVALID_HANDLE: the handle is not a live one of its kind, or the parent process made it.
 *   LASP_ERROR_INVALID_STRUCT: the struct has a size that no header has had, or its unknown tail is not zero.
 *   LASP_ERROR_OUT_OF_MEMORY: the host allocator refused. LASP_ERROR_INTERNAL: a defect in liblasp.
 * - Context errors. The usual errors, and these. LASP_ERROR_IN_USE: another thread is inside a call on the context, or
 *   on another context of its comm. Once the group is broken, the call returns the status that broke it:
 *   LASP_ERROR_PEER_LOST, LASP_ERROR_ABORTED, LASP_ERROR_TRANSPORT or a 4xx. On a CUDA context the call may also report
 *   earlier work, unless `stream` is being captured. LASP_ERROR_DEVICE: the work failed. LASP_ERROR_PEER_LOST: an
 *   exchange did not end in time. LASP_ERROR_TRANSPORT: NCCL failed.
 * - Group errors. The context errors, and these from a wait for another rank. LASP_ERROR_PEER_LOST: the rank did not
 *   come within the time limit, or its own call failed. LASP_ERROR_ABORTED: lasp_context_abort or `interrupted` ended
 *   the wait. LASP_ERROR_TRANSPORT: the transport failed, or a message arrived changed.
 * - Buffer errors. LASP_ERROR_INVALID_ARGUMENT: a buffer that the call needs is absent, a buffer is given for which the
 *   plan has no use, an output shares memory with another buffer, or `stream` is not NULL on a CPU context.
 *   LASP_ERROR_BUFFER_TOO_SMALL: a buffer holds fewer bytes than its shape and strides need. LASP_ERROR_MISALIGNED: a
 *   buffer is not aligned to its element, or workspace, state cache, maps or carry not to plan_info.alignment.
 *   LASP_ERROR_UNSUPPORTED: the call cannot read cu_seqlens where they lie, or `stream` is being captured and the
 *   call cannot be: with check_values = 1, or where it sends by another transport than NCCL.
 * - Ownership. A handle is freed by its own *_destroy. Tensors, workspace and state cache are the caller's;
 *   the library keeps no pointer to them after the call (GPU: after the work on the stream has run).
 *   Strings returned by the library are static or thread-local; do not free them.
 * - Structs. Each begins with its size; start from its INIT macro (or init function) and set what you need.
 *   The library reads min(your size, its own size) bytes and takes the rest as zero; a larger struct is
 *   refused unless its unknown tail is zero. Of a struct that the library fills in it writes as many bytes as your
 *   size says, zero for what it does not know. The INIT macro has the defaults; zero is the default of most fields, not of
 *   all (device_index, cache, backward). An init function writes the values of its INIT macro into the first `size` bytes
 *   of the struct; give it the sizeof of the struct.
 * - Threads. Different contexts may be used from different threads freely. One context, its plans, halos and its
 *   comm are used by one thread at a time. A function that takes no handle may be called from any
 *   thread. lasp_context_get_async_error and lasp_context_abort may be called from any thread at any time, also while
 *   another thread is inside a call of that context. So may lasp_comm_get_rank, lasp_context_get_device,
 *   lasp_plan_get_info, lasp_plan_get_owners and lasp_plan_describe, while nobody destroys their handle.
 * - Collective calls (lasp_plan_create, lasp_plan_prepare, lasp_forward, lasp_backward, lasp_halo_create,
 *   lasp_halo_forward, lasp_halo_backward) are made by every rank of the group, in the same order. Where a rank does not
 *   come, the others return LASP_ERROR_PEER_LOST within the time limit. Where its call fails, or is refused although the
 *   others wait for it, they return LASP_ERROR_PEER_LOST at once and the group is broken; a refusal of a call that makes
 *   something (lasp_plan_create, lasp_halo_create) leaves it whole. (Over NCCL nobody can be told: there the others wait for the
 *   limit.)
 * - Fork. A child process makes handles of its own. Those of its parent are refused there, by every function, with
 *   LASP_ERROR_INVALID_HANDLE; they are the parent's to use and to destroy.
 * - Streams. On a CPU context `stream` must be NULL and a call returns when its work is done. On a CUDA
 *   context work is ordered on `stream` (NULL is the default stream) and the call returns at once. After an error
 *   there, work that was enqueued may still run: synchronise the stream before you free memory.
 * - In flight. A plan keeps nothing of a pass. What a pass leaves behind is in state_cache and carry, which hold no
 *   addresses: they may be copied, kept on the host and brought back to the same device. A captured graph uses plan,
 *   context and comm: destroy it before them. Do not destroy them while a stream of the device is being captured.
 * - Sizes are in bytes where the name ends in _bytes, in elements otherwise. All are 64 bits wide.
 *
 * Needs C99 or C++17, and no header of CUDA, NCCL or MPI. */
#ifndef LASP_LASP_H
#define LASP_LASP_H

#include <stddef.h>
#include <stdint.h>

/* The version: the one place in the project that states it; the build reads it from here. LASP_ABI changes
 * when a program compiled against an earlier header would break; it is the number in the SONAME. */
#define LASP_VERSION_MAJOR 0
#define LASP_VERSION_MINOR 2
#define LASP_VERSION_PATCH 0
#define LASP_ABI 2

#if defined(SWIG)
#define LASP_API
#elif defined(__GNUC__)
#define LASP_API __attribute__((visibility("default")))
#else
#define LASP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------------------- */

/* Enumerations travel as int32_t so that every bit pattern is defined in every language; the enums only name
 * the values, which never change. Unknown values are refused. */
typedef int32_t lasp_status;
enum lasp_status_values {
  LASP_OK = 0,
  /* 1xx: the caller's mistake; the call wrote nothing; everything lives on, but for a group whose other ranks wait for
   * the refused call. */
  LASP_ERROR_INVALID_ARGUMENT = 100, /* a null pointer, a value out of range, sizes that contradict */
  LASP_ERROR_INVALID_HANDLE = 101,   /* not a live handle of this kind (never made, or destroyed) */
  LASP_ERROR_INVALID_STRUCT = 102,   /* a size no header has had, or a non-zero tail this library does not know */
  LASP_ERROR_ABI_MISMATCH = 103,     /* header and library carry different ABI numbers */
  LASP_ERROR_BUFFER_TOO_SMALL = 104, /* a buffer holds fewer bytes than the plan needs */
  LASP_ERROR_MISALIGNED = 105,       /* a pointer is not aligned as the plan requires */
  LASP_ERROR_IN_USE = 106,           /* destroy of an object that others still use, or two threads in one context */
  /* 2xx: not supported in this build or on this device; otherwise as 1xx. */
  LASP_ERROR_UNSUPPORTED = 200,      /* a legal problem that no kernel here computes */
  LASP_ERROR_NOT_BUILT = 201,        /* this build has no such backend or transport */
  LASP_ERROR_NO_DEVICE = 202,        /* no driver, no such device, or an architecture not compiled in */
  LASP_ERROR_LIBRARY_MISSING = 203,  /* NCCL or cuBLAS, found at run time, is absent or too old */
  LASP_ERROR_DEVICE_MEMORY = 204,    /* the device has not enough free memory; free some and call again */
  /* 3xx: ranks disagree (creation of plans and halos only); none was made on any rank; contexts live on. */
  LASP_ERROR_DISAGREEMENT = 300,     /* ranks gave different problems; the sentence names the field */
  LASP_ERROR_PEER_REFUSED = 301,     /* another rank refused its problem with a 1xx or 2xx status */
  /* 4xx: the context is unusable; destroy it. After a collective call the comm is too: other ranks see a 5xx. */
  LASP_ERROR_INTERNAL = 400,         /* a defect in liblasp; please report it with the sentence */
  LASP_ERROR_OUT_OF_MEMORY = 401,    /* the host allocator refused */
  LASP_ERROR_DEVICE = 402,           /* the CUDA runtime reported an error */
  /* 5xx: the communicator is unusable; destroy it with its contexts and build a new group. */
  LASP_ERROR_PEER_LOST = 500,        /* a rank did not come: late, gone, or its call failed; the sentence names it */
  LASP_ERROR_ABORTED = 501,          /* lasp_context_abort, here or elsewhere; or since a call refused on this rank */
  LASP_ERROR_TRANSPORT = 502,        /* the transport itself failed (MPI, NCCL or the caller's functions) */
  /* 6xx: the call did its work on all ranks, and a check found something in it; everything lives on. */
  LASP_ERROR_VALUES = 600,           /* check_values; the sentence says what is where */
  LASP_STATUS_FORCE_INT32 = 0x7fffffff
};

/* The sentence that explains this thread's last status other than LASP_OK; "" when there was none. Valid until
 * this thread's next call into the library. Never NULL. It cannot fail. Since 0.1. */
LASP_API const char *lasp_last_error(void);

/* For libraries on top of this one, as liblasp_mpi is: makes `sentence` (copied, cut at 1023 bytes; NULL: "") what
 * lasp_last_error() says on this thread, and returns `status`, for them to return in turn. It takes any status and
 * cannot fail. Since 0.2. */
LASP_API lasp_status lasp_set_last_error(lasp_status status, const char *sentence);

/* The name of a status, such as "LASP_ERROR_PEER_LOST"; "unknown status" for others. Static; never NULL. It cannot
 * fail. Since 0.1. */
LASP_API const char *lasp_status_name(lasp_status status);

/* ---- Version and build -------------------------------------------------------------------------------- */

/* The library's version and ABI number; any pointer may be NULL. Compare with the LASP_* macros above. It cannot fail:
 * it returns LASP_OK. Since 0.1. */
LASP_API lasp_status lasp_version(int32_t *major, int32_t *minor, int32_t *patch, int32_t *abi);

/* What this build contains and what it found on this machine. Strings are static. */
typedef struct lasp_build_info {
  size_t size;             /* set by LASP_BUILD_INFO_INIT */
  const char *version;     /* "0.2.0" */
  const char *compiler;    /* "gcc 12.2.0" */
  const char *flags;       /* build type and sanitizers */
  const char *blas;        /* the CBLAS library in this process, its configuration and core */
  const char *cuda;        /* toolkit version, or why the GPU backend is absent */
  const char *nccl;        /* version found in the process, or why it is absent */
  int32_t has_cuda;        /* 1: the CUDA backend is compiled in */
  int32_t has_nccl;        /* 1: the NCCL transport is compiled in */
  int32_t cpu_count;       /* CPUs this process may use */
  int32_t reserved;
} lasp_build_info;
#define LASP_BUILD_INFO_INIT { sizeof(lasp_build_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* Fills `info` in. Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_get_build_info(lasp_build_info *info);

/* ---- Comm: one rank's end of one sequence-parallel group ------------------------------------------------ */

typedef struct lasp_comm lasp_comm;
struct CUstream_st; /* a cudaStream_t is a struct CUstream_st * */
struct ncclComm;    /* an ncclComm_t is a struct ncclComm * */
typedef struct CUstream_st *lasp_stream;

enum lasp_device_values {
  LASP_DEVICE_AUTO = 0,          /* CUDA, on the comm's device, where the comm's memory is the device's (NCCL, or a
                                    transport with memory = LASP_DEVICE_CUDA); else the CPU. Name it on other comms */
  LASP_DEVICE_CPU = 1,
  LASP_DEVICE_CUDA = 2,
  LASP_DEVICE_FORCE_INT32 = 0x7fffffff
};

/* A group of one. Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_comm_create_self(lasp_comm **comm);

/* An in-process group of `nranks` (1..1024). Writes comms[0..nranks-1]; comms[r] is rank r's end and is used by
 * rank r's thread. Each is destroyed on its own, in any order. Also the way to have n virtual ranks on one GPU.
 * Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_comm_create_threads(int32_t nranks, lasp_comm **comms);

/* A rank's place in a group (nranks 1..65536) whose messages are the caller's business: there is no transport. On such a
 * comm lasp_plan_create is local and takes the other ranks' problems, their numbers of tokens too, to be this one's.
 * Whether that is so is the caller's to see to. The stages, maps, lasp_step, lasp_forward with reuse_state_cache and all
 * that asks are there; what would send returns LASP_ERROR_UNSUPPORTED, and a plan that has no stages is refused. It
 * serves contexts on the CPU and on any CUDA device. This call returns the usual errors. Since 0.2. */
LASP_API lasp_status lasp_comm_create_detached(int32_t rank, int32_t nranks, lasp_comm **comm);

/* The NCCL functions to use, for a program whose NCCL does not show its functions or that has loaded two of them. Each
 * is the NCCL function of the same name, cast to lasp_function. */
typedef void (*lasp_function)(void);
typedef struct lasp_nccl_functions {
  size_t size; /* set by LASP_NCCL_FUNCTIONS_INIT */
  lasp_function get_version, comm_count, comm_user_rank, comm_cu_device, comm_get_async_error, get_error_string;
  lasp_function send, recv, all_gather, group_start, group_end;
} lasp_nccl_functions;
#define LASP_NCCL_FUNCTIONS_INIT { sizeof(lasp_nccl_functions), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A borrowed NCCL communicator. It must outlive the comm, or a lasp_context_abort of its context: after that, and the
 * return of the call that was in flight, the library does not touch it again. It is never aborted or destroyed by the
 * library. It is used by the very NCCL library that made it: where `functions` is NULL that is the one whose functions
 * this process shows.
 * Where there is none, or more than one, the call returns LASP_ERROR_LIBRARY_MISSING; no other NCCL is ever loaded.
 * lasp_plan_describe names the one in use. NCCL 2.18 or later; blocking or not. It serves CUDA contexts on its own
 * device. The library uses it on an internal stream: keep other uses of it in an order that is the same on all ranks.
 * If every GPU of the group can write to the memory of every other GPU (NVLink), the library sends the messages of
 * passes and halos directly and not by NCCL. With the environment variable LASP_PEER_MEMORY = 0 on any rank it uses
 * NCCL. ncclCommAbort does not end a kernel of the library's that waits for a lost rank. It ends after
 * lasp_context_get_async_error has reported the failure, or when you call lasp_context_abort.
 *
 * Returns the usual errors. It returns LASP_ERROR_INVALID_ARGUMENT also if a member of `functions` is NULL, or if
 * NCCL says that the communicator has failed or is still being made. It returns LASP_ERROR_LIBRARY_MISSING also for
 * an NCCL before 2.18, and LASP_ERROR_NOT_BUILT in a build without CUDA. Since 0.1. */
LASP_API lasp_status lasp_comm_create_nccl(struct ncclComm *nccl, const lasp_nccl_functions *functions,
                                           lasp_comm **comm);

/* What a transport may know of another rank. */
enum lasp_peer_values {
  LASP_PEER_UNKNOWN = 0,
  LASP_PEER_WAITS = 1,           /* it is inside a wait of its own */
  LASP_PEER_LEFT = 2,            /* its end of the group was destroyed */
  LASP_PEER_FAILED = 3,          /* it said that one of its own calls was refused or failed */
  LASP_PEER_FORCE_INT32 = 0x7fffffff
};

/* A caller's own transport: point-to-point messages between the ranks of one group. The MPI transport in
 * lasp/lasp_mpi.h is built on this table alone.
 *
 * The library calls these functions only from inside its own calls, on the calling thread. Between one sender
 * and one receiver, messages of one tag (0 to 32767) arrive in the order sent; sizes always match. Each `send` or
 * `receive` that returned LASP_OK is ended by one `wait` that returns LASP_OK, or by one `cancel`. A function
 * returns a lasp_status: LASP_OK, LASP_ERROR_PEER_LOST, LASP_ERROR_ABORTED or LASP_ERROR_TRANSPORT; anything else
 * is taken as LASP_ERROR_TRANSPORT. A `test` that fails is followed by a `wait`, which says why; after any other 5xx
 * status only `cancel`, `abort` and `destroy` follow.
 *
 * With memory = LASP_DEVICE_CUDA the comm serves CUDA contexts, and `send` and `receive` order their work on `stream`:
 * it begins once earlier work there is done, and later work there waits for it. A request is then complete as soon as
 * its work is enqueued: `wait` only ends it, and answers LASP_ERROR_PEER_LOST where not even that can be had in time.
 * All messages of one exchange step are started before the first of them is waited for. */
typedef struct lasp_transport {
  size_t size;          /* set by LASP_TRANSPORT_INIT */
  const char *name;     /* for messages; copied; NULL: "custom" */
  int32_t rank;         /* 0 .. nranks-1 */
  int32_t nranks;       /* 1 .. 65536 */
  int32_t local_ranks;  /* ranks that share this machine's CPUs, for the default thread count; 0: 1 */
  int32_t memory;       /* LASP_DEVICE_CPU (or AUTO): pointers are host memory; LASP_DEVICE_CUDA: device memory */
  double latency_us;    /* of one small message; 0: not known, the library assumes a value (see lasp_link) */
  double bandwidth_gbs; /* of one link, GB/s (1e9 bytes per second); 0: not known */
  /* Starts sending `bytes` bytes to `peer` and returns at once. `data` stays valid until the request ends. */
  lasp_status (*send)(void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream,
                      void **request);
  /* Starts receiving exactly `bytes` bytes from `peer` and returns at once. */
  lasp_status (*receive)(void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream,
                         void **request);
  /* Advances communication without blocking and sets *done to 1 when the request is complete (it then still
   * has to be ended by `wait`), else to 0. */
  lasp_status (*test)(void *user, void *request, int32_t *done);
  /* Waits until the request is complete and frees it. At most `time_limit_ms` (-1: no limit; never more than ten
   * years), then returns LASP_ERROR_PEER_LOST with *lost_rank set to the rank that did not come, as far as is known;
   * the request is then still to be cancelled. */
  lasp_status (*wait)(void *user, void *request, int64_t time_limit_ms, int32_t *lost_rank);
  /* Frees a request, complete or not. When it returns, `data` is no longer touched. */
  void (*cancel)(void *user, void *request);
  /* Breaks the group: this rank's and, as far as possible, the others' waits return LASP_ERROR_ABORTED (or
   * LASP_ERROR_PEER_LOST naming `lost_rank`, when that is not -1). With its own rank a rank says that one of its calls
   * was refused or failed. May come from any thread. May be NULL. */
  void (*abort)(void *user, int32_t lost_rank);
  /* Called once, by lasp_comm_destroy. May be NULL. */
  void (*destroy)(void *user);
  /* As `wait`, but it gives up after `most_ms` milliseconds, and gives up nothing else: it then returns LASP_OK with
   * *done = 0, the request lives on, and the group is as it was. *done = 1: the request was complete and is freed.
   * The library calls it again and again, and in between warns of a long wait, asks `interrupted` (see
   * lasp_context_options), and ends an aborted one. NULL: it calls `wait` with the whole limit, and cannot. */
  lasp_status (*wait_for)(void *user, void *request, int64_t most_ms, int32_t *done, int32_t *lost_rank);
  /* What is known of another rank, for the sentence of a wait that failed: *state is one of LASP_PEER_*, and for
   * LASP_PEER_WAITS *tag is that of the message it waits for (-1: not known). Never blocks. May be NULL. */
  void (*peer_state)(void *user, int32_t rank, int32_t *state, int32_t *tag);
} lasp_transport;
#define LASP_TRANSPORT_INIT \
  { sizeof(lasp_transport), 0, 0, 1, 0, LASP_DEVICE_CPU, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A comm over the caller's functions. The table is copied; `user` is handed to each function. On failure
 * `destroy` is not called.
 *
 * Returns the usual errors. It returns LASP_ERROR_INVALID_ARGUMENT also if send, receive, test, wait or cancel is
 * NULL, and LASP_ERROR_NOT_BUILT if memory is LASP_DEVICE_CUDA in a build without CUDA. Since 0.1. */
LASP_API lasp_status lasp_comm_create_custom(const lasp_transport *transport, void *user, lasp_comm **comm);

/* This rank and the group's size; either pointer may be NULL. Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_comm_get_rank(const lasp_comm *comm, int32_t *rank, int32_t *nranks);

/* What this rank has put on the transport since the comm was made: counted at the transport, payload only. */
typedef struct lasp_traffic {
  size_t size; /* set by LASP_TRAFFIC_INIT */
  uint64_t bytes_sent, bytes_received, messages_sent, messages_received;
  double wait_seconds; /* time spent blocked in the transport */
} lasp_traffic;
#define LASP_TRAFFIC_INIT { sizeof(lasp_traffic), 0, 0, 0, 0, 0.0 }
/* Fills `traffic` in with the counts so far. Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_comm_get_traffic(const lasp_comm *comm, lasp_traffic *traffic);

/* Frees the comm; NULL is allowed. Returns the usual errors, and LASP_ERROR_IN_USE while a context still uses it.
 * Since 0.1. */
LASP_API lasp_status lasp_comm_destroy(lasp_comm *comm);

/* ---- Context: comm + device + settings ------------------------------------------------------------------ */

typedef struct lasp_context lasp_context;

enum lasp_log_values {
  LASP_LOG_OFF = 0,
  LASP_LOG_WARNING = 1,          /* a wait of 5 seconds, and then every 30: for whom, in which call */
  LASP_LOG_INFO = 2,             /* what a context and a plan have chosen, a line each */
  LASP_LOG_DEBUG = 3,            /* each exchange: call, number, bytes, peers, microseconds */
  LASP_LOG_FORCE_INT32 = 0x7fffffff
};
/* Called on the caller's own thread, inside one of its calls. Must not call the library. */
typedef void (*lasp_log_function)(void *user, int32_t level, const char *message);

/* Asked about ten times a second, on the caller's own thread, inside a call that waits for another rank: whether the
 * call is to end. Not 0 ends it with LASP_ERROR_ABORTED and breaks the group as lasp_context_abort does. For a host
 * language that has to look at its signals, or a program with its own idea of when to stop. Must not call the library.
 * Nobody is asked while a call waits inside a blocking NCCL communicator, or in a transport without `wait_for`. */
typedef int32_t (*lasp_interrupted_function)(void *user);

typedef struct lasp_context_options {
  size_t size;            /* set by LASP_CONTEXT_OPTIONS_INIT */
  int32_t device;         /* LASP_DEVICE_*; AUTO (0) by default */
  int32_t device_index;   /* CUDA ordinal; -1: the comm's, else the current one. On the CPU -1 or 0 */
  int64_t time_limit_ms;  /* of every wait for another rank; 0: 600,000 (ten minutes); -1, or over ten years: none */
  int32_t cpu_threads;    /* threads that compute for this context, the caller's included; 0: CPUs / local ranks */
  int32_t log_level;      /* LASP_LOG_*; messages at this level and below reach `log` */
  lasp_log_function log;  /* NULL: silent */
  void *log_user;
  double latency_us;      /* the link, for the automatic schedule; 0: what the transport says */
  double bandwidth_gbs;
  int32_t profiler_ranges;/* 1: name each pass and exchange by NVTX ranges where a profiler is attached */
  int32_t verify_messages;/* 1: a checksum travels with every message; one that arrives changed ends the comm with
                             LASP_ERROR_TRANSPORT instead of becoming a wrong number. Same on all ranks; CPU only */
  lasp_interrupted_function interrupted; /* may end a wait; NULL: nobody is asked */
  void *interrupted_user;
  int32_t check_values;   /* 1: for debugging; after its work each pass looks through what it read and wrote on this rank,
                             state cache and workspace left out, for NaN, infinity and decays above 0 (-infinity is a
                             decay), and returns LASP_ERROR_VALUES with tensor, sequence, token and head. On a CUDA
                             context it also looks at offsets in device memory, and so the call waits for its own work
                             on `stream`: at most the time limit for other ranks. LASP_ERROR_UNSUPPORTED while `stream`
                             is captured */
  int32_t reserved;       /* 0 */
} lasp_context_options;
#define LASP_CONTEXT_OPTIONS_INIT \
  { sizeof(lasp_context_options), LASP_DEVICE_AUTO, -1, 0, 0, LASP_LOG_OFF, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0 }
/* LASP_CONTEXT_OPTIONS_INIT as a function; `size` is sizeof(lasp_context_options). Returns the usual errors.
 * Since 0.1. */
LASP_API lasp_status lasp_context_options_init(lasp_context_options *options, size_t size);

/* Makes a context. `header_abi` is LASP_ABI: a program built against another ABI is refused here, at its first
 * call. `options` may be NULL (all defaults). The comm is borrowed and must outlive the context. Starts
 * cpu_threads - 1 threads, which sleep between calls. Local: talks to no other rank.
 *
 * Returns the context errors, and LASP_ERROR_ABI_MISMATCH if header_abi is another. It returns
 * LASP_ERROR_INVALID_ARGUMENT also if the comm carries the memory of another device, or if the environment variable
 * LASP_LINK or LASP_TRACE cannot be used. It returns LASP_ERROR_OUT_OF_MEMORY also if the system does not start so
 * many threads. For a CUDA device it can return LASP_ERROR_NOT_BUILT, LASP_ERROR_NO_DEVICE,
 * LASP_ERROR_DEVICE_MEMORY and LASP_ERROR_DEVICE, and it returns LASP_ERROR_UNSUPPORTED if verify_messages is 1 or if
 * a caller's transport between several ranks carries host memory. Since 0.1. */
LASP_API lasp_status lasp_context_create(int32_t header_abi, lasp_comm *comm, const lasp_context_options *options,
                                         lasp_context **context);

/* Where the context computes: *device is LASP_DEVICE_CPU or LASP_DEVICE_CUDA, whatever was asked for, and *device_index
 * the CUDA ordinal, 0 on the CPU. Either pointer may be NULL. Returns the usual errors. From any thread. Since 0.2. */
LASP_API lasp_status lasp_context_get_device(const lasp_context *context, int32_t *device, int32_t *device_index);

/* The status of a failure, in a call or outside any (LASP_OK: none), and its sentence: at most `capacity` bytes with a
 * terminating zero into `text`, which may be NULL when capacity is 0; "" with LASP_OK. From any thread, at any time: it
 * never blocks and does not disturb a thread that computes, so that a watchdog calls it about once a second. On a CUDA
 * context it looks: for failed kernels, for what NCCL reports of its communicator, and for an exchange that was seen to
 * run in an earlier look and has not ended within the time limit (LASP_ERROR_PEER_LOST), also one that a graph replays,
 * while the computing thread may sit in a stream synchronisation. forward and backward look too. Destroy graphs before
 * the context that they were captured with. The call itself returns the usual errors: what it finds is in *status.
 * Since 0.1. */
LASP_API lasp_status lasp_context_get_async_error(lasp_context *context, lasp_status *status, char *text,
                                                  size_t capacity);

/* Breaks the group on purpose: a call in flight here ends in a fraction of a second with LASP_ERROR_ABORTED, and so do
 * those on other ranks, as far as the transport can tell them (NCCL cannot). From any thread. The context and comm
 * can then only be destroyed. It cannot end a call that is blocked inside NCCL, on a communicator that blocks: make
 * the communicator with ncclConfig_t.blocking = 0, or end that call by ncclCommAbort. Nor can it end one in a
 * transport of the caller's that has neither `wait_for` nor an `abort` that does. Of messages that are on the device
 * already, a replayed graph's too, it ends those that do not go by NCCL (lasp_comm_create_nccl), of this context. A
 * program that sits in a stream synchronisation behind NCCL's calls ncclCommAbort next, which may come from this thread
 * too. Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_context_abort(lasp_context *context);

/* Frees the context and its threads; NULL is allowed. Returns the usual errors, and LASP_ERROR_IN_USE while a plan
 * still uses it or another thread is inside a call on its comm. Since 0.1. */
LASP_API lasp_status lasp_context_destroy(lasp_context *context);

/* ---- Problem: what is to be computed --------------------------------------------------------------------- */

enum lasp_dtype_values {
  LASP_DTYPE_DEFAULT = 0,        /* said where it is allowed */
  LASP_FLOAT32 = 1,
  LASP_BFLOAT16 = 2,
  LASP_FLOAT16 = 3,
  LASP_INT32 = 16,               /* of offsets alone (lasp_packing). Since 0.2 */
  LASP_INT64 = 17,
  LASP_DTYPE_FORCE_INT32 = 0x7fffffff
};
enum lasp_decay_values {         /* shape of g                    models */
  LASP_DECAY_NONE = 0,           /* none                          Linear Transformer, Based */
  LASP_DECAY_HEAD = 1,           /* [H], always float32           RetNet, TransNormerLLM, Lightning Attention */
  LASP_DECAY_SCALAR = 2,         /* [B, T, H]                     Mamba-2, simple GLA, gated RetNet */
  LASP_DECAY_CHANNEL = 3,        /* [B, T, H, K]                  GLA, HGRN2, RWKV-6-like */
  LASP_DECAY_FORCE_INT32 = 0x7fffffff
};
enum lasp_write_values {
  LASP_WRITE_ADDITIVE = 0,
  LASP_WRITE_DELTA = 1,          /* DeltaNet, Gated DeltaNet, KDA. Since 0.2, causal and without segment;
                                    else LASP_ERROR_UNSUPPORTED. docs/reference/delta-rule.md */
  LASP_WRITE_FORCE_INT32 = 0x7fffffff
};
enum lasp_mask_values {
  LASP_MASK_CAUSAL = 0,
  LASP_MASK_BIDIRECTIONAL = 1,   /* unmasked; decay "none" and additive write only */
  LASP_MASK_FORCE_INT32 = 0x7fffffff
};
/* Who owns which tokens. A run is tokens of the buffer that follow each other on one rank; of two runs that are
 * neighbours on it, they make one. A rank's runs lie one after the other in its tensors, and T is the tokens of all of
 * them. What is not contiguous is causal, without segment and without lasp_step; else LASP_ERROR_UNSUPPORTED. */
enum lasp_ownership_values {
  LASP_OWN_CONTIGUOUS = 0,       /* rank r's tokens follow rank r-1's; ranks may hold different numbers, or none */
  LASP_OWN_ZIGZAG = 1,           /* the buffer of W*T tokens in 2W equal parts: rank r has parts r and 2W-1-r, as causal
                                    softmax layers of hybrids balance their work. T is even and the same on all ranks.
                                    Since 0.2 */
  LASP_OWN_ZIGZAG_EACH = 2,      /* each packed sequence is cut so by itself (max_sequences is given): a rank has parts r
                                    and 2W-1-r of the first sequence, then of the second, and so on, and padding last.
                                    2W divides each sequence's length, and T is as for LASP_OWN_ZIGZAG. A state of each
                                    sequence crosses each border: memory and messages grow with max_sequences.
                                    Since 0.2 */
  LASP_OWN_RUNS = 3,             /* as lasp_problem.runs says. Since 0.2 */
  LASP_OWN_FORCE_INT32 = 0x7fffffff
};
/* Some tokens of the buffer, and who owns them. This struct never grows. Since 0.2. */
typedef struct lasp_run {
  int64_t tokens;                /* 0 is legal */
  int32_t rank;
  int32_t reserved;              /* 0 */
} lasp_run;
enum lasp_schedule_values {      /* how states travel; W ranks    source */
  LASP_SCHEDULE_AUTO = 0,        /* chosen by a latency-bandwidth model; lasp_plan_describe says why */
  LASP_SCHEDULE_RING = 1,        /* W-1 serial hops               LASP, 2404.02882 */
  LASP_SCHEDULE_ALL_GATHER = 2,  /* every rank to all later ones  LASP-2, 2502.07563 */
  LASP_SCHEDULE_ALL_SCAN = 3,    /* the ring in pipelined pieces  ZeCO, 2507.01004 */
  LASP_SCHEDULE_DOUBLING = 4,    /* log2 W composed maps          Hillis-Steele prefix scan */
  LASP_SCHEDULE_HEAD_SCATTER = 5, /* each rank composes the maps of some heads for all, in two rounds of messages
                                    between all ranks. Since 0.2 */
  LASP_SCHEDULE_RELAY = 6,       /* a rank waits for the state that enters its tokens, and computes them as a group of
                                    one would. It is a pass behind the rank before it: for passes that follow each other,
                                    as layers do. AUTO does not take it. Contiguous and causal, without max_sequences,
                                    segment, stages or a detached comm; else LASP_ERROR_UNSUPPORTED. Since 0.2 */
  LASP_SCHEDULE_FORCE_INT32 = 0x7fffffff
};
enum lasp_cache_values {
  LASP_CACHE_INCOMING = 0,       /* keep the incoming state only; backward recomputes the rest */
  LASP_CACHE_CHUNKS = 1,         /* keep the state at each chunk too: faster backward */
  LASP_CACHE_FORCE_INT32 = 0x7fffffff
};

/* What a tensor is, fixed by the plan: its type, and where its elements lie. Element (b, t, h, d) is at
 * b*batch + t*token + h*head + d, counted in elements; the last dimension is contiguous. [B, H, T, D] is
 * {H*T*D, D, T*D}; q inside a packed qkv of width E is {T*E, E, D}. Without LASP_LAYOUT_STRIDED the tensor is contiguous
 * [B, T, heads, dim] and the strides are 0. Strides are not negative. Elements of an output have places of their own;
 * an input may have stride 0, where one element serves many (one key head for all, an expanded decay). A pass is given
 * the memory alone (lasp_buffer). This struct never grows: what tensors may need later has its place in `reserved`. */
enum lasp_layout_values {
  LASP_LAYOUT_STRIDED = 1,       /* the strides count, 0 too */
  LASP_LAYOUT_FORCE_INT32 = 0x7fffffff
};
typedef struct lasp_layout {
  int32_t dtype;                 /* DEFAULT: the problem's `dtype`; for decay, beta and their gradients float32 */
  int32_t flags;                 /* LASP_LAYOUT_* */
  int64_t batch, token, head;    /* strides, in elements */
  int64_t reserved[2];           /* 0 */
} lasp_layout;
#define LASP_LAYOUT_INIT { LASP_DTYPE_DEFAULT, 0, 0, 0, 0, { 0, 0 } }

/* One problem, seen from one rank. All ranks give the same values but for `tokens` and the strides. H, the number of
 * output heads, is max(heads_q, heads_k, heads_v); each divides H, and output head h reads q head h*heads_q/H and so
 * on. */
typedef struct lasp_problem {
  size_t size;                 /* set by LASP_PROBLEM_INIT */
  int64_t batch;               /* B >= 1; 1 when packed */
  int64_t tokens;              /* T: this rank's tokens of each batch row; 0 is legal; ranks may differ */
  int32_t heads_q, heads_k, heads_v; /* >= 1 */
  int32_t head_dim_k;          /* K: width of q and k; a multiple of 8, at most 512 */
  int32_t head_dim_v;          /* V: width of v and o; likewise */
  int32_t dtype;               /* of every tensor whose layout does not say another: float32, bfloat16, float16 */
  int32_t decay;               /* LASP_DECAY_* */
  int32_t write;               /* LASP_WRITE_* */
  int32_t mask;                /* LASP_MASK_* */
  int32_t scale_given;         /* 0: o is multiplied by 1/sqrt(K), and `scale` is 0; 1: by `scale`, which may be 0 */
  float scale;
  int32_t ownership;           /* LASP_OWN_* */
  /* 0: each of the B rows is one sequence, and N = B. Else the plan is for packed sequences, laid end to end in one
   * row: N, the most sequences that a pass may be given (lasp_packing), and the first dimension of state buffers.
   * Workspace and state cache grow by about a chunk's state for each. LASP_ERROR_UNSUPPORTED with
   * broadcast_final_state and with LASP_MASK_BIDIRECTIONAL. Since 0.2. */
  int64_t max_sequences;
  int32_t schedule;            /* LASP_SCHEDULE_* */
  int32_t pieces;              /* of the all-scan schedule; 0: from the latency-bandwidth model */
  int32_t cache;               /* LASP_CACHE_* */
  int32_t chunk;               /* tokens handled at once: 16, 32, 64, 128 or 256; 0: chosen */
  int32_t backward;            /* 1: the plan serves backward too; 0: forward only, no state cache is kept */
  int32_t broadcast_final_state; /* 1: every rank receives all of final_state */
  /* Of the tensors that the problem has; LASP_LAYOUT_INIT for others. Types that are computed: q, k, v, o and d_o have
   * the problem's, decay and beta have float32 or the problem's, a gradient what it is the gradient of, or float32. */
  lasp_layout q, k, v, o;
  lasp_layout decay_layout, beta_layout; /* decay [B, T, H] or [B, T, H, K], beta [B, T, H]; a decay per head [H] is
                                            contiguous float32 and has none */
  lasp_layout dq, dk, dv, d_o, d_decay_layout, d_beta_layout;
  /* 0, or tokens of a segment, a multiple of the chunk. Sums are then formed in one order over the segments of the
   * whole sequence. All results but a per-head d_decay, which is each rank's share, are then equal bit for bit for any
   * number of ranks and any cut, as long as each rank that has tokens begins at a multiple of `segment`. Causal, on the
   * CPU, the additive write, and with schedules ring and all-scan (AUTO takes one of them); else
   * LASP_ERROR_UNSUPPORTED. docs/reference/numerics.md has the order and its cost. */
  int64_t segment;
  /* With LASP_OWN_RUNS the whole buffer, in the order of the tokens: the same list on every rank, read while the plan is
   * made. Ranks may have any number of tokens, and none. LASP_ERROR_UNSUPPORTED where a rank has more than 16 runs. Else
   * NULL and 0. Since 0.2. */
  const lasp_run *runs;
  int64_t num_runs;
} lasp_problem;
#define LASP_PROBLEM_INIT                                                                                      \
  { sizeof(lasp_problem), 1, 0, 1, 1, 1, 0, 0, LASP_FLOAT32, LASP_DECAY_NONE, LASP_WRITE_ADDITIVE,        \
    LASP_MASK_CAUSAL, 0, 0.0f, 0, 0, LASP_SCHEDULE_AUTO, 0, LASP_CACHE_CHUNKS, 0, 1, 0, LASP_LAYOUT_INIT,  \
    LASP_LAYOUT_INIT, LASP_LAYOUT_INIT, LASP_LAYOUT_INIT, LASP_LAYOUT_INIT, LASP_LAYOUT_INIT,                 \
    LASP_LAYOUT_INIT, LASP_LAYOUT_INIT, LASP_LAYOUT_INIT, LASP_LAYOUT_INIT, LASP_LAYOUT_INIT,                 \
    LASP_LAYOUT_INIT, 0, 0, 0 }
/* LASP_PROBLEM_INIT as a function; `size` is sizeof(lasp_problem). Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_problem_init(lasp_problem *problem, size_t size);

/* ---- Plan: one validated problem -------------------------------------------------------------------------- */

typedef struct lasp_plan lasp_plan;

/* Validates the problem, compares it with the other ranks', and lays out all work. Collective. Every refusal
 * happens here: 1xx a mistake, 2xx not supported, 3xx the ranks disagree (on every rank), 5xx a rank did not come.
 * A rank whose own problem is refused still takes part, so that the others learn of it at once. The problem
 * is copied.
 *
 * Returns the group errors. It returns LASP_ERROR_INVALID_ARGUMENT also for sizes, strides or runs that contradict
 * each other. It returns LASP_ERROR_UNSUPPORTED for a legal problem that no kernel computes, and on a detached comm
 * for one without stages or with broadcast_final_state. If the ranks gave different problems, every rank returns
 * LASP_ERROR_DISAGREEMENT. If another rank refused its own problem, this one returns LASP_ERROR_PEER_REFUSED. On a
 * CUDA context it returns LASP_ERROR_DEVICE_MEMORY if the device has too little memory, and
 * LASP_ERROR_LIBRARY_MISSING if the delta rule needs cuBLAS for the exchange and there is none. Since 0.1. */
LASP_API lasp_status lasp_plan_create(lasp_context *context, const lasp_problem *problem, lasp_plan **plan);

/* What the plan needs and what it will do. Sizes are for this rank. */
typedef struct lasp_plan_info {
  size_t size;                          /* set by LASP_PLAN_INFO_INIT */
  uint64_t workspace_forward_bytes;     /* of lasp_forward_args.workspace */
  uint64_t workspace_backward_bytes;    /* of lasp_backward_args.workspace */
  uint64_t state_cache_bytes;           /* of state_cache in the mode of this plan; 0 without backward */
  uint64_t state_cache_incoming_bytes;  /* the same problem with LASP_CACHE_INCOMING */
  uint64_t state_cache_chunks_bytes;    /* the same problem with LASP_CACHE_CHUNKS */
  uint64_t alignment;                   /* of workspace and state_cache, in bytes; tensors: their element's */
  uint64_t forward_bytes_sent;          /* by this rank in one lasp_forward */
  uint64_t backward_bytes_sent;         /* by this rank in one lasp_backward */
  uint64_t forward_messages_sent, backward_messages_sent;
  int64_t token_begin;                  /* global index of this rank's first token; without any, where its run would be,
                                           or total_tokens. With LASP_OWN_ZIGZAG_EACH that of one sequence of all */
  int64_t total_tokens;                 /* over all ranks, of one batch row */
  int64_t num_sequences;                /* N: first dimension of the state buffers; max_sequences where that is given */
  int64_t local_chunks;                 /* chunks of this rank, over all rows; packed: the most that there can be */
  int32_t rank, nranks;
  int32_t heads;                        /* H */
  int32_t chunk;                        /* tokens */
  int32_t schedule;                     /* the one chosen */
  int32_t pieces;                       /* of the all-scan schedule; else 1 */
  double predicted_us[16];              /* exchange time by the model, by LASP_SCHEDULE_*; [0]: the chosen one; -1: not
                                           possible here */
  /* Stages (since 0.2): the maps that a stage makes, and what lies between two stages. All 0 but num_runs where the plan
   * has no stages: bidirectional, with `segment`, or with LASP_SCHEDULE_RELAY. */
  int64_t num_runs;                     /* the most runs of tokens that any rank has; so many maps each rank makes */
  uint64_t carry_forward_bytes, carry_backward_bytes; /* of carry in the args */
  uint64_t map_bytes;                   /* of one map: state, then transition; a multiple of `alignment` */
  uint64_t map_transition_offset;       /* of the transition in a map, in bytes; map_bytes where there is none */
  int32_t transition;                   /* LASP_TRANSITION_* */
  int32_t reserved;                     /* 0 */
  /* Of lasp_backward_args.workspace in a lasp_backward that adds to dv (LASP_ADD_DV): other passes of a group on GPUs
   * keep what they exchange in the memory of dv for a while. At least workspace_backward_bytes. Since 0.2. */
  uint64_t workspace_add_bytes;
} lasp_plan_info;
#define LASP_PLAN_INFO_INIT \
  { sizeof(lasp_plan_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, 0, 0, 0, 0, 0, 0, 0, \
    0 }
/* Fills `info` in. Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_plan_get_info(const lasp_plan *plan, lasp_plan_info *info);

/* What lasp_plan_get_info would tell of this problem, without a group, a device or a context: for shape inference,
 * compilers and schedulers. The other ranks are taken to have this one's problem, their numbers of tokens too. For
 * LASP_SCHEDULE_AUTO the bytes (of workspaces and sent) are the largest of the schedules that it may take: a plan never
 * needs more. What else depends on the link (schedule, pieces, predicted_us, messages) is for the link that a context
 * assumes where nobody says it. The refusals are those of lasp_plan_create; LASP_ERROR_NO_DEVICE where the library has
 * no kernels for the GPU's capability. From any thread. Since 0.2. */
typedef struct lasp_placement {
  size_t size;                 /* set by LASP_PLACEMENT_INIT */
  int32_t rank, nranks;        /* 0 .. nranks-1; 1 .. 65536 */
  int32_t device;              /* LASP_DEVICE_CPU or LASP_DEVICE_CUDA; the GPU need not be here */
  int32_t capability;          /* of the GPU: 90 for 9.0; 0 on the CPU */
  int32_t multiprocessors;     /* of the GPU: 132 of an H100 or H200; 0 on the CPU */
  int32_t reserved;            /* 0 */
} lasp_placement;
#define LASP_PLACEMENT_INIT { sizeof(lasp_placement), 0, 1, LASP_DEVICE_CPU, 0, 0, 0 }
/* Fills `info` in. Returns the usual errors, and LASP_ERROR_UNSUPPORTED where lasp_plan_create would. For a GPU it
 * returns LASP_ERROR_NOT_BUILT in a build without CUDA, and LASP_ERROR_NO_DEVICE if the library has no kernels for
 * the capability. From any thread. Since 0.2. */
LASP_API lasp_status lasp_problem_get_info(const lasp_problem *problem, const lasp_placement *placement,
                                           lasp_plan_info *info);

/* Which ranks hold tokens [begin, end) of the whole buffer, for a sequence whose place the caller knows: `first_rank`
 * reads its initial state, `last_rank` writes its final state. An empty sequence belongs to the rank that holds the
 * token at its offset, or to the last rank at the very end. With LASP_OWN_ZIGZAG_EACH rank 0 is first and last of
 * every sequence. Local; says the same on every rank. Returns the usual errors. It returns
 * LASP_ERROR_INVALID_ARGUMENT also unless 0 <= begin <= end <= plan_info.total_tokens. Since 0.2. */
LASP_API lasp_status lasp_plan_get_owners(const lasp_plan *plan, int64_t begin, int64_t end, int32_t *first_rank,
                                          int32_t *last_rank);

/* Writes, as text, the schedule and kernels chosen, the model's inputs and why the others were not chosen: at most
 * `capacity` bytes with a terminating zero. *needed (may be NULL) is the size in bytes of the whole text with its zero;
 * `text` may be NULL when capacity is 0. Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_plan_describe(const lasp_plan *plan, char *text, size_t capacity, size_t *needed);

/* Does now what a first call would do lazily, so that later calls can be captured into a CUDA graph. Collective;
 * on a CUDA context a refusal breaks the group as lasp_forward's does. Over NCCL it waits for the other ranks.
 * On the CPU it does nothing. Over the threads transport and a caller's own a pass cannot be captured
 * (LASP_ERROR_UNSUPPORTED): its messages need the host.
 *
 * Returns the group errors. It returns LASP_ERROR_INVALID_ARGUMENT also if `stream` is not NULL on a CPU context, or
 * is being captured on a CUDA context (with check_values = 1: LASP_ERROR_UNSUPPORTED). Since 0.1. */
LASP_API lasp_status lasp_plan_prepare(lasp_plan *plan, lasp_stream stream);

/* Frees the plan; NULL is allowed. Returns the usual errors, and LASP_ERROR_IN_USE while a halo still uses it or
 * another thread is inside a call on its comm. Since 0.1. */
LASP_API lasp_status lasp_plan_destroy(lasp_plan *plan);

/* ---- Execution ---------------------------------------------------------------------------------------------- */

/* Memory of the caller's: `bytes` is how much may be used from `data` on; a call refuses one that is too small for
 * the plan's shape and strides. {NULL, 0} means absent. */
typedef struct lasp_buffer {
  void *data;
  size_t bytes;
} lasp_buffer;
typedef struct lasp_const_buffer {
  const void *data;
  size_t bytes;
} lasp_const_buffer;
#define LASP_BUFFER_INIT { 0, 0 }

/* The sequences of one pass, laid end to end: sequence n is tokens [cu_seqlens[n], cu_seqlens[n + 1]) of the whole
 * buffer, the same on every rank. Offsets begin at 0, do not decrease, and end at no more than the buffer's tokens, and
 * with LASP_OWN_ZIGZAG_EACH 2W divides them; else LASP_ERROR_INVALID_ARGUMENT. Tokens behind the last offset are
 * padding: nothing is read there; o and the gradients are written as zero, or left alone where they are added. A
 * sequence of no tokens hands its initial state through. Of state buffers the rows from num_sequences on are left alone.
 *
 * For a plan with max_sequences, whose passes may be packed differently each time: nothing is allocated, agreed on or
 * waited for. Messages do not depend on it. A backward pass, a stage and a pass with reuse_state_cache are given the
 * packing of the forward pass that they belong to. Where ranks give different offsets numbers are undefined; with
 * lasp_context_options.verify_messages the first message between two such ranks ends the comm with
 * LASP_ERROR_TRANSPORT. Since 0.2. */
typedef struct lasp_packing {
  size_t size;                   /* set by LASP_PACKING_INIT */
  lasp_const_buffer cu_seqlens;  /* [num_sequences + 1], aligned to its element */
  int64_t num_sequences;         /* 0 to max_sequences */
  int32_t dtype;                 /* LASP_INT32 or LASP_INT64 */
  int32_t memory;                /* where cu_seqlens lies; AUTO: the driver is asked. In host memory (LASP_DEVICE_CPU) it
                                    is read and checked during the call, and part of a captured graph as it was. In
                                    memory of a CUDA context's device (LASP_DEVICE_CUDA) it is read when the pass runs,
                                    and not checked: the pass touches no memory outside its buffers, whatever it holds,
                                    but its numbers are then undefined. Give max_sequences and repeat the last offset to
                                    replay a graph with any packing. A halo takes host memory only, and so does a CPU
                                    context: else LASP_ERROR_UNSUPPORTED */
} lasp_packing;
#define LASP_PACKING_INIT { sizeof(lasp_packing), LASP_BUFFER_INIT, 0, LASP_INT64, LASP_DEVICE_AUTO }

/* State buffers (initial_state, final_state and their gradients) are float32, contiguous [N, H, K, V], the same
 * indexing on every rank; a rank touches only the sequences it is first (last) rank of. A rank without tokens may leave
 * out all [B, T, ...] tensors. Memory that is given is aligned, even where no byte of it is needed.
 *
 * No element of an output is also another's or an input's; tensors may interleave, as dq, dk and dv do in one packed
 * buffer, and inputs may be the same memory. In the range of workspace and state_cache lies no other buffer, but that
 * inputs may lie in each other's. A call that shows otherwise by addresses, shapes and strides is refused. (With two
 * tensors whose strides differ and are hard to compare, the library may not see it.) */
typedef struct lasp_forward_args {
  size_t size;                     /* set by LASP_FORWARD_ARGS_INIT */
  lasp_const_buffer q, k, v;       /* in: [B,T,Hq,K] [B,T,Hk,K] [B,T,Hv,V] */
  lasp_const_buffer decay;         /* in: by decay kind; absent for none */
  lasp_const_buffer beta;          /* in: [B,T,H] for the delta write; else absent */
  lasp_const_buffer initial_state; /* in: absent means zero */
  lasp_buffer o;                   /* out: [B,T,H,V] */
  lasp_buffer final_state;         /* out: may be absent, unless it is to be broadcast */
  lasp_buffer state_cache;         /* out (in when reuse_state_cache): plan_info.state_cache_bytes */
  lasp_buffer workspace;           /* scratch: plan_info.workspace_forward_bytes */
  int32_t reuse_state_cache;       /* 1: state_cache holds an earlier forward's of the same inputs (activation
                                      checkpointing): nothing is exchanged; final_state is written by
                                      its owners as ever, but not broadcast */
  int32_t reserved;                /* 0 */
  /* Stages alone, since 0.2; absent in lasp_forward. */
  lasp_buffer maps;                /* out of lasp_forward_summarize: plan_info.num_runs * map_bytes */
  lasp_const_buffer incoming;      /* in to lasp_forward_apply: [num_runs][rows,H,K,V] float32; absent means zero */
  lasp_buffer carry;               /* out of summarize, in to apply: plan_info.carry_forward_bytes; may be absent */
  const lasp_packing *packing;     /* for a plan with max_sequences; else NULL. Since 0.2 */
} lasp_forward_args;
#define LASP_FORWARD_ARGS_INIT                                                                                   \
  { sizeof(lasp_forward_args), LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT,          \
    LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, \
    0, 0, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, 0 }
/* LASP_FORWARD_ARGS_INIT as a function; `size` is sizeof(lasp_forward_args). Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_forward_args_init(lasp_forward_args *args, size_t size);

/* o, and the carried state, from q, k, v. Collective: a call that is refused breaks a group of several ranks, unless
 * reuse_state_cache is 1, for the others wait for it. They return LASP_ERROR_PEER_LOST, and so do not hang; here later
 * calls return LASP_ERROR_ABORTED and say why. A program that cannot make its call at all may say so by args = NULL.
 *
 * lasp_forward_args gives the shape of each buffer. Returns the group errors and the buffer errors. It returns
 * LASP_ERROR_UNSUPPORTED also on a detached comm, unless reuse_state_cache is 1, and LASP_ERROR_VALUES if
 * check_values finds something. Since 0.1. */
LASP_API lasp_status lasp_forward(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream);

enum lasp_add_values {
  LASP_ADD_DQ = 1,
  LASP_ADD_DK = 2,
  LASP_ADD_DV = 4,
  LASP_ADD_D_DECAY = 8,
  LASP_ADD_D_BETA = 16,
  LASP_ADD_D_INITIAL_STATE = 32,
  LASP_ADD_FORCE_INT32 = 0x7fffffff
};

/* Inputs are those of the forward pass whose state_cache is given. */
typedef struct lasp_backward_args {
  size_t size;                       /* set by LASP_BACKWARD_ARGS_INIT */
  lasp_const_buffer q, k, v, decay, beta, initial_state; /* in: as in the forward pass */
  lasp_const_buffer d_o;             /* in: [B,T,H,V] */
  lasp_const_buffer d_final_state;   /* in: [N,H,K,V], read by each sequence's last rank; absent means zero */
  lasp_const_buffer state_cache;     /* in: as the forward pass left it */
  lasp_buffer dq, dk, dv;            /* out: shaped like q, k, v; summed over the heads of a group */
  lasp_buffer d_decay;               /* out: shaped like decay. Per head ([H], float32) it is this rank's share:
                                        sum it over ranks as any parameter's gradient. May be absent */
  lasp_buffer d_beta;                /* out: [B,T,H] for the delta write; else absent */
  lasp_buffer d_initial_state;       /* out: [N,H,K,V], written by each sequence's first rank; may be absent */
  lasp_buffer workspace;             /* scratch: plan_info.workspace_backward_bytes */
  int32_t add;                       /* LASP_ADD_* of gradients that are added to what is there, in float32, and rounded
                                        once to the tensor's type; 0: all are written. Only of gradients that are
                                        given. After 4xx and 5xx such sums are lost. With LASP_ADD_DV lasp_backward
                                        takes a workspace of plan_info.workspace_add_bytes */
  int32_t reserved;                  /* 0 */
  /* Stages alone, since 0.2, as in lasp_forward_args. */
  lasp_buffer maps;
  lasp_const_buffer incoming;
  lasp_buffer carry;                 /* plan_info.carry_backward_bytes */
  const lasp_packing *packing;       /* that of the forward pass; NULL for a plan without max_sequences. Since 0.2 */
} lasp_backward_args;
#define LASP_BACKWARD_ARGS_INIT                                                                                  \
  { sizeof(lasp_backward_args), LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT,         \
    LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, \
    LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, \
    0, 0, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, 0 }
/* LASP_BACKWARD_ARGS_INIT as a function; `size` is sizeof(lasp_backward_args). Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_backward_args_init(lasp_backward_args *args, size_t size);

/* All gradients, from d_o and d_final_state. The incoming state comes from the state cache. Gradients of states travel,
 * with transitions where the forward pass sends them. Collective; what is said of lasp_forward's refusals holds here
 * too.
 *
 * lasp_backward_args gives the shape of each buffer. Returns the group errors and the buffer errors. It returns
 * LASP_ERROR_INVALID_ARGUMENT also on a plan made with backward = 0, and if `add` names a gradient that is absent. It
 * returns LASP_ERROR_UNSUPPORTED also on a detached comm, and LASP_ERROR_VALUES if check_values finds something.
 * Since 0.1. */
LASP_API lasp_status lasp_backward(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream);

typedef struct lasp_step_args {
  size_t size;                          /* set by LASP_STEP_ARGS_INIT */
  lasp_const_buffer q, k, v, decay, beta; /* in: as in lasp_forward */
  lasp_buffer state;                    /* in and out: [N,H,K,V] float32 */
  lasp_buffer o;                        /* out: [B,T,H,V] */
  int64_t tokens;                       /* of each row in this call: the first ones of rows that lie as the plan says,
                                           1 to T; 0: all T. Since 0.2 */
} lasp_step_args;
#define LASP_STEP_ARGS_INIT                                                                                 \
  { sizeof(lasp_step_args), LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT,        \
    LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, 0 }
/* LASP_STEP_ARGS_INIT as a function; `size` is sizeof(lasp_step_args). Returns the usual errors. Since 0.1. */
LASP_API lasp_status lasp_step_args_init(lasp_step_args *args, size_t size);

/* Decoding: the recurrence itself, token by token, on a state kept by the caller, after a (sequence-parallel)
 * prefill. For one token or a short run; needs no workspace. It talks to nobody, whatever the group of the plan: each
 * rank takes its own tokens of each row through its own `state`, as many as the call says.
 *
 * lasp_step_args gives the shape of each buffer. Returns the context errors and the buffer errors. It returns
 * LASP_ERROR_INVALID_ARGUMENT also on a plan that is not causal. It returns LASP_ERROR_UNSUPPORTED also on a plan
 * with max_sequences (decode with a plan of B rows), on one that is not LASP_OWN_CONTIGUOUS, and on a CUDA context on
 * one of more than 2^31 - 1 tokens. It returns LASP_ERROR_VALUES if check_values finds something. Since 0.1. */
LASP_API lasp_status lasp_step(lasp_plan *plan, const lasp_step_args *args, lasp_stream stream);

/* ---- Stages: the passes with the caller's own collective between -------------------------------------------- */

/* What a rank's tokens do to the state that enters them is one affine map, S_out = M S_in + S. Maps compose, and so
 * ranks need each other's maps and nothing else. A map in memory, plan_info.map_bytes long:
 *
 *     state       [rows, H, K, V] float32: S
 *     transition  at map_transition_offset, float32: M, as plan_info.transition says
 *     padding     zero
 *
 * rows is B, and 1 when packed, for only one sequence can cross a border; with LASP_OWN_ZIGZAG_EACH it is max_sequences,
 * for all of them do. A dense M is there as it is, in backward maps transposed: S_out = M S_in + S, a product of
 * matrices. Otherwise M is diagonal, and each factor m is kept as the number x that holds it best: m = x where the sign
 * bit of x is clear, m = 1 + x where it is set. So -0.0 keeps all, 0.0 forgets all, and a decay near 1 loses nothing. Any
 * x that reads as m may be given: 0.9 is 0.9f or -0.1f. To apply one:
 *
 *     S_out = signbit(x) ? S_in + x * S_in + S : x != 0 ? x * S_in + S : S
 *
 * What is forgotten is not multiplied, nor is anything by a dense M of zeros: NaN and infinity do not pass. A run
 * without tokens is M = 1, S = 0.
 *
 * A rank makes plan_info.num_runs maps, one after the other: those of its runs in the order of its tokens, and M = 1,
 * S = 0 for each run that it has less than others. `incoming` likewise has a state for each run; what is behind its own
 * runs is not read. */
enum lasp_transition_values {
  LASP_TRANSITION_IDENTITY = 0,  /* nothing: M = 1 (decay none, not packed), so that maps compose by sums of states */
  LASP_TRANSITION_SCALAR = 1,    /* [rows, H] (decay per head or per token; none when packed) */
  LASP_TRANSITION_DIAGONAL = 2,  /* [rows, H, K]: of M's diagonal (decay per channel) */
  LASP_TRANSITION_DENSE = 3,     /* [rows, H, K, K]: M itself (delta write); [i][j] takes row j of a state to row i */
  LASP_TRANSITION_FORCE_INT32 = 0x7fffffff
};

/* The forward pass in two stages. Summarize writes this rank's map to args.maps. The caller brings the maps together by
 * whatever collective it has. Apply takes the state that enters this rank, args.incoming, and does the rest.
 * initial_state is part of the maps: that of the rank where a sequence begins holds what became of it. So zero enters
 * the first rank, and where a rank begins with a sequence what enters is not read. Neither stage talks to anybody, on any
 * comm, and both may be captured into a CUDA graph. lasp_forward is these two with our exchange between; with
 * LASP_SCHEDULE_ALL_GATHER it gives the same bits as the stages with lasp_maps_apply.
 *
 * Summarize reads k, v, decay and initial_state, and writes maps, carry, state_cache and workspace. Apply reads and
 * writes all that lasp_forward does, but does not broadcast final states. What a stage does not use may be absent. With
 * `carry`, apply goes on from what summarize left there and in state_cache; both may have been moved or copied, and
 * other passes may have run between, so long as inputs and plan are the same. Without it apply works that out again. With
 * reuse_state_cache = 1 apply reads no incoming state, and is lasp_forward; summarize refuses it.
 *
 * lasp_forward_args gives the shape of each buffer. Both calls return the context errors and the buffer errors.
 * They return LASP_ERROR_UNSUPPORTED also on a plan without stages (plan_info.map_bytes is 0), and LASP_ERROR_VALUES
 * if check_values finds something. A refusal is no other rank's business. Since 0.2. */
LASP_API lasp_status lasp_forward_summarize(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream);
LASP_API lasp_status lasp_forward_apply(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream);
/* The same with time reversed: maps of the gradient of the state. d_final_state is part of them, and `incoming` is the
 * gradient of the state that leaves this rank. Summarize reads q, decay, d_o and d_final_state, and writes maps, carry
 * and workspace; with the delta write it reads k, beta and state_cache too, which lasp_forward_summarize has filled as far
 * as it needs. On a CUDA context whose plan has the fused backward pass, tensors are aligned to 16 bytes, else
 * lasp_backward_apply returns LASP_ERROR_MISALIGNED.
 *
 * lasp_backward_args gives the shape of each buffer. Both calls return the context errors and the buffer errors.
 * They return LASP_ERROR_UNSUPPORTED also on a plan without stages, LASP_ERROR_INVALID_ARGUMENT also where
 * lasp_backward does, and LASP_ERROR_VALUES if check_values finds something. Since 0.2. */
LASP_API lasp_status lasp_backward_summarize(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream);
LASP_API lasp_status lasp_backward_apply(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream);

typedef struct lasp_maps_args {
  size_t size;                   /* set by LASP_MAPS_ARGS_INIT */
  lasp_const_buffer maps;        /* apply, in: those of rank 0, then those of rank 1, and so on, as an all-gather leaves
                                    them: nranks * num_runs * map_bytes. Maps that are not needed are not read */
  lasp_buffer incoming;          /* apply, out: the states that enter this rank, [num_runs][rows, H, K, V] float32 */
  lasp_const_buffer later, earlier; /* compose, in: a map each */
  lasp_buffer to;                /* compose, out: a map; may be one of the two */
  int32_t backward;              /* apply: 1 for maps of the backward stages, which count ranks from the last; compose
                                    is the same for both */
  int32_t reserved;              /* 0 */
} lasp_maps_args;
#define LASP_MAPS_ARGS_INIT \
  { sizeof(lasp_maps_args), LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, \
    0, 0 }
/* LASP_MAPS_ARGS_INIT as a function; `size` is sizeof(lasp_maps_args). Returns the usual errors. Since 0.2. */
LASP_API lasp_status lasp_maps_args_init(lasp_maps_args *args, size_t size);
/* to = later after earlier: M = M_later M_earlier, S = M_later S_earlier + S_later. `later` is what the state passes
 * second: in backward maps the rank with the lower number. All are aligned to plan_info.alignment; args that the call
 * does not use are absent. They talk to nobody, and may be captured. On a CUDA context dense transitions are multiplied by
 * cuBLAS, in memory of the plan's own: order such calls of one plan, and its collective calls, one after the other.
 *
 * lasp_maps_args gives the shape of each buffer. Returns the context errors and the buffer errors. It returns
 * LASP_ERROR_UNSUPPORTED also on a plan without stages. With dense transitions on a CUDA context it returns
 * LASP_ERROR_LIBRARY_MISSING if there is no cuBLAS. A plan of a group of one takes the memory for that in its first
 * call, which returns LASP_ERROR_DEVICE_MEMORY if the device has too little. Since 0.2. */
LASP_API lasp_status lasp_maps_compose(lasp_plan *plan, const lasp_maps_args *args, lasp_stream stream);
/* The states that enter this rank, from the maps of all. In the order of the ranks, as LASP_SCHEDULE_ALL_GATHER does.
 * Returns the context errors and the buffer errors. It returns LASP_ERROR_UNSUPPORTED and LASP_ERROR_LIBRARY_MISSING
 * also where lasp_maps_compose does. Since 0.2. */
LASP_API lasp_status lasp_maps_apply(lasp_plan *plan, const lasp_maps_args *args, lasp_stream stream);

/* ---- Halo: the rows before a rank's first token ------------------------------------------------------------------ */

typedef struct lasp_halo lasp_halo;

/* A short causal convolution of width w, or a token shift, needs of a tensor x [B, T, C] the w - 1 rows before a rank's
 * first token, and before the first token of each of its other runs, within that token's sequence. Other ranks hold
 * them: mostly the one before, and several where ranks have fewer tokens than that. B, T and the split into ranks are the
 * plan's. All ranks give the same values but for the strides. Since 0.2. */
typedef struct lasp_halo_options {
  size_t size;                 /* set by LASP_HALO_OPTIONS_INIT */
  int64_t rows;                /* n = w - 1; 1 to 64 */
  int64_t channels;            /* C >= 1 */
  lasp_layout x, d_x;          /* [B, T, C]: head stride unused; x may have stride 0, where one row serves many.
                                  `before` has x's type, d_before d_x's */
} lasp_halo_options;
#define LASP_HALO_OPTIONS_INIT { sizeof(lasp_halo_options), 1, 0, LASP_LAYOUT_INIT, LASP_LAYOUT_INIT }

/* What a halo needs and what it will do, on this rank. The forward call sends to later ranks, the backward call to
 * earlier ones. */
typedef struct lasp_halo_info {
  size_t size;                                             /* set by LASP_HALO_INFO_INIT */
  uint64_t workspace_bytes;                                /* of lasp_halo_args.workspace, for either call */
  uint64_t before_bytes, d_before_bytes;                   /* [num_runs, B, n, C] in x's type, in d_x's */
  uint64_t forward_bytes_sent, backward_bytes_sent;        /* by this rank in one call */
  uint64_t forward_messages_sent, backward_messages_sent;
} lasp_halo_info;
#define LASP_HALO_INFO_INIT { sizeof(lasp_halo_info), 0, 0, 0, 0, 0, 0, 0 }

/* One call reads the fields of its direction and `workspace`; the others are not looked at. What is said of the buffers
 * of lasp_forward_args holds here: a rank without tokens may leave out x and d_x; `before`, d_before and workspace are
 * given on every rank. Workspace is aligned as lasp_plan_info.alignment says. */
typedef struct lasp_halo_args {
  size_t size;                 /* set by LASP_HALO_ARGS_INIT */
  lasp_const_buffer x;         /* forward, in: [B, T, C] */
  lasp_buffer before;          /* forward, out: [num_runs, B, n, C] (plan_info.num_runs), contiguous: the n rows before
                                  each run's first token, oldest first; zero before the beginning of its sequence, and
                                  where there is no such run or no token in it. With LASP_OWN_ZIGZAG_EACH
                                  [num_runs, max_sequences, n, C], and each sequence's parts, where it has tokens, have at
                                  least n of them: else LASP_ERROR_UNSUPPORTED */
  lasp_const_buffer d_before;  /* backward, in: [num_runs, B, n, C], contiguous */
  lasp_buffer d_x;             /* backward, in and out: [B, T, C] */
  lasp_buffer workspace;       /* scratch */
  const lasp_packing *packing; /* for a plan with max_sequences, the same in both directions; else NULL. Rows before the
                                  beginning of a sequence travel too and are not used. Since 0.2 */
} lasp_halo_args;
#define LASP_HALO_ARGS_INIT                                                                                     \
  { sizeof(lasp_halo_args), LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, \
    0 }

/* Collective; compares the options as lasp_plan_create does problems, and a refusal leaves the group whole. The plan is
 * borrowed and must outlive the halo.
 *
 * Returns the group errors. It returns LASP_ERROR_UNSUPPORTED on a detached comm. If the ranks gave different
 * options, or have plans that split the tokens differently, every rank returns LASP_ERROR_DISAGREEMENT. If another
 * rank refused its own options, this one returns LASP_ERROR_PEER_REFUSED. On a CUDA context it returns
 * LASP_ERROR_DEVICE_MEMORY if the device has too little memory. Since 0.2. */
LASP_API lasp_status lasp_halo_create(lasp_plan *plan, const lasp_halo_options *options, lasp_halo **halo);
/* Fills `info` in. Returns the usual errors. Since 0.2. */
LASP_API lasp_status lasp_halo_get_info(const lasp_halo *halo, lasp_halo_info *info);
/* What lasp_halo_get_info would tell of a halo on a plan of this problem, without a group, a device or a context. As in
 * lasp_problem_get_info, the other ranks are taken to have this one's problem, and the refusals are those of
 * lasp_plan_create and lasp_halo_create. Returns what lasp_problem_get_info returns: the usual errors,
 * LASP_ERROR_UNSUPPORTED, and for a GPU LASP_ERROR_NOT_BUILT and LASP_ERROR_NO_DEVICE. From any thread. Since 0.2. */
LASP_API lasp_status lasp_problem_get_halo_info(const lasp_problem *problem, const lasp_placement *placement,
                                                const lasp_halo_options *options, lasp_halo_info *info);
/* Brings `before` from the ranks that hold its rows. Collective; what is said of lasp_forward's refusals, and of
 * streams and graphs, holds here too. lasp_halo_args gives the shape of each buffer. Returns the group errors and
 * the buffer errors. With LASP_OWN_ZIGZAG_EACH it returns LASP_ERROR_UNSUPPORTED also if a part of a sequence has
 * fewer tokens than there are rows. Since 0.2. */
LASP_API lasp_status lasp_halo_forward(lasp_halo *halo, const lasp_halo_args *args, lasp_stream stream);
/* Brings the gradient of `before` to the ranks that own its rows and adds it to d_x there: a sum in float32 of d_x
 * and of what comes, in the order of the runs that it comes from, rounded once. Other rows of d_x stay as they are.
 * Collective. Returns what lasp_halo_forward returns: the group errors, the buffer errors, and
 * LASP_ERROR_UNSUPPORTED. Since 0.2. */
LASP_API lasp_status lasp_halo_backward(lasp_halo *halo, const lasp_halo_args *args, lasp_stream stream);
/* Frees the halo; NULL is allowed. Returns the usual errors, and LASP_ERROR_IN_USE while another thread is inside a
 * call on its comm. Since 0.2. */
LASP_API lasp_status lasp_halo_destroy(lasp_halo *halo);

/* ---- Trace: what a rank did when ------------------------------------------------------------------------------- */

typedef struct lasp_trace_options {
  size_t size;                 /* set by LASP_TRACE_OPTIONS_INIT */
  int64_t max_records;         /* kept, of 64 bytes each, in memory taken by lasp_trace_start; 0: 65,536; at most
                                  67,108,864. When there are more the oldest go, and the file says how many went */
} lasp_trace_options;
#define LASP_TRACE_OPTIONS_INIT { sizeof(lasp_trace_options), 0 }

/* Begins to record what this rank does: each call on the context's comm and the phases of a pass, each message with its
 * peer and bytes, each wait with the rank that it is for; on a CUDA context also when its device did each part and each
 * group of messages, by events on the streams. `options` may be NULL. Local: each rank traces itself. It ends with
 * lasp_trace_stop or lasp_context_destroy. What was recorded before is gone.
 *
 * Recording allocates nothing and never waits for the device. Passes that are captured into a graph cannot be timed on
 * the device: the file has their calls alone, and nothing of replays. Without a trace a call costs a few branches more
 * than if there were none to start.
 *
 * A program need not be changed: with the environment variable LASP_TRACE set to a path, lasp_context_create starts a
 * trace unless the comm is traced already, and lasp_context_destroy writes it. In the path %r becomes the rank, %p the
 * process, %% is a percent sign; "trace-%r.json". lasp_context_create returns LASP_ERROR_INVALID_ARGUMENT where several
 * ranks would write one file, and where it cannot be written.
 *
 * Returns the context errors. It returns LASP_ERROR_IN_USE also if the comm is traced already. On a CUDA context it
 * can return LASP_ERROR_DEVICE_MEMORY and LASP_ERROR_DEVICE. Since 0.2. */
LASP_API lasp_status lasp_trace_start(lasp_context *context, const lasp_trace_options *options);
/* Ends the recording; what was recorded is kept for lasp_trace_write. Does not wait for the device. Also in a broken
 * group. Returns the usual errors, and LASP_ERROR_IN_USE while another thread is inside a call on the comm. It
 * returns LASP_ERROR_INVALID_ARGUMENT also if the context is not traced. Since 0.2. */
LASP_API lasp_status lasp_trace_stop(lasp_context *context);
/* Writes what was recorded so far to a file, which is replaced: JSON of the Trace Event Format, which Perfetto and
 * chrome://tracing open; `lasp-trace` puts those of several ranks together. It has what the device has done by now:
 * synchronise its streams first. Also while recording goes on, and in a broken group. Returns the usual errors, and
 * LASP_ERROR_IN_USE while another thread is inside a call on the comm. It returns LASP_ERROR_INVALID_ARGUMENT also if
 * there was no lasp_trace_start, and if the file cannot be written: the sentence says why. A disk that is full leaves a
 * part of the file. Since 0.2. */
LASP_API lasp_status lasp_trace_write(lasp_context *context, const char *path);

/* ---- Helpers for trainers: pure functions, no handle ---------------------------------------------------------- */

/* Hybrid data-sequence parallelism: which groups a world rank belongs to. `stride` is the distance in world ranks
 * between neighbours of a sequence group: 1 makes them adjacent, world_size / sequence_ranks makes the data groups
 * adjacent, the size of an inner tensor-parallel group leaves that innermost. */
typedef struct lasp_groups {
  size_t size;             /* set by LASP_GROUPS_INIT */
  int32_t sequence_rank;   /* rank in the sequence group: the order of the tokens */
  int32_t sequence_ranks;  /* its size */
  int32_t sequence_group;  /* which of the world_size / sequence_ranks groups: a color for a communicator split */
  int32_t data_rank;       /* rank among the ranks with the same sequence_rank */
  int32_t data_ranks;      /* its size */
  int32_t data_group;      /* equals sequence_rank: a color for a communicator split */
} lasp_groups;
#define LASP_GROUPS_INIT { sizeof(lasp_groups), 0, 0, 0, 0, 0, 0 }
/* Fills `groups` in for one world rank. Returns the usual errors. It returns LASP_ERROR_INVALID_ARGUMENT also unless
 * sequence_ranks divides world_size and `stride` divides world_size / sequence_ranks. Since 0.1. */
LASP_API lasp_status lasp_groups_of_rank(int32_t world_size, int32_t sequence_ranks, int32_t stride,
                                         int32_t world_rank, lasp_groups *groups);
/* The world rank of a member: the inverse of the above. Returns the usual errors, as the above does. Since 0.1. */
LASP_API lasp_status lasp_groups_world_rank(int32_t world_size, int32_t sequence_ranks, int32_t stride,
                                            int32_t sequence_group, int32_t sequence_rank, int32_t *world_rank);

/* What messages take in the model of the automatic schedule: predicted time of an exchange, in microseconds. For
 * W ranks, a payload of P bytes per rank, latency a and time per byte b:
 *   ring (W-1)(a + P b);  all-gather a + (W-1) P b;  all-scan in n pieces (W-2+n)(a + P b / n);
 *   doubling ceil(log2 W)(a + P b);  head-scatter 2 (a + (W-1) P b / W);  relay (W-1)(a + P b), and W-1
 *   passes come on top of that.  A group of one: 0.
 * `pieces` 0 takes the n that is best. Where ranks have several runs of tokens `nranks` is the positions of the exchange,
 * 2W-1 in a zigzag. LASP_SCHEDULE_AUTO predicts the fastest, relay left out. `latency_us` is a in microseconds, and
 * `bandwidth_gbs` is 1 / b in GB/s (1e9 bytes per second).
 *
 * Returns the usual errors. It returns LASP_ERROR_INVALID_ARGUMENT also unless latency_us and bandwidth_gbs are positive
 * and finite. Since 0.1. */
LASP_API lasp_status lasp_predict_exchange(int32_t schedule, int32_t nranks, uint64_t payload_bytes, int32_t pieces,
                                           double latency_us, double bandwidth_gbs, double *predicted_us);

#ifdef __cplusplus
}
#endif
#endif /* LASP_LASP_H */
