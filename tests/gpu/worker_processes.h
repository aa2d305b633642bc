// This program once more, as processes that are told what to do by messages, for as long as they all live and
// answer in time. The first that does not ends all of them: nothing here waits without a limit. Knows neither GPUs
// nor NCCL.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "gpu/message_socket.h"

namespace lasp_test {

class WorkerProcesses {
 public:
  static constexpr int kSocket = 3;  // a worker's, to this process

  // Starts /proc/self/exe --worker NUMBER COUNT so often. They are killed with this process, too.
  explicit WorkerProcesses(int32_t count);
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses &) = delete;
  WorkerProcesses &operator=(const WorkerProcesses &) = delete;

  // The same to each. Throws, as answers() does, when the workers have been ended.
  void tell(const Bytes &message);
  // One message of each. When a worker ends before that, or the limit passes, kills all and throws what happened.
  std::vector<Bytes> answers(std::chrono::milliseconds limit);
  // One sentence; "" as long as all is well.
  const std::string &why_ended() const { return why_ended_; }

  // Closes the sockets, upon which workers end; kills those that have not within the limit. "" when each had status
  // 0, else what happened.
  std::string close(std::chrono::milliseconds limit);

 private:
  struct Worker {
    pid_t process = -1;
    int socket = -1;
    IncomingMessage incoming;
  };

  void start(size_t number);
  void kill_all(const std::string &why);
  [[noreturn]] void fail(const std::string &why);
  [[noreturn]] void lost(Worker &worker);
  std::string fate(const Worker &worker, int status) const;
  std::string name(const Worker &worker) const;

  std::vector<Worker> workers_;
  std::string why_ended_;
};

}  // namespace lasp_test
