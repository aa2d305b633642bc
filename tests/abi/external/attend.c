/* Four ranks as threads of one process. */
#include <pthread.h>
#include <stdio.h>

#include "naive.h"

static void *run_rank(void *comm) { return attend((lasp_comm *)comm) == 0 ? NULL : comm; }

int main(void) {
  lasp_comm *comms[RANKS];
  pthread_t threads[RANKS];
  int r, failed = 0;
  if (lasp_comm_create_threads(RANKS, comms) != LASP_OK) {
    fprintf(stderr, "%s\n", lasp_last_error());
    return 1;
  }
  for (r = 0; r < RANKS; ++r)
    if (pthread_create(&threads[r], NULL, run_rank, comms[r]) != 0) return 1;
  for (r = 0; r < RANKS; ++r) {
    void *result = NULL;
    pthread_join(threads[r], &result);
    failed |= result != NULL;
  }
  for (r = 0; r < RANKS; ++r) failed |= lasp_comm_destroy(comms[r]) != LASP_OK;
  puts(failed ? "FAILED" : "all ranks agree with the recurrence");
  return failed;
}
