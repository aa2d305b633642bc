// Ranks as MPI processes. Without MPI in the build, a sentence that says so.
#include <stdexcept>
#include <string>

#include "ranks.hpp"

#ifdef TRAIN_LM_HAS_MPI

#include <lasp/lasp_mpi.h>
#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <memory>

#ifdef TRAIN_LM_HAS_CUDA
#include "cuda.hpp"
#include "nccl.hpp"
#endif

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

// Which of the processes on this machine this one is, and how many there are.
void locate(int *rank, int *ranks) {
  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, rank);
  MPI_Comm_size(local, ranks);
  MPI_Comm_free(&local);
}

// A communicator of the ranks in one sequence group; freed with the object.
class SequenceGroup {
 public:
  explicit SequenceGroup(const lasp_groups &groups) : groups_(groups) {
    MPI_Comm_split(MPI_COMM_WORLD, groups.sequence_group, groups.sequence_rank, &mpi_);
  }
  ~SequenceGroup() { MPI_Comm_free(&mpi_); }
  SequenceGroup(const SequenceGroup &) = delete;

  Comm make_comm() const {
    lasp_comm *comm = nullptr;
    check(lasp_mpi_comm_create(mpi_, &comm), "lasp_mpi_comm_create");
    return Comm(comm);
  }

  MPI_Comm get() const { return mpi_; }

 private:
  const lasp_groups groups_;
  MPI_Comm mpi_ = MPI_COMM_NULL;
};

#ifdef TRAIN_LM_HAS_CUDA

// On the thread's current device. The first rank makes the id, MPI tells it to the others.
std::unique_ptr<NcclComm> make_nccl(const Nccl &nccl, MPI_Comm mpi) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(mpi, &rank);
  MPI_Comm_size(mpi, &ranks);
  NcclId id{};
  if (rank == 0) id = nccl.create_id();
  MPI_Bcast(id.bytes, sizeof id.bytes, MPI_CHAR, 0, mpi);
  return std::make_unique<NcclComm>(nccl, id, rank, ranks);
}

// Sums of GPUs' memory by NCCL.
class NcclWorld : public MpiWorld {
 public:
  explicit NcclWorld(const NcclComm &comm) : comm_(comm) {}
  bool enqueue_sum(float *data, std::size_t count, lasp_stream stream) override {
    return comm_.sum(data, count, stream), true;
  }
  bool enqueue_sum(double *data, std::size_t count, lasp_stream stream) override {
    return comm_.sum(data, count, stream), true;
  }

 private:
  const NcclComm &comm_;
};

// As run_mpi_rank, over GPUs. One communicator is for gradients, one for liblasp. A world of one needs no NCCL.
void run_on_gpu(const SequenceGroup &group, const std::string &library, Endpoint &end, const RankBody &body) {
  if (end.ranks == 1) {
    const Comm alone = group_of_one();
    end.comm = alone.get();
    return body(end);
  }
  if (const int gpus = cuda::device_count(); end.local_ranks > gpus)
    throw std::runtime_error("NCCL wants a GPU for each of the " + std::to_string(end.local_ranks) +
                             " processes here, and there are " + std::to_string(gpus) +
                             "; with --transport threads ranks share them.");
  cuda::use(end.place.index);
  const Nccl nccl(library);
  const std::unique_ptr<NcclComm> all = make_nccl(nccl, MPI_COMM_WORLD), borrowed = make_nccl(nccl, group.get());
  NcclWorld world(*all);
  end.world = &world;
  lasp_comm *handle = nullptr;
  check(lasp_comm_create_nccl(borrowed->get(), &nccl.functions(), &handle), "lasp_comm_create_nccl");
  const Comm comm(handle);
  end.comm = handle;
  body(end);
}

#else

void run_on_gpu(const SequenceGroup &, const std::string &, Endpoint &, const RankBody &) {
}  // place_of has refused

#endif

}  // namespace

void run_mpi_rank(const Split &split, const Place &kind, const std::string &nccl, const RankBody &body) {
  MpiWorld world;
  Endpoint end;
  MPI_Comm_rank(MPI_COMM_WORLD, &end.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &end.ranks);
  end.world = &world;
  int local_rank = 0;
  locate(&local_rank, &end.local_ranks);
  end.place = place_of(kind, local_rank);
  check(lasp_groups_of_rank(end.ranks, split.sequence_ranks, split.group_stride, end.rank, &end.groups),
        "lasp_groups_of_rank");
  const SequenceGroup group(end.groups);
  if (end.place.is_cuda()) return run_on_gpu(group, nccl, end, body);
  const Comm comm = group.make_comm();
  end.comm = comm.get();
  body(end);
}

Process::Process(bool mpi, int *argc, char ***argv) : mpi_(mpi) {
  if (!mpi) return;
  int provided = 0;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  int local_ranks = 1;
  locate(&local_rank_, &local_ranks);
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

void run_mpi_rank(const Split &, const Place &, const std::string &, const RankBody &) {
  throw std::runtime_error(kNoMpi);
}

Process::Process(bool mpi, int *, char ***) {
  if (mpi) throw std::runtime_error(kNoMpi);
}
Process::~Process() = default;
void Process::barrier() const {}
void Process::fail() const { std::exit(1); }

}  // namespace train_lm

#endif
