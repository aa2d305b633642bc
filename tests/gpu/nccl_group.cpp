#include "gpu/nccl_group.h"

#include <barrier>
#include <map>

#include "support/device.h"

namespace lasp_test {

const NcclGroup &nccl_group(int32_t nranks) {
  static auto *const groups = new std::map<int32_t, NcclGroup>;  // never torn down: see gpu::NcclRank's library
  NcclGroup &group = (*groups)[nranks];
  if (group.empty()) group = gpu::make_nccl_group(nranks);
  return group;
}

std::vector<int32_t> nccl_group_sizes() {
  std::vector<int32_t> sizes;
  for (const int32_t nranks : {2, 4, 8}) {
    if (nranks <= gpu::device_count()) sizes.push_back(nranks);
  }
  return sizes;
}

Outputs run_case_nccl(const Case &c, const CaseData &data, const NcclGroup &group, const RunOptions &options) {
  const int32_t nranks = static_cast<int32_t>(group.size());
  std::barrier<> meeting(nranks);
  std::vector<RankResult> ranks(nranks);
  on_threads(nranks, [&](int32_t rank) {
    gpu::use_device(rank);
    RankResult &result = ranks[rank];
    lasp_comm *comm = nullptr;
    if (lasp_comm_create_nccl(group[rank]->get(), nullptr, &comm) != LASP_OK) {
      result.complaints = std::string("lasp_comm_create_nccl: ") + lasp_last_error() + "\n";
      meeting.arrive_and_drop();
      return;
    }
    RunOptions of_rank = options;
    of_rank.device_index = rank;
    of_rank.meet = [&meeting] { meeting.arrive_and_wait(); };
    if ((std::hash<std::string>()(c.name) + options.schedule) % 2 == 0) of_rank.own_stream = true;
    result = run_rank(c, data, comm, of_rank);
    if (lasp_comm_destroy(comm) != LASP_OK)
      result.complaints += std::string("lasp_comm_destroy: ") + lasp_last_error() + "\n";
  });
  return assemble(c, std::move(ranks));
}

}  // namespace lasp_test
