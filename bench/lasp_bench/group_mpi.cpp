#include "failure.h"
#include "group.h"
#include "memory.h"

#ifdef LASP_BENCH_MPI

#include <lasp/lasp_mpi.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace bench {
namespace {

class MpiLink final : public Link {
 public:
  MpiLink(MPI_Comm mpi, lasp_comm *comm) : mpi_(mpi), comm_(comm) {
    MPI_Comm_rank(mpi, &rank_);
    MPI_Comm_size(mpi, &nranks_);
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(mpi, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    int on_host = 0;
    MPI_Comm_size(host, &on_host);
    MPI_Comm_free(&host);
    int together = on_host == nranks_ ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &together, 1, MPI_INT, MPI_MIN, mpi);
    one_clock_ = together != 0;
  }

  int32_t rank() const override { return rank_; }
  int32_t nranks() const override { return nranks_; }
  lasp_comm *comm() const override { return comm_; }
  bool one_clock() const override { return one_clock_; }
  bool one_process() const override { return false; }
  void barrier() override { MPI_Barrier(mpi_); }

  std::vector<double> all_gather(const std::vector<double> &mine) override {
    std::vector<double> all(mine.size() * static_cast<size_t>(nranks_));
    const int count = static_cast<int>(mine.size());
    MPI_Allgather(mine.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, mpi_);
    return all;
  }

 private:
  MPI_Comm mpi_;
  lasp_comm *comm_;
  int rank_ = 0, nranks_ = 1;
  bool one_clock_ = false;
};

class MpiGroup final : public Group {
 public:
  MpiGroup() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size_);
  }
  ~MpiGroup() override { MPI_Finalize(); }

  const char *name() const override { return "mpi"; }
  int32_t most_ranks() const override { return world_size_; }
  bool is_speaker() const override { return world_rank_ == 0; }

  void run(int32_t nranks, const std::function<void(Link &)> &body) override {
    MPI_Comm members = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank_ < nranks ? 0 : MPI_UNDEFINED, world_rank_, &members);
    std::string refusal;
    if (members != MPI_COMM_NULL) {
      try {
        run_member(members, body);
      } catch (const Refused &refused) {
        refusal = refused.what();
      } catch (const std::exception &error) {
        std::fprintf(stderr, "lasp-bench: rank %d: %s\n", world_rank_, error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      MPI_Comm_free(&members);
    }
    rest();
    if (!refusal.empty()) throw Refused(refusal);
  }

 private:
  static void run_member(MPI_Comm members, const std::function<void(Link &)> &body) {
    lasp_comm *created = nullptr;
    check(lasp_mpi_comm_create(members, &created), "lasp_mpi_comm_create");
    const CommHandle comm(created);
    MpiLink link(members, comm.get());
    body(link);
  }

  // Until all are done. Sleeps, because a rank that polls would take a CPU from those that are measured.
  static void rest() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  int world_rank_ = 0, world_size_ = 1;
};

}  // namespace

std::unique_ptr<Group> make_mpi_group() { return std::make_unique<MpiGroup>(); }

}  // namespace bench

#else

namespace bench {

std::unique_ptr<Group> make_mpi_group() {
  throw UsageError("--transport mpi: this lasp-bench was built without MPI");
}

}  // namespace bench

#endif
