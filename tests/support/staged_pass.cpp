#include "support/staged_pass.h"

#include <cstring>

#include "support/device.h"

namespace lasp_test {
namespace {

template <class Args>
Args with_carry(Args args, const std::unique_ptr<GuardedBuffer> &carry, bool wanted) {
  if (wanted && carry->bytes() > 0) args.carry = whole(carry);
  return args;
}

template <class Args>
Args apply_args(Args args, const StageMemory &memory, bool carry) {
  args.incoming = whole_const(memory.incoming);
  return with_carry(args, memory.moved, carry);
}

}  // namespace

StageMemory::StageMemory(const lasp_plan_info &info, size_t state_bytes, bool backward) {
  const auto make = [](uint64_t bytes, uint64_t alignment) {
    return std::make_unique<GuardedBuffer>(bytes, alignment);
  };
  const uint64_t carry_bytes = backward ? info.carry_backward_bytes : info.carry_forward_bytes;
  const auto runs = static_cast<uint64_t>(info.num_runs);
  map = make(runs * info.map_bytes, info.alignment);
  incoming = make(runs * state_bytes, sizeof(float));
  carry = make(carry_bytes, info.alignment);
  moved = make(carry_bytes, info.alignment);
  for (const auto *buffer : {&map, &incoming, &carry, &moved}) {
    (*buffer)->poison();
    (*buffer)->upload(nullptr);
  }
  if (on_cuda()) gpu::wait(nullptr);
}

std::string StageMemory::misdeeds() const {
  std::string found;
  for (const auto *buffer : {&map, &incoming, &carry, &moved})
    if (!(*buffer)->canaries_intact()) found += "a stage wrote outside its map, incoming state or carry\n";
  return found;
}

lasp_buffer whole(const std::unique_ptr<GuardedBuffer> &buffer) { return {buffer->call_data(), buffer->bytes()}; }
lasp_const_buffer whole_const(const std::unique_ptr<GuardedBuffer> &buffer) {
  return {buffer->call_data(), buffer->bytes()};
}

lasp_forward_args for_summarize(const lasp_forward_args &args, const StageMemory &memory, bool carry) {
  lasp_forward_args first = LASP_FORWARD_ARGS_INIT;
  first.k = args.k, first.v = args.v, first.decay = args.decay, first.beta = args.beta;
  first.initial_state = args.initial_state;
  first.state_cache = args.state_cache, first.workspace = args.workspace;
  first.maps = whole(memory.map);
  first.packing = args.packing;
  return with_carry(first, memory.carry, carry);
}

lasp_backward_args for_summarize(const lasp_backward_args &args, const StageMemory &memory, bool carry) {
  lasp_backward_args first = LASP_BACKWARD_ARGS_INIT;
  first.q = args.q, first.decay = args.decay, first.d_o = args.d_o, first.d_final_state = args.d_final_state;
  if (args.beta.data != nullptr)  // the delta write
    first.k = args.k, first.beta = args.beta, first.state_cache = args.state_cache;
  first.workspace = args.workspace;
  first.maps = whole(memory.map);
  first.packing = args.packing;
  return with_carry(first, memory.carry, carry);
}

lasp_forward_args for_apply(const lasp_forward_args &args, const StageMemory &memory, bool carry) {
  return apply_args(args, memory, carry);
}
lasp_backward_args for_apply(const lasp_backward_args &args, const StageMemory &memory, bool carry) {
  return apply_args(args, memory, carry);
}

void move_bytes(void *to, const void *from, size_t bytes, lasp_stream stream) {
  if (bytes == 0) return;
  if (on_cuda()) return gpu::copy(to, from, bytes, stream);
  std::memcpy(to, from, bytes);
}

void spoil(const lasp_buffer &buffer, lasp_stream stream) {
  if (buffer.bytes == 0) return;
  if (on_cuda()) return gpu::fill(buffer.data, kPoison, buffer.bytes, stream);
  std::memset(buffer.data, kPoison, buffer.bytes);
}

void spoil_between(const lasp_forward_args &args, bool carry, lasp_stream stream) {
  spoil(args.workspace, stream);
  if (!carry) spoil(args.state_cache, stream);
}
void spoil_between(const lasp_backward_args &args, bool, lasp_stream stream) { spoil(args.workspace, stream); }

}  // namespace lasp_test
