// Recursive descent over one flat object; no escapes, because the files have none.
#include "support/json.h"

#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace lasp_test {
namespace {

class Parser {
 public:
  explicit Parser(const std::string &text) : text_(text) {}

  JsonObject object() {
    JsonObject result;
    expect('{');
    do {
      const std::string key = string();
      expect(':');
      if (!result.emplace(key, value()).second) fail("key given twice: " + key);
    } while (take(','));
    expect('}');
    skip_space();
    if (at_ != text_.size()) fail("text after the object");
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string &why) const {
    throw std::runtime_error("case.json, byte " + std::to_string(at_) + ": " + why);
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("expected ") + c);
  }
  bool take_word(const char *word) {
    const std::string w(word);
    if (text_.compare(at_, w.size(), w) != 0) return false;
    at_ += w.size();
    return true;
  }

  std::string string() {
    expect('"');
    const size_t close = text_.find_first_of("\"\\", at_);
    if (close == std::string::npos || text_[close] == '\\') fail("a string that does not end, or an escape");
    const std::string result = text_.substr(at_, close - at_);
    at_ = close + 1;
    return result;
  }

  JsonValue value() {
    JsonValue result;
    skip_space();
    if (at_ >= text_.size()) fail("a value is missing");
    if (take_word("null")) return result;
    if (take_word("true") || take_word("false")) {
      result.kind = JsonValue::Kind::boolean;
      result.boolean = text_[at_ - 2] == 'u';
    } else if (text_[at_] == '"') {
      result.kind = JsonValue::Kind::string;
      result.string = string();
    } else if (take('[')) {
      result.kind = JsonValue::Kind::array;
      if (take(']')) return result;
      do result.array.push_back(value());
      while (take(','));
      expect(']');
    } else {
      result.kind = JsonValue::Kind::number;
      char *end = nullptr;
      result.number = std::strtod(text_.c_str() + at_, &end);
      if (end == text_.c_str() + at_) fail("not a value");
      at_ = static_cast<size_t>(end - text_.c_str());
    }
    return result;
  }

  const std::string &text_;
  size_t at_ = 0;
};

void require(bool right, const char *what) {
  if (!right) throw std::runtime_error(std::string("case.json: expected ") + what);
}

}  // namespace

int64_t JsonValue::as_integer() const {
  require(kind == Kind::number && number == std::floor(number), "an integer");
  return static_cast<int64_t>(number);
}

bool JsonValue::as_boolean() const {
  require(kind == Kind::boolean, "a boolean");
  return boolean;
}

const std::string &JsonValue::as_string() const {
  require(kind == Kind::string, "a string");
  return string;
}

std::vector<int64_t> JsonValue::as_integers() const {
  std::vector<int64_t> result;
  if (kind == Kind::null) return result;
  require(kind == Kind::array, "an array");
  for (const JsonValue &element : array) result.push_back(element.as_integer());
  return result;
}

JsonObject parse_json_object(const std::string &text) { return Parser(text).object(); }

}  // namespace lasp_test
