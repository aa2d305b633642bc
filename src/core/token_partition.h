// A rank's tokens cut into segments (runs of one sequence) and chunks, and for each batch row where a state from
// another rank enters and where one leaves. Pure data, derived from offsets and token counts.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/problem.h"

namespace lasp {

// A run of one sequence's tokens on this rank, not across a multiple of Problem::segment; never empty.
struct Segment {
  int64_t row = 0;             // batch row
  int64_t path = 0;            // which RowPath it lies on
  int64_t sequence = 0;        // index into the state buffers
  int64_t begin = 0, end = 0;  // local tokens [begin, end)
  bool starts_here = false;    // holds the sequence's first token: begins from initial_state
  bool ends_here = false;      // holds its last token: writes final_state
  int64_t first_chunk = 0, num_chunks = 0;
};

struct Chunk {
  int64_t segment = 0;
  int64_t begin = 0;   // local token
  int32_t length = 0;  // 1 .. Problem::chunk
};

// How states pass through a row of one of the rank's runs of tokens in one direction. Rows are those of the batch;
// where each packed sequence is cut by itself (Problem::each) they are the sequences. The rank is the map S_out = M
// S_in + S (affine_map.h): S_in enters the `consumer` segment, S_out leaves the `producer` segment. -1: there is
// none.
struct RowPath {
  int64_t consumer = -1;  // segment that needs the incoming state (its sequence began on an earlier rank)
  int64_t producer = -1;  // segment whose end state leaves (forward: the row's last); -1: no tokens, the identity
  bool reset = false;     // S_out does not depend on S_in: the producer's sequence begins on this rank
};

struct TokenPartition {
  std::vector<Segment> segments;  // by row, then token
  std::vector<Chunk> chunks;      // by segment, then token
  // Left to right (states in forward), and right to left (gradients of states in backward: consumer is the row's
  // last segment when its sequence goes on on a later rank, producer the row's first).
  std::vector<RowPath> forward, backward;  // [runs, rows]
  std::vector<int64_t> empty_sequences;    // empty ones that this rank owns: final_state = initial_state

  int64_t rows() const { return static_cast<int64_t>(forward.size()); }  // of all runs
};

// What a rank may have.
inline constexpr int32_t kMostRuns = 16;

// Where every rank's tokens lie, from the agreement at plan creation: runs of tokens in their order, the positions
// of the exchange. A rank has one, or several that are not neighbours.
struct TokenRanges {
  std::vector<int64_t> begin = {};  // [positions + 1], of one batch row
  std::vector<int32_t> owner = {};  // [positions]: a rank; none: position r is rank r's
  int32_t ranks = 0;                // with owners
  bool each = false;  // so cut is each packed sequence: a position has part of all of them, and rank 0 the ends

  int32_t positions() const { return static_cast<int32_t>(begin.size()) - 1; }
  int32_t nranks() const { return owner.empty() ? positions() : ranks; }
  int32_t owner_of(int32_t position) const {
    return owner.empty() ? position : owner[static_cast<size_t>(position)];
  }
  int32_t runs_of(int32_t rank) const;
  int32_t most_runs() const;  // of any rank
  // Of the n-th run of a rank; -1: it has no such run.
  int32_t position_of(int32_t rank, int32_t n) const;
  int64_t tokens(int32_t position) const {
    return begin[static_cast<size_t>(position) + 1] - begin[static_cast<size_t>(position)];
  }
  int64_t total() const { return begin.back(); }
};

// LASP_OWN_ZIGZAG: the parts in the middle, which are neighbours, are one run.
TokenRanges zigzag_ranges(int32_t nranks, int64_t tokens);
// LASP_OWN_ZIGZAG_EACH: the same, as of one sequence of all tokens.
TokenRanges zigzag_each_ranges(int32_t nranks, int64_t tokens);
// Into how many parts of one length each sequence is cut then.
inline int64_t parts_of_each(const TokenRanges &ranges) { return 2 * int64_t{ranges.nranks()}; }
// The local tokens that the rank's n-th run has of a sequence [from, to). Sequences lie one after the other in the
// rank's tensors, each with its tokens of all of the rank's runs.
std::pair<int64_t, int64_t> run_of_each(const TokenRanges &ranges, int32_t rank, int32_t n, int64_t from,
                                        int64_t to);
// LASP_OWN_RUNS, of a list that has been checked. Runs without tokens have no position, and a rank of nothing else
// has none; neighbours on one rank are one run.
TokenRanges listed_ranges(int32_t nranks, std::span<const lasp_run> runs);

struct Owners {
  int32_t first, last;
};
// Which ranks hold the first and last token of a sequence; an empty one belongs to the rank that holds the token
// at its offset, or to the last rank.
Owners owners_of(const TokenRanges &ranges, int64_t begin, int64_t end);

// Where the sequences of a row begin and end; the last offset is where padding begins. Empty: not packed, the row
// is one sequence.
using OffsetSpan = std::span<const int64_t>;

// Global token range of a sequence of one row.
std::pair<int64_t, int64_t> sequence_range(OffsetSpan offsets, const TokenRanges &ranges, int64_t sequence);

// The first token of the sequence that holds this one; -1: the token is padding.
int64_t beginning_of(OffsetSpan offsets, int64_t token);

// Makes `to` anew, in the memory that it has.
void make_token_partition(TokenPartition &to, const Problem &problem, const TokenRanges &ranges, int32_t rank,
                          OffsetSpan offsets);

TokenPartition make_token_partition(const Problem &problem, const TokenRanges &ranges, int32_t rank,
                                    OffsetSpan offsets = {});

// The most segments and chunks that a rank of a packed problem may have, however it is packed; and room for them.
struct PartitionSize {
  int64_t segments = 0, chunks = 0;
};
PartitionSize most_of(const Problem &problem);
void reserve(TokenPartition &partition, const Problem &problem);

}  // namespace lasp
