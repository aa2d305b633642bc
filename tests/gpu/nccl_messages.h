// What a test and the processes that are its ranks tell each other: first each rank a Hello, then the test the
// group's NcclId; each rank answers, with nothing, once it has its communicator, and from then on a Task with a
// RankResult.
#pragma once

#include <string>

#include "support/nccl.h"
#include "support/rank_bytes.h"

namespace lasp_test {

struct Hello {
  std::string why_unusable;  // "" where there are a GPU and NCCL
  std::string machine;       // GPUs and NCCL in words
  int32_t gpus = 0;
  gpu::NcclId id{};  // rank 0's
};

template <class Archive, MaybeConst<Hello> Message>
void fields(Archive &archive, Message &hello) {
  archive.range(hello.why_unusable);
  archive.range(hello.machine);
  archive.value(hello.gpus);
  archive.value(hello.id);
}

struct Task {
  bool stored = false;  // of all_vectors(), else of the case table
  std::string name;
  RunOptions options;
};

// The options that a Task may set.
template <class Archive, MaybeConst<Task> Message>
void fields(Archive &archive, Message &task) {
  archive.value(task.stored);
  archive.range(task.name);
  archive.value(task.options.schedule);
  archive.value(task.options.recompute);
  archive.value(task.options.repeats);
  archive.value(task.options.graph_replays);
  archive.value(task.options.own_stream);
}

}  // namespace lasp_test
