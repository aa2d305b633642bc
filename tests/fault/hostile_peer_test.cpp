// A peer that lies: the other rank of a group of two sends this one's own records and states back with bytes
// changed. Whatever it sends, a call answers with a status or with numbers, and nothing outside this rank's buffers
// is written (under AddressSanitizer any such byte ends the program; tests/fault/small_rank.h has the buffers on
// the heap). A record that was merely damaged is known by its checksum; a forger works that out as well.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <set>

#include "base/checksum.h"
#include "small_rank.h"
#include "support/kinds.h"

namespace {

using lasp_test::Rank;
using lasp_test::Result;

// The peer: answers the n-th message of each size with what this rank sent as its n-th of that size, or with zeros,
// after `forge` had its way.
class Liar {
 public:
  using Forge = std::function<void(int message, std::vector<unsigned char> &)>;
  explicit Liar(int32_t rank, Forge forge) : rank_(rank), forge_(std::move(forge)) {}

  lasp_transport table() const {
    lasp_transport t = LASP_TRANSPORT_INIT;
    t.name = "liar";
    t.rank = rank_;
    t.nranks = 2;
    t.send = [](void *user, const void *data, uint64_t bytes, int32_t, int32_t, lasp_stream, void **request) {
      const auto *first = static_cast<const unsigned char *>(data);
      static_cast<Liar *>(user)->sent_.emplace_back(first, first + bytes);
      *request = nullptr;
      return lasp_status{LASP_OK};
    };
    t.receive = [](void *user, void *data, uint64_t bytes, int32_t, int32_t, lasp_stream, void **request) {
      static_cast<Liar *>(user)->wanted_.push_back({data, bytes});
      *request = &static_cast<Liar *>(user)->wanted_;
      return lasp_status{LASP_OK};
    };
    t.test = [](void *, void *, int32_t *done) {
      *done = 1;
      return lasp_status{LASP_OK};
    };
    t.wait = [](void *user, void *request, int64_t, int32_t *) {
      if (request != nullptr) static_cast<Liar *>(user)->answer();
      return lasp_status{LASP_OK};
    };
    t.cancel = [](void *user, void *request) {
      if (request != nullptr) static_cast<Liar *>(user)->wanted_.pop_front();
    };
    return t;
  }
  int answered() const { return answered_; }

 private:
  struct Wanted {
    void *data;
    uint64_t bytes;
  };
  void answer() {
    const Wanted wanted = wanted_.front();
    wanted_.pop_front();
    std::vector<unsigned char> message(wanted.bytes);
    if (!sent_.empty() && sent_.front().size() == wanted.bytes) {
      message = sent_.front();
      sent_.pop_front();
    }
    forge_(answered_++, message);
    std::memcpy(wanted.data, message.data(), wanted.bytes);
  }

  int32_t rank_;
  Forge forge_;
  int answered_ = 0;
  std::deque<Wanted> wanted_;
  std::deque<std::vector<unsigned char>> sent_;
};

// Plan, forward and backward of this rank beside the liar. What each answered is added to `statuses`.
struct Life {
  int answered;  // messages that it got
  std::string sentence;
};
Life live_beside(int32_t rank, int32_t schedule, const Liar::Forge &forge, std::set<lasp_status> &statuses) {
  Liar liar(rank, forge);
  const lasp_transport table = liar.table();
  lasp_comm *comm = nullptr;
  EXPECT_EQ(lasp_comm_create_custom(&table, &liar, &comm), LASP_OK) << lasp_last_error();
  Rank self(comm, 2000);
  Result result = self.plan(schedule);
  statuses.insert(result.status);
  for (Result (Rank::*pass)() : {&Rank::forward, &Rank::backward}) {
    if (result.status != LASP_OK) break;
    result = (self.*pass)();
    statuses.insert(result.status);
  }
  EXPECT_EQ(result.status == LASP_OK, result.sentence.empty());
  return {liar.answered(), result.sentence};
}

TEST(HostilePeer, AnEchoIsAGoodPeer) {  // or the tests below would show nothing
  for (const int32_t rank : {0, 1}) {
    std::set<lasp_status> statuses;
    const Life life = live_beside(
        rank, LASP_SCHEDULE_AUTO, [](int, auto &) {}, statuses);
    EXPECT_GE(life.answered, 2) << "a record and a state";
    EXPECT_EQ(statuses, std::set<lasp_status>{LASP_OK});
  }
}

// The record's second word is its checksum, worked out with 0 in that place.
void seal(std::vector<unsigned char> &record) {
  ASSERT_GE(record.size(), 16u);
  std::memset(record.data() + 8, 0, 8);
  const uint64_t sum = lasp::checksum(record.data(), record.size(), 0);
  std::memcpy(record.data() + 8, &sum, sizeof sum);
}

TEST(HostilePeer, ARecordWithAnyBitChangedIsDamagedAndNamed) {
  for (const int32_t rank : {0, 1}) {
    size_t bits = 8;
    for (size_t bit = 0; bit < bits; ++bit) {
      std::set<lasp_status> statuses;
      const auto forge = [&](int message, std::vector<unsigned char> &bytes) {
        if (message != 0) return;
        bits = 8 * bytes.size();
        bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
      };
      const std::string sentence = live_beside(rank, LASP_SCHEDULE_AUTO, forge, statuses).sentence;
      ASSERT_EQ(statuses, std::set<lasp_status>{LASP_ERROR_TRANSPORT}) << "bit " << bit;
      ASSERT_NE(sentence.find("rank " + std::to_string(1 - rank) + " sent arrived changed"), std::string::npos)
          << sentence;
      ASSERT_NE(sentence.find("lasp_plan_create"), std::string::npos) << sentence;
    }
    EXPECT_GE(bits, 800u) << "the record was not seen";
  }
}

uint64_t word_at(const std::vector<unsigned char> &record, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, record.data() + at, sizeof word);
  return word;
}

// The words of a record that are no field of the problem; all others are compared, and name their field.
enum Word : size_t {
  kMagic = 0,
  kChecksum = 8,
  kRefusal = 16,
  kTokensWord = 24,
  kLatency = 32,
  kBandwidth = 40,
  kLastCost = 80,  // from behind the bandwidth on: what an exchange costs besides, 0 where that is not known
};

// What plan creation answers to a record in which a rank has `word` at `at`, and says otherwise the truth.
lasp_status verdict_on(size_t at, uint64_t word, uint64_t truth) {
  const auto number = static_cast<int64_t>(word);
  double real = 0;
  std::memcpy(&real, &word, sizeof real);
  bool credible = word == truth;
  if (at == kChecksum) credible = true;  // seal() writes the right one over it
  if (at == kRefusal && word != 0) return LASP_ERROR_PEER_REFUSED;
  if (at == kTokensWord) credible = number >= 0 && number <= (int64_t{1} << 60) - lasp_test::kTokens;
  if (at == kLatency || at == kBandwidth) credible = std::isfinite(real) && real > 0;
  if (at > kBandwidth && at <= kLastCost) credible = std::isfinite(real) && real >= 0;
  return credible ? LASP_OK : LASP_ERROR_DISAGREEMENT;
}

// Every 64-bit word of the record of plan creation, replaced by what breaks arithmetic: what contradicts this rank,
// or is no such number, is refused, and what could be true is taken.
TEST(HostilePeer, ARecordWithAnyWordForgedIsAStatus) {
  const uint64_t words[] = {0,
                            1,
                            0x7fffffffffffffff,
                            0x8000000000000000,
                            ~uint64_t{0},
                            0x7ff8000000000000 /* NaN */,
                            0x7ff0000000000000 /* infinity */,
                            0x4141414141414141};
  std::set<lasp_status> met;
  for (const int32_t rank : {0, 1}) {
    size_t size = 8;
    for (size_t at = 0; at + 8 <= size; at += 8)
      for (const uint64_t word : words) {
        SCOPED_TRACE(testing::Message()
                     << "rank " << rank << ", " << std::hex << word << " at byte " << std::dec << at);
        lasp_status wanted = LASP_OK;
        const auto forge = [&](int message, std::vector<unsigned char> &bytes) {
          if (message != 0) return;
          size = bytes.size();
          wanted = verdict_on(at, word, word_at(bytes, at));
          std::memcpy(bytes.data() + at, &word, sizeof word);
          seal(bytes);
        };
        std::set<lasp_status> statuses;
        const std::string sentence = live_beside(rank, LASP_SCHEDULE_AUTO, forge, statuses).sentence;
        EXPECT_EQ(statuses, std::set<lasp_status>{wanted}) << sentence;
        EXPECT_EQ(sentence.find("rank") == std::string::npos, wanted == LASP_OK) << sentence;
        met.insert(wanted);
      }
    EXPECT_GE(size, 200u) << "the record was not seen";
  }
  EXPECT_EQ(met, (std::set<lasp_status>{LASP_OK, LASP_ERROR_DISAGREEMENT, LASP_ERROR_PEER_REFUSED}));
}

// Whether the record, once forged, can be that of an honest peer: only its tokens and its link may have changed.
bool is_credible(const std::vector<unsigned char> &forged, const std::vector<unsigned char> &truth) {
  for (size_t at = 0; at + 8 <= truth.size(); at += 8) {
    const bool compared = at < kChecksum || at == kRefusal || at > kLastCost;
    if (compared && word_at(forged, at) != word_at(truth, at)) return false;
  }
  return true;
}

// A rank that failed while it made its plan says so in its record: it is gone, and not one whose problem was
// refused.
TEST(HostilePeer, ARecordOfARankThatFailedIsALostPeer) {
  for (const int64_t said :
       {LASP_ERROR_INTERNAL, LASP_ERROR_OUT_OF_MEMORY, LASP_ERROR_DEVICE, LASP_ERROR_UNSUPPORTED}) {
    std::set<lasp_status> statuses;
    const auto forge = [&](int message, std::vector<unsigned char> &bytes) {
      if (message != 0) return;
      std::memcpy(bytes.data() + 16, &said, sizeof said);  // the word after the checksum
      seal(bytes);
    };
    const std::string sentence = live_beside(0, LASP_SCHEDULE_AUTO, forge, statuses).sentence;
    const bool failed = said != LASP_ERROR_UNSUPPORTED;
    EXPECT_EQ(statuses, std::set<lasp_status>{failed ? LASP_ERROR_PEER_LOST : LASP_ERROR_PEER_REFUSED}) << said;
    const std::string name = lasp_status_name(static_cast<lasp_status>(said));
    EXPECT_NE(sentence.find(failed ? "rank 1 did not come, its own lasp_plan_create failed with " + name
                                   : "rank 1 refused its problem with " + name),
              std::string::npos)
        << sentence;
  }
}

TEST(HostilePeer, RandomBytesInAnyMessageAreAStatusOrNumbers) {
  uint64_t state = 0x9e3779b97f4a7c15;
  const auto random = [&] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  };
  for (const int32_t rank : {0, 1})
    for (const int32_t schedule : lasp_test::kSchedulesAndRelay)
      for (int round = 0; round < 60; ++round) {
        std::set<lasp_status> statuses;
        const int target = round % 6, changes = 1 << round % 11;
        bool credible = true;
        const auto forge = [&](int message, std::vector<unsigned char> &bytes) {
          if (message < target || bytes.empty()) return;
          const std::vector<unsigned char> truth = bytes;
          for (int i = 0; i < changes; ++i) bytes[random() % bytes.size()] = static_cast<unsigned char>(random());
          if (message != 0) return;
          credible = is_credible(bytes, truth);
          seal(bytes);
        };
        live_beside(rank, schedule, forge, statuses);
        for (const lasp_status status : statuses)
          EXPECT_TRUE((status == LASP_OK && credible) || (status >= 300 && status < 400))
              << lasp_status_name(status) << (credible ? "" : ", though the record contradicts this rank's");
      }
}

}  // namespace
