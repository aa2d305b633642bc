// Ranks as MPI processes. Without MPI in the build, a sentence that says so.
#include <stdexcept>
#include <string>

#include "attention.hpp"
#include "ranks.hpp"

#ifdef TRAIN_LM_HAS_MPI

#include <lasp/lasp_mpi.h>
#include <mpi.h>
#include <time.h>

#include <algorithm>

namespace train_lm {
namespace {

// MPI_Allreduce gives every rank the same bits; in which order it sums is MPI's choice.
class MpiWorld : public World {
 public:
  void sum(float *data, std::size_t count) override { sum(data, count, MPI_FLOAT); }
  void sum(double *data, std::size_t count) override { sum(data, count, MPI_DOUBLE); }

 private:
  template <typename T>
  static void sum(T *data, std::size_t count, MPI_Datatype type) {
    constexpr std::size_t kLargest = std::size_t{1} << 30;  // MPI counts in int
    for (std::size_t at = 0; at < count; at += kLargest)
      MPI_Allreduce(MPI_IN_PLACE, data + at, static_cast<int>(std::min(kLargest, count - at)), type, MPI_SUM,
                    MPI_COMM_WORLD);
  }
};

int ranks_on_this_machine() {
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  int ranks = 1;
  MPI_Comm_size(local, &ranks);
  MPI_Comm_free(&local);
  return ranks;
}

}  // namespace

void run_mpi_rank(const Split &split, const RankBody &body) {
  MpiWorld world;
  Endpoint end;
  MPI_Comm_rank(MPI_COMM_WORLD, &end.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &end.ranks);
  end.world = &world;
  end.local_ranks = ranks_on_this_machine();
  check(lasp_groups_of_rank(end.ranks, split.sequence_ranks, split.group_stride, end.rank, &end.groups),
        "lasp_groups_of_rank");
  MPI_Comm sequence = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, end.groups.sequence_group, end.groups.sequence_rank, &sequence);
  lasp_comm *handle = nullptr;
  const lasp_status status = lasp_mpi_comm_create(sequence, &handle);
  MPI_Comm_free(&sequence);
  check(status, "lasp_mpi_comm_create");
  const Comm comm(handle);
  end.comm = handle;
  body(end);
}

Process::Process(bool mpi, int *argc, char ***argv) : mpi_(mpi) {
  if (!mpi) return;
  int provided = 0;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
}

Process::~Process() {
  if (mpi_) MPI_Finalize();
}

void Process::barrier() const {
  if (!mpi_) return;
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; !done;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    const timespec nap = {0, 2'000'000};
    if (!done) nanosleep(&nap, nullptr);
  }
}

void Process::fail() const {
  if (mpi_) MPI_Abort(MPI_COMM_WORLD, 1);
  std::exit(1);
}

}  // namespace train_lm

#else

#include <cstdlib>

namespace train_lm {
namespace {
constexpr const char *kNoMpi = "This train_lm was built without MPI; --transport threads is what it has.";
}

void run_mpi_rank(const Split &, const RankBody &) { throw std::runtime_error(kNoMpi); }

Process::Process(bool mpi, int *, char ***) {
  if (mpi) throw std::runtime_error(kNoMpi);
}
Process::~Process() = default;
void Process::barrier() const {}
void Process::fail() const { std::exit(1); }

}  // namespace train_lm

#endif
