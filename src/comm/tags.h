// Tags of messages: which operation of which call a message belongs to. MPI promises tags up to 32,767.
#pragma once

#include <cstdint>

namespace lasp {

// What moves messages in a pass; one call may make several operations.
enum class OperationKind : int32_t {
  kForward = 1,
  kBackward = 2,
  kFinalState = 3,
  kHaloForward = 4,
  kHaloBackward = 5
};

// The messages of one operation. Several of one kind between two ranks match in the order in which they are sent.
enum TagKind : int32_t { kTagLeft = 0, kTagRight = 1, kTagFinalState = 2, kTagReceipt = 3, kTagRows = 0 };

constexpr int32_t kFirstOperationTag = 8;
constexpr int32_t kAgreementTag = 7;  // of what is compared when something is made

constexpr int32_t kKinds = 8;  // room for operations' kinds

// The numbers that operations' tags are made of: an operation's place in the order of this rank's calls, a trace of
// the kinds of those before it, and its own kind. Ranks whose calls are out of step, or once made different calls,
// so wait in vain instead of taking one message for another, also where a transport let the wrong call through.
class OperationNumbers {
 public:
  uint32_t count() const { return count_; }
  int32_t next(OperationKind kind) {
    history_ = (2 * history_ + static_cast<int32_t>(kind)) % kHistories;
    return (static_cast<int32_t>(count_++ % kPlaces) * kHistories + history_) * kKinds + static_cast<int32_t>(kind);
  }

 private:
  static constexpr uint32_t kPlaces = 64;
  static constexpr int32_t kHistories = 13;
  uint32_t count_ = 0;
  int32_t history_ = 0;
};

constexpr int32_t tag_of(int32_t operation, TagKind kind) { return kFirstOperationTag + operation * 4 + kind; }

// The call that a message of this tag belongs to, or both that it may belong to; null for no tag of the library's.
constexpr const char *call_of_tag(int32_t tag) {
  if (tag == kAgreementTag) return "lasp_plan_create or lasp_halo_create";
  if (tag < kFirstOperationTag) return nullptr;
  switch (static_cast<OperationKind>((tag - kFirstOperationTag) / 4 % kKinds)) {
    case OperationKind::kForward:
    case OperationKind::kFinalState: return "lasp_forward";
    case OperationKind::kBackward: return "lasp_backward";
    case OperationKind::kHaloForward: return "lasp_halo_forward";
    case OperationKind::kHaloBackward: return "lasp_halo_backward";
    default: return nullptr;
  }
}

}  // namespace lasp
