// mbarriers and asynchronous copies, at once and late.
#include <cmath>

#include "instructions/convert.h"
#include "tests/rig.h"

namespace emulator {
namespace {

constexpr uint64_t kBarrier = kSharedBase, kData = kSharedBase + 1024;
constexpr uint32_t kOne = 1 << 5;  // a lane

class EmulatorAsync : public testing::TestWithParam<bool> {
 protected:
  bool late() const { return GetParam(); }
  Late mode_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Modes, EmulatorAsync, testing::Bool(),
                         [](const auto &mode) { return mode.param ? "Late" : "AtOnce"; });

void init(Rig &rig, uint64_t count) {
  rig.run("mbarrier.init.shared::cta.b64", {rig.constant(kBarrier), rig.constant(count)}, kOne);
}

TEST_P(EmulatorAsync, Barriers) {
  Rig rig;
  EXPECT_THROW(rig.test(kBarrier, 0), Fault);
  init(rig, 33);
  EXPECT_TRUE(rig.test(kBarrier, 1));
  for (int phase = 0; phase < 3; ++phase) {
    rig.run("mbarrier.arrive.shared::cta.b64", {Rig::sink(), rig.constant(kBarrier)});
    EXPECT_FALSE(rig.test(kBarrier, phase % 2));
    rig.run("mbarrier.arrive.expect_tx.shared::cta.b64", {Rig::sink(), rig.constant(kBarrier), rig.constant(4096)},
            kOne);
    EXPECT_FALSE(rig.test(kBarrier, phase % 2));
    rig.run("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", {rig.constant(kBarrier), rig.constant(64)}, kOne);
    rig.run("mbarrier.complete_tx.relaxed.cta.shared::cta.b64", {rig.constant(kBarrier), rig.constant(4096)}, kOne);
    EXPECT_FALSE(rig.test(kBarrier, phase % 2));
    rig.run("mbarrier.complete_tx.relaxed.cta.shared::cta.b64", {rig.constant(kBarrier), rig.constant(64)}, kOne);
    EXPECT_TRUE(rig.test(kBarrier, phase % 2));
    EXPECT_FALSE(rig.test(kBarrier, 1 - phase % 2));
  }
  // Bytes may come before they are expected; the state is of the phase before the arrival.
  const Operand state = rig.words(2), done = rig.predicate(0);
  rig.run("mbarrier.complete_tx.relaxed.cta.shared::cta.b64", {rig.constant(kBarrier), rig.constant(16)}, kOne);
  rig.run("mbarrier.arrive.shared.b64", {state, rig.constant(kBarrier), rig.constant(32)}, kOne);
  rig.run("mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64",
          {Rig::sink(), rig.constant(kBarrier), rig.constant(16)}, kOne);
  rig.run("mbarrier.test_wait.shared.b64", {done, rig.constant(kBarrier), state}, kOne);
  EXPECT_EQ(rig.warp().predicate(done), kOne);
  const Operand many = rig.constant(34);
  EXPECT_THROW(rig.run("mbarrier.arrive.shared.b64", {state, rig.constant(kBarrier), many}, kOne), Fault);
  rig.run("mbarrier.inval.shared::cta.b64", {rig.constant(kBarrier)}, kOne);
  EXPECT_THROW(rig.test(kBarrier, 0), Fault);
}

TEST_P(EmulatorAsync, RemoteArrivals) {
  Cluster cluster;
  Rig first(0, &cluster), second(1, &cluster);
  init(second, 2);
  first.run("mbarrier.arrive.shared::cluster.b64", {Rig::sink(), first.constant(kBarrier + (2u << 24))}, kOne);
  EXPECT_FALSE(second.test(kBarrier, 0));
  first.run("mbarrier.arrive.relaxed.cluster.shared::cluster.b64",
            {Rig::sink(), first.constant(kBarrier + (2u << 24))}, kOne);
  EXPECT_TRUE(second.test(kBarrier, 0));
}

// Of cp.async: lane l copies 16 bytes, of which 16, 8, 0 or 3 are there.
TEST_P(EmulatorAsync, CopiesOfThreads) {
  Rig rig;
  Memory<uint8_t> from(512);
  for (int i = 0; i < 512; ++i) from[static_cast<size_t>(i)] = static_cast<uint8_t>(i % 251 + 1);
  const Operand to = rig.words(1), source = rig.words(2), there = rig.words(1), sixteen = rig.constant(16);
  constexpr int kThere[4] = {16, 8, 0, 3};
  for (int l = 0; l < kLanes; ++l) {
    rig.set(to, l, kData + 16 * static_cast<uint64_t>(31 - l));
    rig.set(source, l, from.address() + 16 * static_cast<uint64_t>(l));
    rig.set(there, l, static_cast<uint64_t>(kThere[l % 4]));
  }
  const std::byte *const data = rig.block.shared.data() + 1024;
  const auto is_there = [&] {
    for (int l = 0; l < kLanes; ++l)
      for (int i = 0; i < 16; ++i) {
        const size_t at = static_cast<size_t>(16 * l + i);
        const auto expected = i < kThere[l % 4] ? from[at] : uint8_t{0};
        if (data[16 * (31 - l) + i] != std::byte{expected}) return false;
      }
    return true;
  };
  const auto clear = [&] { std::memset(rig.block.shared.data() + 1024, 255, 512); };
  const auto copy = [&] { rig.run("cp.async.cg.shared.global", {to, source, sixteen, there}); };
  const auto wait = [&](int n) { rig.run("cp.async.wait_group", {rig.constant(static_cast<uint64_t>(n))}); };
  clear();
  copy();
  rig.run("cp.async.commit_group", {});
  rig.run("cp.async.commit_group", {});
  wait(2);
  EXPECT_EQ(is_there(), !late());
  wait(1);
  EXPECT_TRUE(is_there());
  clear();
  copy();
  wait(0);
  EXPECT_EQ(is_there(), !late());
  rig.run("cp.async.wait_all", {});
  EXPECT_TRUE(is_there());
  init(rig, 32);
  clear();
  copy();
  rig.run("cp.async.mbarrier.arrive.noinc.shared::cta.b64", {rig.constant(kBarrier)});
  EXPECT_EQ(is_there(), !late());
  EXPECT_EQ(rig.test(kBarrier, 1), late());
  EXPECT_EQ(is_there(), !late());
  EXPECT_TRUE(rig.test(kBarrier, 0));
  EXPECT_TRUE(is_there());
  // One more arrival, which is its own.
  rig.run("cp.async.mbarrier.arrive.shared::cta.b64", {rig.constant(kBarrier)});
  EXPECT_FALSE(rig.test(kBarrier, 1));
  rig.run("mbarrier.arrive.shared::cta.b64", {Rig::sink(), rig.constant(kBarrier)});
  EXPECT_TRUE(rig.test(kBarrier, 1));

  clear();
  rig.run("cp.async.ca.shared.global", {to, source, rig.constant(4), rig.predicate(1)}, 3);  // lane 0 ignores it
  rig.run("cp.async.wait_all", {});
  EXPECT_EQ(data[16 * 31], std::byte{0});
  EXPECT_EQ(data[16 * 30], std::byte{17});
  EXPECT_EQ(data[16 * 30 + 4], std::byte{255});
  const Operand eight = rig.constant(from.address() + 504, 2);
  EXPECT_THROW((rig.run("cp.async.cg.shared.global", {to, eight, sixteen}), rig.run("cp.async.wait_all", {})),
               Fault);
}

TEST_P(EmulatorAsync, BulkCopies) {
  Rig rig;
  Memory<uint32_t> memory(1024);
  for (uint32_t i = 0; i < 512; ++i) memory[i] = i + 1;
  init(rig, 1);
  const Operand to = rig.constant(kData), from = rig.constant(memory.address() + 16, 2), bytes = rig.constant(1008);
  const auto at = [&](size_t i) {
    uint32_t x;
    std::memcpy(&x, rig.block.shared.data() + 1024 + 4 * i, 4);
    return x;
  };
  rig.run("mbarrier.arrive.expect_tx.shared::cta.b64", {Rig::sink(), rig.constant(kBarrier), bytes}, kOne);
  rig.run("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
          {to, from, bytes, rig.constant(kBarrier)}, kOne);
  EXPECT_EQ(at(251), late() ? 0 : 256);
  EXPECT_TRUE(rig.test(kBarrier, 0));
  EXPECT_EQ(at(0), 5);
  EXPECT_EQ(at(251), 256);
  const Operand back = rig.constant(memory.address() + 2048, 2);
  for (const bool read : {false, true}) {
    memory[512] = 0;
    rig.run("cp.async.bulk.global.shared::cta.bulk_group", {back, to, bytes}, kOne);
    rig.run("cp.async.bulk.commit_group", {}, kOne);
    rig.run(read ? "cp.async.bulk.wait_group.read" : "cp.async.bulk.wait_group", {rig.constant(0)}, ~kOne);
    EXPECT_EQ(memory[512], late() ? 0 : 5);
    rig.run(read ? "cp.async.bulk.wait_group.read" : "cp.async.bulk.wait_group", {rig.constant(0)}, kOne);
    EXPECT_EQ(memory[512], 5u);
  }
  memory[512] = 0;
  rig.run("cp.async.bulk.global.shared::cta.bulk_group", {back, to, bytes}, kOne);
  finish_copies(rig.warp(), kOne);
  EXPECT_EQ(memory[512 + 251], 256u);
  rig.run("cp.async.bulk.prefetch.L2.global", {from, bytes}, kOne);
  const auto copy = [&](uint64_t target, uint64_t source, uint64_t size) {
    rig.run("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
            {rig.constant(target), rig.constant(source, 2), rig.constant(size), rig.constant(kBarrier)}, kOne);
    rig.test(kBarrier, 1);
  };
  EXPECT_THROW(copy(kData + 8, memory.address(), 16), Fault);
  EXPECT_THROW(copy(kData, memory.address() + 8, 16), Fault);
  EXPECT_THROW(copy(kData, memory.address(), 8), Fault);
  EXPECT_THROW(copy(kData, memory.address() + 4000, 128), Fault);
  EXPECT_THROW(copy(kSharedBase + 65536 - 16, memory.address(), 32), Fault);
}

// A tensor of [3, 2, 10, 80] elements, whose code is its place; boxes of 1 x 1 x 8 x 64.
TEST_P(EmulatorAsync, Boxes) {
  Memory<uint16_t> memory(3 * 2 * 10 * 80);
  Memory<TensorMap> maps(1);
  TensorMap &map = maps[0];
  map.rank = 4;
  map.kind = TensorMap::kBFloat16;
  map.element_bytes = 2;
  map.address = memory.address();
  constexpr int kExtent[4] = {80, 10, 2, 3}, kBox[4] = {64, 8, 1, 1};
  for (int d = 0; d < 4; ++d) {
    map.box[d] = static_cast<uint16_t>(kBox[d]);
    map.extent[d] = static_cast<uint32_t>(kExtent[d]);
    map.stride[d] = d ? map.stride[d - 1] * map.extent[d - 1] : 2;
  }
  constexpr int kAt[4] = {-8, 5, 1, 2};
  for (const int swizzle : {0, 128, 64}) {
    map.swizzle = static_cast<uint8_t>(swizzle);
    const int width = swizzle == 64 ? 32 : 64;
    map.box[0] = static_cast<uint16_t>(width);
    const int bytes = 8 * width * 2;
    for (size_t i = 0; i < 3 * 2 * 10 * 80; ++i) memory[i] = static_cast<uint16_t>(i + 1);
    Cluster cluster;
    Rig rig(0, &cluster), other(1, &cluster);
    const auto data = [&](Rig &r, int row, int column) {
      const int phase = swizzle == 128 ? row % 8 : swizzle == 64 ? row / 2 % 4 : 0;
      return r.half(static_cast<size_t>(1024 + row * width * 2 + ((column / 8) ^ phase) * 16 + column % 8 * 2));
    };
    const auto expected = [&](int row, int column) {
      const int c = kAt[0] + column, r = kAt[1] + row;
      return c < 0 || c >= 80 || r >= 10 ? 0 : ((2 * 2 + 1) * 10 + r) * 80 + c + 1;
    };
    for (Rig *r : {&rig, &other}) {
      init(*r, 1);
      std::memset(r->block.shared.data() + 1024, 255, 1024);
      r->run("mbarrier.arrive.expect_tx.shared::cta.b64",
             {Rig::sink(), r->constant(kBarrier), r->constant(static_cast<uint64_t>(bytes))}, kOne);
    }
    std::vector<Operand> where = {rig.constant(maps.address(), 2)};
    for (const int at : kAt) where.push_back(rig.constant(static_cast<uint64_t>(at)));
    std::vector<Operand> o = {rig.constant(kData)};
    o.insert(o.end(), where.begin(), where.end());
    o.push_back(rig.constant(kBarrier));
    o.push_back(rig.constant(3));  // blocks
    rig.run("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster", o,
            kOne);
    for (Rig *r : {&rig, &other}) {
      EXPECT_EQ(data(*r, 0, 8), late() ? 65535 : expected(0, 8));
      EXPECT_TRUE(r->test(kBarrier, 0));
      for (int row = 0; row < 8; ++row)
        for (int column = 0; column < width; ++column) ASSERT_EQ(data(*r, row, column), expected(row, column));
    }
    // To the other block alone, with a hint.
    std::memset(other.block.shared.data() + 1024, 255, 1024);
    other.run("mbarrier.arrive.expect_tx.shared::cta.b64",
              {Rig::sink(), other.constant(kBarrier), other.constant(static_cast<uint64_t>(bytes))}, kOne);
    o.front() = rig.constant(kData + (2u << 24));
    o[6] = rig.constant(kBarrier + (2u << 24));
    o.back() = rig.constant(0, 2);
    rig.run("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint", o,
            kOne);
    EXPECT_TRUE(other.test(kBarrier, 1));
    EXPECT_EQ(data(other, 4, 31), expected(4, 31));

    // Back, and added to what is there.
    for (int i = 0; i < 64 * 64; ++i) rig.half(static_cast<size_t>(1024 + 2 * i)) = to_bfloat16(2);
    for (size_t i = 0; i < 3 * 2 * 10 * 80; ++i) memory[i] = to_bfloat16(1);
    where.push_back(rig.constant(kData));
    for (const bool adds : {false, true}) {
      rig.run(adds ? "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group"
                   : "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group",
              where, kOne);
      rig.run("cp.async.bulk.commit_group", {}, kOne);
      rig.run("cp.async.bulk.wait_group.read", {rig.constant(0)}, kOne);
      for (int i = 0; i < 3 * 2 * 10 * 80; ++i) {
        const int column = i % 80, row = i / 80 % 10;
        const bool inside = i / 800 == 5 && row >= 5 && column < width - 8;
        ASSERT_EQ(from_bfloat16(memory[static_cast<size_t>(i)]), inside ? (adds ? 4 : 2) : 1) << i;
      }
    }
    where.back() = rig.constant(kData + 16);
    EXPECT_THROW(rig.run("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group", where, kOne), Fault);
  }
}

TEST(EmulatorHints, AreNotHeeded) {
  Rig rig;
  for (const char *const opcode :
       {"fence.proxy.async.shared::cta", "fence.mbarrier_init.release.cluster", "membar.sys",
        "fence.proxy.async.global", "fence.acquire.sync_restrict::shared::cluster.cluster",
        "fence.release.sync_restrict::shared::cta.cluster", "griddepcontrol.wait"})
    rig.run(opcode, {});
  rig.run("setmaxnreg.inc.sync.aligned.u32", {rig.constant(240)});
  EXPECT_FALSE(rig.warp().yield);
  rig.run("nanosleep.u32", {rig.constant(20)});
  EXPECT_TRUE(rig.warp().yield);
}

}  // namespace
}  // namespace emulator
