// The argument structs of forward, backward and step on plans of every kind (made once): right ones, and ones with
// buffers missing, short, misaligned, swapped, overlapping, structs of any size, wrong streams and handles. A call
// that is refused writes nothing, and no call writes to its inputs.
#include <algorithm>
#include <vector>

#include "one_rank.h"
#include "problems.h"
#include "support/strided_layout.h"
#include "tensors.h"

namespace lasp_fuzz {
namespace {

using lasp_test::strided;

struct Kept {
  lasp_problem problem;
  lasp_plan *plan;
  lasp_plan_info info;
};

constexpr int64_t kMostSequences = 5, kPackedTokens = 22;

// A plan of this kind, or nothing where the kinds exclude each other. `variant` chooses the rest.
void keep(std::vector<Kept> &plans, int32_t decay, int32_t dtype, bool packed, int32_t variant) {
  lasp_problem p = LASP_PROBLEM_INIT;
  p.decay = decay, p.dtype = dtype;
  p.chunk = 16;
  p.heads_q = p.heads_k = p.heads_v = 2;
  p.head_dim_k = 8, p.head_dim_v = variant % 2 == 0 ? 8 : 16;
  p.tokens = 19;
  if (packed) {
    p.max_sequences = kMostSequences;
    p.tokens = kPackedTokens;
  } else {
    p.batch = 2;
  }
  if (variant == 1) {  // grouped heads, decay as narrow as q, [B, H, T, D]
    p.heads_k = p.heads_v = 1;
    if (decay == LASP_DECAY_SCALAR || decay == LASP_DECAY_CHANNEL)
      p.decay_layout.dtype = p.d_decay_layout.dtype = dtype;
    p.q = strided(2 * p.tokens * 8, 8, p.tokens * 8);
    p.o = p.d_o = strided(2 * p.tokens * 16, 16, p.tokens * 16);
  } else if (variant == 2) {
    p.backward = 0;
  } else if (variant == 3) {  // a row wider than q needs
    p.cache = LASP_CACHE_INCOMING;
    p.dq = p.q = strided(p.tokens * 24, 24, 8);
  } else if (variant == 4) {
    p.segment = 16;
  } else if (variant == 5) {
    p.mask = LASP_MASK_BIDIRECTIONAL;
    if (decay != LASP_DECAY_NONE || packed) return;
  } else if (variant == 6) {
    if (packed) return;
    p.tokens = 0;
    p.broadcast_final_state = 1;
  }
  Kept kept{p, nullptr, LASP_PLAN_INFO_INIT};
  if (lasp_plan_create(one_rank(), &p, &kept.plan) || lasp_plan_get_info(kept.plan, &kept.info)) broken("no plan");
  plans.push_back(kept);
}

const std::vector<Kept> &plans() {
  static const std::vector<Kept> made = [] {
    std::vector<Kept> list;
    for (int32_t variant = 0; variant <= 6; ++variant)
      for (int32_t decay = 0; decay < 4; ++decay)
        for (const int32_t dtype : {LASP_FLOAT32, LASP_BFLOAT16, LASP_FLOAT16})
          for (const bool packed : {false, true}) keep(list, decay, dtype, packed, variant);
    return list;
  }();
  return made;
}

// Does to one of `count` buffers what a careless caller does. What it states is memory that is there.
bool damage(Draw &in, Memory &memory, lasp_buffer *buffers, int32_t count) {
  lasp_buffer &one = buffers[in.below(count)];
  const lasp_buffer other = buffers[in.below(count)];
  switch (in.below(8)) {
    case 0: one.data = nullptr; break;
    case 1: one = {nullptr, 0}; break;
    case 2: one.bytes -= std::min<size_t>(one.bytes, size_t{1} + in.byte()); break;
    case 3: one.data = memory.take(one.bytes, 64, 0x3c, 1 + in.below(63) % 63u); break;
    case 4: one = other; return true;
    case 5: {  // within another
      const size_t skip = other.bytes == 0 ? 0 : (size_t{in.byte()} * 4) % other.bytes;
      one = {other.data == nullptr ? nullptr : static_cast<unsigned char *>(other.data) + skip, other.bytes - skip};
      return true;
    }
    case 6: one = {memory.take(one.bytes + in.byte(), 64, 0x3c), one.bytes}; break;
    default: one = {memory.take(64, 64, 0xbc), 64}; break;  // small, or where none belongs
  }
  return false;
}

class Calls {
 public:
  Calls(Draw &in, Memory &memory, const Kept &kept)
      : in_(in), memory_(memory), kept_(kept), tensors_(in, memory, kept.problem, kept.info) {}

  template <class Args>
  void call(lasp_status (*function)(lasp_plan *, const Args *, lasp_stream), Args args, int32_t name) {
    constexpr auto kBuffers =
        static_cast<int32_t>((offset_after_buffers(Args{}) - sizeof(size_t)) / sizeof(lasp_buffer));
    bool shares = false;
    auto *buffers = reinterpret_cast<lasp_buffer *>(reinterpret_cast<unsigned char *>(&args) + sizeof(size_t));
    for (int32_t times = in_.rarely(3) ? 1 + in_.below(3) : 0; times > 0; --times)
      shares = damage(in_, memory_, buffers, kBuffers) || shares;
    const Args *const given = in_.rarely(64) ? nullptr : memory_.place(in_, args);
    const auto stream = in_.rarely(64) ? reinterpret_cast<lasp_stream>(this) : nullptr;
    lasp_plan *plan = kept_.plan;
    if (in_.rarely(64)) plan = in_.rarely(2) ? nullptr : reinterpret_cast<lasp_plan *>(one_rank());
    const lasp_status status = checked(function(plan, given, stream));
    if (status >= 500) broken("a group of one that lost somebody");
    if (status == LASP_OK && (plan != kept_.plan || given == nullptr || stream != nullptr))
      broken("taken for right");
    seen((kept_.problem.decay * 3 + kept_.problem.dtype - LASP_FLOAT32) * 24 + name * 8 + (status == LASP_OK) * 4 +
         (kept_.problem.max_sequences > 0) * 2 + (kept_.problem.mask | (kept_.problem.segment != 0)));
    if (shares && status == LASP_OK) clean_ = pristine_ = false;  // it may have written where others read
    if (status == LASP_OK) pristine_ = false;
    if (pristine_ && !tensors_.outputs_untouched()) broken("a call that was refused has written");
    if (clean_ && !tensors_.inputs_intact()) broken("a call has written to an input");
  }

  void run() {
    if (!tensors_.whole()) broken("no room for the tensors of a small plan");
    for (int32_t calls = 1 + in_.below(3); calls > 0; --calls) {
      const int32_t which = in_.below(3);
      if (which == 0) {
        lasp_forward_args a = tensors_.forward();
        if (in_.rarely(8)) a.reuse_state_cache = in_.rarely(2) ? in_.nasty32() : 1;
        if (in_.rarely(32)) a.reserved = in_.nasty32();
        a.packing = packing();
        call(lasp_forward, a, 0);
      } else if (which == 1) {
        lasp_backward_args a = tensors_.backward();
        a.packing = packing();
        call(lasp_backward, a, 1);
      } else {
        call(lasp_step, tensors_.step(), 2);
      }
    }
  }

 private:
  // Offsets anywhere, with padding or none, some of them damaged; on a plan that has no use for them, too.
  template <class T>
  lasp_const_buffer offsets(int64_t count) {
    auto *values = reinterpret_cast<T *>(memory_.take(static_cast<uint64_t>(count + 1) * sizeof(T), alignof(T), 0));
    for (int64_t i = 1; i <= count; ++i)
      values[i] = static_cast<T>(std::min<int64_t>(kPackedTokens, values[i - 1] + in_.below(12)));
    if (in_.rarely(8)) values[in_.below(static_cast<int32_t>(count) + 1)] = static_cast<T>(in_.nasty64());
    return {values, static_cast<size_t>(count + 1) * sizeof(T)};
  }
  const lasp_packing *packing() {
    if ((kept_.problem.max_sequences > 0) == in_.rarely(32)) return nullptr;
    lasp_packing p = LASP_PACKING_INIT;
    p.num_sequences = in_.below(static_cast<int32_t>(kMostSequences) + 1);
    const bool narrow = in_.rarely(2);
    p.dtype = narrow ? LASP_INT32 : LASP_INT64;
    p.cu_seqlens = narrow ? offsets<int32_t>(p.num_sequences) : offsets<int64_t>(p.num_sequences);
    if (in_.rarely(16)) p.num_sequences = in_.rarely(2) ? in_.nasty64() : p.num_sequences + 1;
    if (in_.rarely(16)) p.dtype = in_.nasty32();
    if (in_.rarely(16)) p.memory = in_.nasty32();
    if (in_.rarely(16)) p.cu_seqlens.bytes -= std::min<size_t>(p.cu_seqlens.bytes, in_.byte());
    return memory_.place(in_, p);
  }

  static constexpr size_t offset_after_buffers(lasp_forward_args) {
    return offsetof(lasp_forward_args, reuse_state_cache);
  }
  static constexpr size_t offset_after_buffers(lasp_backward_args) { return offsetof(lasp_backward_args, packing); }
  static constexpr size_t offset_after_buffers(lasp_step_args) { return sizeof(lasp_step_args); }

  Draw &in_;
  Memory &memory_;
  const Kept &kept_;
  Tensors tensors_;
  bool pristine_ = true, clean_ = true;
};

}  // namespace

void prepare() { plans(); }

void one_input(Draw &in) {
  Memory memory;
  const Kept &kept = plans()[static_cast<size_t>(in.below(256)) % plans().size()];
  Calls(in, memory, kept).run();
}

}  // namespace lasp_fuzz
