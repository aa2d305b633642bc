// What a fork would leave locked for ever. It copies the memory of all threads, but only the thread that forks
// lives on in the child: a mutex that another one holds at that moment is never given back there.
#pragma once

#include <pthread.h>

#include <mutex>
#include <new>

namespace lasp {

// A mutex of static storage that forks wait for, so that in the child it is free and what it guards is whole.
// `in_child` runs there before anybody else can take it.
template <std::mutex &mutex, void (*in_child)()>
class AtFork {
 public:
  // Before each use of the mutex; does its work the first time. Throws std::bad_alloc.
  static void install() {
    pthread_once(&once_, [] { failed_ = pthread_atfork(before, in_the_parent, in_the_child) != 0; });
    if (failed_) throw std::bad_alloc();
  }

 private:
  // A fork in the middle of install() makes the child install them a second time: the second of a pair does
  // nothing.
  static void before() {
    if (held_) return;
    mutex.lock();
    held_ = true;
  }
  static void in_the_parent() {
    if (!held_) return;
    held_ = false;
    mutex.unlock();
  }
  static void in_the_child() {
    if (held_) in_child();
    in_the_parent();
  }

  static inline pthread_once_t once_ = PTHREAD_ONCE_INIT;
  static inline bool failed_ = false;
  static inline thread_local bool held_ = false;
};

}  // namespace lasp
