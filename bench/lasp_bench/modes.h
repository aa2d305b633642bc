// The ways of running lasp-bench that are not the measurement itself. Each returns the exit status.
#pragma once

#include <cstdio>

#include "group.h"
#include "options.h"

namespace bench {

// Latency and bandwidth between two ranks, and what the library's model makes of them for each schedule.
int run_model(Group &group, const Options &options, int cpus, FILE *out);

// What the library's model of exchanges needs, measured on these ranks, and the line of LASP_LINK that gives it.
int run_calibrate(Group &group, const Options &options, int cpus, FILE *out);

// Tries what there is: known answers of each family of problems on each device, links, NCCL. A line each; 1 where
// something is wrong.
int run_check(Group &group, const Options &options, FILE *out);

// Workspace per token of one rank for a long and a short sequence; and for the same tokens of one, of each.
int run_memory(const Options &options, FILE *out);

// The longest sequence that a model trains on, its memory by item and its time, by formula alone.
int run_fit(const Options &options, FILE *out);

}  // namespace bench
