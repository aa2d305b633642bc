#include "exchange/agreement.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/checksum.h"
#include "core/names.h"

namespace lasp {
namespace {

constexpr int64_t kMagic = 0x6c617370'00000005;        // "lasp", record layout 5
constexpr int64_t kValuesMagic = 0x6c617370'00010005;  // the same layout, of agree_on_values()
constexpr const char *kComparing = "comparing problems";

// What ranks must have in common, so that the sentence can say which field differs.
enum FieldIndex {
  kVersion,
  kDevice,
  kBatch,
  kHeadsQ,
  kHeadsK,
  kHeadsV,
  kHeadDimK,
  kHeadDimV,
  kDtype,
  kDecay,
  kWrite,
  kMask,
  kScale,
  kMaxSequences,
  kOwnership,
  kSchedule,
  kPieces,
  kCache,
  kChunk,
  kBackward,
  kBroadcast,
  kSegment,
  kRuns,
  kDecayDtype,
  kDqDtype,
  kDkDtype,
  kDvDtype,
  kDDecayDtype,
  kBetaDtype,
  kDBetaDtype,
  kVerifyMessages,
  kFieldCount
};
static_assert(kMostCommonValues <= kFieldCount);

std::string number(int64_t value) { return std::to_string(value); }
std::string version_name(int64_t v) {
  return "ABI " + number(v / 1000000000) + ", version " + number(v / 1000000 % 1000) + "." +
         number(v / 1000 % 1000) + "." + number(v % 1000);
}
std::string scale_text(int64_t bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", double(std::bit_cast<float>(static_cast<int32_t>(bits))));
  return text;
}

// In the order of the indices.
struct Field {
  const char *name;
  std::string (*text)(int64_t value);  // null: the value is a checksum, which says nothing
};
constexpr Field kFields[kFieldCount] = {{"the version of liblasp", version_name},
                                        {"device", device_name},
                                        {"batch", number},
                                        {"heads_q", number},
                                        {"heads_k", number},
                                        {"heads_v", number},
                                        {"head_dim_k", number},
                                        {"head_dim_v", number},
                                        {"dtype", dtype_name},
                                        {"decay", decay_name},
                                        {"write", write_name},
                                        {"mask", mask_name},
                                        {"scale", scale_text},
                                        {"max_sequences", number},
                                        {"ownership", ownership_name},
                                        {"schedule", schedule_name},
                                        {"pieces", number},
                                        {"cache", cache_name},
                                        {"chunk", number},
                                        {"backward", number},
                                        {"broadcast_final_state", number},
                                        {"segment", number},
                                        {"runs", nullptr},
                                        {"decay_layout.dtype", dtype_name},
                                        {"dq.dtype", dtype_name},
                                        {"dk.dtype", dtype_name},
                                        {"dv.dtype", dtype_name},
                                        {"d_decay_layout.dtype", dtype_name},
                                        {"beta_layout.dtype", dtype_name},
                                        {"d_beta_layout.dtype", dtype_name},
                                        {"verify_messages", number}};

struct Record {
  int64_t magic;
  uint64_t checksum;  // of the record, with 0 in this place; in every layout the second word
  int64_t refusal;    // status of the sender's own refusal, or 0
  int64_t tokens;
  Link link;
  int64_t fields[kFieldCount];
};

// Of agree_on_refusal().
struct Verdict {
  uint64_t checksum;
  int64_t refusal;
};
static_assert(sizeof(Record) <= kMostRecordBytes && sizeof(Verdict) <= kMostRecordBytes);

template <class T>
uint64_t checksum_of(T record) {
  record.checksum = 0;
  return checksum(&record, sizeof record, 0);
}

template <class T>
void require_undamaged(Comm &comm, const std::vector<T> &records) {
  for (size_t rank = 0; rank < records.size(); ++rank)
    if (records[rank].checksum != checksum_of(records[rank]))
      comm.lose_damaged(sizeof(T), static_cast<int32_t>(rank), kComparing);
}

// The list of LASP_OWN_RUNS as one number.
int64_t runs_checksum(const lasp_problem &given) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < given.num_runs; ++i) {
    const int64_t values[] = {given.runs[i].tokens, given.runs[i].rank};
    sum = checksum(values, sizeof values, sum);
  }
  return static_cast<int64_t>(sum);
}

Record make_record(const lasp_problem &given, const Problem &problem, const Setting &setting, lasp_status refusal) {
  Record r{};
  r.magic = kMagic;
  r.refusal = refusal;
  r.tokens = given.tokens;
  r.link = setting.link;
  int64_t *f = r.fields;
  f[kVersion] =
      ((int64_t{LASP_ABI} * 1000 + LASP_VERSION_MAJOR) * 1000 + LASP_VERSION_MINOR) * 1000 + LASP_VERSION_PATCH;
  f[kDevice] = setting.device;
  f[kBatch] = given.batch;
  f[kHeadsQ] = given.heads_q;
  f[kHeadsK] = given.heads_k;
  f[kHeadsV] = given.heads_v;
  f[kHeadDimK] = given.head_dim_k;
  f[kHeadDimV] = given.head_dim_v;
  f[kDtype] = given.dtype;
  f[kDecay] = given.decay;
  f[kWrite] = given.write;
  f[kMask] = given.mask;
  f[kScale] = std::bit_cast<int32_t>(problem.scale);
  f[kMaxSequences] = given.max_sequences;
  f[kOwnership] = given.ownership;
  f[kSchedule] = given.schedule;
  f[kPieces] = given.pieces;
  f[kCache] = given.cache;
  f[kChunk] = given.chunk;
  f[kBackward] = given.backward;
  f[kBroadcast] = given.broadcast_final_state;
  f[kSegment] = given.segment;
  f[kRuns] = refusal == LASP_OK ? runs_checksum(given) : 0;
  f[kDecayDtype] = static_cast<int64_t>(problem.decay_dtype);
  f[kDqDtype] = static_cast<int64_t>(problem.dq_dtype);
  f[kDkDtype] = static_cast<int64_t>(problem.dk_dtype);
  f[kDvDtype] = static_cast<int64_t>(problem.dv_dtype);
  f[kDDecayDtype] = static_cast<int64_t>(problem.d_decay_dtype);
  f[kBetaDtype] = static_cast<int64_t>(problem.beta_dtype);
  f[kDBetaDtype] = static_cast<int64_t>(problem.d_beta_dtype);
  f[kVerifyMessages] = setting.verify_messages;
  r.checksum = checksum_of(r);
  return r;
}

// The fields of all records against rank 0's, `count` of them; field(i) is a name and how to show a value.
template <class FieldOf>
void compare(const std::vector<Record> &records, size_t count, FieldOf field_of) {
  for (size_t rank = 1; rank < records.size(); ++rank) {
    for (size_t i = 0; i < count; ++i) {
      const int64_t a = records[0].fields[i], b = records[rank].fields[i];
      if (a == b) continue;
      const auto &field = field_of(i);
      if (field.text == nullptr)
        throw fail(LASP_ERROR_DISAGREEMENT, "%s: not the same on rank 0 and rank %zu", field.name, rank);
      throw fail(LASP_ERROR_DISAGREEMENT, "%s: rank 0 has %s, rank %zu has %s", field.name, field.text(a).c_str(),
                 rank, field.text(b).c_str());
    }
  }
}

// The numbers of a record that this rank goes on to use, whoever sent them. Its own problem has been checked
// before.
void check_numbers(const Record &record, size_t rank) {
  if (record.tokens < 0)
    throw fail(LASP_ERROR_DISAGREEMENT, "tokens = %lld on rank %zu: must not be negative",
               static_cast<long long>(record.tokens), rank);
  const auto usable = [](double value) { return std::isfinite(value) && value > 0; };
  const Link &link = record.link;
  if (!usable(link.latency_us) || !usable(link.bandwidth_gbs))
    throw fail(LASP_ERROR_DISAGREEMENT, "the link of rank %zu: %g us and %g GB/s are no latency and bandwidth",
               rank, link.latency_us, link.bandwidth_gbs);
  for (const double cost : {link.round_us, link.fold_us, link.fold_gbs, link.dense_us, link.dense_tflops})
    if (!usable(cost) && cost != 0)
      throw fail(LASP_ERROR_DISAGREEMENT, "the link of rank %zu: %g is no cost of an exchange", rank, cost);
}

// `status` for numbers that contradict each other: where one rank gave them all there is nobody to disagree with.
TokenRanges place_tokens(const std::vector<Record> &records, const lasp_problem &given, const Problem &problem,
                         lasp_status status) {
  if (problem.ownership == LASP_OWN_RUNS)
    return listed_ranges(static_cast<int32_t>(records.size()), {given.runs, static_cast<size_t>(given.num_runs)});
  if (problem.ownership == LASP_OWN_ZIGZAG || problem.each) {
    for (size_t rank = 0; rank < records.size(); ++rank)
      if (records[rank].tokens != records[0].tokens)
        throw fail(status, "tokens: rank 0 has %lld, rank %zu has %lld; with %s all have the same",
                   static_cast<long long>(records[0].tokens), rank, static_cast<long long>(records[rank].tokens),
                   ownership_name(problem.ownership).c_str());
    int64_t total;
    if (__builtin_mul_overflow(records[0].tokens, static_cast<int64_t>(records.size()), &total) ||
        total > int64_t{1} << 60)
      throw fail(status, "tokens: the ranks hold more than 2^60");
    const auto make = problem.each ? zigzag_each_ranges : zigzag_ranges;
    return make(static_cast<int32_t>(records.size()), records[0].tokens);
  }
  TokenRanges ranges;
  ranges.begin.push_back(0);
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const int64_t begin = ranges.begin.back();
    const Record &record = records[rank];
    int64_t end;
    if (__builtin_add_overflow(begin, record.tokens, &end) || end > int64_t{1} << 60)
      throw fail(status, "tokens: the ranks up to %zu hold more than 2^60", rank);
    ranges.begin.push_back(end);
  }
  for (size_t rank = 0; problem.segment > 0 && rank < records.size(); ++rank)
    if (records[rank].tokens > 0 && ranges.begin[rank] % problem.segment != 0)
      throw fail(status, "tokens: those of rank %zu begin at %lld, which is no multiple of segment = %lld", rank,
                 static_cast<long long>(ranges.begin[rank]), static_cast<long long>(problem.segment));
  return ranges;
}

// Another rank refused its problem (1xx, 2xx), and all live on; or it failed (4xx), and is gone.
[[noreturn]] void peer_refused(Comm &comm, size_t rank, int64_t status) {
  const std::string name = status_text(status);
  if (status / 100 == 4)
    comm.lose(fail(LASP_ERROR_PEER_LOST, "rank %zu did not come, its own %s failed with %s: rank %d was %s", rank,
                   comm.call(), name.c_str(), comm.rank(), kComparing),
              static_cast<int32_t>(rank));
  throw fail(LASP_ERROR_PEER_REFUSED, "rank %zu refused its problem with %s; its own sentence says why", rank,
             name.c_str());
}

}  // namespace

void gather_by_messages(Comm &comm, const void *own, void *all, size_t bytes, const WaitPolicy &policy) {
  const int32_t nranks = comm.nranks();
  const auto place = [&](int32_t rank) {
    return static_cast<std::byte *>(all) + static_cast<size_t>(rank) * bytes;
  };
  std::memcpy(place(comm.rank()), own, bytes);
  Messages messages;
  messages.reserve(2 * static_cast<size_t>(nranks));
  try {
    for (int32_t peer = 0; peer < nranks; ++peer) {
      if (peer == comm.rank()) continue;
      messages.receive(comm, place(peer), bytes, peer, kAgreementTag);
      messages.send(comm, own, bytes, peer, kAgreementTag);
    }
    messages.wait_all(comm, policy, kComparing);
  } catch (...) {
    messages.cancel_all(comm);
    throw;
  }
}

namespace {

// Where this rank has failed itself (4xx), that is the cause of what fails here: on a failed device messages fail
// too, and a rank that has heard of the failure may break the group before this one has heard of everybody.
template <class Message>
void gather_from_all(const Message &own, std::vector<Message> &all, const std::optional<Error> &refusal,
                     Gather gather) {
  try {
    gather(&own, all.data(), sizeof own);
  } catch (const Error &) {
    if (refusal && refusal->status / 100 == 4) throw *refusal;
    throw;
  }
}

}  // namespace

void agree_on_refusal(Comm &comm, const std::optional<Error> &refusal, Gather gather) {
  Verdict own{0, refusal ? refusal->status : LASP_OK};
  own.checksum = checksum_of(own);
  std::vector<Verdict> all(static_cast<size_t>(comm.nranks()));
  gather_from_all(own, all, refusal, gather);
  require_undamaged(comm, all);
  if (refusal) throw *refusal;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].refusal != LASP_OK) peer_refused(comm, rank, all[rank].refusal);
}

namespace {

// Every rank's record, once it is sure that each is whole, of this call, and of a rank that does not refuse.
std::vector<Record> gather_records(Comm &comm, const Record &own, const std::optional<Error> &refusal,
                                   Gather gather) {
  std::vector<Record> records(static_cast<size_t>(comm.nranks()));
  gather_from_all(own, records, refusal, gather);
  require_undamaged(comm, records);
  if (refusal) throw *refusal;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const Record &record = records[rank];
    if (record.magic != own.magic && (record.magic == kMagic || record.magic == kValuesMagic))
      throw fail(LASP_ERROR_DISAGREEMENT,
                 "rank %zu is in %s, this rank in %s: all ranks must make the same calls in the same order", rank,
                 record.magic == kMagic ? "lasp_plan_create" : "lasp_halo_create", comm.call());
    if (record.magic != own.magic)
      throw fail(LASP_ERROR_DISAGREEMENT, "rank %zu runs another version of liblasp", rank);
    if (record.refusal != LASP_OK) peer_refused(comm, rank, record.refusal);
  }
  return records;
}

}  // namespace

Agreed agree(Comm &comm, const lasp_problem &given, const Problem &problem, const Setting &setting,
             const std::optional<Error> &refusal, Gather gather) {
  const Record own = make_record(given, problem, setting, refusal ? refusal->status : LASP_OK);
  const std::vector<Record> records = gather_records(comm, own, refusal, gather);
  compare(records, kFieldCount, [](size_t i) -> const Field & { return kFields[i]; });
  for (size_t rank = 0; rank < records.size(); ++rank) check_numbers(records[rank], rank);
  const lasp_status status = records.size() == 1 ? LASP_ERROR_INVALID_ARGUMENT : LASP_ERROR_DISAGREEMENT;
  return {place_tokens(records, given, problem, status), records[0].link};
}

Agreed assume_agreement(Comm &comm, const lasp_problem &given, const Problem &problem, const Setting &setting) {
  const std::vector<Record> records(static_cast<size_t>(comm.nranks()),
                                    make_record(given, problem, setting, LASP_OK));
  return {place_tokens(records, given, problem, LASP_ERROR_INVALID_ARGUMENT), setting.link};
}

void agree_on_values(Comm &comm, std::span<const CommonValue> values, const std::optional<Error> &refusal,
                     Gather gather) {
  Record own{};
  own.magic = kValuesMagic;
  own.refusal = refusal ? refusal->status : LASP_OK;
  for (size_t i = 0; i < values.size(); ++i) own.fields[i] = values[i].value;
  own.checksum = checksum_of(own);
  compare(gather_records(comm, own, refusal, gather), values.size(),
          [&](size_t i) -> const CommonValue & { return values[i]; });
}

}  // namespace lasp
