/* What ABI 2 still lacks: to be read beside lasp.h, into which each part moves when it is built. Reasons are in
 * decisions.md. New fields go to the end of their structs. */
#include <lasp/lasp.h>

/* Conventions that lasp.h does not promise yet:
 *
 * - Threads. lasp_context_get_async_error and lasp_context_abort may be called from any thread at any time, also while
 *   another thread is inside a call of that context.
 * - In flight. A plan keeps nothing of a pass; what a pass leaves behind is in state_cache and carry, which hold no
 *   addresses: they may be copied, kept on the host and brought back. Passes of one plan may be in flight on several
 *   streams, each with a workspace of its own; their exchanges run one after the other in the order of the calls.
 *   A captured graph uses plan, context and comm: destroy them after it. Destroying waits for work that was enqueued;
 *   do not destroy while a stream of the device is being captured.
 * - After an error on a CUDA context work may still run: synchronise the stream before you free memory.
 * - lasp_comm_create_nccl. The communicator must outlive the comm, or a lasp_context_abort of its context: after that,
 *   and the return of the call that was in flight, the library does not touch it again.
 * - lasp_context_options.check_values on a CUDA context: waits for the device; such a pass cannot be captured.
 * - lasp_backward_args.add, and float32 gradients beside 16-bit inputs, on a CUDA context. */

/* A rank's place in a group whose messages are the caller's business: there is no transport. On such a comm
 * lasp_plan_create is local and takes the other ranks' problems to be this one's. Stages, maps, lasp_step and all that
 * asks are there; what would send returns LASP_ERROR_UNSUPPORTED. Whether all ranks agree is the caller's to see to. */
LASP_API lasp_status lasp_comm_create_detached(int32_t rank, int32_t nranks, lasp_comm **comm);

/* Watching. */
/* The status of a failure, in a call or outside any (LASP_OK: none), and its sentence: at most `capacity` bytes with a
 * terminating zero into `text`, which may be NULL when capacity is 0. From any thread, at any time; never blocks, and
 * does not disturb a thread that computes. On a CUDA context it looks: for failed kernels, for what NCCL reports of its
 * communicator, and for an exchange that was seen to run in an earlier look and has not ended within the time limit
 * (LASP_ERROR_PEER_LOST), also one that a graph replays. So a watchdog calls it about once a second, while the computing
 * thread may sit in a stream synchronisation. */
LASP_API lasp_status lasp_context_get_async_error(lasp_context *context, lasp_status *status, char *text,
                                                  size_t capacity);
/* Breaks the group on purpose, from any thread: every wait of this context ends in a fraction of a second, and its call
 * returns LASP_ERROR_ABORTED; so do waits on other ranks, as far as the transport can tell them (NCCL cannot). Messages
 * of NCCL's that are already on the device are not the library's to end: a program that sits in a stream
 * synchronisation behind them calls ncclCommAbort next, which may come from this thread too. The context and comm can
 * then only be destroyed. It cannot end a wait in a transport of the caller's that has neither `wait_for` nor an `abort`
 * that does. */
LASP_API lasp_status lasp_context_abort(lasp_context *context);

/* Elements of offsets, for lasp_dtype_values; a schedule, for lasp_schedule_values. */
#define LASP_INT32 16
#define LASP_INT64 17
#define LASP_SCHEDULE_HEAD_SCATTER 5 /* a rank folds the maps of some heads for all */

/* Who owns which tokens. A rank's runs lie one after the other in its tensors; T is the tokens of all of them. */
enum lasp_ownership_values {
  LASP_OWN_CONTIGUOUS = 0,       /* rank r's tokens follow rank r-1's; ranks may hold different numbers, or none */
  LASP_OWN_ZIGZAG = 1,           /* the buffer of W*T tokens in 2W equal parts: rank r has parts r and 2W-1-r */
  LASP_OWN_ZIGZAG_EACH = 2,      /* each packed sequence is cut so by itself: this rank has parts r and 2W-1-r of the
                                    first sequence, then of the second, and so on. Lengths divide by 2W. A state of
                                    each sequence crosses each border: sizes and messages grow with max_sequences */
  LASP_OWN_RUNS = 3,             /* as `runs` says */
  LASP_OWN_FORCE_INT32 = 0x7fffffff
};
/* The whole buffer as runs, in the order of the tokens; the same list on every rank. This struct never grows. */
typedef struct lasp_run {
  int64_t tokens;
  int32_t rank;
  int32_t reserved;              /* 0 */
} lasp_run;

/* Fields of lasp_problem: */
struct more_of_lasp_problem {
  int32_t ownership;           /* LASP_OWN_*; then no token_begin */
  int64_t max_sequences;       /* 0: not packed, each of the B rows is one sequence, N = B. Else N, the most sequences
                                  that a pass may be given (lasp_packing): the first dimension of state buffers. In
                                  place of cu_seqlens and num_sequences. broadcast_final_state is refused then */
  const lasp_run *runs;        /* LASP_OWN_RUNS; else NULL */
  int64_t num_runs;
};
/* Fields of lasp_plan_info: */
struct more_of_lasp_plan_info {
  int64_t num_runs;                     /* maps that a stage makes, one for each run of tokens */
  uint64_t carry_forward_bytes, carry_backward_bytes;
  uint64_t map_bytes;                   /* of one map: state, then transition */
  uint64_t map_transition_offset;       /* of the transition in a map, in bytes; map_bytes when there is none */
  int32_t transition;                   /* LASP_TRANSITION_* */
  int32_t reserved;
};

/* What lasp_plan_get_info would tell of this problem, without a group, a device or a context: for shape inference,
 * compilers and schedulers. For LASP_SCHEDULE_AUTO sizes are the largest of the schedules that it may take, whatever the
 * link: a plan never needs more. The refusals are those of lasp_plan_create. */
typedef struct lasp_placement {
  size_t size;                 /* set by LASP_PLACEMENT_INIT */
  int32_t rank, nranks;
  int32_t device;              /* LASP_DEVICE_CPU or LASP_DEVICE_CUDA */
  int32_t capability;          /* of the GPU: 90 for 9.0; 0 on the CPU */
  int32_t multiprocessors;     /* of the GPU; 0 on the CPU */
  int32_t reserved;            /* 0 */
} lasp_placement;
#define LASP_PLACEMENT_INIT { sizeof(lasp_placement), 0, 1, LASP_DEVICE_CPU, 0, 0, 0 }
LASP_API lasp_status lasp_problem_get_info(const lasp_problem *problem, const lasp_placement *placement,
                                           lasp_plan_info *info);

/* Which ranks hold tokens [begin, end) of the whole buffer, for a sequence of a packing that the caller knows:
 * `first_rank` reads its initial state, `last_rank` writes its final state. An empty sequence belongs to the rank that
 * holds the token at its offset, or to the last rank at the very end. With LASP_OWN_ZIGZAG_EACH a sequence is cut by
 * itself, and its first rank is also its last: rank 0. */
LASP_API lasp_status lasp_plan_get_owners(const lasp_plan *plan, int64_t begin, int64_t end, int32_t *first_rank,
                                          int32_t *last_rank);

/* The sequences of one pass, laid end to end: sequence n is tokens [cu_seqlens[n], cu_seqlens[n + 1]) of the whole
 * buffer, the same on every rank. Offsets begin at 0, do not decrease, and end at no more than the buffer's tokens.
 * Tokens behind the last offset are padding: nothing is read there; o and the gradients are written as zero, or left
 * alone where they are added. A sequence of no tokens hands its initial state through. For a plan with max_sequences;
 * its passes may be packed differently each time, at no cost: nothing is allocated, agreed on or waited for. A number
 * made of the offsets travels with the messages: ranks whose offsets differ write NaN, and the context's async error
 * says so (LASP_ERROR_VALUES).
 * In a captured graph num_sequences is the one given at capture: give max_sequences, and repeat the last offset. */
typedef struct lasp_packing {
  size_t size;                   /* set by LASP_PACKING_INIT */
  lasp_const_buffer cu_seqlens;  /* [num_sequences + 1] */
  int64_t num_sequences;         /* 0 to max_sequences. State buffers still have max_sequences rows; those of sequences
                                    that are not there are left alone */
  int64_t tokens;                /* of each rank in this pass, at most the plan's T; 0: the plan's. Same on all ranks */
  int32_t dtype;                 /* LASP_INT32 or LASP_INT64 */
  int32_t memory;                /* where cu_seqlens lies; AUTO: the driver is asked. In host memory: read during the
                                    call, checked, and part of a graph as they were; at most 4096 on a CUDA context.
                                    In device memory: read when the pass runs. The pass then touches no memory outside
                                    its buffers, whatever they are; the backward pass has them in its state_cache */
} lasp_packing;
#define LASP_PACKING_INIT { sizeof(lasp_packing), LASP_BUFFER_INIT, 0, 0, LASP_INT64, LASP_DEVICE_AUTO }

/* Fields of lasp_forward_args and lasp_backward_args: */
struct more_of_lasp_args {
  const lasp_packing *packing;     /* for a plan with max_sequences; else NULL */
  lasp_buffer maps;                /* out of lasp_forward_summarize: num_runs * map_bytes */
  lasp_const_buffer incoming;      /* in to lasp_forward_apply */
  lasp_buffer carry;               /* stages: out of summarize, in to apply: plan_info.carry_forward_bytes. Absent in
                                      apply: what it holds is worked out again */
};

/* ---- Stages: the passes with the caller's own collective between -------------------------------------------- */

/* What a run of tokens does to the state that enters it is one affine map, S_out = M S_in + S. Maps compose, and so
 * ranks need each other's maps and nothing else. A map in memory, plan_info.map_bytes long and aligned to
 * plan_info.alignment:
 *
 *     state       [rows, H, K, V] float32: S
 *     transition  M, at map_transition_offset, float32, as plan_info.transition says
 *
 * rows is B; 1 when packed, for only one sequence can cross a border; max_sequences with LASP_OWN_ZIGZAG_EACH, where run 0
 * is part r of every sequence and run 1 part 2W-1-r. A run without tokens is M = 1, S = 0. A run in which a sequence
 * begins forgets what came before: its logarithms are -infinity, and so is the first element of each dense M, whose
 * others then mean nothing. What is forgotten is not multiplied: NaN and infinity do not pass. */
enum lasp_transition_values {
  LASP_TRANSITION_IDENTITY = 0,  /* nothing: M = 1 (decay none, not packed) */
  LASP_TRANSITION_SCALAR = 1,    /* [rows, H]: natural logarithm of M (decay per head or per token; none when packed) */
  LASP_TRANSITION_DIAGONAL = 2,  /* [rows, H, K]: logarithms of M's diagonal */
  LASP_TRANSITION_DENSE = 3,     /* [rows, H, K, K]: M itself (delta write); [i][j] takes row j of a state to row i */
  LASP_TRANSITION_FORCE_INT32 = 0x7fffffff
};

/* The forward pass in two stages. Summarize writes this rank's maps, one for each of its runs in the order of the
 * tokens, to args.maps. The caller brings the maps together by whatever collective it has. Apply takes the state that
 * enters each of this rank's runs, args.incoming [num_runs][rows, H, K, V] float32, and does the rest. initial_state is
 * part of the maps: the map of the run where a sequence begins holds what became of it. So zero enters the first run of
 * all, and where a run begins with a sequence what enters is not read. Neither stage talks to anybody. lasp_forward is
 * these two with our exchange between; with LASP_SCHEDULE_ALL_GATHER it gives the same bits as the stages with
 * lasp_maps_apply. */
LASP_API lasp_status lasp_forward_summarize(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream);
LASP_API lasp_status lasp_forward_apply(lasp_plan *plan, const lasp_forward_args *args, lasp_stream stream);
/* The same with time reversed: maps of the gradient of the state, which hold M transposed, so that they are used alike;
 * d_final_state is part of them, and `incoming` is the gradient of the state that leaves each run. */
LASP_API lasp_status lasp_backward_summarize(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream);
LASP_API lasp_status lasp_backward_apply(lasp_plan *plan, const lasp_backward_args *args, lasp_stream stream);

typedef struct lasp_maps_args {
  size_t size;                   /* set by LASP_MAPS_ARGS_INIT */
  lasp_const_buffer maps;        /* apply, in: those of rank 0 in the order of its runs, then those of rank 1, and so on,
                                    as an all-gather leaves them */
  lasp_buffer incoming;          /* apply, out: the states that enter this rank's runs */
  lasp_const_buffer later, earlier; /* compose, in */
  lasp_buffer to;                /* compose, out; not one of the two where the transition is dense */
  int32_t backward;              /* 1: maps of the backward stages */
  int32_t reserved;              /* 0 */
} lasp_maps_args;
#define LASP_MAPS_ARGS_INIT \
  { sizeof(lasp_maps_args), LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, LASP_BUFFER_INIT, \
    0, 0 }
/* to = later after earlier: M = M_later M_earlier, S = M_later S_earlier + S_later. */
LASP_API lasp_status lasp_maps_compose(lasp_plan *plan, const lasp_maps_args *args, lasp_stream stream);
LASP_API lasp_status lasp_maps_apply(lasp_plan *plan, const lasp_maps_args *args, lasp_stream stream);

/* ---- Halo -------------------------------------------------------------------------------------------------------- */

/* lasp_halo_args gets `const lasp_packing *packing`, as in the pass. Of a rank with several runs `before` and d_before
 * are [num_runs, rows, n, C]; with LASP_OWN_ZIGZAG_EACH a part has at least n tokens. */

/* What lasp_halo_get_info would tell, without a group. */
LASP_API lasp_status lasp_problem_get_halo_info(const lasp_problem *problem, const lasp_placement *placement,
                                                const lasp_halo_options *options, lasp_halo_info *info);
