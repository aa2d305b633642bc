// Turns a vector's folder into a Case, its data and the results to expect.
#include "support/vectors.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "support/json.h"
#include "support/npy.h"

namespace lasp_test {
namespace {

namespace fs = std::filesystem;

Case read_case(const fs::path &folder, const JsonObject &json) {
  const std::vector<std::string> decays = {"none", "head", "scalar", "channel"};
  const auto integer = [&](const char *key) { return static_cast<int32_t>(json.at(key).as_integer()); };
  Case c;
  c.name = "vector_" + folder.filename().string();
  c.batch = integer("B"), c.tokens = integer("T");
  c.heads_q = integer("Hq"), c.heads_k = integer("Hk"), c.heads_v = integer("Hv");
  c.head_dim_k = integer("K"), c.head_dim_v = integer("V");
  const auto decay = std::find(decays.begin(), decays.end(), json.at("decay").as_string());
  if (decay == decays.end()) throw std::runtime_error(folder.string() + ": unknown decay");
  c.decay = static_cast<int32_t>(decay - decays.begin());
  c.delta = json.at("delta").as_boolean();
  c.exact = json.at("exact").as_boolean();
  c.scale = static_cast<float>(json.at("scale").number);
  c.cu_seqlens = json.at("cu_seqlens").as_integers();
  c.quick = true;
  return c;
}

Vector read_vector(const fs::path &folder) {
  std::ifstream file(folder / "case.json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const JsonObject json = parse_json_object(text);
  Vector vector;
  vector.problem = read_case(folder, json);
  std::vector<std::string> listed;
  for (const JsonValue &name : json.at("tensors").array) listed.push_back(name.as_string());
  const auto tensor = [&](const char *name) {
    const bool present = std::find(listed.begin(), listed.end(), name) != listed.end();
    return present ? read_npy((folder / (std::string(name) + ".npy")).string()).values : std::vector<float>();
  };
  const auto wide = [&](const char *name) {
    const std::vector<float> values = tensor(name);
    return std::vector<double>(values.begin(), values.end());
  };
  vector.data = {tensor("q"),    tensor("k"),
                 tensor("v"),    tensor("g"),
                 tensor("beta"), tensor("initial_state"),
                 tensor("do"),   tensor("d_final_state")};
  vector.expected = expected_of(vector.problem, vector.data);  // for d_decay_size alone
  vector.expected.tensors = {wide("o"),  wide("final_state"),     wide("dq"),   wide("dk"), wide("dv"),
                             wide("dg"), wide("d_initial_state"), wide("dbeta")};
  vector.problem.states = !vector.data.initial_state.empty();
  return vector;
}

std::vector<Vector> read_all() {
  std::vector<fs::path> folders;
  const char *const elsewhere = std::getenv("LASP_TEST_VECTORS");
  for (const fs::directory_entry &entry : fs::directory_iterator(elsewhere ? elsewhere : LASP_TEST_VECTORS)) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<Vector> vectors;
  for (const fs::path &folder : folders) vectors.push_back(read_vector(folder));
  return vectors;
}

}  // namespace

const std::vector<Vector> &all_vectors() {
  static const auto *const vectors = new std::vector<Vector>(read_all());
  return *vectors;
}

}  // namespace lasp_test
