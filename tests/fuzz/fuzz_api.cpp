// libFuzzer's target: whatever bytes a caller may pass, every call of the interface answers with a status. Plan
// creation (raw structs, structs of plausible values, packing arrays), argument structs on buffers of exactly the
// size they state, the groups helper and the exchange model. AddressSanitizer and UBSan watch.
#include <lasp/lasp.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

// Bytes handed out from the front; zeros when they are used up.
class Bytes {
 public:
  Bytes(const uint8_t *data, size_t size) : data_(data), size_(size) {}
  template <class T>
  T take() {
    T value{};
    take(&value, sizeof value);
    return value;
  }
  void take(void *to, size_t bytes) {
    const size_t given = bytes < size_ ? bytes : size_;
    std::memcpy(to, data_, given);
    data_ += given, size_ -= given;
  }
  template <class T, size_t N>
  T one_of(const T (&values)[N]) {
    return values[take<uint8_t>() % N];
  }
  int32_t below(int32_t bound) { return take<uint16_t>() % bound; }
  bool chance(int in) { return take<uint8_t>() % in == 0; }
  size_t left() const { return size_; }

 private:
  const uint8_t *data_;
  size_t size_;
};

[[noreturn]] void broken() { std::abort(); }

// A status is one of the header's, and one that is not LASP_OK has its sentence.
void check(lasp_status status) {
  if (status == LASP_OK) return;
  if (std::strcmp(lasp_status_name(status), "unknown status") == 0 || lasp_last_error()[0] == 0) broken();
}

// A group of one on the CPU, made once: nothing a bad call does may harm it.
lasp_context *shared_context() {
  static lasp_context *const context = [] {
    lasp_comm *comm = nullptr;
    lasp_context *made = nullptr;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1;
    if (lasp_comm_create_self(&comm) || lasp_context_create(LASP_ABI, comm, &options, &made)) broken();
    return made;
  }();
  return context;
}

std::vector<int64_t> packing(Bytes &in, int64_t &tokens) {
  std::vector<int64_t> offsets{0};
  const int32_t count = in.below(6);
  for (int32_t i = 0; i <= count; ++i) offsets.push_back(offsets.back() + in.below(i % 3 == 0 ? 3 : 20));
  if (in.chance(8))
    offsets[static_cast<size_t>(in.below(static_cast<int32_t>(offsets.size())))] = in.take<int64_t>();
  tokens = in.chance(8) ? in.take<int64_t>() : offsets.back();
  return offsets;
}

lasp_problem plausible(Bytes &in, std::vector<int64_t> &offsets) {
  constexpr int32_t kHeads[] = {1, 2, 3, 4}, kDims[] = {8, 16, 24, 40, 0, 7, 520}, kChunks[] = {0, 16, 32, 17, 256};
  lasp_problem p = LASP_PROBLEM_INIT;
  p.batch = 1 + in.below(2);
  p.tokens = in.below(48);
  p.heads_q = in.one_of(kHeads), p.heads_k = in.one_of(kHeads), p.heads_v = in.one_of(kHeads);
  p.head_dim_k = in.one_of(kDims), p.head_dim_v = in.one_of(kDims);
  p.dtype = in.below(in.chance(8) ? 5 : 3);
  p.decay = in.below(in.chance(8) ? 6 : 4);
  p.decay_dtype = in.chance(2) ? p.dtype : in.below(3);
  p.mask = in.chance(6);
  p.write = in.chance(16);
  p.schedule = in.below(6);
  p.pieces = in.below(5);
  p.cache = in.below(in.chance(8) ? 3 : 2);
  p.chunk = in.one_of(kChunks);
  p.backward = !in.chance(4);
  p.broadcast_final_state = in.chance(4);
  if (in.chance(2)) {
    offsets = packing(in, p.tokens);
    p.batch = in.chance(8) ? 2 : 1;
    p.cu_seqlens = offsets.data();
    p.num_sequences = static_cast<int64_t>(offsets.size()) - 1;
  }
  if (in.chance(3)) {  // strides, right or wrong
    lasp_strides *const layouts[] = {&p.q, &p.k, &p.v, &p.o, &p.decay_layout, &p.dq, &p.dk, &p.dv, &p.d_o};
    lasp_strides &layout = *in.one_of(layouts);
    const int64_t heads = 4 + in.below(3), dim = 40 + in.below(3), tokens = p.tokens & 0xffff;
    layout = in.chance(2) ? lasp_strides{tokens * heads * dim, heads * dim, dim}
                          : lasp_strides{heads * tokens * dim, dim, tokens * dim};
    if (in.chance(4)) layout.token = in.take<int64_t>();
  }
  return p;
}

// Buffers on the heap of exactly the bytes stated, so that one byte more is seen.
class Buffers {
 public:
  lasp_buffer make(Bytes &in, uint64_t bytes, size_t alignment) {
    if (bytes > uint64_t{1} << 24) return {nullptr, 0};  // a legal giant, by its strides
    if (in.chance(24)) return {nullptr, in.chance(2) ? size_t{0} : static_cast<size_t>(bytes)};
    if (in.chance(24) && bytes > 0)
      bytes -= 1 + static_cast<uint64_t>(in.below(static_cast<int32_t>(bytes > 64 ? 64 : bytes)));
    const size_t shift = in.chance(32) ? 1 + in.take<uint8_t>() % 3 : 0;
    const size_t rounded = (bytes + shift + alignment - 1) / alignment * alignment;
    auto *base = static_cast<unsigned char *>(std::aligned_alloc(alignment, rounded ? rounded : alignment));
    if (base == nullptr) broken();
    memory_.emplace_back(base, &std::free);
    std::memset(base, in.take<uint8_t>() & 0x3f, rounded);  // small finite numbers in every type
    // The end of what may be used is the end of the allocation where alignment lets it.
    return {base + shift, static_cast<size_t>(bytes)};
  }
  lasp_const_buffer make_const(Bytes &in, uint64_t bytes, size_t alignment) {
    const lasp_buffer buffer = make(in, bytes, alignment);
    return {buffer.data, buffer.bytes};
  }

 private:
  std::vector<std::unique_ptr<unsigned char, decltype(&std::free)>> memory_;
};

uint64_t extent(const lasp_strides &s, int64_t b, int64_t t, int64_t h, int64_t d, uint64_t element) {
  if (b == 0 || t == 0) return 0;
  if (s.batch == 0 && s.token == 0 && s.head == 0) return static_cast<uint64_t>(b * t * h * d) * element;
  return static_cast<uint64_t>((b - 1) * s.batch + (t - 1) * s.token + (h - 1) * s.head + d) * element;
}

void execute(Bytes &in, lasp_plan *plan, const lasp_problem &p) {
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  check(lasp_plan_get_info(plan, &info));
  const uint64_t element = p.dtype == LASP_FLOAT32 ? 4 : 2, decay_element = p.decay_dtype == LASP_FLOAT32 ? 4 : 2;
  const int64_t h = info.heads, k = p.head_dim_k, v = p.head_dim_v;
  const uint64_t states = static_cast<uint64_t>(info.num_sequences * h * k * v) * 4;
  const auto sized = [&](const lasp_strides &s, int64_t heads, int64_t dim) {
    return extent(s, p.batch, p.tokens, heads, dim, element);
  };
  const auto decay_bytes = [&](const lasp_strides &s) -> uint64_t {
    if (p.decay == LASP_DECAY_NONE) return 0;
    if (p.decay == LASP_DECAY_HEAD) return static_cast<uint64_t>(h) * 4;
    return extent(s, p.batch, p.tokens, h, p.decay == LASP_DECAY_CHANNEL ? k : 1, decay_element);
  };
  Buffers buffers;
  const size_t line = info.alignment;
  lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
  f.q = buffers.make_const(in, sized(p.q, p.heads_q, k), 16);
  f.k = buffers.make_const(in, sized(p.k, p.heads_k, k), 16);
  f.v = buffers.make_const(in, sized(p.v, p.heads_v, v), 16);
  if (p.decay != LASP_DECAY_NONE) f.decay = buffers.make_const(in, decay_bytes(p.decay_layout), 16);
  if (in.chance(3)) f.initial_state = buffers.make_const(in, states, 16);
  f.o = buffers.make(in, sized(p.o, h, v), 16);
  if (in.chance(3)) f.final_state = buffers.make(in, states, 16);
  f.state_cache = buffers.make(in, info.state_cache_bytes, line);
  f.workspace = buffers.make(in, info.workspace_forward_bytes, line);
  if (in.chance(16)) f.size = in.take<uint16_t>() % (sizeof f + 1);
  const lasp_status forward = lasp_forward(plan, &f, nullptr);
  check(forward);
  if (forward == LASP_OK && p.backward && f.state_cache.data != nullptr && in.chance(2)) {
    f.reuse_state_cache = in.below(3);
    check(lasp_forward(plan, &f, nullptr));
  }
  lasp_backward_args b = LASP_BACKWARD_ARGS_INIT;
  b.q = f.q, b.k = f.k, b.v = f.v, b.decay = f.decay, b.initial_state = f.initial_state;
  b.state_cache = {f.state_cache.data, f.state_cache.bytes};
  b.d_o = buffers.make_const(in, sized(p.d_o, h, v), 16);
  if (in.chance(3)) b.d_final_state = buffers.make_const(in, states, 16);
  b.dq = buffers.make(in, sized(p.dq, p.heads_q, k), 16);
  b.dk = buffers.make(in, sized(p.dk, p.heads_k, k), 16);
  b.dv = buffers.make(in, sized(p.dv, p.heads_v, v), 16);
  if (in.chance(2)) b.d_decay = buffers.make(in, decay_bytes(p.d_decay_layout), 16);
  if (in.chance(3)) b.d_initial_state = buffers.make(in, states, 16);
  b.workspace = buffers.make(in, info.workspace_backward_bytes, line);
  if (in.chance(16)) b.size = in.take<uint16_t>() % (sizeof b + 1);
  if (forward == LASP_OK || in.chance(8)) check(lasp_backward(plan, &b, nullptr));
  lasp_step_args s = LASP_STEP_ARGS_INIT;
  s.q = f.q, s.k = f.k, s.v = f.v, s.decay = f.decay, s.o = f.o;
  s.state = buffers.make(in, states, 16);
  check(lasp_step(plan, &s, nullptr));
}

void plan_of(Bytes &in, const lasp_problem &p, bool run) {
  lasp_plan *plan = nullptr;
  const lasp_status status = lasp_plan_create(shared_context(), &p, &plan);
  check(status);
  if ((status == LASP_OK) != (plan != nullptr)) broken();
  if (plan == nullptr) return;
  lasp_sequence_info sequence = LASP_SEQUENCE_INFO_INIT;
  check(lasp_plan_get_sequence(plan, in.chance(4) ? in.take<int64_t>() : in.below(14), &sequence));
  char text[64];
  size_t needed;
  check(lasp_plan_describe(plan, text, in.take<uint8_t>() % 65, &needed));
  if (run && in.chance(4)) execute(in, plan, p);
  check(lasp_plan_destroy(plan));
}

void raw_problem(Bytes &in) {
  std::vector<int64_t> offsets(static_cast<size_t>(in.below(9)) + 1);
  for (int64_t &offset : offsets) offset = in.chance(3) ? in.take<int64_t>() : in.below(300);
  lasp_problem p = LASP_PROBLEM_INIT;
  in.take(&p, sizeof p);
  if (!in.chance(8)) p.size = sizeof p;
  if (p.size > sizeof p) p.size = sizeof p;  // beyond it lies no memory of ours
  p.cu_seqlens = in.chance(2) ? offsets.data() : nullptr;
  if (p.cu_seqlens != nullptr) p.num_sequences = in.below(static_cast<int32_t>(offsets.size()));
  // Legal giants would be allowed their tables of a gigabyte; the limit itself has a test of its own.
  if (p.batch > 4) p.batch = in.chance(2) ? INT64_MAX : 4;
  if (p.tokens > 100000 && p.tokens < int64_t{1} << 40) p.tokens &= 0xffff;
  plan_of(in, p, false);
}

void helpers(Bytes &in) {
  lasp_groups groups = LASP_GROUPS_INIT;
  const auto number = [&] { return in.chance(3) ? in.take<int32_t>() : in.below(40); };
  const int32_t world = number(), ranks = number(), stride = number(), rank = number();
  if (lasp_groups_of_rank(world, ranks, stride, rank, &groups) == LASP_OK) {
    int32_t back = -1;
    if (lasp_groups_world_rank(world, ranks, stride, groups.sequence_group, groups.sequence_rank, &back) ||
        back != rank)
      broken();  // the inverse
  } else {
    check(lasp_groups_of_rank(world, ranks, stride, rank, &groups));
  }
  int32_t back;
  check(lasp_groups_world_rank(world, ranks, stride, number(), number(), &back));
  double us;
  check(lasp_predict_exchange(number(), number(), in.take<uint64_t>(), number(), in.take<double>(),
                              in.take<double>(), &us));
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  in.take(&options, sizeof options);
  options.size = in.chance(4) ? in.take<uint8_t>() % (sizeof options + 1) : sizeof options;
  options.log = nullptr;
  if (options.cpu_threads > 4) options.cpu_threads = in.chance(2) ? INT32_MAX : 4;
  if (options.device == LASP_DEVICE_CUDA) options.device = 2;
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  check(lasp_comm_create_self(&comm));
  check(lasp_context_create(in.chance(8) ? in.take<int32_t>() : LASP_ABI, comm, &options, &context));
  check(lasp_context_destroy(context));
  check(lasp_comm_destroy(comm));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Bytes in(data, size);
  switch (in.take<uint8_t>() % 4) {
    case 0: raw_problem(in); break;
    case 1: helpers(in); break;
    default: {
      std::vector<int64_t> offsets;
      const lasp_problem p = plausible(in, offsets);
      plan_of(in, p, true);
    }
  }
  return 0;
}
