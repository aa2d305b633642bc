/* Every struct of the header that begins with its size, set by its INIT macro in C. */
#ifndef LASP_TESTS_INIT_MACROS_H
#define LASP_TESTS_INIT_MACROS_H

#include <lasp/lasp.h>

#ifdef __cplusplus
extern "C" {
#endif
extern const lasp_build_info macro_build_info;
extern const lasp_nccl_functions macro_nccl_functions;
extern const lasp_transport macro_transport;
extern const lasp_traffic macro_traffic;
extern const lasp_context_options macro_context_options;
extern const lasp_problem macro_problem;
extern const lasp_plan_info macro_plan_info;
extern const lasp_packing macro_packing;
extern const lasp_forward_args macro_forward_args;
extern const lasp_backward_args macro_backward_args;
extern const lasp_step_args macro_step_args;
extern const lasp_halo_options macro_halo_options;
extern const lasp_halo_info macro_halo_info;
extern const lasp_halo_args macro_halo_args;
extern const lasp_placement macro_placement;
extern const lasp_maps_args macro_maps_args;
extern const lasp_groups macro_groups;
extern const lasp_trace_options macro_trace_options;
#ifdef __cplusplus
}
#endif
#endif
