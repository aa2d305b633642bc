// What the scan of a stage hands on to the next one, in a caller's memory: the states or gradients that enter
// chunks, unless they lie in the state cache, what joins the incoming state to them, and states that are already
// final.
#include <algorithm>

#include "cpu_backend.h"

namespace lasp::cpu {

void CpuBackend::place_carry(Carver &carver, ScanWorkspace &w, bool reversed, bool slots) const {
  place_scan(carver, w, reversed, slots);
  w.ends = carver.take<float>(states(most_segments()));
}

CpuBackend::ForwardWorkspace CpuBackend::forward_workspace(const ForwardBuffers &b) const {
  ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  if (b.carry == nullptr) return w;
  Carver carry(b.carry);
  place_carry(carry, w.scan, false, !slots_in_cache());
  return w;
}

CpuBackend::BackwardWorkspace CpuBackend::backward_workspace(const BackwardBuffers &b) const {
  BackwardWorkspace w = backward_workspace(b.workspace, b.state_cache);
  if (b.carry == nullptr) return w;
  Carver carry(b.carry);
  place_carry(carry, w.gradients, true, true);
  return w;
}

uint64_t CpuBackend::forward_carry_bytes() const {
  Carver count(nullptr);
  ScanWorkspace w{};
  place_carry(count, w, false, !slots_in_cache());
  return count.used();
}

uint64_t CpuBackend::backward_carry_bytes() const {
  Carver count(nullptr);
  ScanWorkspace w{};
  place_carry(count, w, true, true);
  return count.used();
}

void CpuBackend::forward_resume(const ForwardBuffers &b) {
  math_.begin_pass(b.decay);
  hand_on_ends(forward_workspace(b).scan, {false, nullptr, b.final_state});
  std::fill(done_.begin(), done_.end(), Done::kNothing);
}

void CpuBackend::backward_resume(const BackwardBuffers &b) {
  math_.begin_pass(b.decay);
  hand_on_ends(backward_workspace(b).gradients, backward_in_time(b));
  std::fill(done_.begin(), done_.end(), Done::kNothing);
  states_found_ = false;
}

void CpuBackend::hand_on_ends(const ScanWorkspace &w, const ScanDirection &direction) {
  if (direction.last_state == nullptr) return;
  for (size_t i = 0; i < partition_.segments.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (ends_alone(direction.reversed, index))
      direction.put_last(w.ends + states(index), states(1), states(partition_.segments[i].sequence));
  }
}

}  // namespace lasp::cpu
