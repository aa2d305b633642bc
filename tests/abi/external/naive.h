/* The example problem of the external programs, and its answer by the recurrence itself, in float64. */
#ifndef EXTERNAL_NAIVE_H
#define EXTERNAL_NAIVE_H

#include <lasp/lasp.h>

enum { RANKS = 4, TOKENS = 50, HEADS = 2, DIM_K = 8, DIM_V = 16 }; /* TOKENS on each rank */

/* Element i of the whole q, k or v (what = 0, 1, 2), in [-1, 1]. */
float element(int what, long i);
/* The log decay of a head. */
float head_decay(int head);
/* Computes this rank's o with the library over `comm` and compares it with the recurrence: 0 when it agrees. */
int attend(lasp_comm *comm);

#endif
