#include "gpu/worker_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace lasp_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Of a process that was killed, or has closed its socket, until it can be waited for. One that a driver holds in
// the kernel may never be.
constexpr milliseconds kEnding{10000};

// False when the process has not ended by then.
bool wait_until(Clock::time_point until, pid_t process, int &status) {
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

// In the child, where after fork() only system calls are safe.
[[noreturn]] void become_worker(pid_t parent, int socket, char *const *argv) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(125);
  if (socket == WorkerProcesses::kSocket) {
    if (fcntl(socket, F_SETFD, 0) != 0) _exit(126);
  } else if (dup2(socket, WorkerProcesses::kSocket) < 0) {
    _exit(126);
  }
  execv("/proc/self/exe", argv);
  _exit(127);
}

}  // namespace

WorkerProcesses::WorkerProcesses(int32_t count) : workers_(count) {
  for (size_t number = 0; number < workers_.size(); ++number) start(number);
}

WorkerProcesses::~WorkerProcesses() {
  if (why_ended_.empty()) close(milliseconds(0));
}

void WorkerProcesses::start(size_t number) {
  std::string words[] = {program_invocation_short_name, "--worker", std::to_string(number),
                         std::to_string(workers_.size())};
  char *const argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail(std::string("socketpair: ") + std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process == 0) become_worker(parent, ends[1], argv);
  ::close(ends[1]);
  workers_[number].socket = ends[0];
  workers_[number].process = process;
  if (process < 0) fail(std::string("fork: ") + std::strerror(errno));
}

void WorkerProcesses::tell(const Bytes &message) {
  if (!why_ended_.empty()) throw std::runtime_error(why_ended_);
  for (Worker &worker : workers_) {
    if (!send_message(worker.socket, message)) lost(worker);
  }
}

std::vector<Bytes> WorkerProcesses::answers(milliseconds limit) {
  if (!why_ended_.empty()) throw std::runtime_error(why_ended_);
  const Clock::time_point until = Clock::now() + limit;
  for (;;) {
    std::vector<pollfd> watched;  // those that have answered too: they could end while others wait for them
    std::string missing;
    for (const Worker &worker : workers_) {
      const bool answered = worker.incoming.complete();
      watched.push_back({worker.socket, static_cast<short>(answered ? 0 : POLLIN), 0});
      if (!answered) missing += (missing.empty() ? "" : ", ") + name(worker);
    }
    if (missing.empty()) break;
    const int left = milliseconds_until(until);
    if (left == 0) fail(missing + " did not answer within " + std::to_string(limit.count()) + " ms");
    if (poll(watched.data(), watched.size(), left) < 0) {
      if (errno != EINTR) fail(std::string("poll: ") + std::strerror(errno));
      continue;
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (watched[i].revents == 0) continue;
      IncomingMessage &incoming = workers_[i].incoming;
      if (incoming.complete() || !incoming.read_some(workers_[i].socket)) lost(workers_[i]);
    }
  }
  std::vector<Bytes> all;
  for (Worker &worker : workers_) all.push_back(worker.incoming.take());
  return all;
}

std::string WorkerProcesses::close(milliseconds limit) {
  if (!why_ended_.empty()) return why_ended_;
  for (Worker &worker : workers_) {
    ::close(worker.socket);
    worker.socket = -1;
  }
  std::string wrong;
  const Clock::time_point until = Clock::now() + limit;
  for (Worker &worker : workers_) {
    int status = 0;
    const bool ended = wait_until(until, worker.process, status);
    if (ended) worker.process = -1;
    if (ended && status == 0) continue;
    wrong += (wrong.empty() ? "" : "; ") + (ended ? fate(worker, status) : name(worker) + " did not end");
  }
  kill_all(wrong.empty() ? "the workers have ended" : wrong);
  return wrong;
}

// Kills first and waits then: none goes on waiting for another.
void WorkerProcesses::kill_all(const std::string &why) {
  why_ended_ = why;
  for (const Worker &worker : workers_) {
    if (worker.process > 0) kill(worker.process, SIGKILL);
  }
  const Clock::time_point until = Clock::now() + kEnding;
  for (Worker &worker : workers_) {
    int status = 0;
    if (worker.process > 0 && !wait_until(until, worker.process, status))
      why_ended_ += "; " + name(worker) + " outlived SIGKILL";
    if (worker.socket >= 0) ::close(worker.socket);
    worker.process = worker.socket = -1;
  }
}

void WorkerProcesses::fail(const std::string &why) {
  kill_all(why);
  throw std::runtime_error(why_ended_);
}

// Of a worker that has closed its socket, as by its end.
void WorkerProcesses::lost(Worker &worker) {
  int status = 0;
  if (!wait_until(Clock::now() + kEnding, worker.process, status)) fail(name(worker) + " hung up and did not end");
  worker.process = -1;
  fail(fate(worker, status));
}

std::string WorkerProcesses::name(const Worker &worker) const {
  return "worker " + std::to_string(&worker - workers_.data());
}

std::string WorkerProcesses::fate(const Worker &worker, int status) const {
  if (WIFSIGNALED(status)) return name(worker) + " was ended by signal " + std::to_string(WTERMSIG(status));
  return name(worker) + " ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace lasp_test
