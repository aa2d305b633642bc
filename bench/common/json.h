// Writes JSON, indented, value by value: enough for reports, with no library behind it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tools {

class JsonWriter {
 public:
  // A key is given inside an object and left out inside an array.
  void begin_object(std::string_view key = {}) { open(key, '{'); }
  void end_object() { close('}'); }
  void begin_array(std::string_view key = {}) { open(key, '['); }
  void end_array() { close(']'); }

  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, const char *text) { add(key, std::string_view(text != nullptr ? text : "")); }
  void add(std::string_view key, double number);  // what JSON cannot say (NaN, infinity) becomes null
  void add(std::string_view key, int64_t number) { raw(key, std::to_string(number)); }
  void add(std::string_view key, int32_t number) { raw(key, std::to_string(number)); }
  void add(std::string_view key, uint64_t number) { raw(key, std::to_string(number)); }
  void add(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }

  // A whole array on one line.
  template <class T>
  void add(std::string_view key, const std::vector<T> &values) {
    std::string line = "[";
    for (const T &value : values) {
      JsonWriter one;
      one.add({}, value);
      line += (line.size() > 1 ? ", " : "") + one.text_;
    }
    raw(key, line + "]");
  }

  std::string text() const { return text_ + "\n"; }

 private:
  void open(std::string_view key, char bracket);
  void close(char bracket);
  void raw(std::string_view key, std::string_view value);

  std::string text_;
  int depth_ = 0;
  bool empty_ = true;  // nothing written yet at this depth
};

}  // namespace tools
