#include "cpu/halo.h"

#include <algorithm>
#include <cstring>

#include "cpu/kernels.h"

namespace lasp::cpu {
namespace {

std::byte *row_of(const HaloRows &rows, int64_t batch, int64_t token) {
  return static_cast<std::byte *>(rows.data) + rows.layout.offset(batch, token, 0) * size_of(rows.dtype);
}

// to += each of `from`, rounded once. By way of rooms of whole vectors, which is what conversion works on.
void add_rows(std::byte *to, std::span<const std::byte *const> from, int64_t channels, DType type) {
  constexpr int64_t kRoom = 256;
  const Kernels &kernels = cpu::kernels();
  alignas(64) std::byte room[kRoom * sizeof(float)] = {};
  alignas(64) float sum[kRoom], term[kRoom];
  const int64_t element = size_of(type);
  for (int64_t c = 0; c < channels; c += kRoom) {
    const auto bytes = static_cast<size_t>(std::min(kRoom, channels - c) * element);
    const auto load = [&](float *values, const std::byte *row) {
      std::memcpy(room, row + c * element, bytes);
      kernels.load_rows(values, 0, room, 0, 1, kRoom, type);
    };
    load(sum, to);
    for (const std::byte *row : from) {
      load(term, row);
      for (int64_t i = 0; i < kRoom; ++i) sum[i] += term[i];
    }
    kernels.store_rows(room, 0, sum, 0, 1, kRoom, type, false);
    std::memcpy(to + c * element, room, bytes);
  }
}

}  // namespace

CpuHalo::CpuHalo(const HaloPlan &plan, Comm &comm, const WaitPolicy &policy, bool verify_messages)
    : HaloPasses(plan), comm_(comm), policy_(policy) {
  messages_.reserve(messages(true).size(), verify_messages);  // as many in either direction
}

template <class Visit>
void CpuHalo::for_each_row(std::span<const HaloPart> parts, const HaloRows &rows, const void *workspace,
                           Visit visit) {
  const int64_t bytes = plan().shape.channels * size_of(rows.dtype);
  for (const HaloPart &part : parts) {
    if (part.place < 0) continue;
    std::byte *message = plan().message(part, rows.dtype, const_cast<void *>(workspace), nullptr);
    for (int64_t b = 0; b < plan().shape.batch; ++b)
      for (int64_t t = 0; t < part.count; ++t, message += bytes) visit(row_of(rows, b, part.begin + t), message);
  }
}

void CpuHalo::clear(const HaloRows &to, int64_t count) {
  const auto bytes = static_cast<size_t>(count * plan().shape.channels * size_of(to.dtype));
  for (int64_t b = 0; b < plan().shape.batch; ++b) std::memset(row_of(to, b, 0), 0, bytes);
}

void CpuHalo::gather(std::span<const HaloPart> parts, const HaloRows &from, void *workspace) {
  const auto bytes = static_cast<size_t>(plan().shape.channels * size_of(from.dtype));
  for_each_row(parts, from, workspace,
               [&](std::byte *row, std::byte *message) { std::memcpy(message, row, bytes); });
}

void CpuHalo::scatter(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) {
  const auto bytes = static_cast<size_t>(plan().shape.channels * size_of(to.dtype));
  for_each_row(parts, to, workspace, [&](std::byte *row, std::byte *message) { std::memcpy(row, message, bytes); });
}

void CpuHalo::add(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) {
  const HaloShape &shape = plan().shape;
  const int64_t bytes = shape.channels * size_of(to.dtype);
  const std::byte *from[kMostHaloRows];
  // Those of one run: its last rows.
  int64_t first = shape.tokens, end = 0;
  for (const HaloPart &part : parts)
    first = std::min(first, part.begin), end = std::max(end, part.begin + part.count);
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t t = first; t < end; ++t) {
      size_t terms = 0;
      for (const HaloPart &part : parts) {
        const int64_t row = t - part.begin;
        if (row < 0 || row >= part.count) continue;
        const auto *message = static_cast<const std::byte *>(workspace) + part.place;
        from[terms++] = message + (b * part.count + row) * bytes;
      }
      if (terms > 0) add_rows(row_of(to, b, t), {from, terms}, shape.channels, to.dtype);
    }
}

void CpuHalo::exchange(std::span<const Transfer> messages, int32_t operation, const ExchangeLog &log) {
  const int32_t tag = tag_of(operation, kTagRows);
  messages_.set_packing(offsets().sum());
  try {
    for (const Transfer &m : messages) {
      if (m.is_send) {
        messages_.send(comm_, m.data, m.bytes, m.peer, tag);
      } else {
        messages_.receive(comm_, m.data, m.bytes, m.peer, tag);
      }
    }
    messages_.wait_all(comm_, policy_, "exchanging a halo");
  } catch (...) {
    messages_.cancel_all(comm_);
    throw;
  }
  log.write("a halo");
}

}  // namespace lasp::cpu
