// Special registers: PTX ISA, "Special registers".
#include "machine/special.h"

#include <array>

namespace emulator {
namespace {

using Axes = std::array<uint32_t, 3>;
Axes axes(const Dim3 &d) { return {d.x, d.y, d.z}; }

struct Name {
  std::string_view text;
  Special which;
};
constexpr Name kOfAnAxis[] = {{"%tid", Special::kThread},
                              {"%ntid", Special::kThreads},
                              {"%ctaid", Special::kBlock},
                              {"%nctaid", Special::kBlocks},
                              {"%clusterid", Special::kCluster},
                              {"%cluster_ctaid", Special::kBlockOfCluster},
                              {"%cluster_nctaid", Special::kBlocksOfCluster}};
constexpr Name kAlone[] = {{"%cluster_ctarank", Special::kRank},
                           {"%cluster_nctarank", Special::kRanks},
                           {"%laneid", Special::kLane},
                           {"%warpid", Special::kWarp},
                           {"%dynamic_smem_size", Special::kDynamicShared},
                           {"%lanemask_lt", Special::kLanesBelow},
                           {"%lanemask_le", Special::kLanesUpTo},
                           {"%lanemask_eq", Special::kThisLane},
                           {"%smid", Special::kZero},
                           {"%clock", Special::kZero},
                           {"%clock64", Special::kZero},
                           {"%globaltimer", Special::kZero}};

}  // namespace

SpecialRegister special_register(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot != std::string_view::npos && dot + 2 == name.size() && name.back() >= 'x' && name.back() <= 'z') {
    for (const Name &n : kOfAnAxis) {
      if (n.text == name.substr(0, dot)) return {n.which, name.back() - 'x'};
    }
  }
  for (const Name &n : kAlone) {
    if (n.text == name) return {n.which, 0};
  }
  throw Fault("unknown register " + std::string(name));
}

uint64_t value_of(const SpecialRegister &special, const Place &p) {
  const Launch &l = *p.launch;
  const Axes block = axes(l.block), cluster = axes(l.cluster), at = axes(p.block);
  const auto a = static_cast<size_t>(special.axis);
  const uint32_t lane = p.thread % kLanes;
  switch (special.which) {
    case Special::kThread:
      return Axes{p.thread % block[0], p.thread / block[0] % block[1], p.thread / (block[0] * block[1])}[a];
    case Special::kThreads: return block[a];
    case Special::kBlock: return at[a];
    case Special::kBlocks: return axes(l.grid)[a];
    case Special::kCluster: return at[a] / cluster[a];
    case Special::kBlockOfCluster: return at[a] % cluster[a];
    case Special::kBlocksOfCluster: return cluster[a];
    case Special::kRank: return p.rank;
    case Special::kRanks: return cluster[0] * cluster[1] * cluster[2];
    case Special::kLane: return lane;
    case Special::kWarp: return p.thread / kLanes;
    case Special::kDynamicShared: return l.dynamic_shared;
    case Special::kLanesBelow: return (1u << lane) - 1;
    case Special::kLanesUpTo: return (2u << lane) - 1;
    case Special::kThisLane: return 1u << lane;
    case Special::kZero: return 0;
  }
  return 0;
}

}  // namespace emulator
