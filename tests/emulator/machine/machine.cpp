// Runs kernels: clusters one after another, the warps of a cluster by turns.
#include <algorithm>
#include <array>
#include <mutex>

#include "machine/warp_run.h"

namespace emulator {
namespace {

constexpr int kIdleRounds = 200;  // in which no warp did anything but wait: a deadlock

uint32_t volume(const Dim3 &d) { return d.x * d.y * d.z; }

class Machine {
 public:
  Machine(const Launch &launch, const Kernel &kernel) : launch_(launch), kernel_(kernel) {
    const size_t alignment = kernel_.dynamic_alignment;
    dynamic_at_ = (kSharedBase + kernel_.shared_bytes + alignment - 1) / alignment * alignment - kSharedBase;
    for (uint32_t rank = 0; rank < volume(launch_.cluster); ++rank) add_block(static_cast<int>(rank));
    for (Block &block : blocks_) {
      for (Warp &warp : block.warps) warps_.emplace_back(warp, kernel_);
    }
    if (kernel_.local_bytes == 0) return;
    for (const WarpRun &warp : warps_) add_memory(warp.local().data(), warp.local().size());
  }
  ~Machine() {
    if (kernel_.local_bytes == 0) return;
    for (const WarpRun &warp : warps_) remove_memory(warp.local().data());
  }
  Machine(const Machine &) = delete;

  void run() {
    const Dim3 &grid = launch_.grid, &step = launch_.cluster;
    for (uint32_t z = 0; z < grid.z; z += step.z)
      for (uint32_t y = 0; y < grid.y; y += step.y)
        for (uint32_t x = 0; x < grid.x; x += step.x) run_cluster({x, y, z});
  }

 private:
  void add_block(int rank) {
    Block &block = blocks_.emplace_back();
    block.cluster = &cluster_;
    block.rank = rank;
    block.threads = static_cast<int>(volume(launch_.block));
    block.parameters = launch_.parameters.data();
    block.parameter_bytes = launch_.parameters.size();
    block.shared.resize(dynamic_at_ + launch_.dynamic_shared);
    block.warps.resize(static_cast<size_t>(block.threads + kLanes - 1) / kLanes);
    for (size_t w = 0; w < block.warps.size(); ++w) {
      block.warps[w].block = &block;
      block.warps[w].index = static_cast<int>(w);
    }
    cluster_.blocks.push_back(&block);
  }

  void run_cluster(const Dim3 &first) {
    begin(first);
    int idle = 0;
    for (bool alive = true; alive;) {
      alive = false;
      bool worked = false;
      for (WarpRun &warp : warps_) {
        if (warp.ended()) continue;
        worked |= warp.turn();
        alive |= !warp.ended();
      }
      idle = worked ? 0 : idle + 1;
      if (alive && idle > kIdleRounds) deadlock();
    }
  }

  // Shared memory that is not written before it is read holds all ones.
  void begin(const Dim3 &first) {
    cluster_.phase = 0;
    auto warp = warps_.begin();
    for (Block &block : blocks_) {
      std::fill(block.shared.begin(), block.shared.end(), std::byte{0xff});
      for (Block::Barrier &b : block.barriers) b = {};
      block.late.reset();
      const auto rank = static_cast<uint32_t>(block.rank);
      const Dim3 &c = launch_.cluster;
      const Dim3 at{first.x + rank % c.x, first.y + rank / c.x % c.y, first.z + rank / (c.x * c.y)};
      for (size_t w = 0; w < block.warps.size(); ++w) (warp++)->begin(launch_, at, dynamic_at_);
    }
  }

  [[noreturn]] void deadlock() const {
    std::string text = kernel_.name + ": every warp waits:";
    for (const WarpRun &warp : warps_) text += warp.places();
    throw Fault(text);
  }

  const Launch &launch_;
  const Kernel &kernel_;
  size_t dynamic_at_ = 0;
  Cluster cluster_;
  std::deque<Block> blocks_;
  std::deque<WarpRun> warps_;
};

// Memory that kernels may use for as long as it lives.
struct Lent {
  explicit Lent(const std::vector<std::byte> &bytes) : data(bytes.data()) { add_memory(data, bytes.size()); }
  ~Lent() { remove_memory(data); }
  Lent(const Lent &) = delete;
  const void *data;
};

const Kernel &kernel_of(std::string_view name) {
  const Kernel *kernel = find_kernel(name);
  if (kernel == nullptr) throw Fault("no kernel " + std::string(name));
  return *kernel;
}

}  // namespace

const KernelFacts &facts(std::string_view kernel) { return kernel_of(kernel).facts; }

void run(const Launch &launch) {
  static std::array<std::mutex, kMostDevices> turns;  // kernels of several devices may wait for each other
  const Kernel &kernel = kernel_of(launch.kernel);
  Launch one = launch;
  if (volume(kernel.cluster) > 1) one.cluster = kernel.cluster;
  if (one.grid.x % one.cluster.x != 0 || one.grid.y % one.cluster.y != 0 || one.grid.z % one.cluster.z != 0)
    throw Fault(kernel.name + ": the grid is no multiple of the cluster");
  one.parameters.resize(std::max<size_t>({one.parameters.size(), kernel.parameter_bytes, 1}));
  const std::lock_guard lock(turns.at(static_cast<size_t>(launch.device)));
  const Lent parameters(one.parameters);
  Machine(one, kernel).run();
}

}  // namespace emulator
