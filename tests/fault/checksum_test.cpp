// The checksum of messages: which changes it finds for certain, that it depends on all that it should, and that
// messages which come in another order, or to the wrong receiver, do not pass for those that were meant.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "support/mailboxes.h"

namespace lasp {
namespace {

std::vector<unsigned char> bytes_of(size_t count, uint64_t seed) {
  std::vector<unsigned char> bytes(count);
  for (unsigned char &byte : bytes) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<unsigned char>(seed >> 56);
  }
  return bytes;
}

// Around the stripes of 32 and words of 8 bytes, and a state's size.
const std::vector<size_t> kSizes = {1, 4, 7, 8, 9, 12, 31, 32, 33, 40, 63, 64, 65, 71, 100, 128, 516, 4096};

TEST(Checksum, EveryFlippedBitIsFound) {
  for (const size_t size : kSizes)
    for (const bool zeros : {false, true}) {
      std::vector<unsigned char> bytes = zeros ? std::vector<unsigned char>(size) : bytes_of(size, size);
      const uint64_t right = checksum(bytes.data(), size, 5);
      for (size_t bit = 0; bit < 8 * size; ++bit) {
        bytes[bit / 8] ^= 1u << bit % 8;
        ASSERT_NE(checksum(bytes.data(), size, 5), right) << "bit " << bit << " of " << size << " bytes";
        bytes[bit / 8] ^= 1u << bit % 8;
      }
      ASSERT_EQ(checksum(bytes.data(), size, 5), right);
    }
}

// All pairs of bits of a message of three stripes and a half: what a chance of 2^-64 leaves is none.
TEST(Checksum, EveryTwoFlippedBitsAreFound) {
  constexpr size_t kBytes = 112;
  for (const bool zeros : {false, true}) {
    std::vector<unsigned char> bytes = zeros ? std::vector<unsigned char>(kBytes) : bytes_of(kBytes, 3);
    std::set<uint64_t> seen = {checksum(bytes.data(), kBytes, 0)};
    for (size_t bit = 0; bit < 8 * kBytes; ++bit) {  // one flip each: two flips agree with none as these all differ
      bytes[bit / 8] ^= 1u << bit % 8;
      ASSERT_TRUE(seen.insert(checksum(bytes.data(), kBytes, 0)).second) << "bit " << bit;
      for (size_t other = 0; other < bit; ++other) {
        bytes[other / 8] ^= 1u << other % 8;
        ASSERT_EQ(seen.count(checksum(bytes.data(), kBytes, 0)), 0u) << "bits " << bit << " and " << other;
        bytes[other / 8] ^= 1u << other % 8;
      }
      bytes[bit / 8] ^= 1u << bit % 8;
    }
  }
}

TEST(Checksum, DependsOnLengthSeedAndOrder) {
  const std::vector<unsigned char> zeros(4096);
  std::set<uint64_t> seen;
  for (size_t size = 0; size <= zeros.size(); ++size)
    EXPECT_TRUE(seen.insert(checksum(zeros.data(), size, 0)).second);
  std::set<uint64_t> seeds;
  for (const int32_t sender : {0, 1, 2, 65535})
    for (const int32_t tag : {0, 7, 8, 32767})
      for (const uint32_t number : {0u, 1u, 2u, 0xffffffffu})
        EXPECT_TRUE(seeds.insert(message_seed(sender, tag, number)).second);
  std::vector<unsigned char> bytes = bytes_of(128, 9);
  const uint64_t right = checksum(bytes.data(), bytes.size(), 0);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8)
    for (size_t j = 0; j < i; j += 8) {  // any two words change places
      std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                       bytes.begin() + static_cast<std::ptrdiff_t>(i) + 8,
                       bytes.begin() + static_cast<std::ptrdiff_t>(j));
      EXPECT_NE(checksum(bytes.data(), bytes.size(), 0), right) << i << " and " << j;
      std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                       bytes.begin() + static_cast<std::ptrdiff_t>(i) + 8,
                       bytes.begin() + static_cast<std::ptrdiff_t>(j));
    }
}

// What rank 0 puts on the transport in place of what it should, message by message, as rank 1 waits for three.
struct Sent {
  float value;
  int32_t sender;
  int32_t tag;
  uint32_t number;
};

lasp_status receive_three(const std::vector<Sent> &sent, std::string &sentence) {
  lasp_test::Mailboxes boxes(2);
  const lasp_transport from = boxes.table(0);
  for (const Sent &message : sent) {
    void *request = nullptr;
    const uint64_t sum = checksum(&message.value, 4, message_seed(message.sender, message.tag, message.number));
    EXPECT_EQ(from.send(boxes.user(0), &message.value, 4, 1, 9, nullptr, &request), LASP_OK);
    EXPECT_EQ(from.send(boxes.user(0), &sum, 8, 1, 9, nullptr, &request), LASP_OK);
  }
  Comm comm(boxes.table(1), boxes.user(1));
  Messages messages;
  messages.reserve(3, true);
  float values[3] = {};
  for (float &value : values) messages.receive(comm, &value, 4, 0, 9);
  try {
    WaitPolicy policy;
    policy.limit_ms = 20;
    messages.wait_all(comm, policy, "waiting");
  } catch (const Error &error) {
    messages.cancel_all(comm);
    sentence = error.sentence;
    return error.status;
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(values[i], static_cast<float>(i + 1));
  return LASP_OK;
}

TEST(VerifiedMessages, AreTakenOnlyInTheirOrderAndFromTheirSender) {
  const Sent first{1, 0, 9, 0}, second{2, 0, 9, 1}, third{3, 0, 9, 2};
  std::string sentence;
  EXPECT_EQ(receive_three({first, second, third}, sentence), LASP_OK) << sentence;
  const std::vector<std::vector<Sent>> wrong = {{second, first, third},
                                                {first, first, second},
                                                {second, third, third},
                                                {first, second, {3, 1, 9, 2}},
                                                {first, {2, 0, 8, 1}, third}};
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(receive_three(wrong[i], sentence), LASP_ERROR_TRANSPORT) << i;
    EXPECT_NE(sentence.find("4 bytes that rank 0 sent arrived changed"), std::string::npos) << sentence;
  }
  EXPECT_EQ(receive_three({first, second}, sentence), LASP_ERROR_PEER_LOST);
}

}  // namespace
}  // namespace lasp
