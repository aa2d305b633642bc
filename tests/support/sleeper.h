// A thread that will wait for something, for a test that is to act once it does: the kernel says when it sleeps.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

namespace lasp_test {

class Sleeper {
 public:
  // By the thread itself, before the call in which it will sleep, and after it.
  void begin() { thread_ = static_cast<pid_t>(syscall(SYS_gettid)); }
  void end() { ended_ = true; }

  // Returns when the thread sleeps, or has ended its call without: whether it sleeps. (Use a Deadline beside it.)
  bool until_asleep() const {
    for (int looks = 0; looks < 3;) {  // it may have slept a moment on its way
      if (ended_) return false;
      looks = thread_ != 0 && sleeps(thread_) ? looks + 1 : 0;
      std::this_thread::yield();
    }
    return !ended_;
  }
  bool ended() const { return ended_; }

 private:
  static bool sleeps(pid_t thread) {
    char path[64], text[256] = "";
    std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    if (std::FILE *file = std::fopen(path, "r")) {
      const size_t read = std::fread(text, 1, sizeof text - 1, file);
      text[read] = 0;
      std::fclose(file);
    }
    const char *const name_end = std::strrchr(text, ')');
    return name_end != nullptr && std::strncmp(name_end, ") S", 3) == 0;
  }

  std::atomic<pid_t> thread_{0};
  std::atomic<bool> ended_{false};
};

}  // namespace lasp_test
