// A place in a text of PTX, and how it goes on from there.
#pragma once

#include <cstdint>
#include <string_view>

#include "machine/machine.h"

namespace emulator {

class Text {
 public:
  explicit Text(std::string_view text) : text_(text) {}

  size_t at() const { return at_; }
  void move(size_t at) { at_ = at < text_.size() ? at : text_.size(); }
  bool end() const { return at_ >= text_.size(); }
  char peek() const { return end() ? '\0' : text_[at_]; }
  size_t find(char c) const {
    const size_t found = text_.find(c, at_);
    return found == std::string_view::npos ? text_.size() : found;
  }
  size_t line_end() const { return find('\n') + 1; }

  // Over spaces and comments.
  void skip() {
    while (!end()) {
      if (is_space(text_[at_])) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        move(line_end());
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t found = text_.find("*/", at_);
        move(found == std::string_view::npos ? text_.size() : found + 2);
      } else {
        return;
      }
    }
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw Fault(std::string("expected ") + c + " in: " + std::string(text_.substr(0, 200)));
  }
  // A name, an opcode, a directive.
  std::string_view word() {
    const size_t begin = at_;
    at_ = word_end(at_);
    if (at_ == begin)
      throw Fault("expected a word in: " + std::string(text_.substr(begin > 40 ? begin - 40 : 0, 120)));
    return text_.substr(begin, at_ - begin);
  }
  // Between "(" here and its ")".
  std::string_view parentheses() { return between('(', ')'); }
  std::string_view braces() { return between('{', '}'); }
  // To the next ";", which is left behind.
  std::string_view statement() {
    const size_t begin = at_, stop = find(';');
    move(stop + 1);
    return text_.substr(begin, stop - begin);
  }
  bool at_label() const {
    const size_t n = word_end(at_);
    return n > at_ && n < text_.size() && text_[n] == ':';
  }

  bool is_number() const {
    const char c = peek();
    return is_digit(c) || (c == '-' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]));
  }
  // "16", "-1", "0x10", "0f3F800000", "0d3FF0000000000000", as the bits of a register.
  uint64_t number(int words) {
    if (text_.substr(at_, 2) == "0f" || text_.substr(at_, 2) == "0F") return hexadecimal(2);
    if (text_.substr(at_, 2) == "0d" || text_.substr(at_, 2) == "0D") return hexadecimal(2);
    const auto value = static_cast<uint64_t>(integer());
    return words == 2 ? value : value & 0xffffffffu;
  }
  int64_t integer() {
    const bool negative = accept('-');
    uint64_t value = 0;
    if (text_.substr(at_, 2) == "0x") {
      value = hexadecimal(2);
    } else {
      while (is_digit(peek())) value = 10 * value + static_cast<uint64_t>(text_[at_++] - '0');
    }
    accept('U');
    return static_cast<int64_t>(negative ? 0 - value : value);
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '%' || c == '.';
  }
  // "shared::cta" is a word, and "wait" before a single colon.
  size_t word_end(size_t n) const {
    while (n < text_.size()) {
      if (is_word(text_[n])) {
        ++n;
      } else if (text_.substr(n, 2) == "::") {
        n += 2;
      } else {
        break;
      }
    }
    return n;
  }
  uint64_t hexadecimal(size_t prefix) {
    constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
    at_ += prefix;
    uint64_t value = 0;
    for (; !end(); ++at_) {
      const size_t digit = kDigits.find(text_[at_]);
      if (digit == std::string_view::npos) break;
      value = 16 * value + (digit < 16 ? digit : digit - 6);
    }
    return value;
  }
  std::string_view between(char open, char close) {
    const size_t begin = at_ + 1;
    for (int depth = 0; !end(); ++at_) {
      if (text_[at_] == open) ++depth;
      if (text_[at_] == close && --depth == 0) break;
    }
    const size_t stop = at_;
    move(at_ + 1);
    return text_.substr(begin, stop - begin);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace emulator
