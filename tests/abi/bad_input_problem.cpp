// Wrong problems: every refusal of lasp_plan_create on one rank.
#include <cmath>
#include <cstdint>
#include <limits>

#include "bad_input.h"
#include "support/strided_layout.h"

namespace {

using lasp_test::strided;

template <class Change>
lasp_status plan(Rig &rig, Change change) {
  lasp_problem problem = Rig::valid_problem();
  change(problem);
  return lasp_plan_create(rig.context, &problem, &rig.outs.plan);
}

#define PROBLEM(change) [](Rig &r) { return plan(r, [](lasp_problem &p) { change; }); }
// Of three runs, one of them without tokens.
#define RUNS(change)                                                      \
  [](Rig &r) {                                                            \
    lasp_run runs[] = {{Rig::kTokens - 10, 0, 0}, {0, 0, 0}, {10, 0, 0}}; \
    return plan(r, [&](lasp_problem &p) {                                 \
      p.ownership = LASP_OWN_RUNS, p.runs = runs, p.num_runs = 3;         \
      change;                                                             \
    });                                                                   \
  }

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kForce = 0x7fffffff;
constexpr int64_t kHuge = int64_t{1} << 62;

const WrongCall kSizes[] = {
    {"NullContext", kInvalid, "context",
     [](Rig &r) {
       const lasp_problem problem = Rig::valid_problem();
       return lasp_plan_create(nullptr, &problem, &r.outs.plan);
     }},
    {"DeadContext", LASP_ERROR_INVALID_HANDLE, "context",
     [](Rig &r) {
       const lasp_problem problem = Rig::valid_problem();
       return lasp_plan_create(reinterpret_cast<lasp_context *>(r.plan), &problem, &r.outs.plan);
     }},
    {"NullProblem", kInvalid, "problem", [](Rig &r) { return lasp_plan_create(r.context, nullptr, &r.outs.plan); }},
    {"NullOut", kInvalid, "plan",
     [](Rig &r) {
       const lasp_problem problem = Rig::valid_problem();
       return lasp_plan_create(r.context, &problem, nullptr);
     }},
    {"InitNull", kInvalid, "problem", [](Rig &) { return lasp_problem_init(nullptr, sizeof(lasp_problem)); }},
    {"StructSizeZero", LASP_ERROR_INVALID_STRUCT, "problem|size", PROBLEM(p.size = 0)},
    {"StructSizeFour", LASP_ERROR_INVALID_STRUCT, "problem|size", PROBLEM(p.size = 4)},
    {"BatchZero", kInvalid, "batch", PROBLEM(p.batch = 0)},
    {"BatchNegative", kInvalid, "batch", PROBLEM(p.batch = -3)},
    {"TokensNegative", kInvalid, "tokens", PROBLEM(p.tokens = -1)},
    {"TokensOverflow", kInvalid, "tokens|2\\^62", PROBLEM(p.tokens = kHuge)},
    {"TokensAndBatchOverflow", kInvalid, "tokens|2\\^62",
     PROBLEM(p.batch = int64_t{1} << 31; p.tokens = int64_t{1} << 31)},
    {"TokensMaximum", kInvalid, "tokens|2\\^62", PROBLEM(p.tokens = std::numeric_limits<int64_t>::max())},
    {"TokensBeyondTheTables", kUnsupported, "tokens = .*2\\^24 chunks", PROBLEM(p.tokens = int64_t{1} << 32)},
    {"BatchBeyondTheTables", kUnsupported, "batch = .*2\\^24 chunks",
     PROBLEM(p.batch = int64_t{1} << 25; p.tokens = 0)},
    {"HeadsBeyondTheTables", kUnsupported, "heads = .*2\\^28 chunks",
     PROBLEM(p.tokens = int64_t{1} << 27; p.heads_q = p.heads_k = p.heads_v = 64)},
    {"HeadsQZero", kInvalid, "heads_q", PROBLEM(p.heads_q = 0)},
    {"HeadsKNegative", kInvalid, "heads_k", PROBLEM(p.heads_k = -1)},
    {"HeadsVZero", kInvalid, "heads_v", PROBLEM(p.heads_v = 0)},
    {"HeadsQDoesNotDivide", kInvalid, "heads_q", PROBLEM(p.heads_q = 3; p.heads_k = p.heads_v = 4)},
    {"HeadsKDoesNotDivide", kInvalid, "heads_k", PROBLEM(p.heads_k = 4; p.heads_q = p.heads_v = 6)},
    {"HeadsVDoesNotDivide", kInvalid, "heads_v", PROBLEM(p.heads_v = 2; p.heads_q = p.heads_k = 3)},
    {"HeadDimKZero", kInvalid, "head_dim_k", PROBLEM(p.head_dim_k = 0)},
    {"HeadDimKNegative", kInvalid, "head_dim_k", PROBLEM(p.head_dim_k = -8)},
    {"HeadDimKMultiple", kUnsupported, "head_dim_k = 12", PROBLEM(p.head_dim_k = 12)},
    {"HeadDimKTooLarge", kUnsupported, "head_dim_k = 520", PROBLEM(p.head_dim_k = 520)},
    {"HeadDimVZero", kInvalid, "head_dim_v", PROBLEM(p.head_dim_v = 0)},
    {"HeadDimVMultiple", kUnsupported, "head_dim_v = 100.*multiple of 8", PROBLEM(p.head_dim_v = 100)},
    {"HeadDimVTooLarge", kUnsupported, "head_dim_v = 1024", PROBLEM(p.head_dim_v = 1024)},
};

const WrongCall kEnums[] = {
    {"Dtype", kInvalid, "dtype", PROBLEM(p.dtype = 4)},
    {"DtypeDefault", kInvalid, "dtype = LASP_DTYPE_DEFAULT: must be", PROBLEM(p.dtype = LASP_DTYPE_DEFAULT)},
    {"DtypeInt32", kInvalid, "dtype = LASP_INT32: must be", PROBLEM(p.dtype = 16)},
    {"DtypeNegative", kInvalid, "dtype", PROBLEM(p.dtype = -1)},
    {"DtypeForce", kInvalid, "dtype", PROBLEM(p.dtype = kForce)},
    {"Decay", kInvalid, "decay", PROBLEM(p.decay = 4)},
    {"Write", kInvalid, "write", PROBLEM(p.write = 2)},
    {"DeltaBidirectional", kUnsupported, "mask = LASP_MASK_BIDIRECTIONAL: not with write = LASP_WRITE_DELTA",
     PROBLEM(p.write = LASP_WRITE_DELTA; p.decay = LASP_DECAY_NONE; p.mask = LASP_MASK_BIDIRECTIONAL)},
    {"DeltaSegment", kUnsupported, "segment = 32: not with write = LASP_WRITE_DELTA",
     PROBLEM(p.write = LASP_WRITE_DELTA; p.segment = 32)},
    {"DeltaBetaDtype", kInvalid, "beta_layout.dtype", PROBLEM(p.write = LASP_WRITE_DELTA; p.beta_layout.dtype = 5)},
    {"DeltaBetaDtypeOther", kUnsupported, "beta_layout.dtype = LASP_BFLOAT16, dtype = LASP_FLOAT32",
     PROBLEM(p.write = LASP_WRITE_DELTA; p.beta_layout.dtype = LASP_BFLOAT16)},
    {"DeltaDBetaDtypeOther", kUnsupported, "d_beta_layout.dtype = LASP_FLOAT16, beta_layout.dtype = LASP_FLOAT32",
     PROBLEM(p.write = LASP_WRITE_DELTA; p.d_beta_layout.dtype = LASP_FLOAT16)},
    {"Mask", kInvalid, "mask", PROBLEM(p.mask = 2)},
    {"BidirectionalDecay", kUnsupported, "mask|decay|bidirectional", PROBLEM(p.mask = LASP_MASK_BIDIRECTIONAL)},
    {"ScaleNan", kInvalid, "scale", PROBLEM(p.scale_given = 1; p.scale = kNan)},
    {"ScaleInfinite", kInvalid, "scale", PROBLEM(p.scale_given = 1; p.scale = kInf)},
    {"ScaleNotGiven", kInvalid, "scale = 0.5: scale_given is 0", PROBLEM(p.scale = 0.5f)},
    {"ScaleGiven", kInvalid, "scale_given = 2", PROBLEM(p.scale_given = 2)},
    {"Schedule", kInvalid, "schedule", PROBLEM(p.schedule = LASP_SCHEDULE_RELAY + 1)},
    {"ScheduleNegative", kInvalid, "schedule", PROBLEM(p.schedule = -1)},
    {"PiecesNegative", kInvalid, "pieces", PROBLEM(p.schedule = LASP_SCHEDULE_ALL_SCAN; p.pieces = -1)},
    {"Cache", kInvalid, "cache", PROBLEM(p.cache = 2)},
    {"ChunkOdd", kInvalid, "chunk", PROBLEM(p.chunk = 17)},
    {"ChunkNegative", kInvalid, "chunk", PROBLEM(p.chunk = -16)},
    {"ChunkTooLarge", kInvalid, "chunk", PROBLEM(p.chunk = 512)},
    {"Backward", kInvalid, "backward", PROBLEM(p.backward = 2)},
    {"SegmentNegative", kInvalid, "segment = -64.*multiple of the chunk", PROBLEM(p.segment = -64; p.chunk = 64)},
    {"SegmentMinimum", kInvalid, "segment", PROBLEM(p.segment = std::numeric_limits<int64_t>::min())},
    {"SegmentNoMultipleOfChunk", kInvalid, "segment = 96.*multiple of the chunk, 64",
     PROBLEM(p.segment = 96; p.chunk = 64)},
    {"SegmentBelowChunk", kInvalid, "segment = 16.*multiple of the chunk", PROBLEM(p.segment = 16; p.chunk = 32)},
    {"SegmentBidirectional", kUnsupported, "segment = 64.*BIDIRECTIONAL",
     PROBLEM(p.segment = p.chunk = 64; p.mask = LASP_MASK_BIDIRECTIONAL; p.decay = LASP_DECAY_NONE)},
    {"SegmentAllGather", kUnsupported, "schedule = LASP_SCHEDULE_ALL_GATHER: with a segment",
     PROBLEM(p.segment = p.chunk = 64; p.schedule = LASP_SCHEDULE_ALL_GATHER)},
    {"SegmentDoubling", kUnsupported, "schedule = LASP_SCHEDULE_DOUBLING: with a segment",
     PROBLEM(p.segment = p.chunk = 64; p.schedule = LASP_SCHEDULE_DOUBLING)},
    {"SegmentRelay", kUnsupported, "schedule = LASP_SCHEDULE_RELAY: with a segment",
     PROBLEM(p.segment = p.chunk = 64; p.schedule = LASP_SCHEDULE_RELAY)},
    {"RelayPacked", kUnsupported, "schedule = LASP_SCHEDULE_RELAY: not with max_sequences = 2",
     PROBLEM(p.schedule = LASP_SCHEDULE_RELAY; p.max_sequences = 2)},
    {"RelayBidirectional", kUnsupported, "schedule = LASP_SCHEDULE_RELAY: not with mask = LASP_MASK_BIDIRECTIONAL",
     PROBLEM(p.schedule = LASP_SCHEDULE_RELAY; p.mask = LASP_MASK_BIDIRECTIONAL; p.decay = LASP_DECAY_NONE)},
    {"RelayZigzag", kUnsupported, "schedule = LASP_SCHEDULE_RELAY: not with ownership = LASP_OWN_ZIGZAG",
     PROBLEM(p.schedule = LASP_SCHEDULE_RELAY; p.ownership = LASP_OWN_ZIGZAG; p.tokens = 24)},
    {"SegmentHeadScatter", kUnsupported, "schedule = LASP_SCHEDULE_HEAD_SCATTER: with a segment",
     PROBLEM(p.segment = p.chunk = 64; p.schedule = LASP_SCHEDULE_HEAD_SCATTER)},
    {"BroadcastFinalState", kInvalid, "broadcast_final_state", PROBLEM(p.broadcast_final_state = -1)},
};

// Types of layouts. The valid problem is float32 throughout.
#define SIXTEEN(change) PROBLEM(p.dtype = LASP_BFLOAT16; change)
const WrongCall kTypes[] = {
    {"Unknown", kInvalid, "q.dtype = 4: must be", PROBLEM(p.q.dtype = 4)},
    {"Int32", kInvalid, "o.dtype = LASP_INT32: must be", PROBLEM(p.o.dtype = 16)},
    {"Force", kInvalid, "d_decay_layout.dtype", PROBLEM(p.d_decay_layout.dtype = kForce)},
    {"QOther", kUnsupported, "q.dtype = LASP_FLOAT32, dtype = LASP_BFLOAT16", SIXTEEN(p.q.dtype = LASP_FLOAT32)},
    {"KOther", kUnsupported, "k.dtype = LASP_FLOAT16, dtype = LASP_BFLOAT16", SIXTEEN(p.k.dtype = LASP_FLOAT16)},
    {"VOther", kUnsupported, "v.dtype = LASP_BFLOAT16, dtype = LASP_FLOAT32", PROBLEM(p.v.dtype = LASP_BFLOAT16)},
    {"OOther", kUnsupported, "o.dtype = LASP_FLOAT32, dtype = LASP_BFLOAT16", SIXTEEN(p.o.dtype = LASP_FLOAT32)},
    {"DoOther", kUnsupported, "d_o.dtype = LASP_FLOAT32, dtype = LASP_BFLOAT16",
     SIXTEEN(p.d_o.dtype = LASP_FLOAT32)},
    {"DqOther", kUnsupported, "dq.dtype = LASP_FLOAT16, dtype = LASP_BFLOAT16", SIXTEEN(p.dq.dtype = LASP_FLOAT16)},
    {"DkNarrower", kUnsupported, "dk.dtype = LASP_BFLOAT16, dtype = LASP_FLOAT32",
     PROBLEM(p.dk.dtype = LASP_BFLOAT16)},
    {"DvOther", kUnsupported, "dv.dtype = LASP_FLOAT16, dtype = LASP_BFLOAT16", SIXTEEN(p.dv.dtype = LASP_FLOAT16)},
    {"DecayOther", kUnsupported, "decay_layout.dtype = LASP_FLOAT16, dtype = LASP_BFLOAT16",
     SIXTEEN(p.decay_layout.dtype = LASP_FLOAT16)},
    {"DecayNarrower", kUnsupported, "decay_layout.dtype = LASP_FLOAT16, dtype = LASP_FLOAT32",
     PROBLEM(p.decay_layout.dtype = LASP_FLOAT16)},
    {"DDecayNarrower", kUnsupported, "d_decay_layout.dtype = LASP_BFLOAT16, decay_layout.dtype = LASP_FLOAT32",
     SIXTEEN(p.d_decay_layout.dtype = LASP_BFLOAT16)},
    {"HeadDecay", kInvalid, "decay_layout: .*a decay per head",
     PROBLEM(p.decay = LASP_DECAY_HEAD; p.decay_layout.dtype = LASP_FLOAT32)},
    {"HeadDecayStrides", kInvalid, "d_decay_layout: .*a decay per head",
     PROBLEM(p.decay = LASP_DECAY_HEAD; p.d_decay_layout = strided(0, 0, 1))},
    {"NoDecay", kInvalid, "decay_layout: .*LASP_DECAY_NONE",
     PROBLEM(p.decay = LASP_DECAY_NONE; p.decay_layout = strided(48, 2, 1))},
    {"NoBeta", kInvalid, "beta_layout: .*LASP_WRITE_ADDITIVE", PROBLEM(p.beta_layout.dtype = LASP_FLOAT32)},
    {"NoDBeta", kInvalid, "d_beta_layout: .*LASP_WRITE_ADDITIVE", PROBLEM(p.d_beta_layout = strided(48, 2, 1))},
    {"Flags", kInvalid, "v.flags = 2", PROBLEM(p.v.flags = 2)},
    {"FlagsOfNoTensor", kInvalid, "beta_layout.flags = -1", PROBLEM(p.beta_layout.flags = -1)},
    {"StridesWithoutFlag", kInvalid, "dk: has strides, but dk.flags", PROBLEM(p.dk.head = 8)},
    {"Reserved", kInvalid, "d_o.reserved: must be 0", PROBLEM(p.d_o.reserved[1] = 1)},
    {"ReservedFirst", kInvalid, "q.reserved: must be 0", PROBLEM(p.q.reserved[0] = -1)},
};

const WrongCall kOwnership[] = {
    {"Unknown", kInvalid, "ownership = 4: must be one of LASP_OWN_\\*", PROBLEM(p.ownership = 4)},
    {"Force", kInvalid, "ownership = 2147483647", PROBLEM(p.ownership = kForce)},
    {"ZigzagOfOddTokens", kInvalid, "tokens = 23: must be even with ownership = LASP_OWN_ZIGZAG",
     PROBLEM(p.ownership = LASP_OWN_ZIGZAG; p.tokens = 23)},
    {"ZigzagBidirectional", kUnsupported, "ownership = LASP_OWN_ZIGZAG: not with mask = LASP_MASK_BIDIRECTIONAL",
     PROBLEM(p.ownership = LASP_OWN_ZIGZAG; p.decay = LASP_DECAY_NONE; p.mask = LASP_MASK_BIDIRECTIONAL)},
    {"ZigzagSegment", kUnsupported, "ownership = LASP_OWN_ZIGZAG: not with segment = 16",
     PROBLEM(p.ownership = LASP_OWN_ZIGZAG; p.segment = 16)},
    {"ZigzagEachUnpacked", kInvalid, "ownership = LASP_OWN_ZIGZAG_EACH: of packed sequences, but max_sequences = 0",
     PROBLEM(p.ownership = LASP_OWN_ZIGZAG_EACH)},
    {"ZigzagEachOfOddTokens", kInvalid, "tokens = 23: must be even with ownership = LASP_OWN_ZIGZAG_EACH",
     PROBLEM(p.ownership = LASP_OWN_ZIGZAG_EACH; p.max_sequences = 2; p.tokens = 23)},
    {"ZigzagEachSegment", kUnsupported, "ownership = LASP_OWN_ZIGZAG_EACH: not with segment = 16",
     PROBLEM(p.ownership = LASP_OWN_ZIGZAG_EACH; p.max_sequences = 2; p.segment = 16)},
    {"ZigzagEachBroadcast", kUnsupported, "broadcast_final_state = 1: not with max_sequences",
     PROBLEM(p.ownership = LASP_OWN_ZIGZAG_EACH; p.max_sequences = 2; p.broadcast_final_state = 1)},
    {"RunsAbsent", kInvalid, "runs: null, but ownership = LASP_OWN_RUNS", PROBLEM(p.ownership = LASP_OWN_RUNS)},
    {"RunsOfNoNumber", kInvalid, "num_runs = 0: must be 1 to 2\\^24", RUNS(p.num_runs = 0)},
    {"RunsOfNegativeNumber", kInvalid, "num_runs = -1", RUNS(p.num_runs = -1)},
    {"RunsTooMany", kInvalid, "num_runs = 16777217", RUNS(p.num_runs = (1 << 24) + 1)},
    {"RunsNotWanted", kInvalid, "runs: given, but ownership = LASP_OWN_ZIGZAG",
     RUNS(p.ownership = LASP_OWN_ZIGZAG)},
    {"NumberOfRunsNotWanted", kInvalid, "runs: given, but ownership = LASP_OWN_CONTIGUOUS",
     PROBLEM(p.num_runs = 1)},
    {"RunsOfNegativeTokens", kInvalid, "runs\\[1\\].tokens = -1: must not be negative", RUNS(runs[1].tokens = -1)},
    {"RunsOfNoRank", kInvalid, "runs\\[2\\].rank = 1: must be 0 to 0", RUNS(runs[2].rank = 1)},
    {"RunsOfNegativeRank", kInvalid, "runs\\[0\\].rank = -1", RUNS(runs[0].rank = -1)},
    {"RunsReserved", kInvalid, "runs\\[1\\].reserved = 7: must be 0", RUNS(runs[1].reserved = 7)},
    {"RunsOfManyTokens", kInvalid, "runs: more than 2\\^60 tokens",
     RUNS(runs[0].tokens = runs[1].tokens = (int64_t{1} << 59) + 1)},
    {"RunsOverflow", kInvalid, "runs: more than 2\\^60 tokens", RUNS(runs[0].tokens = INT64_MAX)},
    {"RunsOfOtherTokens", kInvalid, "tokens = 24: runs has 25 of rank 0", RUNS(runs[2].tokens += 1)},
    {"RunsSegment", kUnsupported, "ownership = LASP_OWN_RUNS: not with segment = 16", RUNS(p.segment = 16)},
};

const WrongCall kPacking[] = {
    {"Negative", kInvalid, "max_sequences = -1", PROBLEM(p.max_sequences = -1)},
    {"TooMany", kUnsupported, "max_sequences = 16777217: more than 2\\^24",
     PROBLEM(p.max_sequences = (int64_t{1} << 24) + 1)},
    {"Maximum", kUnsupported, "max_sequences = 9223372036854775807", PROBLEM(p.max_sequences = INT64_MAX)},
    {"BatchNotOne", kInvalid, "batch = 2: must be 1 with max_sequences", PROBLEM(p.max_sequences = 3; p.batch = 2)},
    {"Broadcast", kUnsupported, "broadcast_final_state = 1: not with max_sequences",
     PROBLEM(p.max_sequences = 3; p.broadcast_final_state = 1)},
    {"Bidirectional", kUnsupported, "max_sequences = 3: not with mask = LASP_MASK_BIDIRECTIONAL",
     PROBLEM(p.max_sequences = 3; p.decay = LASP_DECAY_NONE; p.mask = LASP_MASK_BIDIRECTIONAL)},
    {"DtypeOfOffsets", kInvalid, "dtype = LASP_INT64: must be", PROBLEM(p.dtype = LASP_INT64)},
    {"LayoutOfOffsets", kInvalid, "q.dtype = LASP_INT32: must be", PROBLEM(p.q.dtype = LASP_INT32)},
};

// Contiguous strides of the valid problem are: q {384, 16, 8}, k {192, 8, 8}, v and o {768, 32, 16}, decay {48, 2,
// 1}.
const WrongCall kStrides[] = {
    {"QNegativeToken", kInvalid, "\\bq\\b", PROBLEM((p.q = strided(384, -16, 8)))},
    {"KNegativeBatch", kInvalid, "\\bk\\b", PROBLEM((p.k = strided(-192, 8, 8)))},
    {"VNegativeHead", kInvalid, "\\bv\\b", PROBLEM((p.v = strided(768, 32, -16)))},
    {"QTokensOverlap", kInvalid, "\\bq\\b", PROBLEM((p.q = strided(384, 7, 400)))},
    {"KTokensOverlap", kInvalid, "\\bk\\b", PROBLEM((p.k = strided(192, 4, 8)))},
    {"VHeadsOverlap", kInvalid, "\\bv\\b", PROBLEM((p.v = strided(768, 32, 8)))},
    {"OHeadsAndTokensOverlap", kInvalid, "\\bo\\b", PROBLEM((p.o = strided(768, 16, 16)))},
    {"OBatchZero", kInvalid, "\\bo\\b", PROBLEM(p.batch = 2; (p.o = strided(0, 32, 16)))},
    {"DecayOverlap", kInvalid, "decay_layout", PROBLEM((p.decay_layout = strided(48, 1, 1)))},
    {"DqOverlap", kInvalid, "\\bdq\\b", PROBLEM((p.dq = strided(384, 8, 8)))},
    {"DkOverlap", kInvalid, "\\bdk\\b", PROBLEM(p.batch = 2; (p.dk = strided(64, 8, 8)))},
    {"DvNegative", kInvalid, "\\bdv\\b", PROBLEM((p.dv = strided(768, 32, -16)))},
    {"DoOverlap", kInvalid, "\\bd_o\\b", PROBLEM((p.d_o = strided(768, 20, 16)))},
    {"DDecayOverlap", kInvalid, "d_decay_layout", PROBLEM((p.d_decay_layout = strided(48, 0, 1)))},
    {"BetaOverlap", kInvalid, "\\bbeta_layout",
     PROBLEM(p.write = LASP_WRITE_DELTA; (p.beta_layout = strided(48, 1, 1)))},
    {"DBetaOverlap", kInvalid, "d_beta_layout",
     PROBLEM(p.write = LASP_WRITE_DELTA; (p.d_beta_layout = strided(48, 0, 1)))},
    {"QTokenOverflow", kInvalid, "\\bq\\b", PROBLEM((p.q = strided(1, kHuge, 8)))},
    {"KBatchOverflow", kInvalid, "\\bk\\b", PROBLEM(p.batch = 4; (p.k = strided(kHuge, 8, 8)))},
    {"OBytesOverflow", kInvalid, "\\bo\\b", PROBLEM((p.o = strided(768, kHuge / 24, 16)))},
    {"VSumOverflow", kInvalid, "\\bv\\b", PROBLEM(p.batch = 2; (p.v = strided(kHuge, 16, kHuge)))},
};

}  // namespace

INSTANTIATE_TEST_SUITE_P(Sizes, WrongCalls, testing::ValuesIn(kSizes), name_of_row);
INSTANTIATE_TEST_SUITE_P(Enums, WrongCalls, testing::ValuesIn(kEnums), name_of_row);
INSTANTIATE_TEST_SUITE_P(Types, WrongCalls, testing::ValuesIn(kTypes), name_of_row);
INSTANTIATE_TEST_SUITE_P(Ownership, WrongCalls, testing::ValuesIn(kOwnership), name_of_row);
INSTANTIATE_TEST_SUITE_P(Packing, WrongCalls, testing::ValuesIn(kPacking), name_of_row);
INSTANTIATE_TEST_SUITE_P(Strides, WrongCalls, testing::ValuesIn(kStrides), name_of_row);
