#include <fstream>

#include "common/environment.h"
#include "failure.h"
#include "report.h"

namespace bench {
namespace {

void write_config(tools::JsonWriter &json, const Config &config) {
  const Shape &shape = config.shape;
  json.begin_object("config");
  if (!config.name.empty()) json.add("name", config.name);
  json.add("batch", shape.batch);
  json.add("tokens", shape.tokens);
  json.add("heads_q", shape.heads_q);
  json.add("heads_k", shape.heads_k);
  json.add("heads_v", shape.heads_v);
  json.add("head_dim_k", shape.head_dim_k);
  json.add("head_dim_v", shape.head_dim_v);
  json.add("decay", name_of(kDecays, shape.decay));
  json.add("decay_gradient", config.decay_gradient);
  json.add("decay_dtype", name_of(kDTypes, shape.decay_dtype()));
  json.add("dtype", name_of(kDTypes, shape.dtype));
  json.add("mask", name_of(kMasks, shape.mask));
  json.add("write", name_of(kWrites, shape.write));
  json.add("ranks", config.ranks);
  json.add("threads", config.threads);
  json.add("device", name_of(kDevices, config.device));
  json.add("graph", config.graph);
  json.add("schedule", name_of(kSchedules, config.schedule));
  json.add("cache", name_of(kCaches, config.cache));
  json.add("chunk", config.chunk);
  json.add("segment", config.segment);
  json.end_object();
}

void write_pass(tools::JsonWriter &json, const Result &result, const PassResult &pass) {
  const Statistics &s = pass.statistics;
  const double tokens = static_cast<double>(result.config.shape.batch * result.config.shape.tokens);
  json.begin_object(name_of(pass.timed));
  json.add("calls", static_cast<uint64_t>(pass.seconds.size()));
  json.add("median_s", s.median);
  json.add("p99_s", s.p99);
  json.add("min_s", s.minimum);
  json.add("spread", s.spread);
  json.add("tokens_per_s", tokens / s.median);
  json.add("counted_flop", pass.flop);
  json.add("gflops", pass.gflops());
  if (result.sgemm() > 0) json.add("share_of_sgemm", pass.gflops() / result.sgemm());
  if (result.copy() > 0) {
    json.add("floor_bytes", pass.floor_bytes);
    json.add("floor_units", pass.floor_units);
    json.add("floor_s", pass.floor_bytes / result.copy() * 1e-9);
    json.add("share_of_floor", result.share_of_floor(pass));
  }
  json.add("bytes_sent", pass.traffic.bytes);
  json.add("bytes_sent_formula", pass.traffic.formula_bytes);
  json.add("messages_sent", pass.traffic.messages);
  json.add("messages_sent_formula", pass.traffic.formula_messages);
  json.add("wait_share", pass.traffic.wait_share);
  json.add("workspace_bytes", result.workspace_bytes(pass.timed));
  json.add("seconds", pass.seconds);
  json.end_object();
}

}  // namespace

void save_json(const std::string &file, const tools::JsonWriter &json) {
  if (file == "-") {
    std::fputs(json.text().c_str(), stdout);
    return;
  }
  std::ofstream stream(file);
  stream << json.text();
  stream.close();
  if (!stream) throw Failure("--json: cannot write " + file);
}

void write_run(tools::JsonWriter &json, const RunInfo &run) {
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  lasp_get_build_info(&build);
  json.add("tool", "lasp-bench");
  json.add("format", int32_t{1});
  json.add("date_utc", tools::utc_now());
  json.add("commit", run.commit);
  json.add("arguments", run.arguments);
  json.add("transport", run.transport);
  json.begin_object("machine");
  json.add("cpu", tools::cpu_name());
  json.add("cpus", int32_t{run.cpus});
  json.add("memory_bytes", tools::memory_total_bytes());
  json.add("system", tools::system_name());
  json.end_object();
  json.begin_object("library");
  json.add("version", build.version);
  json.add("compiler", build.compiler);
  json.add("flags", build.flags);
  json.add("blas", build.blas);
  json.add("cuda", build.cuda);
  json.add("nccl", build.nccl);
  json.end_object();
  json.add("tool_compiler", tools::compiler_name());
}

// A wrong result has no speed here either.
void write_result(tools::JsonWriter &json, const Result &result) {
  json.begin_object();
  write_config(json, result.config);
  json.add("problems", complaints(result));
  if (!result.refused.empty()) return json.end_object();
  json.add("chunk_used", result.info.chunk);
  json.add("schedule_used", name_of(kSchedules, result.info.schedule));
  json.add("pieces_used", result.info.pieces);
  json.add("state_cache_bytes", result.state_cache_bytes);
  if (!result.gpu.empty()) {
    json.add("gpu", result.gpu);
    json.add("kernels", result.kernels);
    json.add("copy_gbs", result.copy());
    json.add("copy_gbs_samples", result.copy_gbs);
  }
  json.add("sgemm_threads", int32_t{result.sgemm_threads});
  json.add("sgemm_gflops", result.sgemm());
  json.add("sgemm_gflops_samples", result.sgemm_gflops);
  json.add("checked", result.checked());
  if (result.checked()) {
    json.begin_object("relative_error");
    for (size_t i = 0; i < result.errors.size(); ++i)
      if (result.errors[i] >= 0) json.add(kOutputNames[i], result.errors[i]);
    json.end_object();
    json.add("tolerance", result.tolerance);
    if (!result.not_checked.empty()) json.add("not_checked", result.not_checked);
  }
  if (complaints(result).empty())
    for (const PassResult &pass : result.passes) write_pass(json, result, pass);
  json.end_object();
}

}  // namespace bench
