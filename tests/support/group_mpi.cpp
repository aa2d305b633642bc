// A RankResult travels as plain bytes: lengths, then contents.
#include "support/group_mpi.h"

#include <cstring>

#include <lasp/lasp_mpi.h>

namespace lasp_test {
namespace {

class Writer {
 public:
  template <class T>
  void value(const T &x) {
    raw(&x, sizeof x);
  }
  template <class Range>
  void range(const Range &x) {
    value(static_cast<uint64_t>(x.size()));
    raw(x.data(), x.size() * sizeof(x[0]));
  }
  std::vector<char> bytes;

 private:
  void raw(const void *from, size_t count) {
    const auto *const first = static_cast<const char *>(from);
    bytes.insert(bytes.end(), first, first + count);
  }
};

class Reader {
 public:
  explicit Reader(const char *at) : at_(at) {}
  template <class T>
  void value(T &x) {
    raw(&x, sizeof x);
  }
  template <class Range>
  void range(Range &x) {
    uint64_t count = 0;
    value(count);
    x.resize(count);
    raw(x.data(), count * sizeof(x[0]));
  }

 private:
  void raw(void *to, size_t count) {
    if (count != 0) std::memcpy(to, at_, count);
    at_ += count;
  }
  const char *at_;
};

// One list of fields serves both directions.
template <class Archive, class Result>
void fields(Archive &archive, Result &result) {
  archive.value(result.plan_status);
  archive.range(result.complaints);
  for (auto &tensor : result.tensors) archive.range(tensor);
  archive.value(result.info);
  archive.value(result.bytes_sent);
  archive.value(result.bytes_received);
}

std::vector<RankResult> gather(const RankResult &mine, MPI_Comm mpi) {
  int rank = 0, nranks = 1;
  MPI_Comm_rank(mpi, &rank);
  MPI_Comm_size(mpi, &nranks);
  Writer writer;
  fields(writer, mine);
  const int count = static_cast<int>(writer.bytes.size());
  std::vector<int> counts(nranks), offsets(nranks, 0);
  MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, mpi);
  for (int r = 1; r < nranks; ++r) offsets[r] = offsets[r - 1] + counts[r - 1];
  std::vector<char> all(rank == 0 ? offsets.back() + counts.back() : 0);
  MPI_Gatherv(writer.bytes.data(), count, MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE, 0, mpi);
  std::vector<RankResult> results(rank == 0 ? nranks : 0);
  for (size_t r = 0; r < results.size(); ++r) {
    Reader reader(all.data() + offsets[r]);
    fields(reader, results[r]);
  }
  return results;
}

}  // namespace

Outputs run_case_mpi(const Case &c, const CaseData &data, MPI_Comm mpi, const RunOptions &options) {
  RankResult mine;
  lasp_comm *comm = nullptr;
  if (lasp_mpi_comm_create(mpi, &comm) == LASP_OK) {
    mine = run_rank(c, data, comm, options);
    if (lasp_comm_destroy(comm) != LASP_OK)
      mine.complaints += std::string("lasp_comm_destroy: ") + lasp_last_error();
  } else {
    mine.complaints = std::string("lasp_mpi_comm_create: ") + lasp_last_error();
  }
  std::vector<RankResult> ranks = gather(mine, mpi);
  return ranks.empty() ? Outputs() : assemble(c, std::move(ranks));
}

}  // namespace lasp_test
