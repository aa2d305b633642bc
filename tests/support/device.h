// All that tests and benchmarks ask of the CUDA runtime, so that nothing else of theirs sees its header. In a build
// without CUDA why_unusable() says so and nothing else may be called. What fails throws std::runtime_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <lasp/lasp.h>

namespace gpu {

std::string why_unusable();  // one sentence; "" when there is a device
int32_t device_count();      // 0 when unusable
std::string device_name(int32_t index);
bool has_nvlink(int32_t device, int32_t peer);  // so that each can write the other's memory
size_t l2_bytes();                              // of the current device
int32_t capability();                           // of the current device: 90 for 9.0
int32_t multiprocessors();
size_t free_memory();  // of the current device, in bytes

void use_device(int32_t index);  // of the calling thread
int32_t current_device();

// A stream that does not wait for the default stream, nor the default stream for it.
lasp_stream make_stream();
void destroy_stream(lasp_stream stream);
void wait(lasp_stream stream);
bool finished(lasp_stream stream);
// Keeps the stream busy for some milliseconds; returns at once.
void delay(lasp_stream stream);
// Calls `function` on a thread of the runtime's when the stream comes to it; the stream goes on once it has
// returned.
void call(lasp_stream stream, void (*function)(void *user), void *user);

// Memory of the current device, aligned to 256 bytes. Released memory is kept for the next who asks, because the
// runtime's own release waits for the whole device; LASP_TEST_EXACT_MEMORY in the environment turns that off, so
// that compute-sanitizer knows each buffer.
void *allocate(size_t bytes);
void release(void *memory, size_t bytes);
void copy(void *to, const void *from, size_t bytes, lasp_stream stream);  // either may be host memory
void fill(void *to, uint8_t value, size_t bytes, lasp_stream stream);

// A point in a stream's work.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  void record(lasp_stream stream);
  void wait();                                            // until it has come
  double milliseconds_since(const Event &earlier) const;  // both have come

 private:
  void *event_ = nullptr;
};

// Work that a stream was given between begin() and end(), to be given again by launch().
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;
  void begin(lasp_stream stream);
  void end(lasp_stream stream);
  void launch(lasp_stream stream);
  // Of what was captured: kernels by name, as they were launched, and memory that is set ("memset") or copied.
  std::vector<std::string> launches() const;

 private:
  void *graph_ = nullptr, *executable_ = nullptr;
  lasp_stream capturing_ = nullptr;  // a capture that an error left open ends with the object
};

// The runtime's record of this thread's last error: made on purpose, looked at without clearing it, cleared.
int32_t leave_error();
int32_t last_error();
void clear_error();

}  // namespace gpu
