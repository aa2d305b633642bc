/* What ABI 2 still lacks: to be read beside lasp.h, into which each part moves when it is built. Reasons are in
 * decisions.md. New fields go to the end of their structs. */
#include <lasp/lasp.h>

/* Conventions that lasp.h does not promise yet:
 *
 * - In flight. A plan keeps nothing of a pass; what a pass leaves behind is in state_cache and carry, which hold no
 *   addresses: they may be copied, kept on the host and brought back. Passes of one plan may be in flight on several
 *   streams, each with a workspace of its own; their exchanges run one after the other in the order of the calls.
 *   A captured graph uses plan, context and comm: destroy them after it. Destroying waits for work that was enqueued;
 *   do not destroy while a stream of the device is being captured.
 * - After an error on a CUDA context work may still run: synchronise the stream before you free memory.
 * - lasp_comm_create_nccl. The communicator must outlive the comm, or a lasp_context_abort of its context: after that,
 *   and the return of the call that was in flight, the library does not touch it again. */

/* A schedule, for lasp_schedule_values. */
#define LASP_SCHEDULE_HEAD_SCATTER 5 /* a rank folds the maps of some heads for all */

/* More values of lasp_ownership_values. */
enum more_ownership_values {
  LASP_OWN_ZIGZAG_EACH = 2,      /* each packed sequence is cut so by itself: this rank has parts r and 2W-1-r of the
                                    first sequence, then of the second, and so on. Lengths divide by 2W. A state of
                                    each sequence crosses each border: sizes and messages grow with max_sequences */
};
/* lasp_plan_get_owners with LASP_OWN_ZIGZAG_EACH: a sequence is cut by itself, and its first rank is also its last:
 * rank 0. */

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

/* With LASP_OWN_ZIGZAG_EACH the rows of maps and of `incoming` are max_sequences: run 0 is part r of every sequence and
 * run 1 part 2W-1-r. Of a dense transition (delta write) backward maps hold M transposed; one that
 * forgets has 0 everywhere, and the result of lasp_maps_compose is not one of the two maps. */

/* ---- Halo -------------------------------------------------------------------------------------------------------- */

/* With LASP_OWN_ZIGZAG_EACH `before` and d_before are [num_runs, max_sequences, n, C]; a part has at least n tokens. */

/* What lasp_halo_get_info would tell, without a group. */
LASP_API lasp_status lasp_problem_get_halo_info(const lasp_problem *problem, const lasp_placement *placement,
                                                const lasp_halo_options *options, lasp_halo_info *info);
