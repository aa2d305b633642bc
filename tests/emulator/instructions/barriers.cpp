// Barriers of blocks and clusters: PTX ISA, "bar, barrier" and "barrier.cluster". A barrier of a block counts whole
// warps.
#include "instructions/control.h"

namespace emulator {
namespace {

bool is_over(const Block::Barrier &b, uint64_t generation) { return b.generation != generation; }

void finish(Block::Barrier &b) {
  b.was_any = b.any, b.was_all = b.all;
  b.any = false, b.all = true;
  b.arrived = 0;
  ++b.generation;
}

// Those of warps that have exited no longer count.
int threads_alive(const Block &block) {
  int threads = 0;
  for (const Warp &w : block.warps) threads += w.alive != 0 ? kLanes : 0;
  return threads;
}

Block::Barrier &barrier_of(const Warp &w, int number, int wanted, uint32_t lanes) {
  if (number < 0 || number > 15) throw Fault("there is no barrier " + std::to_string(number));
  if (wanted < 0 || wanted % kLanes != 0) throw Fault("a barrier of " + std::to_string(wanted) + " threads");
  if (lanes != w.alive) throw Fault("not all threads of the warp come to the barrier");
  return w.block->barriers[number];
}

void add_warp(Block::Barrier &b, int wanted) {
  b.arrived += kLanes;
  if (wanted > 0 && b.arrived > wanted) throw Fault("more threads come to the barrier than it is for");
  if (b.arrived == wanted) finish(b);
}

// Arrives once, and from then on asks whether all have. True once they have. `wanted`: threads, 0: all.
bool meet(Warp &w, int number, int wanted, uint32_t lanes, uint32_t predicate) {
  Block::Barrier &b = barrier_of(w, number, wanted, lanes);
  if (w.barrier < 0) {
    w.barrier = number;
    w.generation = b.generation;
    b.any |= (predicate & lanes) != 0;
    b.all &= (~predicate & lanes) == 0;
    add_warp(b, wanted);
  }
  if (!is_over(b, w.generation) && wanted == 0 && b.arrived >= threads_alive(*w.block)) finish(b);
  w.again = !is_over(b, w.generation);
  if (!w.again) w.barrier = -1;
  return !w.again;
}

int uniform(const Warp &w, const Operand &o, uint32_t lanes) {
  return static_cast<int>(lane_bits(w, o, __builtin_ctz(lanes)));
}

// bar.sync number{, threads}
void synchronize(Warp &w, const Instruction &i, uint32_t lanes) {
  meet(w, uniform(w, i[0], lanes), i.count > 1 ? uniform(w, i[1], lanes) : 0, lanes, 0);
}
// bar.arrive number, threads
void arrive(Warp &w, const Instruction &i, uint32_t lanes) {
  const int wanted = uniform(w, i[1], lanes);
  if (wanted == 0) throw Fault("a barrier of 0 threads");
  add_warp(barrier_of(w, uniform(w, i[0], lanes), wanted, lanes), wanted);
}
// bar.red.or.pred p, number{, threads}, q; detail: whether it is "and"
void reduce(Warp &w, const Instruction &i, uint32_t lanes) {
  const int number = uniform(w, i[1], lanes);
  const uint32_t q = w.predicate(i[i.count - 1]);
  if (!meet(w, number, i.count > 3 ? uniform(w, i[2], lanes) : 0, lanes, q)) return;
  const Block::Barrier &b = w.block->barriers[number];
  set_predicate(w, i[0], lanes, (i.detail != 0 ? b.was_all : b.was_any) ? lanes : 0);
}

// The cluster's barrier is over once every warp that has not exited has arrived.
void complete(Cluster &c) {
  for (const Block *block : c.blocks) {
    for (const Warp &w : block->warps) {
      if (w.alive != 0 && w.cluster_arrivals == c.phase) return;
    }
  }
  ++c.phase;
}
void cluster_arrive(Warp &w, const Instruction &, uint32_t lanes) {
  Cluster &c = *w.block->cluster;
  if (lanes != w.alive) throw Fault("not all threads of the warp come to the barrier");
  if (w.cluster_arrivals != c.phase) throw Fault("a second arrival at the cluster's barrier without a wait");
  ++w.cluster_arrivals;
  complete(c);
}
void cluster_wait(Warp &w, const Instruction &, uint32_t) {
  Cluster &c = *w.block->cluster;
  if (w.cluster_arrivals == 0) throw Fault("a wait at the cluster's barrier without an arrival");
  if (c.phase < w.cluster_arrivals) complete(c);
  w.again = c.phase < w.cluster_arrivals;
}

Handler of_cluster(const Parts &p) {
  if (p[2] == "arrive" && (p.count == 3 || p[3] == "release" || p[3] == "relaxed" || p[3] == "aligned"))
    return cluster_arrive;
  if (p[2] == "wait" && (p.count == 3 || p[3] == "acquire" || p[3] == "aligned")) return cluster_wait;
  return nullptr;
}

}  // namespace

Handler barrier_instruction(const Parts &p, Instruction &i) {
  i.meet = Instruction::kWarp;
  if (p[0] == "barrier" && p[1] == "cluster") return of_cluster(p);
  if (p[0] != "bar" || i.count == 0) return nullptr;
  if (p[1] == "sync" && p.count == 2 && i.count <= 2) return synchronize;
  if (p[1] == "arrive" && p.count == 2 && i.count == 2) return arrive;
  i.detail = p.has("and");
  if (p[1] == "red" && p.count == 4 && (p.has("and") || p.has("or")) && (i.count == 3 || i.count == 4) &&
      i[0].words == 0 && i[i.count - 1].words == 0)
    return reduce;
  return nullptr;
}

}  // namespace emulator
