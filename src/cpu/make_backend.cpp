// Which strategy serves a problem on the CPU.
#include "cpu_backend.h"
#include "delta_backend.h"

namespace lasp {

std::unique_ptr<cpu::RankWork> make_cpu_backend(const Problem &problem, const TokenPartition &partition,
                                                ThreadPool &pool) {
  if (problem.delta) return std::make_unique<cpu::DeltaBackend>(problem, partition, pool, cpu::kernels());
  return std::make_unique<cpu::CpuBackend>(problem, partition, pool, cpu::kernels());
}

}  // namespace lasp
