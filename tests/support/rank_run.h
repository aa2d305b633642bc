// One rank's whole run of a case through the public API: plan, forward, backward, and every check that can be made
// on the rank itself (statuses, canaries, inputs unchanged, traffic as the plan said, results equal on repetition).
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include <lasp/lasp.h>

#include "support/case.h"
#include "support/staged_pass.h"

namespace lasp_test {

struct RunOptions {
  int32_t schedule = LASP_SCHEDULE_AUTO;
  bool backward = true;
  bool recompute = false;        // forward once more from the state cache: same bits, nothing sent
  int32_t repeats = 1;           // of forward and backward on one plan: same bits
  int32_t add = 0;               // LASP_ADD_*: those gradients join already_there() (rank_memory.h)
  bool wide_gradients = false;   // float32 gradients beside 16-bit inputs
  bool optional_outputs = true;  // final_state, d_decay and d_initial_state are asked for
  bool null_when_empty = false;  // a rank without tokens passes NULL for its tensors
  // On a GPU only:
  int32_t device_index = 0;
  bool own_stream = false;    // a stream made for the run; else the default stream
  int32_t graph_replays = 0;  // forward and backward captured into a graph and launched so often: same bits
  bool late_inputs = false;   // the stream is still busy when the passes are called, and calls return at once
  bool may_wait = false;      // with late_inputs: calls may return late after all, since ranks meet on the host
  bool other_device = false;  // calls are made while another device, if there is one, is current
  bool old_error = false;     // an error of the caller's is on the runtime's record, and stays there
  // Given: the passes go by their stages, and nothing by the comm; the state that enters each is found from all
  // maps.
  AllGather all_gather = {};
  bool carry = true;  // what lies between the stages is handed on, else worked out again
  // Called by every rank before its first pass and after its last: where ranks wait for each other on the host.
  std::function<void()> meet = [] {};
};

struct RankResult {
  lasp_status plan_status = LASP_OK;
  std::string complaints;                            // one line each; empty when all is well
  std::array<std::vector<float>, kTensors> tensors;  // local tokens; state buffers whole, poison where not owned
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  bool tensor_cores = false;                    // the plan says that 16-bit products run on a GPU's tensor cores
  uint64_t bytes_sent = 0, bytes_received = 0;  // by the first forward and backward
};

// Its list of runs is there until this thread's next call.
lasp_problem problem_of(const Case &c, int32_t rank, int32_t nranks, const RunOptions &options);
lasp_context_options test_context_options(const Case &c, int32_t device_index = 0);

RankResult run_rank(const Case &c, const CaseData &data, lasp_comm *comm, const RunOptions &options);

}  // namespace lasp_test
