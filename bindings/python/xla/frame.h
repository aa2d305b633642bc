// One call of XLA's, read: its attributes and buffers by name, its device and stream.
#pragma once
#include "xla_ffi.h"

#include <lasp/lasp.h>

#include <exception>
#include <string>
#include <string_view>

namespace lasp::xla {

// A call that cannot be made, as a status and a sentence.
struct Refusal : std::exception {
  Refusal(lasp_status status_, std::string sentence_) : status(status_), sentence(std::move(sentence_)) {}
  const char *what() const noexcept override { return sentence.c_str(); }
  lasp_status status;
  std::string sentence;
};

// Throws where the library refused.
void check(lasp_status status);

// Memory of a buffer of XLA's, absent where the call has none of that name.
struct Memory {
  void *data = nullptr;
  size_t bytes = 0;
  int64_t elements = 0;
  int32_t dtype = 0;
};

class Frame {
 public:
  explicit Frame(CallFrame *frame) : frame_(frame) {}
  int64_t integer(std::string_view name) const;
  float number(std::string_view name) const;
  // The buffer that the attribute `operands` or `results`, a list of names with spaces, gives this name.
  Memory operand(std::string_view name) const { return find(frame_->args, "operands", name); }
  Memory result(std::string_view name) const { return find(frame_->results, "results", name); }
  void *stream() const;
  int32_t ordinal() const;  // of the device; -1 where XLA does not tell

 private:
  const void *attribute(std::string_view name, int32_t type) const;
  Memory find(const Args &buffers, std::string_view list, std::string_view name) const;
  CallFrame *frame_;
};

// Between two buffers of a device (LASP_DEVICE_*); on a GPU in the order of its stream.
void copy(void *to, const void *from, size_t bytes, int32_t device, void *stream);

// Answers XLA's question for the version of the interface; false where the call is another.
bool answer_version(CallFrame *frame);
Error *error(const CallFrame *frame, lasp_status status, const std::string &sentence);

}  // namespace lasp::xla
