// Lanes that part and meet, calls, and what threads tell each other.
#include "tests/program.h"

namespace emulator {
namespace {

TEST(EmulatorControl, NestedBranches) {
  const auto got = results(R"(mov.u32 %r1, 0;
and.b32 %r2, %r0, 1;
setp.eq.u32 %p1, %r2, 0;
@%p1 bra EVEN;
setp.lt.u32 %p2, %r0, 8;
@!%p2 bra ODD_HIGH;
mov.u32 %r1, 1;
bra.uni DONE;
ODD_HIGH:
mov.u32 %r1, 2;
bra DONE;
EVEN:
setp.lt.u32 %p2, %r0, 8;
@%p2 bra DONE;
mov.u32 %r1, 3;
DONE:
add.u32 %r1, %r1, 10;
st.global.u32 [%mine], %r1;
ret;)");
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], t % 2 ? t < 8 ? 11u : 12u : t < 8 ? 10u : 13u) << t;
}

// Each thread goes round as often as its number says; then the warp is together again, as the ballot shows.
TEST(EmulatorControl, LoopsOfDifferentLengthsAndWhereTheyMeet) {
  const auto got = results(R"(mov.u32 %r1, 0;
mov.u32 %r2, 0;
LOOP:
setp.ge.u32 %p1, %r2, %r0;
@%p1 bra END;
add.u32 %r2, %r2, 1;
add.u32 %r1, %r1, %r2;
bra LOOP;
END:
setp.ge.u32 %p2, %r1, 100;
vote.sync.ballot.b32 %r3, %p2, 0xffffffff;
xor.b32 %r1, %r1, %r3;
st.global.u32 [%mine], %r1;)");
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], (t * (t + 1) / 2) ^ ~((1u << 14) - 1)) << t;
}

// Threads that have left no longer count at a barrier, nor in a mask.
TEST(EmulatorControl, EarlyExit) {
  const auto got = results(R"(mov.u32 %r1, 7;
st.global.u32 [%mine], %r1;
setp.ge.u32 %p1, %r0, 40;
@%p1 exit;
bar.sync 0;
setp.ne.u32 %p2, %r0, 3;
vote.sync.ballot.b32 %r2, %p2, -1;
st.global.u32 [%mine], %r2;)",
                           96);
  for (uint32_t t = 0; t < 96; ++t) EXPECT_EQ(got[t], t < 32 ? ~8u : t < 40 ? 0xffu : 7u) << t;
}

// A lane waits for another of its warp, which is further on in the program.
TEST(EmulatorControl, LanesOfAWarpMayWaitForEachOther) {
  const auto got = results(R"(.shared .align 8 .b64 barrier;
mov.u32 %r1, barrier;
setp.ne.u32 %p1, %r0, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.warp.sync -1;
@%p1 bra OTHERS;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra WAIT;
mov.u32 %r3, 5;
bra DONE;
OTHERS:
mov.u32 %r3, 6;
setp.ne.u32 %p3, %r0, 9;
@%p3 bra DONE;
mbarrier.arrive.shared::cta.b64 _, [%r1];
DONE:
st.global.u32 [%mine], %r3;)");
  EXPECT_EQ(got[0], 5u);
  EXPECT_EQ(got[9], 6u);
}

// The last half writes, the first half reads.
TEST(EmulatorControl, BarriersOfABlock) {
  const auto got = results(R"(.shared .align 4 .b32 values[128];
mov.u32 %r1, values;
shl.b32 %r2, %r0, 2;
add.u32 %r2, %r1, %r2;
st.shared.u32 [%r2], %r0;
bar.sync 0;
xor.b32 %r3, %r0, 127;
shl.b32 %r3, %r3, 2;
add.u32 %r3, %r1, %r3;
ld.shared.u32 %r4, [%r3];
st.global.u32 [%mine], %r4;)",
                           128);
  for (uint32_t t = 0; t < 128; ++t) EXPECT_EQ(got[t], t ^ 127) << t;
}

// Producers arrive and go on, twice as fast as the consumers wait: no arrival is lost.
TEST(EmulatorControl, NamedBarriersWithACount) {
  const auto got = results(R"(.shared .align 4 .b32 value;
mov.u32 %r1, value;
mov.u32 %r2, 0;
setp.ge.u32 %p1, %r0, 64;
@%p1 bra PRODUCE;
CONSUME:
bar.sync 3, 128;
add.u32 %r2, %r2, 1;
bar.sync 4, 128;
setp.lt.u32 %p2, %r2, 50;
@%p2 bra CONSUME;
bra DONE;
PRODUCE:
bar.arrive 3, 128;
add.u32 %r2, %r2, 1;
bar.sync 4, 128;
setp.lt.u32 %p2, %r2, 50;
@%p2 bra PRODUCE;
bar.arrive 5, 128;
bra END;
DONE:
bar.sync 5, 128;
END:
st.global.u32 [%mine], %r2;)",
                           128);
  for (uint32_t t = 0; t < 128; ++t) EXPECT_EQ(got[t], 50u);
}

TEST(EmulatorControl, BarriersReduce) {
  const std::string code = R"(setp.eq.u32 %p1, %r0, 40;
setp.ne.u32 %p4, %r0, 200;
bar.red.or.pred %p2, 0, %p1;
bar.red.and.pred %p3, 1, 64, %p1;
bar.red.and.pred %p5, 1, 64, %p4;
selp.u32 %r1, 1, 0, %p2;
@%p3 or.b32 %r1, %r1, 2;
@%p5 or.b32 %r1, %r1, 4;
st.global.u32 [%mine], %r1;)";
  for (const uint32_t r : results(code, 64)) EXPECT_EQ(r, 5u);
}

uint32_t shuffled(const std::string &mode, const std::string &b, const std::string &c, size_t lane, bool inside) {
  const std::string code = "add.u32 %r1, %r0, 100;\nand.b32 %r3, %r0, 3;\nshfl.sync." + mode +
                           ".b32 %r2|%p1, %r1, " + b + ", " + c +
                           ", -1;\nselp.u32 %r4, 1, 0, %p1;\nst.global.u32 [%mine], ";
  return results(code + (inside ? "%r4;" : "%r2;"))[lane];
}

TEST(EmulatorControl, Shuffles) {
  const struct {
    const char *mode, *b, *c;
    size_t lane;
    uint32_t from, inside;
  } cases[] = {{"idx", "5", "31", 20, 5, 1},      {"idx", "33", "31", 20, 1, 1},  {"idx", "%r3", "31", 22, 2, 1},
               {"idx", "5", "0x181f", 20, 21, 1},  // segments of 8
               {"up", "3", "0", 20, 17, 1},       {"up", "3", "0", 2, 2, 0},      {"up", "3", "0x1800", 17, 17, 0},
               {"down", "3", "31", 20, 23, 1},    {"down", "3", "31", 30, 30, 0}, {"down", "3", "0x181f", 6, 6, 0},
               {"bfly", "1", "31", 20, 21, 1},    {"bfly", "16", "31", 3, 19, 1}, {"bfly", "8", "0x181f", 3, 3, 0}};
  for (const auto &c : cases) {
    EXPECT_EQ(shuffled(c.mode, c.b, c.c, c.lane, false), 100 + c.from) << c.mode << c.b << c.c << " " << c.lane;
    EXPECT_EQ(shuffled(c.mode, c.b, c.c, c.lane, true), c.inside) << c.mode << c.b << c.c << " " << c.lane;
  }
}

// Halves of a warp, together or apart, vote each for itself.
TEST(EmulatorControl, PartsOfAWarp) {
  for (const bool apart : {false, true}) {
    const auto got = results(std::string("setp.lt.u32 %p1, %r0, 16;\nselp.b32 %r1, 0xffff, 0xffff0000, %p1;\n") +
                             (apart ? "@%p1 bra NEXT;\nadd.u32 %r0, %r0, 0;\n" : "") + R"(
setp.eq.u32 %p2, %r0, 3;
vote.sync.any.pred %p3, %p2, %r1;
setp.ne.u32 %p2, %r0, 3;
vote.sync.all.pred %p4, %p2, %r1;
vote.sync.ballot.b32 %r2, %p2, %r1;
elect.sync %r3|%p5, %r1;
bra END;
NEXT:
setp.eq.u32 %p2, %r0, 3;
vote.sync.any.pred %p3, %p2, %r1;
setp.ne.u32 %p2, %r0, 3;
vote.sync.all.pred %p4, %p2, %r1;
vote.sync.ballot.b32 %r2, %p2, %r1;
elect.sync %r3|%p5, %r1;
END:
shl.b32 %r3, %r3, 8;
or.b32 %r2, %r2, %r3;
@%p3 xor.b32 %r2, %r2, 1;
@%p4 xor.b32 %r2, %r2, 2;
@%p5 xor.b32 %r2, %r2, 0x80000000;
st.global.u32 [%mine], %r2;)");
    EXPECT_EQ(got[1], (0xfff7u ^ 1)) << apart;
    EXPECT_EQ(got[0], (0xfff7u ^ 1 ^ 0x80000000u)) << apart;
    EXPECT_EQ(got[16], ((0xffff0000u | 16 << 8) ^ 2 ^ 0x80000000u)) << apart;
    EXPECT_EQ(got[31], ((0xffff0000u | 16 << 8) ^ 2)) << apart;
  }
}

// A function in a loop, with a return in its middle that some lanes take.
TEST(EmulatorControl, Calls) {
  const std::string function = R"(.func (.param .b32 result) limited(.param .b32 value, .param .b32 most)
{
.reg .pred %p<2>;
.reg .b32 %r<4>;
ld.param.u32 %r1, [value];
ld.param.u32 %r2, [most+0];
setp.le.u32 %p1, %r1, %r2;
st.param.b32 [result+0], %r1;
@%p1 ret;
st.param.b32 [result+0], %r2;
ret;
})";
  const auto got = results(R"(mov.u32 %r1, 0;
mov.u32 %r4, 0;
AGAIN:
{
.param .b32 param0;
st.param.b32 [param0+0], %r0;
.param .b32 param1;
st.param.b32 [param1+0], 12;
.param .b32 retval0;
call.uni (retval0), limited, (param0, param1);
ld.param.b32 %r3, [retval0+0];
}
add.u32 %r4, %r4, %r3;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 3;
@%p1 bra AGAIN;
st.global.u32 [%mine], %r4;)",
                           32, function);
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], 3 * std::min(t, 12u)) << t;
}

// A label belongs to its braces: the inner one is not the outer one that stood before.
TEST(EmulatorControl, LabelsHaveScopes) {
  const auto got = results(R"(mov.u32 %r1, 0;
bra HERE;
HERE:
add.u32 %r1, %r1, 1;
{
bra HERE;
add.u32 %r1, %r1, 100;
HERE:
add.u32 %r1, %r1, 10;
}
st.global.u32 [%mine], %r1;)");
  EXPECT_EQ(got[0], 11u);
}

TEST(EmulatorControl, SpecialRegisters) {
  Memory<uint32_t> out(8 * 64);
  const Program p(R"(mov.u32 %r1, %ctaid.y;
mov.u32 %r2, %nctaid.z;
mov.u32 %r3, %tid.y;
mov.u32 %r4, %laneid;
mov.u32 %r5, %warpid;
mov.u32 %r6, %lanemask_lt;
mov.u32 %r7, %ntid.x;
mov.u32 %r8, %dynamic_smem_size;
mad.lo.s32 %r9, %r3, %r7, %r0;
mul.wide.u32 %l1, %r9, 32;
add.s64 %mine, %out, %l1;
setp.ne.u32 %p1, %r1, 1;
@%p1 ret;
st.global.v4.u32 [%mine], {%r1, %r2, %r3, %r4};
st.global.v4.u32 [%mine+16], {%r5, %r6, %r7, %r8};)");
  Launch l = p.launch(out.address());
  l.grid = {1, 2, 3};
  l.block = {16, 4, 1};
  l.dynamic_shared = 96;
  run(l);
  const uint32_t wanted[8] = {1, 3, 2, 5, 1, 31, 16, 96};
  for (size_t n = 0; n < 8; ++n) EXPECT_EQ(out[8 * (2 * 16 + 5) + n], wanted[n]) << n;
}

}  // namespace
}  // namespace emulator
