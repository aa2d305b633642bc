// The functions that XLA calls: lasp_jax_CALL_DEVICE for forward, backward, and their stages. Python registers them
// (liblasp/jax/native.py). A call's attributes are the problem and the names of its buffers, in their order.
#include "frame.h"
#include "sessions.h"

#include <unistd.h>
#include <bit>
#include <string>

namespace lasp::xla {
namespace {

enum class Call { kForward, kSummarize, kApply, kBackward, kSummarizeBackward, kApplyBackward };

// The problem of a call, and all of it as numbers.
lasp_problem problem_of(const Frame &frame, Values &values) {
  lasp_problem p = LASP_PROBLEM_INIT;
  size_t count = 0;
  const auto wide = [&](const char *name) { return values.at(count++) = frame.integer(name); };
  const auto read = [&](const char *name) { return static_cast<int32_t>(wide(name)); };
  p.batch = wide("batch");
  p.tokens = wide("tokens");
  p.heads_q = read("heads_q");
  p.heads_k = read("heads_k");
  p.heads_v = read("heads_v");
  p.head_dim_k = read("head_dim_k");
  p.head_dim_v = read("head_dim_v");
  p.dtype = read("dtype");
  p.decay = read("decay");
  p.write = read("write");
  p.mask = read("mask");
  p.scale_given = read("scale_given");
  p.scale = frame.number("scale");
  values.at(count++) = std::bit_cast<int32_t>(p.scale);
  p.max_sequences = wide("max_sequences");
  p.schedule = LASP_SCHEDULE_ALL_GATHER;
  p.cache = read("cache");
  p.chunk = read("chunk");
  p.backward = read("backward");
  p.decay_layout.dtype = p.d_decay_layout.dtype = read("decay_dtype");
  p.beta_layout.dtype = p.d_beta_layout.dtype = read("beta_dtype");
  return p;
}

// The buffers of a call, for the library.
class Buffers {
 public:
  Buffers(const Frame &frame, const Place &place) : frame_(frame), place_(place) {}
  lasp_const_buffer in(const char *name) const {
    const Memory memory = frame_.operand(name);
    return {memory.data, memory.bytes};
  }
  // What is an operand too is written in place. XLA was told so, but it forgets it where it makes a result a slice
  // of a larger one (for loops, on GPUs): then the two are different memory.
  lasp_buffer out(const char *name) const {
    const Memory memory = frame_.result(name), before = frame_.operand(name);
    if (before.data != nullptr && before.data != memory.data)
      copy(memory.data, before.data, memory.bytes, place_.device, place_.stream);
    return {memory.data, memory.bytes};
  }

 private:
  const Frame &frame_;
  const Place &place_;
};

// The offsets of packed sequences; NULL where the call has none.
const lasp_packing *packing_of(const Frame &frame, int32_t device, lasp_packing &packing) {
  const Memory memory = frame.operand("cu_seqlens");
  if (memory.data == nullptr) return nullptr;
  packing.cu_seqlens = {memory.data, memory.bytes};
  packing.num_sequences = memory.elements - 1;
  packing.dtype = memory.dtype == kInt64 ? LASP_INT64 : LASP_INT32;
  packing.memory = device;
  return &packing;
}

// The offsets of the whole buffer, where they are an operand beside those of a shard. Every shard has the same, so
// that all of them refuse before one waits for another's map.
void check_offsets(const Frame &frame) {
  const Memory memory = frame.operand("offsets");
  if (memory.data == nullptr) return;
  const auto at = [&](int64_t n) {
    return memory.dtype == kInt64 ? static_cast<const int64_t *>(memory.data)[n]
                                  : int64_t{static_cast<const int32_t *>(memory.data)[n]};
  };
  const auto name = [&](int64_t n) { return "cu_seqlens[" + std::to_string(n) + "] = " + std::to_string(at(n)); };
  const auto refuse = [](const std::string &sentence) { throw Refusal(LASP_ERROR_INVALID_ARGUMENT, sentence); };
  const int64_t last = memory.elements - 1, total = frame.integer("total_tokens");
  if (at(0) != 0) refuse(name(0) + ": must be 0");
  for (int64_t n = 1; n <= last; ++n)
    if (at(n) < at(n - 1)) refuse(name(n) + ": less than the offset before it, " + std::to_string(at(n - 1)));
  if (at(last) > total) refuse(name(last) + ": the shards hold " + std::to_string(total) + " tokens in all");
}

lasp_status forward(Call call, const Buffers &buffers, lasp_plan *plan, const lasp_packing *packing,
                    lasp_stream stream) {
  lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
  a.q = buffers.in("q");
  a.k = buffers.in("k");
  a.v = buffers.in("v");
  a.decay = buffers.in("decay");
  a.beta = buffers.in("beta");
  a.initial_state = buffers.in("initial_state");
  a.incoming = buffers.in("incoming");
  a.o = buffers.out("o");
  a.final_state = buffers.out("final_state");
  a.state_cache = buffers.out("state_cache");
  a.workspace = buffers.out("workspace");
  a.maps = buffers.out("maps");
  a.carry = buffers.out("carry");
  a.packing = packing;
  return call == Call::kForward     ? lasp_forward(plan, &a, stream)
         : call == Call::kSummarize ? lasp_forward_summarize(plan, &a, stream)
                                    : lasp_forward_apply(plan, &a, stream);
}

lasp_status backward(Call call, const Buffers &buffers, lasp_plan *plan, const lasp_packing *packing,
                     lasp_stream stream) {
  lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
  a.q = buffers.in("q");
  a.k = buffers.in("k");
  a.v = buffers.in("v");
  a.decay = buffers.in("decay");
  a.beta = buffers.in("beta");
  a.initial_state = buffers.in("initial_state");
  a.d_o = buffers.in("d_o");
  a.d_final_state = buffers.in("d_final_state");
  a.state_cache = buffers.in("state_cache");
  a.incoming = buffers.in("incoming");
  a.dq = buffers.out("dq");
  a.dk = buffers.out("dk");
  a.dv = buffers.out("dv");
  a.d_decay = buffers.out("d_decay");
  a.d_beta = buffers.out("d_beta");
  a.d_initial_state = buffers.out("d_initial_state");
  a.workspace = buffers.out("workspace");
  a.maps = buffers.out("maps");
  a.carry = buffers.out("carry");
  a.packing = packing;
  return call == Call::kBackward            ? lasp_backward(plan, &a, stream)
         : call == Call::kSummarizeBackward ? lasp_backward_summarize(plan, &a, stream)
                                            : lasp_backward_apply(plan, &a, stream);
}

void execute(Call call, int32_t device, const Frame &frame) {
  Values values{};
  const lasp_problem problem = problem_of(frame, values);
  check_offsets(frame);
  Place place;
  place.device = device;
  if (device == LASP_DEVICE_CUDA) {
    place.ordinal = frame.ordinal();
    place.stream = frame.stream();
  }
  place.process = getpid();
  if (call != Call::kForward && call != Call::kBackward) {  // a rank that is neither the first nor the last
    place.rank = 1;
    place.nranks = 3;
  }
  lasp_packing packing = LASP_PACKING_INIT;
  const lasp_packing *given = packing_of(frame, device, packing);
  auto session = borrow(place);
  const auto stream = static_cast<lasp_stream>(place.stream);
  try {
    lasp_plan *plan = session->plan(values, problem);
    const Buffers buffers(frame, place);
    check(call < Call::kBackward ? forward(call, buffers, plan, given, stream)
                                 : backward(call, buffers, plan, given, stream));
  } catch (const Refusal &refusal) {
    if (refusal.status / 100 <= 2) give_back(std::move(session));  // after others the context is unusable
    throw;
  }
  give_back(std::move(session));
}

Error *handle(Call call, int32_t device, CallFrame *call_frame) {
  if (answer_version(call_frame) || call_frame->stage != kExecute) return nullptr;
  try {
    execute(call, device, Frame(call_frame));
    return nullptr;
  } catch (const Refusal &refusal) {
    return error(call_frame, refusal.status, refusal.sentence);
  } catch (const std::exception &other) {  // std::bad_alloc
    return error(call_frame, LASP_ERROR_OUT_OF_MEMORY, other.what());
  }
}

}  // namespace
}  // namespace lasp::xla

#define LASP_JAX_HANDLERS(name, call)                                                         \
  extern "C" LASP_API lasp::xla::Error *lasp_jax_##name##_cpu(lasp::xla::CallFrame *frame) {  \
    return handle(lasp::xla::Call::call, LASP_DEVICE_CPU, frame);                             \
  }                                                                                           \
  extern "C" LASP_API lasp::xla::Error *lasp_jax_##name##_cuda(lasp::xla::CallFrame *frame) { \
    return handle(lasp::xla::Call::call, LASP_DEVICE_CUDA, frame);                            \
  }
LASP_JAX_HANDLERS(forward, kForward)
LASP_JAX_HANDLERS(summarize, kSummarize)
LASP_JAX_HANDLERS(apply, kApply)
LASP_JAX_HANDLERS(backward, kBackward)
LASP_JAX_HANDLERS(summarize_backward, kSummarizeBackward)
LASP_JAX_HANDLERS(apply_backward, kApplyBackward)

// How many devices of XLA's share this process' CPUs; counts for contexts that are made later.
extern "C" LASP_API void lasp_jax_share_cpus(int32_t devices) { lasp::xla::share_cpus(devices); }
