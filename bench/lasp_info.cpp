// lasp-info: what this installation of liblasp is, what it found on this machine, and what is missing.
#include <dlfcn.h>
#include <lasp/lasp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"
#include "common/json.h"
#include "common/version.h"

namespace {

constexpr const char *kHelp = R"(lasp-info: version and build of liblasp, and what it found on this machine.

usage: lasp-info [--json]
       lasp-info --check [--json]
       lasp-info --predict RANKS BYTES [--latency-us A] [--bandwidth-gbs B]
       lasp-info --version | --help

  --json       the same as JSON
  --check      try this machine: results of each family of problems that are known, on each device, latency and bandwidth
               between ranks, NCCL and driver; a line each, with what is wrong and what to do about it. Ranks are threads,
               or processes under mpirun
  --predict    time of one exchange of BYTES (may end in k or m) per rank among RANKS by each schedule, at a latency of
               A microseconds (10) and a bandwidth of B GB/s (8)
  --version    version of this tool and of the library it runs with, and the library's ABI number
  --help

Exit status: 0; 1 when header and library do not fit, or --check finds something wrong; 2 for a word on the command
line.
)";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct CudaDevices {
  std::vector<std::string> found;
  std::string trouble;  // why there are none, or why one cannot be used
};

struct Info {
  int32_t major = 0, minor = 0, patch = 0, abi = 0;
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  std::string library_file, mpi, nccl;
  bool has_mpi = false;
  CudaDevices devices;
  std::string warning;  // header and library differ
  bool fits = true;     // programs built with this header run with this library
};

using tools::header_version;

std::string file_of(const void *address) {
  Dl_info found{};
  return dladdr(address, &found) != 0 && found.dli_fname != nullptr ? found.dli_fname : "unknown";
}

// "absent: reason" and "no: reason" as they follow a yes or no of ours.
std::string reason_in(std::string_view text) {
  for (const std::string_view start : {"absent: ", "no: ", "yes: "})
    if (text.starts_with(start)) return std::string(text.substr(start.size()));
  return std::string(text);
}

// The MPI transport is a library of its own: it is there when it can be loaded.
void look_for_mpi(Info &info) {
  const std::string name = "liblasp_mpi.so." + std::to_string(LASP_ABI);
  void *library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char *reason = dlerror();
    info.mpi = reason != nullptr ? reason : "cannot be loaded";
    return;
  }
  void *entry = dlsym(library, "lasp_mpi_comm_create");
  info.has_mpi = entry != nullptr;
  info.mpi = entry != nullptr ? file_of(entry) : name + " lacks lasp_mpi_comm_create";
}

// What a context says of its device when it is made; the library alone knows which devices it serves.
void look_for_devices(CudaDevices &devices) {
  lasp_comm *comm = nullptr;
  if (lasp_comm_create_self(&comm) != LASP_OK) return;
  std::string text;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = LASP_DEVICE_CUDA;
  options.device_index = 0;
  options.log_level = LASP_LOG_INFO;
  options.log_user = &text;
  options.log = [](void *user, int32_t, const char *message) { *static_cast<std::string *>(user) = message; };
  for (;; ++options.device_index) {
    lasp_context *context = nullptr;
    if (lasp_context_create(LASP_ABI, comm, &options, &context) != LASP_OK) break;
    lasp_context_destroy(context);
    const size_t begin = text.find("CUDA device"), end = text.rfind(", no other rank");
    devices.found.push_back(begin < end && end != std::string::npos ? text.substr(begin, end - begin) : text);
  }
  const std::string reason = lasp_last_error();
  // One past the last device is where this ends when all is well.
  if (devices.found.empty() || reason.find("this process has") == std::string::npos) devices.trouble = reason;
  lasp_comm_destroy(comm);
}

Info collect() {
  Info info;
  const lasp_status version = lasp_version(&info.major, &info.minor, &info.patch, &info.abi);
  // So that the library finds it in the process, if this machine has one.
  // The reason is copied at once: what dlerror returned lives until the next dlopen, and the library calls that.
  std::string why_no_nccl;
  if (dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    const char *const reason = dlerror();
    why_no_nccl = reason != nullptr ? reason : "libnccl.so.2 cannot be loaded";
  }
  const lasp_status build = lasp_get_build_info(&info.build);
  if (version != LASP_OK || build != LASP_OK) throw std::runtime_error(lasp_last_error());
  info.library_file = file_of(reinterpret_cast<const void *>(&lasp_version));
  info.nccl = info.build.nccl;
  if (info.build.has_nccl != 0 && !why_no_nccl.empty()) info.nccl = "built in, but " + why_no_nccl;
  look_for_mpi(info);
  if (info.build.has_cuda != 0) look_for_devices(info.devices);
  if (info.abi != LASP_ABI) {
    info.fits = false;
    info.warning = "header ABI " + std::to_string(LASP_ABI) + ", library ABI " + std::to_string(info.abi) +
                   ": programs built with this header are refused by this library";
  } else if (header_version() != info.build.version) {
    info.warning = "header version " + header_version() + ", library version " + info.build.version +
                   ": the same ABI, so they work together, but one of them may lack what the other has";
  }
  return info;
}

void print_part(const char *name, bool has, const std::string &detail) {
  std::printf("  %-13s %s: %s\n", name, has ? "yes" : "no", reason_in(detail).c_str());
}

void print_text(const Info &info) {
  const lasp_build_info &build = info.build;
  std::printf("liblasp %s, ABI %d\n", build.version, info.abi);
  if (!info.warning.empty()) std::printf("WARNING: %s\n", info.warning.c_str());
  std::printf("\n  library       %s\n", info.library_file.c_str());
  std::printf("  header        %s, ABI %d\n", header_version().c_str(), LASP_ABI);
  std::printf("  compiler      %s\n", build.compiler);
  std::printf("  build         %s\n", build.flags);
  std::printf("\nBackends\n");
  std::printf("  CPU           yes: %s\n", build.blas);
  print_part("CUDA", build.has_cuda != 0, build.cuda);
  for (const std::string &device : info.devices.found) std::printf("                %s\n", device.c_str());
  if (!info.devices.trouble.empty()) std::printf("                %s\n", info.devices.trouble.c_str());
  std::printf("\nTransports\n");
  std::printf("  group of one  yes\n  threads       yes\n  custom        yes: lasp_comm_create_custom\n");
  print_part("MPI", info.has_mpi, info.mpi);
  print_part("NCCL", build.has_nccl != 0, info.nccl);
  std::printf("\nMachine\n");
  std::printf("  CPU           %s\n", tools::cpu_name().c_str());
  std::printf("  CPUs          %d for this process\n", build.cpu_count);
  std::printf("  memory        %s, %s available\n",
              tools::human_bytes(static_cast<double>(tools::memory_total_bytes())).c_str(),
              tools::human_bytes(static_cast<double>(tools::memory_available_bytes())).c_str());
  std::printf("  system        %s\n", tools::system_name().c_str());
  std::printf(
      "  threads       %d with one rank on this machine; CPUs / ranks, at least 1, with more (cpu_threads = 0)\n",
      build.cpu_count);
}

void print_json(const Info &info) {
  const lasp_build_info &build = info.build;
  tools::JsonWriter json;
  const auto part = [&json](const char *name, bool has, const std::string &text) {
    json.begin_object(name);
    json.add("available", has);
    if (!text.empty()) json.add("detail", reason_in(text));
    json.end_object();
  };
  json.begin_object();
  json.add("tool", "lasp-info");
  json.begin_object("library");
  json.add("version", build.version);
  json.add("abi", info.abi);
  json.add("file", info.library_file);
  json.add("compiler", build.compiler);
  json.add("flags", build.flags);
  json.end_object();
  json.begin_object("header");
  json.add("version", header_version());
  json.add("abi", int32_t{LASP_ABI});
  json.end_object();
  json.add("fits", info.fits);
  if (!info.warning.empty()) json.add("warning", info.warning);
  json.begin_object("backends");
  part("cpu", true, build.blas);
  part("cuda", build.has_cuda != 0, build.cuda);
  json.end_object();
  json.add("cuda_devices", info.devices.found);
  if (!info.devices.trouble.empty()) json.add("cuda_trouble", info.devices.trouble);
  json.begin_object("transports");
  part("self", true, "");
  part("threads", true, "");
  part("custom", true, "");
  part("mpi", info.has_mpi, info.mpi);
  part("nccl", build.has_nccl != 0, info.nccl);
  json.end_object();
  json.begin_object("machine");
  json.add("cpu", tools::cpu_name());
  json.add("cpus", build.cpu_count);
  json.add("memory_bytes", tools::memory_total_bytes());
  json.add("memory_available_bytes", tools::memory_available_bytes());
  json.add("system", tools::system_name());
  json.end_object();
  json.add("default_threads_one_rank", build.cpu_count);
  json.end_object();
  std::fputs(json.text().c_str(), stdout);
}

struct Prediction {
  int32_t ranks = 0;
  uint64_t bytes = 0;
  double latency_us = 10, bandwidth_gbs = 8;  // as the library assumes between threads
};

int print_prediction(const Prediction &p) {
  struct Row {
    int32_t schedule;
    const char *name, *formula;
  };
  constexpr std::array kRows = {Row{LASP_SCHEDULE_RING, "ring", "(W-1) (a + P b)"},
                                Row{LASP_SCHEDULE_ALL_GATHER, "all-gather", "a + (W-1) P b"},
                                Row{LASP_SCHEDULE_ALL_SCAN, "all-scan", "(W-2+n) (a + P b / n), best n"},
                                Row{LASP_SCHEDULE_DOUBLING, "doubling", "ceil(log2 W) (a + P b)"},
                                Row{LASP_SCHEDULE_HEAD_SCATTER, "head-scatter", "2 (a + (W-1) P b / W)"},
                                Row{LASP_SCHEDULE_AUTO, "auto", "the fastest of these"}};
  std::printf("W = %d ranks, P = %llu bytes per rank, a = %g us, 1/b = %g GB/s\n", p.ranks,
              static_cast<unsigned long long>(p.bytes), p.latency_us, p.bandwidth_gbs);
  for (const Row &row : kRows) {
    double us = 0;
    if (lasp_predict_exchange(row.schedule, p.ranks, p.bytes, 0, p.latency_us, p.bandwidth_gbs, &us) != LASP_OK)
      throw UsageError(lasp_last_error());
    std::printf("  %-12s  %12.1f us  %s\n", row.name, us, row.formula);
  }
  return 0;
}

uint64_t parse_size(const std::string &option, const std::string &word) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string_view unit(end, static_cast<size_t>(word.data() + word.size() - end));
  const uint64_t factor = unit.empty() ? 1 : unit == "k" ? 1024 : unit == "m" ? 1048576 : 0;
  if (error != std::errc() || factor == 0 || value > (uint64_t{1} << 50) / factor)
    throw UsageError(option + ": \"" + word + "\" is not a size");
  return value * factor;
}

double parse_real(const std::string &option, const std::string &word) {
  char *end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (word.empty() || *end != '\0' || !(value > 0))
    throw UsageError(option + ": \"" + word + "\" is not a number above 0");
  return value;
}

// lasp-bench, which has what it takes, lies beside this program.
[[noreturn]] void run_check(bool as_json) {
  std::string tool = "lasp-bench";
  char self[4096];
  if (const ssize_t length = readlink("/proc/self/exe", self, sizeof self); length > 0) {
    const std::string path(self, static_cast<size_t>(length));
    tool = path.substr(0, path.rfind('/') + 1) + tool;
  }
  std::fflush(stdout);
  const char *arguments[] = {tool.c_str(), "--check", as_json ? "--json" : nullptr, as_json ? "-" : nullptr,
                             nullptr};
  execv(tool.c_str(), const_cast<char *const *>(arguments));
  throw std::runtime_error("--check is done by " + tool + ", which cannot be run: " + std::strerror(errno));
}

int run(const std::vector<std::string> &words) {
  std::set<std::string> given;
  Prediction prediction;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string &option = words[i];
    const auto value = [&]() -> const std::string & {
      if (i + 1 == words.size()) throw UsageError(option + ": a value is missing");
      return words[++i];
    };
    given.insert(option);
    if (option == "--predict") {
      const uint64_t ranks = parse_size(option, value());
      if (ranks < 1 || ranks > 65536) throw UsageError("--predict: RANKS is from 1 to 65536");
      prediction.ranks = static_cast<int32_t>(ranks);
      prediction.bytes = parse_size(option, value());
    } else if (option == "--latency-us") {
      prediction.latency_us = parse_real(option, value());
    } else if (option == "--bandwidth-gbs") {
      prediction.bandwidth_gbs = parse_real(option, value());
    } else if (option == "--help" || option == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    } else if (option == "--version") {
      std::printf("%s\n", tools::version_line("lasp-info").c_str());
      return 0;
    } else if (option != "--json" && option != "--check") {
      throw UsageError("unknown option " + option);
    }
  }
  const bool predicts = given.contains("--predict");
  if (predicts && given.contains("--check")) throw UsageError("--check: cannot be combined with --predict");
  if (predicts && given.contains("--json")) throw UsageError("--json: cannot be combined with --predict");
  for (const char *option : {"--latency-us", "--bandwidth-gbs"})
    if (given.contains(option) && !predicts) throw UsageError(std::string(option) + ": needs --predict");
  if (predicts) return print_prediction(prediction);
  if (given.contains("--check")) run_check(given.contains("--json"));
  const Info info = collect();
  given.contains("--json") ? print_json(info) : print_text(info);
  return info.fits ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const UsageError &error) {
    std::fprintf(stderr, "lasp-info: %s; lasp-info --help lists the options\n", error.what());
    return 2;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "lasp-info: %s\n", error.what());
    return 1;
  }
}
