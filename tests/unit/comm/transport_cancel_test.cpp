// A request that is given up while another thread copies its message: cancel, and a wait that fails, return only
// when the copy is through, for the memory is the caller's again. The copy is stopped half way by a page that may
// not be read yet.
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "transport_rig.h"

namespace {

using namespace transport_rig;

// Three pages to send. Whoever reads the second one stops there, in the handler of the fault, until it is let go.
class StoppingPages {
 public:
  StoppingPages() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    memory_ =
        static_cast<char *>(mmap(nullptr, 3 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(memory_, MAP_FAILED);
    for (size_t i = 0; i < bytes(); ++i) memory_[i] = static_cast<char>(i % 101);
    EXPECT_EQ(mprotect(memory_ + page_, page_, PROT_NONE), 0);
    the_pages = this;
    struct sigaction action = {};
    action.sa_sigaction = stop;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(sigaction(SIGSEGV, &action, &before_), 0);
  }
  ~StoppingPages() {
    EXPECT_EQ(sigaction(SIGSEGV, &before_, nullptr), 0);
    the_pages = nullptr;
    munmap(memory_, bytes());
  }
  StoppingPages(const StoppingPages &) = delete;
  StoppingPages &operator=(const StoppingPages &) = delete;

  const char *data() const { return memory_; }
  size_t bytes() const { return 3 * page_; }
  void until_stopped() const {
    while (!stopped_) std::this_thread::yield();
  }
  void let_go() { open_ = true; }
  bool open() const { return open_; }

 private:
  // Async-signal-safe: atomics without locks, nanosleep, mprotect, _exit.
  static void stop(int, siginfo_t *info, void *) {
    StoppingPages *const pages = the_pages;
    const char *const at = static_cast<char *>(info->si_addr), *const second = pages->memory_ + pages->page_;
    if (at < second || at >= second + pages->page_) _exit(99);  // another fault than ours
    pages->stopped_ = true;
    const timespec moment = {0, 100'000};
    while (!pages->open_) nanosleep(&moment, nullptr);
    mprotect(pages->memory_ + pages->page_, pages->page_, PROT_READ | PROT_WRITE);
  }

  static StoppingPages *the_pages;
  size_t page_;
  char *memory_;
  std::atomic<bool> stopped_{false}, open_{false};
  struct sigaction before_ = {};
};
StoppingPages *StoppingPages::the_pages = nullptr;

// Rank `first` posts its half of a message from 0 to 1, the other rank copies and is stopped; then `give_up` ends
// the first one's request.
void give_up_during_the_copy(int first, const std::function<void(Group &, End &, void *request)> &give_up) {
  Group group(3);
  StoppingPages pages;
  std::vector<char> target(pages.bytes(), 0);
  const auto post = [&](int rank) {
    return rank == 0 ? group[0].send(pages.data(), pages.bytes(), 1)
                     : group[1].receive(target.data(), target.size(), 0);
  };
  void *const request = post(first);
  std::thread copier([&] { group[1 - first].cancel(post(1 - first)); });
  pages.until_stopped();
  Sleeper sleeper;
  std::thread quitter([&] {
    sleeper.begin();
    give_up(group, group[first], request);
    EXPECT_TRUE(pages.open()) << "returned while the message was being copied";
    sleeper.end();
  });
  EXPECT_TRUE(sleeper.until_asleep());
  pages.let_go();
  quitter.join();
  copier.join();
  for (size_t i = 0; i < target.size(); ++i) ASSERT_EQ(target[i], static_cast<char>(i % 101)) << i;
}

TEST(ThreadTransport, CancelWaitsForARunningCopy) {
  for (const int first : {0, 1})
    give_up_during_the_copy(first, [](Group &, End &end, void *request) { end.cancel(request); });
}

TEST(ThreadTransport, AWaitThatFailsWaitsForARunningCopy) {
  for (const int first : {0, 1})
    give_up_during_the_copy(first, [](Group &group, End &end, void *request) {
      group[2].abort(-1);
      const lasp_status status = end.wait(request);  // the message may be through before the abort is seen
      EXPECT_TRUE(status == LASP_ERROR_ABORTED || status == LASP_OK) << status;
      if (status != LASP_OK) end.cancel(request);
    });
}

TEST(ThreadTransport, ARankThatLeavesWaitsForARunningCopy) {
  for (const int first : {0, 1})
    give_up_during_the_copy(first, [=](Group &group, End &, void *) { group.destroy(static_cast<size_t>(first)); });
}

}  // namespace
