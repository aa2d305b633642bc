/* How large each struct was in the first release's header. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
struct first_sizes {
  size_t build_info, nccl_functions, transport, traffic;
  size_t context_options, problem, plan_info;
  size_t forward_args, backward_args, step_args, groups;
};
extern const struct first_sizes first_sizes;
#ifdef __cplusplus
}
#endif
