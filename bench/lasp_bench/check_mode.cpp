// lasp-bench --check: tries what there is on this machine, and says what is wrong in words.
#include <cstdio>
#include <fstream>

#include "common/version.h"
#include "failure.h"
#include "known_answers.h"
#include "link_speed.h"
#include "measure.h"
#include "modes.h"
#include "report.h"
#include "support/device.h"
#include "support/nccl.h"

namespace bench {
namespace {

// A line for each thing that was tried, and what to do about those that are wrong.
class Findings {
 public:
  Findings(FILE *out, bool speaks) : out_(out), speaks_(speaks) {}

  void ok(const std::string &what, const std::string &found) { add("ok", what, found, ""); }
  // Not there, or worth knowing; nothing is wrong.
  void note(const std::string &what, const std::string &found) { add("-", what, found, ""); }
  void wrong(const std::string &what, const std::string &found, const std::string &mend) {
    add("WRONG", what, found, mend);
    ++wrong_;
  }
  int status() const { return wrong_ > 0 ? 1 : 0; }
  void end(const std::string &json) const {
    if (!speaks_) return;
    if (wrong_ == 0) std::fprintf(out_, "\nNothing is wrong.\n");
    if (wrong_ > 0) std::fprintf(out_, "\n%d of these are wrong.\n", wrong_);
    if (json.empty()) return;
    tools::JsonWriter writer;
    writer.begin_object();
    writer.add("tool", "lasp-info --check");
    writer.add("wrong", wrong_);
    writer.begin_array("findings");
    for (const Finding &finding : all_) {
      writer.begin_object();
      writer.add("status", finding.status == "-" ? "note" : finding.status == "ok" ? "ok" : "wrong");
      writer.add("what", finding.what);
      writer.add("found", finding.found);
      if (!finding.mend.empty()) writer.add("mend", finding.mend);
      writer.end_object();
    }
    writer.end_array();
    writer.end_object();
    save_json(json, writer);
  }

 private:
  struct Finding {
    std::string status, what, found, mend;
  };
  void add(const char *status, const std::string &what, const std::string &found, const std::string &mend) {
    all_.push_back({status, what, found, mend});
    if (!speaks_) return;
    std::fprintf(out_, "%-5s  %s: %s\n", status, what.c_str(), found.c_str());
    if (!mend.empty()) std::fprintf(out_, "       %s\n", mend.c_str());
    std::fflush(out_);
  }

  FILE *out_;
  bool speaks_;
  int32_t wrong_ = 0;
  std::vector<Finding> all_;
};

constexpr const char *kMendNumbers =
    "The CBLAS library, this build of liblasp, or the machine computes wrong: try another CBLAS (lasp-info "
    "names the one in use) and test the memory; then please report it with this output.";
constexpr const char *kMendGpuNumbers =
    "This build of liblasp, the driver or the GPU computes wrong: look for Xid errors in the kernel's log, "
    "try another GPU; then please report it with this output.";
constexpr const char *kMendCall = "Please report it with this output if the sentence does not say what to do.";

// A family of problems, whose kernels are others'.
struct Family {
  const char *name;
  int32_t decay, dtype, dim, write = LASP_WRITE_ADDITIVE, mask = LASP_MASK_CAUSAL;
};
constexpr int32_t kDelta = LASP_WRITE_DELTA, kAdditive = LASP_WRITE_ADDITIVE;
constexpr Family kOnCpu[] = {
    {"no decay", LASP_DECAY_NONE, LASP_FLOAT32, 32},
    {"decay per head", LASP_DECAY_HEAD, LASP_FLOAT32, 32},
    {"decay per token", LASP_DECAY_SCALAR, LASP_FLOAT32, 32},
    {"decay per key channel", LASP_DECAY_CHANNEL, LASP_FLOAT32, 32},
    {"bidirectional", LASP_DECAY_NONE, LASP_FLOAT32, 32, kAdditive, LASP_MASK_BIDIRECTIONAL},
    {"decay per head", LASP_DECAY_HEAD, LASP_BFLOAT16, 32},
    {"delta rule, decay per token", LASP_DECAY_SCALAR, LASP_FLOAT32, 32, kDelta},
    {"delta rule, decay per key channel", LASP_DECAY_CHANNEL, LASP_FLOAT32, 32, kDelta},
};
// Tensor cores at 128 and 64; those of any width; wide heads; CUDA cores.
constexpr Family kOnGpu[] = {
    {"no decay", LASP_DECAY_NONE, LASP_BFLOAT16, 128},
    {"decay per head", LASP_DECAY_HEAD, LASP_BFLOAT16, 128},
    {"decay per token", LASP_DECAY_SCALAR, LASP_BFLOAT16, 128},
    {"decay per key channel", LASP_DECAY_CHANNEL, LASP_BFLOAT16, 128},
    {"decay per head", LASP_DECAY_HEAD, LASP_FLOAT16, 64},
    {"decay per head", LASP_DECAY_HEAD, LASP_BFLOAT16, 40},
    {"decay per head", LASP_DECAY_HEAD, LASP_BFLOAT16, 256},
    {"decay per token", LASP_DECAY_SCALAR, LASP_FLOAT32, 64},
    {"bidirectional", LASP_DECAY_NONE, LASP_BFLOAT16, 128, kAdditive, LASP_MASK_BIDIRECTIONAL},
    {"delta rule, no decay", LASP_DECAY_NONE, LASP_BFLOAT16, 128, kDelta},
    {"delta rule, decay per token", LASP_DECAY_SCALAR, LASP_BFLOAT16, 128, kDelta},
    {"delta rule, decay per key channel", LASP_DECAY_CHANNEL, LASP_BFLOAT16, 128, kDelta},
    {"delta rule, decay per token", LASP_DECAY_SCALAR, LASP_BFLOAT16, 256, kDelta},
    {"delta rule, decay per token", LASP_DECAY_SCALAR, LASP_FLOAT32, 32, kDelta},
};

Config config_of(const Family &family, int32_t device, int32_t ranks) {
  Config config;
  config.shape.tokens = family.write == kDelta ? 150 : 600;
  config.shape.heads_q = config.shape.heads_k = config.shape.heads_v = 2;
  config.shape.head_dim_k = config.shape.head_dim_v = family.dim;
  config.shape.decay = family.decay;
  config.shape.dtype = family.dtype;
  config.shape.write = family.write;
  config.shape.mask = family.mask;
  config.device = device;
  config.ranks = ranks;
  return config;
}

class Check {
 public:
  Check(Group &group, const Options &options, FILE *out)
      : group_(group), options_(options), findings_(out, group.is_speaker()), speaks_(group.is_speaker()) {}
  int run();

 private:
  void library();
  bool gpus();
  void nccl(int32_t devices);
  void families(Group &group, const char *where, std::span<const Family> list, int32_t device, int32_t ranks);
  void additive(Group &group, const std::string &what, const Config &config, const char *mend);
  void link(Group &group, int32_t device);
  // A group that has failed is of no more use; the next is another.
  template <class Ask>
  void ask(const std::string &what, const char *mend, const Ask &ask);

  Group &group_;
  const Options &options_;
  Findings findings_;
  bool speaks_;
};

void Check::library() {
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  check(lasp_get_build_info(&build), "lasp_get_build_info");
  int32_t abi = 0;
  check(lasp_version(nullptr, nullptr, nullptr, &abi), "lasp_version");
  const std::string versions = format("liblasp %s, ABI %d, on %d CPU(s)", build.version, abi, build.cpu_count);
  if (abi != LASP_ABI) {
    findings_.wrong("library", versions + format("; these programs are of ABI %d", LASP_ABI),
                    "Install the tools and the library of one version.");
  } else if (tools::header_version() != build.version) {
    findings_.note("library", versions + "; these programs are of " + tools::header_version() + ", which works");
  } else {
    findings_.ok("library", versions);
  }
  findings_.note("CBLAS", build.blas);
  findings_.note("ranks", group_.name() + format(", at most %d", group_.most_ranks()));
}

// Whether there is a GPU to try.
bool Check::gpus() {
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  check(lasp_get_build_info(&build), "lasp_get_build_info");
  if (build.has_cuda == 0) {
    findings_.note("CUDA", build.cuda);
    return false;
  }
  std::string driver;
  std::ifstream file("/proc/driver/nvidia/version");
  if (!std::getline(file, driver)) driver = "no NVIDIA driver's version is told by the system";
  lasp_comm *made = nullptr;
  check(lasp_comm_create_self(&made), "lasp_comm_create_self");
  const CommHandle comm(made);
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = LASP_DEVICE_CUDA;
  options.device_index = 0;
  lasp_context *context = nullptr;
  const lasp_status status = lasp_context_create(LASP_ABI, comm.get(), &options, &context);
  if (status == LASP_OK) {
    lasp_context_destroy(context);
    findings_.ok("CUDA", format("%s; %d GPU(s), the first is %s; %s", build.cuda, gpu::device_count(),
                                gpu::device_name(0).c_str(), driver.c_str()));
    return true;
  }
  const std::string reason = lasp_last_error();
  const auto says = [&reason](const char *text) { return reason.find(text) != std::string::npos; };
  if (says("no NVIDIA driver") || says("finds no GPU")) {
    findings_.note("CUDA", reason);
  } else if (says("older than")) {
    findings_.wrong("CUDA", reason, "Install a newer driver: " + driver + ".");
  } else if (says("not compiled in")) {
    findings_.wrong("CUDA", reason, "Build liblasp with -DLASP_CUDA_ARCHITECTURES for this GPU.");
  } else {
    findings_.wrong("CUDA", reason, "Driver: " + driver + ". nvidia-smi and the kernel's log may say more.");
  }
  return false;
}

void Check::nccl(int32_t devices) {
  const std::string missing = gpu::why_no_nccl();
  if (!missing.empty()) {
    if (devices < 2) return findings_.note("NCCL", missing);
    return findings_.wrong("NCCL", missing, "Install NCCL 2.18 or later: without it GPUs exchange nothing.");
  }
  const std::string version = gpu::nccl_version();
  int major = 0, minor = 0;
  if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) != 2 || major < 2 || (major == 2 && minor < 18))
    return findings_.wrong("NCCL", version + " is older than 2.18", "Install NCCL 2.18 or later.");
  findings_.ok("NCCL", version);
}

template <class Ask>
void Check::ask(const std::string &what, const char *mend, const Ask &ask) {
  try {
    const Answer answer = ask();
    if (!speaks_) return;
    const std::string found = answer.most == 0 && answer.right()
                                  ? "exact"
                                  : format("%s is %.1e from the known result, at most %.1e is rounding",
                                           answer.where.c_str(), answer.error, answer.most);
    answer.right() ? findings_.ok(what, found) : findings_.wrong(what, found, mend);
  } catch (const std::runtime_error &error) {
    findings_.wrong(what, error.what(), kMendCall);
  }
}

void Check::additive(Group &group, const std::string &what, const Config &config, const char *mend) {
  MeasureSettings settings;
  settings.repeats = settings.warmup = 1;
  settings.min_time = 0;
  settings.sgemm = settings.copy = false;
  try {
    const Result result = measure(group, config, settings);
    if (!speaks_) return;
    std::string all;
    for (const std::string &complaint : complaints(result)) all += (all.empty() ? "" : "; ") + complaint;
    if (!all.empty()) return findings_.wrong(what, all, result.refused.empty() ? mend : kMendCall);
    findings_.ok(what, format("%.1e from the known results, at most %.1e is rounding", result.largest_error(),
                              result.tolerance));
  } catch (const std::runtime_error &error) {
    findings_.wrong(what, error.what(), kMendCall);
  }
}

void Check::families(Group &group, const char *where, std::span<const Family> list, int32_t device, int32_t ranks) {
  const char *const mend = device == LASP_DEVICE_CUDA ? kMendGpuNumbers : kMendNumbers;
  const std::string on = format("%s, %d rank(s), ", where, ranks);
  for (const Family &family : list) {
    const std::string what =
        on + format("%s, %s, K = V = %d", family.name, name_of(kDTypes, family.dtype).c_str(), family.dim);
    const Config config = config_of(family, device, ranks);
    if (family.write == kDelta) {
      ask(what, mend, [&] { return ask_passes(group, config); });
    } else {
      additive(group, what, config, mend);
    }
  }
  for (const int32_t write : {kAdditive, kDelta}) {
    if (device == LASP_DEVICE_CUDA && ranks > 1) break;  // it talks to nobody, and was tried with one rank
    const Family family{"step", LASP_DECAY_SCALAR, LASP_FLOAT32, 32, write};
    ask(format("%s, step%s, float32", where, write == kDelta ? " of the delta rule" : ""), mend,
        [&] { return ask_step(group, config_of(family, device, 1)); });
  }
  const Family family{"halo", LASP_DECAY_NONE, LASP_FLOAT32, 8};
  ask(on + "halo of three rows", mend, [&] { return ask_halo(group, config_of(family, device, ranks)); });
}

// What the library takes a link between hosts to be where nobody says; the product decides which schedule is best.
constexpr double kAssumedLatencyUs = 10, kAssumedGbs = 10, kFar = 8;

void Check::link(Group &group, int32_t device) {
  const std::string what =
      format("link between two ranks, %s%s", group.name(), device == LASP_DEVICE_CUDA ? ", on the GPU" : "");
  try {
    const LinkSpeed link = measure_link(group, device);
    // Of GPUs nothing is said: what is measured there is mostly the launches.
    const double ratio = link.latency_us * link.bandwidth_gbs / (kAssumedLatencyUs * kAssumedGbs);
    const bool far = device == LASP_DEVICE_CPU && (ratio > kFar || ratio < 1 / kFar);
    findings_.ok(what, format("latency %.3g us, bandwidth %.3g GB/s%s", link.latency_us, link.bandwidth_gbs,
                              far ? "; the automatic schedule assumes others: give these to contexts" : ""));
  } catch (const std::runtime_error &error) {
    findings_.wrong(what, error.what(), kMendCall);
  }
}

int Check::run() {
  library();
  const bool mpi = options_.transport == Transport::kMpi;
  const int32_t ranks = mpi ? group_.most_ranks() : 2;
  families(group_, "CPU", kOnCpu, LASP_DEVICE_CPU, ranks);
  if (ranks > 1) link(group_, LASP_DEVICE_CPU);
  if (mpi) {
    findings_.note("CUDA", "not tried under mpirun; run lasp-info --check by itself");
  } else if (gpus()) {
    gpu::use_device(0);
    const lasp_stream stream = gpu::make_stream();
    findings_.ok("memory of GPU 0",
                 format("%.0f GB/s read and written by copies", summarize(copy_rates(stream)).median));
    gpu::destroy_stream(stream);
    families(group_, "GPU", kOnGpu, LASP_DEVICE_CUDA, 1);
    families(group_, "GPU", kOnGpu, LASP_DEVICE_CUDA, 2);
    link(group_, LASP_DEVICE_CUDA);
    const int32_t devices = gpu::device_count();
    nccl(devices);
    if (devices > 1 && gpu::why_no_nccl().empty()) {
      const std::unique_ptr<Group> nccl_group = make_nccl_group();
      families(*nccl_group, "NCCL", kOnGpu, LASP_DEVICE_CUDA, devices);
      link(*nccl_group, LASP_DEVICE_CUDA);
    }
  }
  findings_.end(options_.json);
  return speaks_ ? findings_.status() : 0;
}

}  // namespace

int run_check(Group &group, const Options &options, FILE *out) { return Check(group, options, out).run(); }

}  // namespace bench
