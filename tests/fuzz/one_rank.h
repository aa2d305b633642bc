// A group of one on the CPU, made once: nothing that a bad call does may harm it.
#pragma once

#include <lasp/lasp.h>

#include "draw.h"

namespace lasp_fuzz {

inline lasp_context *one_rank() {
  static lasp_context *const context = [] {
    lasp_comm *comm = nullptr;
    lasp_context *made = nullptr;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1;
    if (lasp_comm_create_self(&comm) || lasp_context_create(LASP_ABI, comm, &options, &made)) broken("no context");
    return made;
  }();
  return context;
}

}  // namespace lasp_fuzz
