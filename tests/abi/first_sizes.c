/* The sizes of all structs in the first release's header (first/), for struct_test.cpp: this file alone sees that
 * one. */
#include "first_sizes.h"

#include <lasp/lasp.h>

const struct first_sizes first_sizes = {
    sizeof(lasp_build_info),      sizeof(lasp_nccl_functions), sizeof(lasp_transport), sizeof(lasp_traffic),
    sizeof(lasp_context_options), sizeof(lasp_problem),        sizeof(lasp_plan_info), sizeof(lasp_forward_args),
    sizeof(lasp_backward_args),   sizeof(lasp_step_args),      sizeof(lasp_groups)};
