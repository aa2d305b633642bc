/* The INIT macros as a C program sees them, for struct_test.cpp. */
#include "init_macros.h"

const lasp_build_info macro_build_info = LASP_BUILD_INFO_INIT;
const lasp_nccl_functions macro_nccl_functions = LASP_NCCL_FUNCTIONS_INIT;
const lasp_transport macro_transport = LASP_TRANSPORT_INIT;
const lasp_traffic macro_traffic = LASP_TRAFFIC_INIT;
const lasp_context_options macro_context_options = LASP_CONTEXT_OPTIONS_INIT;
const lasp_problem macro_problem = LASP_PROBLEM_INIT;
const lasp_plan_info macro_plan_info = LASP_PLAN_INFO_INIT;
const lasp_packing macro_packing = LASP_PACKING_INIT;
const lasp_forward_args macro_forward_args = LASP_FORWARD_ARGS_INIT;
const lasp_backward_args macro_backward_args = LASP_BACKWARD_ARGS_INIT;
const lasp_step_args macro_step_args = LASP_STEP_ARGS_INIT;
const lasp_halo_options macro_halo_options = LASP_HALO_OPTIONS_INIT;
const lasp_halo_info macro_halo_info = LASP_HALO_INFO_INIT;
const lasp_halo_args macro_halo_args = LASP_HALO_ARGS_INIT;
const lasp_placement macro_placement = LASP_PLACEMENT_INIT;
const lasp_maps_args macro_maps_args = LASP_MAPS_ARGS_INIT;
const lasp_groups macro_groups = LASP_GROUPS_INIT;
const lasp_trace_options macro_trace_options = LASP_TRACE_OPTIONS_INIT;
