// Tables of a packing that the host makes: they travel as parameters of a kernel, which puts them in their places
// and empties the entries that are not used.
#include "device.cuh"
#include "one_thread.h"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 128, kBlocksOfTable = 8;
constexpr size_t kMostBytes = 32764;  // of a kernel's parameters, from compute capability 7.0 on
constexpr int kMostTables = kMostCuts * TableShared::kMostUses + 1;
constexpr uint32_t kRunWords = sizeof(Run) / sizeof(int64_t);

struct CarriedTable {
  int64_t *to;
  uint32_t used, unused;  // words
  uint32_t from;          // of runs: where their numbers begin in CarriedTables::run_of; else of words
  bool runs;
};

// Most tables of runs hold the same ones in part: a run travels once, and tables say which. An empty entry does
// not.
constexpr uint16_t kEmptyRun = UINT16_MAX;

template <uint32_t kMostRuns_, uint32_t kMostNumbers_, uint32_t kMostWords_>
struct CarriedTables {
  static constexpr uint32_t kMostRuns = kMostRuns_, kMostNumbers = kMostNumbers_, kMostWords = kMostWords_;
  CarriedTable tables[kMostTables];
  int64_t runs[kMostRuns * kRunWords];
  int64_t words[kMostWords];
  uint16_t run_of[kMostNumbers];
};
// The host copies all of a kernel's parameters, so that few tables travel in few.
using FewTables = CarriedTables<96, 512, 256>;
using ManyTables = CarriedTables<kMostCarriedRuns, 2048, 768>;
static_assert(sizeof(ManyTables) <= kMostBytes);

template <class Carried>
__global__ void __launch_bounds__(kThreads) put_tables_kernel(const __grid_constant__ Carried p) {
  const CarriedTable &table = p.tables[blockIdx.y];
  const uint32_t first = blockIdx.x * kThreads + threadIdx.x, step = gridDim.x * kThreads;
  LASP_ROLLED for (uint32_t i = first; i < table.used; i += step) {
    if (!table.runs) {
      table.to[i] = p.words[table.from + i];
      continue;
    }
    const uint32_t run = p.run_of[table.from + i / kRunWords];
    table.to[i] = run == kEmptyRun ? empty_word(true, i) : p.runs[run * kRunWords + i % kRunWords];
  }
  LASP_ROLLED for (uint32_t i = first; i < table.unused; i += step) table.to[table.used + i] =
      empty_word(table.runs, i);
}

struct HostThread : OneThread {
  LASP_BOTH bool clears() const { return false; }  // the kernel does
};

// Tables in device memory as they are in its image.
class Imaged {
 public:
  explicit Imaged(const TableImage &image) : image_(image) {}

  template <class T>
  void operator()(T *&data) const {
    if (data != nullptr) data = reinterpret_cast<T *>(moved(data, image_.device, image_.host));
  }
  template <class T>
  void operator()(Table<T> &table) const {
    (*this)(table.data);
  }
  int64_t *on_device(int64_t *data) const {
    return reinterpret_cast<int64_t *>(moved(data, image_.host, image_.device));
  }

 private:
  static std::byte *moved(void *data, void *from, void *to) {
    return static_cast<std::byte *>(to) + (static_cast<std::byte *>(data) - static_cast<std::byte *>(from));
  }
  const TableImage &image_;
};

PackedTables in_image(const PackedTables &from, const Imaged &move) {
  PackedTables to = from;
  move(to.empty), move(to.live);
  for (int32_t n = 0; n < to.num_cuts; ++n) {
    PackedCut &cut = to.cuts[n];
    move(cut.scratch), move(cut.segments), move(cut.state_runs), move(cut.beginnings);
    move(cut.short_runs.short_runs), move(cut.short_runs.segments);
    for (const int reversed : {0, 1}) {
      move(cut.followed[reversed]), move(cut.leading[reversed]), move(cut.runs[reversed]);
      move(cut.consumers[reversed]), move(cut.independent[reversed]), move(cut.short_runs.entered_at[reversed]);
    }
  }
  return to;
}

// Puts what the tables use into parameters, as long as there is room.
class Carrier {
 public:
  explicit Carrier(const Imaged &image) : image_(image) {}

  bool add(const TableWords &table) {
    carried_.tables[num_tables_++] = {image_.on_device(table.words), static_cast<uint32_t>(table.used),
                                      static_cast<uint32_t>(table.unused), table.runs ? num_numbers_ : num_words_,
                                      table.runs};
    return table.runs ? add_runs(table) : add_words(table);
  }

  int launch(Stream stream) const {
    const bool few = num_runs_ <= FewTables::kMostRuns && num_numbers_ <= FewTables::kMostNumbers &&
                     num_words_ <= FewTables::kMostWords;
    return few ? launch(copy<FewTables>(), stream) : launch(carried_, stream);
  }

 private:
  bool add_words(const TableWords &table) {
    if (num_words_ + table.used > ManyTables::kMostWords) return false;
    std::copy_n(table.words, table.used, carried_.words + num_words_);
    num_words_ += static_cast<uint32_t>(table.used);
    return true;
  }
  bool add_runs(const TableWords &table) {
    if (num_numbers_ + table.used / kRunWords > ManyTables::kMostNumbers) return false;
    uint32_t next = 0;  // tables are in the same order: a run that is there already is mostly the next one
    for (int64_t at = 0; at < table.used; at += kRunWords) {
      if (reinterpret_cast<const Run *>(table.words + at)->length == 0) {
        carried_.run_of[num_numbers_++] = kEmptyRun;
        continue;
      }
      const uint32_t number = number_of(table.words + at, next);
      if (number == ManyTables::kMostRuns) return false;
      carried_.run_of[num_numbers_++] = static_cast<uint16_t>(number);
      next = number + 1;
    }
    return true;
  }
  bool is(uint32_t number, const int64_t *run) const {
    return std::equal(run, run + kRunWords, carried_.runs + number * kRunWords);
  }
  // After the last one that travels comes a new one: looking for each of them would take long.
  uint32_t number_of(const int64_t *run, uint32_t next) {
    for (uint32_t n = next; n < num_runs_; ++n)
      if (is(n, run)) return n;
    for (uint32_t n = 0; next < num_runs_ && n < next; ++n)
      if (is(n, run)) return n;
    if (num_runs_ == ManyTables::kMostRuns) return num_runs_;
    std::copy_n(run, kRunWords, carried_.runs + num_runs_ * kRunWords);
    return num_runs_++;
  }

  template <class Carried>
  Carried copy() const {
    Carried to;
    std::copy_n(carried_.tables, num_tables_, to.tables);
    std::copy_n(carried_.runs, num_runs_ * kRunWords, to.runs);
    std::copy_n(carried_.words, num_words_, to.words);
    std::copy_n(carried_.run_of, num_numbers_, to.run_of);
    return to;
  }
  template <class Carried>
  int launch(const Carried &carried, Stream stream) const {
    put_tables_kernel<<<dim3(kBlocksOfTable, num_tables_), kThreads, 0, stream>>>(carried);
    return cudaGetLastError();
  }

  const Imaged &image_;
  ManyTables carried_;
  unsigned num_tables_ = 0;
  uint32_t num_runs_ = 0, num_numbers_ = 0, num_words_ = 0;
};

}  // namespace

int launch_carried_tables(const PackedTables &p, const int32_t *offsets, const TableImage &image, Stream stream) {
  const Imaged move(image);
  const PackedTables tables = in_image(p, move);
  Carrier carrier(move);
  for (int32_t cut = 0; cut < tables.num_cuts; ++cut) {
    HostThread block;
    TableBuilder<HostThread>(tables, offsets, cut, block).build();
    const TableShared &made = block.shared();
    for (int n = 0; n < made.num_uses; ++n)
      if (!carrier.add(made.uses[n])) return kTooManyTables;
  }
  if (!carrier.add({tables.live, kLivePadding + tables.num_ranges, 0, false})) return kTooManyTables;
  return carrier.launch(stream);
}

int load_carried_tables() { return load_kernels(put_tables_kernel<FewTables>, put_tables_kernel<ManyTables>); }

}  // namespace lasp::gpu
