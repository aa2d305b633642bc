// A strict reader for the flat objects in the vectors' case.json: strings, numbers, booleans, null and arrays of
// numbers or strings. Anything else throws.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lasp_test {

struct JsonValue {
  enum class Kind { null, boolean, number, string, array } kind = Kind::null;
  bool boolean = false;
  double number = 0.0;
  std::string string;
  std::vector<JsonValue> array;

  int64_t as_integer() const;
  bool as_boolean() const;
  const std::string &as_string() const;
  std::vector<int64_t> as_integers() const;  // null: empty
};

using JsonObject = std::map<std::string, JsonValue>;

JsonObject parse_json_object(const std::string &text);

}  // namespace lasp_test
