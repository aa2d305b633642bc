// Making and freeing the communicators of a group; comm_pair.h says when.
#include "comm/mpi/comm_pair.h"

#include <cstdint>
#include <mutex>
#include <vector>

#include "comm/mpi/mpi_call.h"

namespace lasp::mpi {
namespace {

// The pairs made from one of the caller's communicators, oldest first: in the same order on all of its ranks,
// because making one is collective.
using Children = std::vector<std::shared_ptr<CommPair>>;

void free_pair(CommPair &pair) {
  if (pair.control != MPI_COMM_NULL) MPI_Comm_free(&pair.control);
  if (pair.data != MPI_COMM_NULL) MPI_Comm_free(&pair.data);
}

// MPI calls this when the caller frees the communicator, which is collective over the same ranks.
int forget_children(MPI_Comm, int, void *value, void *) {
  auto *children = static_cast<Children *>(value);
  if (mpi_is_usable()) {
    for (auto &pair : *children) {
      if (pair->retired) free_pair(*pair);
    }
  }
  delete children;
  return MPI_SUCCESS;
}

int children_key() {
  static std::mutex mutex;
  static int key = MPI_KEYVAL_INVALID;
  std::lock_guard lock(mutex);
  if (key == MPI_KEYVAL_INVALID) {
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget_children, &key, nullptr));
  }
  return key;
}

Children &children_of(MPI_Comm comm) {
  const int key = children_key();
  void *value = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(comm, key, &value, &found));
  if (found) return *static_cast<Children *>(value);
  auto children = std::make_unique<Children>();
  check(MPI_Comm_set_attr(comm, key, children.get()));
  return *children.release();
}

// Frees the pairs that all ranks have retired. Looks at 64 at once, far more than there will be.
void free_retired(MPI_Comm comm, Children &children) {
  uint64_t retired = 0, retired_by_all = 0;
  for (size_t i = 0; i < children.size() && i < 64; ++i) {
    if (children[i]->retired) retired |= uint64_t{1} << i;
  }
  check(MPI_Allreduce(&retired, &retired_by_all, 1, MPI_UINT64_T, MPI_BAND, comm));
  Children kept;
  for (size_t i = 0; i < children.size(); ++i) {
    if (i < 64 && (retired_by_all >> i & 1)) {
      free_pair(*children[i]);
    } else {
      kept.push_back(children[i]);
    }
  }
  children = std::move(kept);
}

// While it lives, errors on the caller's communicator come back as codes; the caller's own handler may abort.
class ErrorsReturn {
 public:
  explicit ErrorsReturn(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_get_errhandler(comm, &saved_));
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  }
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(comm_, saved_);
    MPI_Errhandler_free(&saved_);
  }
  ErrorsReturn(const ErrorsReturn &) = delete;
  ErrorsReturn &operator=(const ErrorsReturn &) = delete;

 private:
  MPI_Comm comm_;
  MPI_Errhandler saved_ = MPI_ERRHANDLER_NULL;
};

}  // namespace

std::shared_ptr<CommPair> make_comm_pair(MPI_Comm comm) {
  ErrorsReturn guard(comm);
  Children &children = children_of(comm);
  free_retired(comm, children);
  auto pair = std::make_shared<CommPair>();
  check(MPI_Comm_dup(comm, &pair->data));
  check(MPI_Comm_dup(comm, &pair->control));
  check(MPI_Comm_set_errhandler(pair->data, MPI_ERRORS_RETURN));
  check(MPI_Comm_set_errhandler(pair->control, MPI_ERRORS_RETURN));
  children.push_back(pair);
  return pair;
}

}  // namespace lasp::mpi
