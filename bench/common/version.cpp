#include "common/version.h"

#include <lasp/lasp.h>

#include <stdexcept>

namespace tools {
namespace {

std::string dotted(int32_t major, int32_t minor, int32_t patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace

std::string header_version() { return dotted(LASP_VERSION_MAJOR, LASP_VERSION_MINOR, LASP_VERSION_PATCH); }

std::string version_line(const std::string &tool) {
  int32_t major = 0, minor = 0, patch = 0, abi = 0;
  if (lasp_version(&major, &minor, &patch, &abi) != LASP_OK) throw std::runtime_error(lasp_last_error());
  return tool + " " + header_version() + ", liblasp " + dotted(major, minor, patch) + ", ABI " +
         std::to_string(abi);
}

}  // namespace tools
