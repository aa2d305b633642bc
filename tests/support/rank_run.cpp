// The steps of one rank, in the order of the header.
#include "support/rank_run.h"

#include <cstring>
#include <exception>

#include "support/rank_device.h"
#include "support/rank_memory.h"

namespace lasp_test {

lasp_context_options test_context_options(const Case &c, int32_t device_index) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  if (on_cuda()) options.device = LASP_DEVICE_CUDA, options.device_index = device_index;
  options.time_limit_ms = 20000;
  options.cpu_threads = c.cpu_threads;
  return options;
}

lasp_problem problem_of(const Case &c, int32_t rank, int32_t nranks, const RunOptions &options) {
  const std::vector<int64_t> tokens = tokens_of_ranks(c, nranks);
  lasp_problem p = LASP_PROBLEM_INIT;
  p.batch = c.batch;
  p.tokens = tokens[rank];
  p.heads_q = c.heads_q, p.heads_k = c.heads_k, p.heads_v = c.heads_v;
  p.head_dim_k = c.head_dim_k, p.head_dim_v = c.head_dim_v;
  p.dtype = c.dtype, p.decay = c.decay, p.mask = c.mask;
  p.write = c.delta ? LASP_WRITE_DELTA : LASP_WRITE_ADDITIVE;
  p.scale_given = c.scale != 0 || c.zero_scale, p.scale = c.scale;
  if (!c.cu_seqlens.empty()) p.max_sequences = c.num_sequences();
  p.schedule = options.schedule, p.pieces = c.pieces, p.cache = c.cache, p.chunk = c.chunk;
  p.segment = c.segment, p.ownership = c.ownership;
  if (c.ownership == LASP_OWN_RUNS) {
    thread_local std::vector<lasp_run> runs;
    runs = listed_runs(c, nranks);
    p.runs = runs.data(), p.num_runs = static_cast<int64_t>(runs.size());
  }
  p.backward = options.backward ? 1 : 0;
  p.broadcast_final_state = c.broadcast ? 1 : 0;
  return p;
}

namespace {

class RankRun {
 public:
  RankRun(const Case &c, const CaseData &data, lasp_comm *comm, const RunOptions &options)
      : case_(c), data_(data), comm_(comm), options_(options), device_(options_) {}
  ~RankRun() {
    lasp_plan_destroy(plan_);
    lasp_context_destroy(context_);
  }

  RankResult run() {
    const bool ready = guarded([&] { return set_up(); });
    options_.meet();
    if (ready && !guarded([&] { return passes(); })) lasp_context_abort(context_);  // the others need not wait
    options_.meet();
    if (ready) destroy();
    return result_;
  }

 private:
  void complain(const std::string &what) { result_.complaints += what + "\n"; }
  void require(bool right, const std::string &what) {
    if (!right) complain(what);
  }
  bool ok(lasp_status status, const char *call) {
    if (status != LASP_OK) complain(std::string(call) + ": " + lasp_status_name(status) + ": " + lasp_last_error());
    return status == LASP_OK;
  }
  template <class Body>
  bool called(const Body &body, const char *name) {
    return ok(device_.call(body, name, result_.complaints), name);
  }
  // False, and a complaint, where the tests' own use of the device throws.
  template <class Body>
  bool guarded(Body body) {
    try {
      return body();
    } catch (const std::exception &error) {
      complain(error.what());
      return false;
    }
  }

  bool set_up() {
    if (!ok(lasp_comm_get_rank(comm_, &rank_, &nranks_), "lasp_comm_get_rank")) return false;
    memory_ = std::make_unique<RankMemory>(case_, data_, rank_, nranks_, options_);
    if (!make_plan()) return false;
    check_plan();
    memory_->make_for(result_.info);
    return true;
  }

  bool passes() {
    for (int32_t i = 0; i < options_.repeats; ++i) {
      if (!forward(i) || (options_.recompute && !recompute()) || (options_.backward && !backward(i))) return false;
      keep_results(i);
    }
    return options_.graph_replays == 0 || replay_graph();
  }

  bool make_plan() {
    const lasp_context_options context_options = test_context_options(case_, options_.device_index);
    const auto make_context = [&] { return lasp_context_create(LASP_ABI, comm_, &context_options, &context_); };
    if (!called(make_context, "lasp_context_create")) return false;
    lasp_problem p = problem_of(case_, rank_, nranks_, options_);
    memory_->set_strides(p);
    const auto make = [&] { return result_.plan_status = lasp_plan_create(context_, &p, &plan_); };
    if (!called(make, "lasp_plan_create")) return false;
    result_.tensor_cores = on_cuda() && description().find(": tensor-core kernels") != std::string::npos;
    return ok(lasp_plan_get_info(plan_, &result_.info), "lasp_plan_get_info");
  }

  std::string description() {
    size_t needed = 0;
    if (!ok(lasp_plan_describe(plan_, nullptr, 0, &needed), "lasp_plan_describe")) return "";
    std::string text(needed, '\0');
    ok(lasp_plan_describe(plan_, text.data(), text.size(), nullptr), "lasp_plan_describe");
    return text;
  }

  void check_plan() {
    const lasp_plan_info &info = result_.info;
    require(info.rank == rank_ && info.nranks == nranks_, "plan_info: rank or nranks");
    require(info.token_begin == memory_->first_token(),
            "plan_info.token_begin = " + std::to_string(info.token_begin));
    require(info.total_tokens == case_.tokens, "plan_info.total_tokens");
    require(info.num_sequences == case_.num_sequences(), "plan_info.num_sequences");
    require(info.heads == case_.heads(), "plan_info.heads");
    require(case_.chunk == 0 || info.chunk == case_.chunk, "plan_info.chunk");
    require(options_.schedule == LASP_SCHEDULE_AUTO ? info.schedule != LASP_SCHEDULE_AUTO
                                                    : info.schedule == options_.schedule,
            "plan_info.schedule = " + std::to_string(info.schedule));
    require(info.alignment != 0 && (info.alignment & (info.alignment - 1)) == 0, "plan_info.alignment");
    const uint64_t cache =
        case_.cache == LASP_CACHE_CHUNKS ? info.state_cache_chunks_bytes : info.state_cache_incoming_bytes;
    require(info.state_cache_bytes == (options_.backward ? cache : 0), "plan_info.state_cache_bytes");
    for (size_t n = 0; n < memory_->owners().size(); ++n) {
      const SequenceOwner &owner = memory_->owners()[n];
      int32_t first = -1, last = -1;
      if (!ok(lasp_plan_get_owners(plan_, owner.begin, owner.end, &first, &last), "lasp_plan_get_owners")) continue;
      require(first == owner.first_rank && last == owner.last_rank,
              "sequence " + std::to_string(n) + ": ranks " + std::to_string(first) + ".." + std::to_string(last) +
                  ", expected " + std::to_string(owner.first_rank) + ".." + std::to_string(owner.last_rank));
    }
  }

  lasp_traffic traffic() {
    lasp_traffic t = LASP_TRAFFIC_INIT;
    ok(lasp_comm_get_traffic(comm_, &t), "lasp_comm_get_traffic");
    return t;
  }
  void check_traffic(const char *pass, const lasp_traffic &before, uint64_t bytes, uint64_t messages, bool first) {
    const lasp_traffic after = traffic();
    const uint64_t sent = after.bytes_sent - before.bytes_sent;
    const uint64_t sent_messages = after.messages_sent - before.messages_sent;
    require(sent == bytes,
            std::string(pass) + " sent " + std::to_string(sent) + " bytes, the plan said " + std::to_string(bytes));
    require(sent_messages == messages, std::string(pass) + " sent " + std::to_string(sent_messages) +
                                           " messages, the plan said " + std::to_string(messages));
    if (!first) return;
    result_.bytes_sent += sent;
    result_.bytes_received += after.bytes_received - before.bytes_received;
  }

  // Nothing waits for the way to the device: it is ordered on the stream, as the pass is.
  void upload() const {
    if (options_.late_inputs) memory_->stage();
    device_.before_pass();
    memory_->upload(device_.stream());
  }
  // The pass is done when this returns, and all that can be seen of it in memory and status has been looked at.
  void download(const char *pass) {
    device_.after_pass(pass, result_.complaints);
    memory_->download(device_.stream());
    lasp_status status = LASP_OK;
    if (ok(lasp_context_get_async_error(context_, &status, nullptr, 0), "lasp_context_get_async_error"))
      require(status == LASP_OK, std::string(pass) + " left an asynchronous error: " + lasp_status_name(status));
    result_.complaints += memory_->misdeeds(pass);
  }
  bool call_forward(const lasp_forward_args &args, const char *name) {
    if (options_.all_gather && args.reuse_state_cache == 0) return stages(args, false);
    return called([&] { return lasp_forward(plan_, &args, device_.stream()); }, name);
  }
  bool call_backward(const lasp_backward_args &args, const char *name) {
    if (options_.all_gather) return stages(args, true);
    return called([&] { return lasp_backward(plan_, &args, device_.stream()); }, name);
  }

  template <class Args>
  bool stages(const Args &args, bool backward) {
    const lasp_stream stream = device_.stream();
    const lasp_plan_info &info = result_.info;
    StageMemory memory(info, memory_->state_bytes_of_run(), backward);
    const Args first = for_summarize(args, memory, options_.carry);
    if (!called([&] { return summarize(plan_, &first, stream); }, "summarize")) return false;
    memory.map->download(stream);
    GuardedBuffer all(memory.map->bytes() * static_cast<size_t>(nranks_), info.alignment);
    options_.all_gather(rank_, memory.map->data(), all.data(), memory.map->bytes());
    all.upload(stream);
    lasp_maps_args maps = LASP_MAPS_ARGS_INIT;
    maps.maps = {all.call_data(), all.bytes()};
    maps.incoming = whole(memory.incoming);
    maps.backward = backward ? 1 : 0;
    if (!called([&] { return lasp_maps_apply(plan_, &maps, stream); }, "lasp_maps_apply")) return false;
    move_bytes(memory.moved->call_data(), memory.carry->call_data(), memory.carry->bytes(), stream);
    spoil(whole(memory.carry), stream);
    spoil_between(args, options_.carry, stream);
    const Args second = for_apply(args, memory, options_.carry);
    if (!called([&] { return apply(plan_, &second, stream); }, "apply")) return false;
    for (const auto *buffer : {&memory.map, &memory.incoming, &memory.carry, &memory.moved})
      (*buffer)->download(stream);
    result_.complaints += memory.misdeeds();
    return true;
  }

  bool forward(int32_t repeat) {
    memory_->poison_forward(repeat);
    const lasp_traffic before = traffic();
    upload();
    if (!call_forward(memory_->forward_args(), "lasp_forward")) return false;
    download("lasp_forward");
    const bool sends = !options_.all_gather;
    check_traffic("lasp_forward", before, sends ? result_.info.forward_bytes_sent : 0,
                  sends ? result_.info.forward_messages_sent : 0, repeat == 0);
    result_.complaints += memory_->foreign_final_states();
    return true;
  }

  bool recompute() {
    constexpr const char *kName = "lasp_forward from the state cache";
    const std::vector<float> before_values = memory_->o();
    memory_->poison_recompute();
    lasp_forward_args args = memory_->forward_args();
    args.reuse_state_cache = 1;
    const lasp_traffic before = traffic();
    upload();
    if (!call_forward(args, kName)) return false;
    download(kName);
    check_traffic(kName, before, 0, 0, false);
    require(same_bits(before_values, memory_->o()), std::string(kName) + ": o has other bits");
    return true;
  }

  bool backward(int32_t repeat) {
    memory_->poison_backward(repeat);
    const lasp_traffic before = traffic();
    upload();
    if (!call_backward(memory_->backward_args(), "lasp_backward")) return false;
    download("lasp_backward");
    const bool sends = !options_.all_gather;
    check_traffic("lasp_backward", before, sends ? result_.info.backward_bytes_sent : 0,
                  sends ? result_.info.backward_messages_sent : 0, repeat == 0);
    result_.complaints += memory_->foreign_initial_gradients();
    return true;
  }

  // The passes that ran eagerly, as one graph.
  bool replay_graph() {
    constexpr const char *kName = "a graph of the passes";
    const lasp_stream stream = device_.stream();
    if (!called([&] { return lasp_plan_prepare(plan_, stream); }, "lasp_plan_prepare")) return false;
    gpu::Graph graph;
    graph.begin(stream);
    if (!call_forward(memory_->forward_args(), "lasp_forward, captured")) return false;
    if (options_.backward && !call_backward(memory_->backward_args(), "lasp_backward, captured")) return false;
    graph.end(stream);
    for (int32_t i = 1; i <= options_.graph_replays; ++i) {
      memory_->poison_forward(i);
      if (options_.backward) memory_->poison_backward(i);
      upload();
      graph.launch(stream);
      download(kName);
      result_.complaints += memory_->foreign_final_states() + memory_->foreign_initial_gradients();
      keep_results(i);
    }
    return true;
  }

  static bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
  }

  void keep_results(int32_t repeat) {
    auto now = memory_->results();
    for (int i = 0; repeat > 0 && i < kTensors; ++i) {
      require(same_bits(now[i], result_.tensors[i]),
              std::string(kTensorNames[i]) + " has other bits when repeated");
    }
    result_.tensors = std::move(now);
  }

  void destroy() {
    called([&] { return lasp_plan_destroy(plan_); }, "lasp_plan_destroy");
    called([&] { return lasp_context_destroy(context_); }, "lasp_context_destroy");
    plan_ = nullptr;
    context_ = nullptr;
  }

  const Case &case_;
  const CaseData &data_;
  lasp_comm *const comm_;
  const RunOptions options_;
  const RankDevice device_;
  int32_t rank_ = 0, nranks_ = 1;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  std::unique_ptr<RankMemory> memory_;
  RankResult result_;
};

}  // namespace

RankResult run_rank(const Case &c, const CaseData &data, lasp_comm *comm, const RunOptions &options) {
  try {
    return RankRun(c, data, comm, options).run();
  } catch (const std::exception &error) {
    RankResult result;
    result.complaints = std::string(error.what()) + "\n";
    return result;
  }
}

}  // namespace lasp_test
