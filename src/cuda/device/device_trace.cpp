#include "cuda/device/device_trace.h"

#include <algorithm>
#include <cmath>

namespace lasp {
namespace {

// Pieces of work that a device may be behind: some hundred passes.
constexpr size_t kSpans = 1024;
constexpr int64_t kLongestLooksNs = 500'000'000;  // all together, should the device be stuck
constexpr int64_t kSureNs = 1'000'000;            // a moment that is known worse says nothing of the clock's rate
constexpr int kLooks = 16;
constexpr int64_t kAnchorEveryNs = 500'000'000;
constexpr int64_t kShortestForScaleNs = 100'000'000;
constexpr double kMostDrift = 1e-3;

cuda::EventOwner make_timed_event() {
  cudaEvent_t event = nullptr;
  cuda::check_allocation(cudaEventCreate(&event), "cudaEventCreate");
  return cuda::EventOwner(event);
}

// What is wrong with the device the calls themselves say. An answer that is not success would be the next launch's.
bool succeeded(cudaError_t error) noexcept {
  if (error == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

bool has_passed(const cuda::EventOwner &event) noexcept { return succeeded(cudaEventQuery(event.get())); }

}  // namespace

DeviceTrace::DeviceTrace(Trace &trace, cudaStream_t clock, cudaStream_t exchange)
    : trace_(trace), clock_(clock), spans_(kSpans), anchor_(make_timed_event()), now_(make_timed_event()) {
  for (Span &span : spans_) span.begin = make_timed_event(), span.end = make_timed_event();
  lanes_.reserve(16);
  lanes_.push_back(exchange);
  base_ = record_moment(anchor_.get());
}

// When an event on an idle stream passes: between two looks at the host's clock, as near together as they come. On
// a busy host that is not near: the moment says how far from each other they are.
DeviceTrace::Moment DeviceTrace::record_moment(cudaEvent_t event) noexcept {
  Moment moment;
  const int64_t first = Trace::now(), limit = first + kLongestLooksNs;
  int64_t least = kLongestLooksNs;
  for (int look = 0; look < kLooks; ++look) {
    const int64_t begin = Trace::now();
    if (moment.known && begin - first > kLongestLooksNs / 4) break;  // one more look could lose it
    if (!succeeded(cudaEventRecord(event, clock_))) return {};
    while (!succeeded(cudaEventQuery(event)))
      if (Trace::now() > limit) return {};
    const int64_t between = Trace::now() - begin;
    moment = {begin + between / 2, between / 2, true};
    const bool good = between <= least + least / 4;
    least = std::min(least, between);
    if (look >= 4 && good) break;
  }
  return moment;
}

bool DeviceTrace::position_of(cudaEvent_t event, int64_t &ns) const noexcept {
  float ms = 0;
  if (!succeeded(cudaEventElapsedTime(&ms, anchor_.get(), event))) return false;
  ns = anchor_ns_ + std::llround(1e6 * static_cast<double>(ms));
  return true;
}

// Those beyond the room share the last.
int32_t DeviceTrace::lane_of(cudaStream_t stream) {
  const auto found = std::find(lanes_.begin(), lanes_.end(), stream);
  if (found != lanes_.end()) return static_cast<int32_t>(found - lanes_.begin());
  if (lanes_.size() < lanes_.capacity()) lanes_.push_back(stream);
  return static_cast<int32_t>(lanes_.size()) - 1;
}

int32_t DeviceTrace::begin(const TraceRecord &record, cudaStream_t stream) noexcept {
  resolve();
  if (!base_.known || next_ - first_ == spans_.size()) {
    ++left_out_;
    return -1;
  }
  Span &span = spans_[next_ % spans_.size()];
  if (!succeeded(cudaEventRecord(span.begin.get(), stream))) {
    ++left_out_;
    return -1;
  }
  span.record = record;
  span.record.call = trace_.call();
  span.record.lane = lane_of(stream);
  span.stream = stream;
  span.ended = span.failed = false;
  return static_cast<int32_t>(next_++ % spans_.size());
}

void DeviceTrace::end(int32_t index) noexcept {
  Span &span = spans_[static_cast<size_t>(index)];
  span.failed = !succeeded(cudaEventRecord(span.end.get(), span.stream));
  span.ended = true;
}

bool DeviceTrace::add(Span &span) noexcept {
  int64_t begin = 0;
  float ms = 0;
  if (!position_of(span.begin.get(), begin) ||
      !succeeded(cudaEventElapsedTime(&ms, span.begin.get(), span.end.get())))
    return false;
  span.record.begin_ns = base_.host_ns + begin;
  span.record.end_ns = span.record.begin_ns + std::llround(1e6 * static_cast<double>(ms));
  trace_.add_of_call(span.record);
  if (begin - anchor_ns_ > kAnchorEveryNs) {
    anchor_ns_ = begin;
    anchor_.swap(span.begin);
  }
  return true;
}

void DeviceTrace::resolve() noexcept {
  for (; first_ < next_; ++first_) {
    Span &span = spans_[first_ % spans_.size()];
    if (!span.ended) return;
    if (!span.failed && !has_passed(span.end)) return;
    if (span.failed || !add(span)) ++left_out_;
  }
}

DeviceTimes DeviceTrace::collect() noexcept {
  resolve();
  DeviceTimes times{base_.host_ns, base_.uncertainty_ns, 1, next_ - first_, left_out_};
  if (!base_.known) return times;
  const Moment moment = record_moment(now_.get());
  int64_t position = 0;
  if (!moment.known || !position_of(now_.get(), position)) return times;
  if (position < kShortestForScaleNs) return times;
  const double scale = static_cast<double>(moment.host_ns - base_.host_ns) / static_cast<double>(position);
  if (std::fabs(scale - 1) < kMostDrift && base_.uncertainty_ns + moment.uncertainty_ns < kSureNs)
    times.scale = scale;
  times.uncertainty_ns = std::max(times.uncertainty_ns, moment.uncertainty_ns);
  return times;
}

}  // namespace lasp
