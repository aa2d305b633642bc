// The plan in words: what was chosen, from which numbers, and why the rest was not.
#include <cstdarg>
#include <cstdio>

#include "core/schedules.h"
#include "engine/plan.h"

namespace lasp {
namespace {

[[gnu::format(printf, 2, 3)]] void append(std::string &text, const char *format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  text += line;
}

// Of an actual schedule, not AUTO.
const char *short_name(int32_t schedule) { return find_schedule(schedule)->short_name; }

constexpr const char *kDecayNames[] = {"none", "per head", "per token and head", "per token and key channel"};
constexpr const char *kDTypeNames[] = {"", "float32", "bfloat16", "float16"};  // by DType

// Of an exchange beside its messages, where they take time.
void append_costs(std::string &text, const Link &link, bool dense) {
  if (link.round_us > 0) append(text, ", %.3g us a round of both ways", link.round_us);
  const double launch = dense ? link.dense_us : link.fold_us, rate = dense ? link.dense_tflops : link.fold_gbs;
  if (launch > 0 || rate > 0) append(text, ", %.3g us a composition", launch);
  if (rate > 0) append(text, " and %.3g %s", rate, dense ? "TFLOP/s" : "GB/s");
}

}  // namespace

std::string Plan::describe_problem() const {
  const Problem &p = problem_;
  std::string text;
  append(text,
         "B %lld, T %lld of %lld from %lld, heads %d/%d/%d, K %d, V %d, %s, decay %s, %s%s%s, %s%lld sequence(s)",
         static_cast<long long>(p.batch), static_cast<long long>(p.tokens), static_cast<long long>(ranges_.total()),
         static_cast<long long>(p.token_begin), p.heads_q, p.heads_k, p.heads_v, p.head_dim_k, p.head_dim_v,
         kDTypeNames[static_cast<int32_t>(p.dtype)], kDecayNames[static_cast<int32_t>(p.decay)],
         p.delta ? "delta rule, " : "", p.bidirectional ? "bidirectional" : "causal",
         p.ownership == LASP_OWN_ZIGZAG ? ", zigzag"
         : p.each                       ? ", zigzag of each sequence"
         : p.ownership == LASP_OWN_RUNS ? ", in runs"
                                        : "",
         p.packed ? "at most " : "", static_cast<long long>(p.num_sequences));
  return text;
}

std::string Plan::describe_schedule() const {
  std::string text;
  append(text, "%s (%s)", short_name(schedule_), reason_.c_str());
  if (schedule_ == LASP_SCHEDULE_ALL_SCAN) append(text, " in %d pieces", pieces_);
  return text;
}

std::string Plan::summary() const {
  std::string text = "rank " + std::to_string(info_.rank) + " of " + std::to_string(info_.nranks) + ": " +
                     describe_problem() + "; schedule " + describe_schedule() + "; " +
                     passes_->backend().description();
  append(text, "; workspace forward %llu, backward %llu, state cache %llu bytes",
         static_cast<unsigned long long>(info_.workspace_forward_bytes),
         static_cast<unsigned long long>(info_.workspace_backward_bytes),
         static_cast<unsigned long long>(info_.state_cache_bytes));
  return text;
}

std::string Plan::describe() const {
  std::string text = "problem: " + describe_problem() + '\n';
  append(text, "rank: %d of %d over %s, ", info_.rank, info_.nranks, context_.comm().name().c_str());
  text += context_.device().description() + '\n';
  text += std::string("backend: ") + passes_->backend().description() + '\n';
  text += "schedule: " + describe_schedule() + '\n';
  if (info_.nranks > 1) {
    const bool agreed_on_rank_0 = info_.rank > 0 && !context_.comm().assumes_others();
    append(text, "model: latency %.3g us, bandwidth %.3g GB/s (%s), payload %lld bytes per rank", link_.latency_us,
           link_.bandwidth_gbs, agreed_on_rank_0 ? "as on rank 0" : context_.link_source(),
           static_cast<long long>(left_.map.state_floats() * 4));
    if (problem_.delta) append(text, ", with its transition %lld", static_cast<long long>(left_.map.floats() * 4));
    append_costs(text, link_, problem_.delta);
    text += '\n';
    for (int32_t schedule = 1; find_schedule(schedule) != nullptr; ++schedule)
      if (info_.predicted_us[schedule] >= 0)
        append(text, "  %-10s %10.1f us predicted%s%s\n", short_name(schedule), info_.predicted_us[schedule],
               find_schedule(schedule)->waits ? ", and the passes that a rank waits for" : "",
               schedule == schedule_ ? ", chosen" : "");
  }
  append(text, "bytes sent: forward %llu in %llu message(s), backward %llu in %llu\n",
         static_cast<unsigned long long>(info_.forward_bytes_sent),
         static_cast<unsigned long long>(info_.forward_messages_sent),
         static_cast<unsigned long long>(info_.backward_bytes_sent),
         static_cast<unsigned long long>(info_.backward_messages_sent));
  if (context_.verify_messages())
    text += "messages: each is followed by a checksum of 8 bytes, which no count of bytes or messages includes\n";
  append(text,
         "memory: workspace forward %llu, backward %llu; state cache %llu (incoming %llu, chunks %llu) bytes\n",
         static_cast<unsigned long long>(info_.workspace_forward_bytes),
         static_cast<unsigned long long>(info_.workspace_backward_bytes),
         static_cast<unsigned long long>(info_.state_cache_bytes),
         static_cast<unsigned long long>(info_.state_cache_incoming_bytes),
         static_cast<unsigned long long>(info_.state_cache_chunks_bytes));
  return text;
}

}  // namespace lasp
