#include "common/json.h"

#include <cmath>
#include <cstdio>

namespace tools {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void JsonWriter::raw(std::string_view key, std::string_view value) {
  if (depth_ > 0) {
    text_ += empty_ ? "\n" : ",\n";
    text_.append(static_cast<size_t>(depth_) * 2, ' ');
  }
  if (!key.empty()) text_ += quoted(key) + ": ";
  text_ += value;
  empty_ = false;
}

void JsonWriter::add(std::string_view key, std::string_view text) { raw(key, quoted(text)); }

void JsonWriter::add(std::string_view key, double number) {
  if (!std::isfinite(number)) return raw(key, "null");
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", number);
  raw(key, text);
}

void JsonWriter::open(std::string_view key, char bracket) {
  raw(key, std::string_view(&bracket, 1));
  ++depth_;
  empty_ = true;
}

void JsonWriter::close(char bracket) {
  --depth_;
  if (!empty_) {
    text_ += '\n';
    text_.append(static_cast<size_t>(depth_) * 2, ' ');
  }
  text_ += bracket;
  empty_ = false;
}

}  // namespace tools
