// Ranks, by threads (on GPUs also over NCCL) or by MPI processes: the same body runs once per rank, with a Link to
// the others for what a benchmark needs beside the library (a barrier, exchanging a few numbers).
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace bench {

class Link {
 public:
  virtual ~Link() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t nranks() const = 0;
  virtual lasp_comm *comm() const = 0;
  virtual int32_t device() const { return 0; }  // this rank's GPU, where there is one
  virtual void barrier() = 0;
  // Every rank's values, in rank order. All give equally many.
  virtual std::vector<double> all_gather(const std::vector<double> &mine) = 0;
  // Ranks' steady clocks agree, so that times of different ranks may be subtracted.
  virtual bool one_clock() const = 0;
  // Ranks are threads of one process and share one BLAS.
  virtual bool one_process() const = 0;

  double largest(double mine);
};

class Group {
 public:
  virtual ~Group() = default;
  virtual const char *name() const = 0;
  virtual int32_t most_ranks() const = 0;
  virtual bool is_speaker() const = 0;  // the one process that reports
  // Runs `body` on `nranks` ranks and returns when all are done. Throws what a rank threw: Refused, which all throw
  // alike, or Failure.
  virtual void run(int32_t nranks, const std::function<void(Link &)> &body) = 0;
};

std::unique_ptr<Group> make_thread_group();
std::unique_ptr<Group> make_nccl_group();  // threads, a GPU for each; throws UsageError where it cannot be
std::unique_ptr<Group> make_mpi_group();   // throws UsageError in a build without MPI

}  // namespace bench
