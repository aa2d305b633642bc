// Gathering: token tensors by each rank's range, states from the rank that owns the sequence, per-head decay
// gradients by their sum over ranks.
#include "support/group.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace lasp_test {
namespace {

std::vector<double> gather_tokens(const Case &c, const std::vector<RankResult> &ranks, TensorId id, int64_t width) {
  const std::vector<int64_t> tokens = tokens_of_ranks(c, static_cast<int32_t>(ranks.size()));
  std::vector<double> global(c.batch * c.tokens * width);
  int64_t begin = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<float> &local = ranks[r].tensors[id];
    const int64_t row = tokens[r] * width;
    if (static_cast<int64_t>(local.size()) != c.batch * row) return {};
    for (int64_t b = 0; b < c.batch; ++b) {
      std::copy_n(local.begin() + b * row, row, global.begin() + (b * c.tokens + begin) * width);
    }
    begin += tokens[r];
  }
  return in_order_of_tokens(c, static_cast<int32_t>(ranks.size()), global);
}

std::vector<double> gather_states(const Case &c, const std::vector<RankResult> &ranks, TensorId id,
                                  int32_t SequenceOwner::*owner, std::string &complaints) {
  if (ranks[0].tensors[id].empty()) return {};
  std::vector<double> global(ranks[0].tensors[id].size());
  const std::vector<SequenceOwner> owners = sequence_owners(c, static_cast<int32_t>(ranks.size()));
  const int64_t state = c.heads() * c.head_dim_k * c.head_dim_v;
  for (size_t n = 0; n < owners.size(); ++n) {
    const float *const from = ranks[owners[n].*owner].tensors[id].data() + n * state;
    std::copy_n(from, state, global.begin() + n * state);
    for (size_t r = 0; c.broadcast && id == kFinalState && r < ranks.size(); ++r) {
      if (std::memcmp(from, ranks[r].tensors[id].data() + n * state, 4 * state) != 0) {
        complaints += "rank " + std::to_string(r) + " has another broadcast final_state than its last rank\n";
      }
    }
  }
  return global;
}

std::vector<double> sum_over_ranks(const std::vector<RankResult> &ranks, TensorId id) {
  std::vector<double> sum(ranks[0].tensors[id].size(), 0.0);
  for (const RankResult &rank : ranks) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += rank.tensors[id].at(i);
  }
  return sum;
}

}  // namespace

Outputs assemble(const Case &c, std::vector<RankResult> ranks) {
  Outputs out;
  out.plan_status = ranks[0].plan_status;
  for (const RankResult &rank : ranks) out.tensor_cores = out.tensor_cores || rank.tensor_cores;
  uint64_t sent = 0, received = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].complaints.empty()) out.complaints += "rank " + std::to_string(r) + ": " + ranks[r].complaints;
    sent += ranks[r].bytes_sent;
    received += ranks[r].bytes_received;
  }
  if (out.complaints.empty()) {
    if (sent != received) out.complaints += "all ranks together sent other bytes than they received\n";
    const int64_t values = c.heads() * c.head_dim_v;
    out.tensors[kO] = gather_tokens(c, ranks, kO, values);
    out.tensors[kDq] = gather_tokens(c, ranks, kDq, int64_t{c.heads_q} * c.head_dim_k);
    out.tensors[kDk] = gather_tokens(c, ranks, kDk, int64_t{c.heads_k} * c.head_dim_k);
    out.tensors[kDv] = gather_tokens(c, ranks, kDv, int64_t{c.heads_v} * c.head_dim_v);
    if (c.decay == LASP_DECAY_HEAD) {
      out.tensors[kDDecay] = sum_over_ranks(ranks, kDDecay);
    } else if (c.decay != LASP_DECAY_NONE) {
      const int64_t width = c.decay == LASP_DECAY_SCALAR ? 1 : c.head_dim_k;
      out.tensors[kDDecay] = gather_tokens(c, ranks, kDDecay, c.heads() * width);
    }
    if (c.delta) out.tensors[kDBeta] = gather_tokens(c, ranks, kDBeta, c.heads());
    out.tensors[kFinalState] = gather_states(c, ranks, kFinalState, &SequenceOwner::last_rank, out.complaints);
    out.tensors[kDInitialState] =
        gather_states(c, ranks, kDInitialState, &SequenceOwner::first_rank, out.complaints);
  }
  out.ranks = std::move(ranks);
  return out;
}

void on_threads(int32_t nranks, const std::function<void(int32_t)> &body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < nranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread &thread : threads) thread.join();
}

Outputs run_case(const Case &c, const CaseData &data, Transport transport, int32_t nranks,
                 const RunOptions &options) {
  std::vector<lasp_comm *> comms(nranks, nullptr);
  const lasp_status made = transport == Transport::self ? lasp_comm_create_self(comms.data())
                                                        : lasp_comm_create_threads(nranks, comms.data());
  if (made != LASP_OK) {
    Outputs out;
    out.complaints = std::string("making the group: ") + lasp_last_error();
    return out;
  }
  RunOptions of_rank = options;
  if ((std::hash<std::string>()(c.name) + options.schedule + nranks) % 2 == 0) of_rank.own_stream = true;
  std::vector<RankResult> ranks(nranks);
  on_threads(nranks, [&](int32_t rank) { ranks[rank] = run_rank(c, data, comms[rank], of_rank); });
  Outputs out = assemble(c, std::move(ranks));
  for (lasp_comm *comm : comms) {
    if (lasp_comm_destroy(comm) != LASP_OK)
      out.complaints += std::string("lasp_comm_destroy: ") + lasp_last_error();
  }
  return out;
}

const char *schedule_name(int32_t schedule) {
  constexpr const char *kNames[] = {"auto", "ring", "all_gather", "all_scan", "doubling", "head_scatter", "relay"};
  return kNames[schedule];
}

}  // namespace lasp_test
