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

