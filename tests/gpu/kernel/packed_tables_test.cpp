// The tables of packings as the device makes them, against one thread on the host that runs the same code (which
// tests/unit/cuda/packed_tables_test.cpp compares with a partition); from a captured graph too. `--time` measures
// it. Exits 0 when all are equal, 1 when one differs, 77 where there is no device.
#include "../../../kernels/packed_tables.h"

#include <climits>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "../../../kernels/one_thread.h"
#include "device_time.h"

namespace {

using namespace lasp::gpu;

struct Shape {
  int64_t begin, tokens, max_sequences;
  bool last_rank, in_two;  // two ranges, with other tokens between them
  CutTokens cuts[2];
};

// Lays all tables out from `base` on; returns the bytes that they take.
size_t place(PackedTables &to, const Shape &shape, char *base) {
  size_t used = 0;
  const auto take = [&]<class T>(Table<T> &table, int64_t size) {
    table = {reinterpret_cast<T *>(base + used), size};
    used += (size_t(size) * sizeof(T) + 255) / 256 * 256;
  };
  Table<int64_t> live;
  const int64_t ranges = shape.in_two ? 2 : 1, first = shape.tokens / ranges, end = shape.begin + shape.tokens;
  const int64_t segments = std::min(shape.tokens, shape.max_sequences + ranges - 1);
  to.num_ranges = int32_t(ranges);
  to.ranges[0] = {shape.begin, shape.begin + first, 0, !shape.in_two && shape.last_rank};
  if (shape.in_two) to.ranges[1] = {shape.begin + first + 99, end + 99, int32_t(first), shape.last_rank};
  to.num_cuts = 2;
  take(to.empty, shape.max_sequences);
  take(live, kLiveCount);
  to.live = live.data;
  for (int i = 0; i < 2; ++i) {
    PackedCut &c = to.cuts[i];
    c.tokens = shape.cuts[i];
    const CutCounts most = most_of_cut(shape.tokens, segments, c.tokens);
    take(c.segments, segments);
    Table<PackedSegment> scratch;
    take(scratch, segments);
    c.scratch = scratch.data;
    take(c.state_runs, most.states);
    for (const int d : {0, 1}) {
      take(c.followed[d], most.followed[d]);
      take(c.leading[d], shape.tokens / c.tokens.state + ranges);
      take(c.runs[d], most.runs);
      take(c.consumers[d], shape.tokens / c.tokens.run + ranges);
      take(c.independent[d], most.runs);
    }
    take(c.beginnings, segments);
  }
  PackedShortRuns &s = to.cuts[0].short_runs;
  s.tokens = 64, s.parts = parts_of(shape.cuts[0].run, 64), s.runs = 5;
  const int64_t runs = most_of_cut(shape.tokens, segments, shape.cuts[0]).runs;
  take(s.short_runs, runs * s.parts);
  take(s.segments, runs);
  for (int64_t *&entered : s.entered_at) {
    Table<int64_t> table;
    take(table, runs);
    entered = table.data;
  }
  return used;
}

bool same(const Run &a, const Run &b) {
  return a.row == b.row && a.begin == b.begin && a.segment == b.segment && a.state == b.state &&
         a.starts == b.starts && a.ends == b.ends && a.length == b.length && a.checkpoint == b.checkpoint &&
         a.before == b.before && a.after == b.after && a.entered == b.entered && a.path == b.path;
}
bool same(const Segment &a, const Segment &b) {
  return a.path == b.path && a.sequence == b.sequence && a.first_run == b.first_run && a.num_runs == b.num_runs &&
         std::memcmp(a.begins, b.begins, 8) == 0;
}

// `device` holds what the device wrote, laid out as `host`.
bool equal(const PackedTables &host, const PackedTables &device) {
  if (std::memcmp(host.live, device.live, kLiveCount * 8) != 0) return false;
  if (std::memcmp(host.empty.data, device.empty.data, size_t(host.empty.size) * 8) != 0) return false;
  const auto table = [](const auto &a, const auto &b) {
    for (int64_t i = 0; i < a.size; ++i)
      if (!same(a.data[i], b.data[i])) return false;
    return true;
  };
  for (int i = 0; i < 2; ++i) {
    const PackedCut &a = host.cuts[i], &b = device.cuts[i];
    bool all = table(a.state_runs, b.state_runs) && table(a.beginnings, b.beginnings);
    for (int64_t n = 0; n < host.live[kLiveSegments]; ++n)
      all = all && same(a.segments.data[n], b.segments.data[n]);
    for (const int d : {0, 1})
      all = all && table(a.followed[d], b.followed[d]) && table(a.leading[d], b.leading[d]) &&
            table(a.runs[d], b.runs[d]) && table(a.consumers[d], b.consumers[d]) &&
            table(a.independent[d], b.independent[d]);
    if (i == 0)
      all = all && table(a.short_runs.short_runs, b.short_runs.short_runs) &&
            table(a.short_runs.segments, b.short_runs.segments) &&
            std::memcmp(a.short_runs.entered_at[0], b.short_runs.entered_at[0],
                        size_t(a.short_runs.segments.size) * 8) == 0;
    if (!all) return false;
  }
  return true;
}

std::vector<int64_t> draw_offsets(std::mt19937 &random, int64_t total, int64_t sequences, bool wild) {
  std::vector<int64_t> offsets = {0};
  for (int64_t n = 0; n < sequences; ++n) {
    const int64_t step = random() % 3 == 0 ? 0 : int64_t(random() % uint64_t(3 * total / (sequences + 1) + 2));
    offsets.push_back(wild ? int64_t(random() % 100000) - 1000 : std::min(total, offsets.back() + step));
  }
  return offsets;
}

int test_packings() {
  std::mt19937 random(3);
  int failed = 0, carried = 0, built = 0, few = 0, many = 0;
  for (int round = 0; round < 300; ++round) {
    Shape shape;
    const int64_t total = 1 + int64_t(random() % 40000);
    shape.begin = int64_t(random() % uint64_t(total));
    shape.tokens = int64_t(random() % uint64_t(total - shape.begin + 1));
    shape.last_rank = shape.begin + shape.tokens == total;
    shape.max_sequences = 1 + int64_t(random() % (round % 5 == 0 ? 3000 : 40));
    shape.cuts[0] = {int64_t{1024}, round % 2 ? 256 : 1024};
    shape.cuts[1] = {int64_t{512}, 512};
    if (shape.tokens < 2) shape.tokens = 2;
    shape.in_two = round % 4 == 3;
    const int64_t sequences = int64_t(random() % uint64_t(shape.max_sequences + 1));
    const std::vector<int64_t> offsets = draw_offsets(random, total, sequences, round % 7 == 6);
    const std::vector<int32_t> narrow(offsets.begin(), offsets.end());
    PackedTables host, on_device, back;
    std::vector<char> memory(place(host, shape, nullptr), 0), copy;
    place(host, shape, memory.data());
    host.offsets = offsets.data(), host.sequences = sequences;
    OneThread block;
    for (const int cut : {0, 1}) TableBuilder<OneThread>(host, host.offsets, cut, block).build();
    DeviceMemory tables(memory.size()), put(size_t(sequences + 1) * 8);
    check(cudaMemset(tables.data, 0, tables.bytes), "clear");
    place(on_device, shape, static_cast<char *>(tables.data));
    on_device.sequences = sequences, on_device.wide = round % 4 == 0;
    const bool wild = round % 7 == 6;
    if (round % 2 == 1 && !wild) {  // from the host
      std::vector<int32_t> local;
      for (const int64_t offset : offsets) local.push_back(given_offset(offset, host.ranges, host.num_ranges));
      for (int32_t n = 0; n < host.num_ranges; ++n) on_device.ranges[n] = given_range(host.ranges, n);
      std::vector<char> image(memory.size());
      const int made =
          round % 4 == 1 || round % 5 == 1
              ? launch_carried_tables(on_device, local.data(), {image.data(), tables.data, image.size()}, nullptr)
              : kTooManyTables;
      made == kTooManyTables ? ++built : ++carried;
      check(made == kTooManyTables
                ? launch_packed_tables(on_device, local.data(), static_cast<int32_t *>(put.data), nullptr)
                : made,
            "tables");
    } else {
      on_device.offsets = put.data;
      on_device.wide ? put.put(offsets) : put.put(narrow);
      const int made = launch_few_tables(on_device, ZeroPadding(), nullptr);
      if ((made == kTooManyTables) != (shape.in_two || sequences > 255)) {
        std::printf("FAILED: round %d: few tables, %d\n", round, made);
        ++failed;
      }
      made == kTooManyTables ? ++many : ++few;
      check(made == kTooManyTables ? launch_packed_tables(on_device, ZeroPadding(), nullptr) : made, "tables");
    }
    copy = tables.get<char>();
    place(back, shape, copy.data());
    if (!equal(host, back)) {
      std::printf("FAILED: round %d: %lld sequences, %lld tokens\n", round, (long long)sequences,
                  (long long)shape.tokens);
      ++failed;
    }
  }
  std::printf(
      "packed tables: 300 packings, %d made by the host, %d of the host's offsets, %d of few sequences on the "
      "device, %d of many, %d failed\n",
      carried, built, few, many, failed);
  if (carried < 20 || built < 20 || few < 20 || many < 20) {
    std::printf("FAILED: too few of one kind\n");
    ++failed;
  }
  return failed;
}

void measure() {
  for (const int64_t sequences : {1, 8, 100, 1000, 8000}) {
    const int64_t tokens = 65536;
    Shape shape = {0, tokens, sequences, true, false, {{4096, 1024}, {2048, 1024}}};
    std::vector<int64_t> offsets;
    for (int64_t n = 0; n <= sequences; ++n) offsets.push_back(tokens * n / sequences);
    PackedTables tables;
    DeviceMemory memory(place(tables, shape, nullptr)), put(offsets.size() * 8);
    place(tables, shape, static_cast<char *>(memory.data));
    put.put(offsets);
    tables.offsets = put.data, tables.sequences = sequences;
    tables.cuts[0].short_runs = {};
    std::printf("packed tables of %5lld sequences, %lld tokens: %.1f us\n", (long long)sequences, (long long)tokens,
                1000 * median_ms([&] { check(launch_packed_tables(tables, ZeroPadding(), nullptr), "tables"); }));
  }
}

}  // namespace

int main(int argc, char **argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 77;
  check(load_packed_tables(), "load");
  const int failed = test_packings();
  if (argc > 1 && std::strcmp(argv[1], "--time") == 0) measure();
  return failed ? 1 : 0;
}
