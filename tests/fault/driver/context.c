// Makes a context on a GPU, and prints the status and the sentence that it gets: for driver.sh, where there is
// none.
#include <lasp/lasp.h>
#include <stdio.h>

int main(void) {
  lasp_comm *comm = NULL;
  if (lasp_comm_create_self(&comm) != LASP_OK) return 2;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = LASP_DEVICE_CUDA;
  lasp_context *context = NULL;
  const lasp_status status = lasp_context_create(LASP_ABI, comm, &options, &context);
  printf("%d: %s\n", (int)status, lasp_last_error());
  lasp_context_destroy(context);
  lasp_comm_destroy(comm);
  return 0;
}
