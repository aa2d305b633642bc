// The ranks of a run: starts them, gives each its end of the sequence group, and sums over all of them (what a
// trainer does with its own library; liblasp itself only sees the sequence group).
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <functional>
#include <string>

#include "attention.hpp"
#include "device.hpp"

namespace train_lm {

// Sums over the whole world, in rank order: the same bits every time and on every rank. Collective.
class World {
 public:
  virtual ~World() = default;
  virtual void sum(float *data, std::size_t count) = 0;
  virtual void sum(double *data, std::size_t count) = 0;
  // The same of a GPU's memory, in the order of a stream; in any order of ranks. False where it cannot be had.
  virtual bool enqueue_sum(float *, std::size_t, lasp_stream) { return false; }
  virtual bool enqueue_sum(double *, std::size_t, lasp_stream) { return false; }
};

struct Endpoint {
  int rank = 0, ranks = 1;  // in the world: sequence_ranks * data_groups
  lasp_groups groups = LASP_GROUPS_INIT;
  lasp_comm *comm = nullptr;  // this rank's end of its sequence group
  World *world = nullptr;
  int local_ranks = 1;  // that share this machine's CPUs
  Place place;          // where this rank computes
};
// Sums an array of the ranks' devices over all ranks. Collective.
void sum_over_ranks(const Endpoint &end, Context &context, float *data, std::size_t count);
void sum_over_ranks(const Endpoint &end, Context &context, double *data, std::size_t count);

using RankBody = std::function<void(const Endpoint &)>;

struct Split {
  int sequence_ranks = 1, data_groups = 1, group_stride = 1;
  int world() const { return sequence_ranks * data_groups; }
};

// Runs `body` on every rank as a thread of this process, and returns when all are done. When one throws, the others
// are stopped and the first sentence is thrown from here. On GPUs there may be more ranks than GPUs; gradients are
// then summed in the host's memory.
void run_thread_ranks(const Split &split, const Place &kind, const RankBody &body);

// The same for a process that mpirun started: runs `body` once, as this process's rank of MPI_COMM_WORLD, which has
// split.world() processes. On the CPU states and gradients travel by MPI, on GPUs by NCCL, found as nccl.hpp says.
void run_mpi_rank(const Split &split, const Place &kind, const std::string &nccl, const RankBody &body);

// One process of an MPI run, or the only process there is.
class Process {
 public:
  Process(bool mpi, int *argc, char ***argv);  // throws where MPI was not built in
  ~Process();
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int local_rank() const { return local_rank_; }  // among the processes on this machine
  void barrier() const;                           // without spinning: the others may be computing
  [[noreturn]] void fail() const;                 // ends every process of the run

 private:
  bool mpi_ = false;
  int rank_ = 0, ranks_ = 1, local_rank_ = 0;
};

}  // namespace train_lm
