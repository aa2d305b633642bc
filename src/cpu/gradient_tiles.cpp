// The tiles of the backward pass: the inputs of a chunk and head, and where its gradients go. Heads that share an
// input head are worked on one after the other, so that sums over a group happen in one place and in one order.
#include <algorithm>

#include "rank_work.h"

namespace lasp::cpu {
namespace {

// Output heads that read one input head lie side by side.
bool first_of(int32_t head, int32_t heads, int32_t shared) { return head % (heads / shared) == 0; }
bool last_of(int32_t head, int32_t heads, int32_t shared) { return first_of(head + 1, heads, shared); }

}  // namespace

RankWork::HeadInputs RankWork::load_inputs(const BackwardBuffers &b, const TokenSpan &span, int32_t head,
                                           Scratch &s) const {
  const Problem &p = problem_;
  return {math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q),
          math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k),
          math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v),
          math_.load(b.d_o, p.d_o, head, span, p.head_dim_v, s.d_o)};
}

// `complete`: no part of dk, dv and d_decay is left for later.
GradientTiles RankWork::output_tiles(const BackwardBuffers &b, const TokenSpan &span, int32_t head, Scratch &s,
                                     bool complete) const {
  const Problem &p = problem_;
  GradientTiles to;
  to.dq = math_.sink(b.dq, p.dq, p.q_head(head), span, p.head_dim_k, s.dq, p.dq_dtype, true);
  to.dk = math_.sink(b.dk, p.dk, p.k_head(head), span, p.head_dim_k, s.dk, p.dk_dtype, complete);
  to.dv = math_.sink(b.dv, p.dv, p.v_head(head), span, p.head_dim_v, s.dv, p.dv_dtype, complete);
  to.add_dq = !first_of(head, p.heads, p.heads_q) || (b.adds(LASP_ADD_DQ) && to.dq.data != s.dq);
  to.add_dk = !first_of(head, p.heads, p.heads_k) || (b.adds(LASP_ADD_DK) && to.dk.data != s.dk);
  to.add_dv = !first_of(head, p.heads, p.heads_v) || (b.adds(LASP_ADD_DV) && to.dv.data != s.dv);
  if (b.d_decay != nullptr && p.decay == Decay::kChannel) {
    to.dg_channel =
        math_.sink(b.d_decay, p.d_decay_layout, head, span, p.head_dim_k, s.dg, p.d_decay_dtype, complete);
    to.add_dg_channel = b.adds(LASP_ADD_D_DECAY) && to.dg_channel.data != s.dg;
  } else if (b.d_decay != nullptr && p.decay != Decay::kNone) {
    to.dg = s.dg_tokens;
  }
  return to;
}

// Rounds what is complete after this head into the outputs.
void RankWork::flush_tiles(const BackwardBuffers &b, const GradientTiles &to, const TokenSpan &span, int64_t chunk,
                           int32_t head, bool query, bool rest, double *head_dg, Scratch &s) const {
  const Problem &p = problem_;
  if (query && last_of(head, p.heads, p.heads_q)) {
    math_.flush(to.dq, b.dq, p.dq, p.q_head(head), span, p.head_dim_k, p.dq_dtype, b.adds(LASP_ADD_DQ));
  }
  if (!rest) return;
  if (last_of(head, p.heads, p.heads_k)) {
    math_.flush(to.dk, b.dk, p.dk, p.k_head(head), span, p.head_dim_k, p.dk_dtype, b.adds(LASP_ADD_DK));
  }
  if (last_of(head, p.heads, p.heads_v)) {
    math_.flush(to.dv, b.dv, p.dv, p.v_head(head), span, p.head_dim_v, p.dv_dtype, b.adds(LASP_ADD_DV));
  }
  if (to.dg_channel.data != nullptr) {
    math_.flush(to.dg_channel, b.d_decay, p.d_decay_layout, head, span, p.head_dim_k, p.d_decay_dtype,
                b.adds(LASP_ADD_D_DECAY));
  }
  if (to.dg == nullptr) return;
  if (p.decay == Decay::kHead) {
    double total = 0;
    for (int t = 0; t < span.length; ++t) total += to.dg[t];
    head_dg[chunk * p.heads + head] = total;
  } else {
    if (b.adds(LASP_ADD_D_DECAY)) {
      math_.load_values(b.d_decay, p.d_decay_layout, head, span, s.decay_row, s.shorts, p.d_decay_dtype);
      for (int t = 0; t < span.length; ++t) to.dg[t] += s.decay_row[t];
    }
    std::copy_n(to.dg, span.length, s.column_sums);
    math_.store_values(b.d_decay, p.d_decay_layout, head, span, s.column_sums, s.shorts, p.d_decay_dtype);
  }
}

// A head's gradient of a constant decay: this rank's chunks, in their order.
void RankWork::sum_head_decay(const BackwardBuffers &b, const double *head_dg) const {
  if (problem_.decay != Decay::kHead || b.d_decay == nullptr) return;
  for (int32_t head = 0; head < problem_.heads; ++head) {
    double total = 0;
    for (int64_t n = 0; n < chunks(); ++n) total += head_dg[n * problem_.heads + head];
    float &sum = static_cast<float *>(b.d_decay)[head];
    sum = static_cast<float>(b.adds(LASP_ADD_D_DECAY) ? sum + total : total);
  }
}

}  // namespace lasp::cpu
