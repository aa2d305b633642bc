// Loads, stores, atomics, and the spaces: shared, local, generic, of another block of a cluster.
#include "tests/program.h"

namespace emulator {
namespace {

TEST(EmulatorMemory, WidthsAndSigns) {
  Memory<std::byte> out(1024), in(1024);
  for (size_t n = 0; n < 32; ++n) in[n] = static_cast<std::byte>(0xf0 + n);
  const auto value = [&](const std::string &code) {
    run(Program(code + "\nst.global.u64 [%out], %l1;").launch(out.address(), in.address()));
    uint64_t got;
    std::memcpy(&got, &out[0], 8);
    return got;
  };
  EXPECT_EQ(value("ld.global.s8 %l1, [%in];"), 0xfffffffffffffff0u);
  EXPECT_EQ(value("ld.global.u8 %l1, [%in+1];"), 0xf1u);
  EXPECT_EQ(value("ld.global.nc.s16 %l1, [%in+2];"), 0xfffffffffffff3f2u);
  EXPECT_EQ(value("ld.volatile.global.u32 %l1, [%in+4];"), 0xf7f6f5f4u);
  EXPECT_EQ(value("ld.global.s32 %l1, [%in+4];"), 0xfffffffff7f6f5f4u);
  EXPECT_EQ(value("ld.global.v2.u32 {%r1, %r2}, [%in+8];\nmov.b64 %l1, {%r2, %r1};"), 0xfbfaf9f8fffefdfcu);
  EXPECT_EQ(value("ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%in+12];\nmov.b64 %l1, {%h1, %h2, %h3, %h4};"),
            0x00ff00fe00fd00fcu);
  EXPECT_EQ(value("mov.u64 %l1, 0;\nmov.u64 %l2, -1;\nst.global.u64 [%out], %l1;\nst.global.u16 [%out+2], %l2;\n"
                  "ld.global.u64 %l1, [%out];"),
            0xffff0000u);
  // The address may be in a register that the load writes.
  EXPECT_EQ(value("mov.u64 %l1, %in;\nld.global.v2.u64 {%l1, %l2}, [%l1];\nmov.u64 %l1, %l2;"),
            0xfffefdfcfbfaf9f8u);
}

TEST(EmulatorMemory, LocalMemoryIsEachThreadsOwn) {
  const auto got = results(R"(.local .align 8 .b8 local[16];
.reg .b64 %sp;
mov.u64 %sp, local;
st.local.u32 [%sp+4], %r0;
cvta.local.u64 %l1, %sp;
ld.u32 %r1, [%l1+4];
add.u32 %r1, %r1, 1;
st.u32 [%l1+8], %r1;
ld.local.v2.u32 {%r2, %r3}, [%sp+8];
st.global.u32 [%mine], %r2;)");
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], t + 1);
}

TEST(EmulatorMemory, GenericAddressesOfSharedMemory) {
  const auto got = results(R"(.shared .align 4 .b8 first[12];
.shared .align 16 .b8 second[128];
mov.u64 %l1, second;
cvta.shared.u64 %l2, %l1;
mul.wide.u32 %l3, %r0, 4;
add.s64 %l2, %l2, %l3;
st.u32 [%l2], %r0;
bar.warp.sync -1;
cvta.to.shared.u64 %l4, %l2;
xor.b64 %l4, %l4, 4;
ld.shared.u32 %r1, [%l4];
mov.u32 %r2, first;
st.shared.u32 [%r2], %r1;
st.global.u32 [%mine], %r1;)");
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], t ^ 1);
}

TEST(EmulatorMemory, Atomics) {
  Memory<uint32_t> out(64);
  out[0] = 5, out[1] = 100;
  const Program p(R"(.shared .align 8 .b32 value;
mov.u32 %r1, -7;
st.shared.u32 [value], %r1;
sub.s32 %r2, %r0, 20;
atom.shared.max.s32 %r3, [value], %r2;
ld.shared.u32 %r4, [value];
atom.global.add.u32 %r5, [%out], 2;
red.global.min.u32 [%out+4], %r5;
mov.f32 %f1, 0f3F000000;
red.global.add.f32 [%out+8], %f1;
mov.u32 %r6, 0x3c003c00;
red.global.add.noftz.f16x2 [%out+12], %r6;
mul.wide.u32 %l1, %r0, 4;
add.s64 %l1, %out, %l1;
st.global.u32 [%l1+128], %r5;
setp.eq.u32 %p1, %r0, 31;
@%p1 st.global.u32 [%out+16], %r4;)");
  run(p.launch(out.address()));
  EXPECT_EQ(out[0], 5 + 64u);
  EXPECT_EQ(out[1], 5u);
  EXPECT_EQ(std::bit_cast<float>(out[2]), 16.0f);
  EXPECT_EQ(out[3], 0x50005000u);                                       // 32 and 32
  EXPECT_EQ(out[4], 11u);                                               // 31 - 20
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(out[32 + t], 5 + 2 * t);  // what was there before
}

// Each block of a cluster writes into the next one's shared memory, waits for all, and reads its own.
TEST(EmulatorMemory, SharedMemoryOfACluster) {
  for (const bool generic : {false, true}) {
    Memory<uint32_t> out(64);
    const Program p(
        std::string(R"(.shared .align 4 .b32 value;
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r2, %cluster_nctarank;
add.u32 %r3, %r1, 1;
rem.u32 %r3, %r3, %r2;
mov.u32 %r4, value;
add.u32 %r6, %r1, 50;
)") +
        (generic ? "cvt.u64.u32 %l1, %r4;\ncvta.shared.u64 %l1, %l1;\nmapa.u64 %l2, %l1, %r3;\nst.u32 [%l2], %r6;\n"
                 : "mapa.shared::cluster.u32 %r5, %r4, %r3;\nst.shared::cluster.u32 [%r5], %r6;\n") +
        R"(barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
ld.shared.u32 %r7, [%r4];
mov.u32 %r8, %ctaid.x;
mul.wide.u32 %l3, %r8, 4;
add.s64 %l3, %out, %l3;
st.global.u32 [%l3], %r7;)");
    Launch l = p.launch(out.address(), 0, 64, 8);
    l.cluster.x = 4;
    run(l);
    for (uint32_t block = 0; block < 8; ++block) EXPECT_EQ(out[block], 50 + (block + 3) % 4) << generic << block;
  }
}

// A warp that has arrived and left is not counted for one that has not arrived.
TEST(EmulatorMemory, TheClustersBarrierWaitsForAll) {
  Memory<uint32_t> out(8);
  const Program p(R"(.shared .align 4 .b32 value;
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r2, 0;
mov.u32 %r9, value;
st.shared.u32 [%r9], %r2;
setp.lt.u32 %p1, %r0, 32;
@%p1 bra FIRST;
barrier.cluster.arrive;
exit;
FIRST:
setp.eq.u32 %p2, %r1, 0;
@%p2 bra ARRIVE;
SPIN:
add.u32 %r2, %r2, 1;
setp.lt.u32 %p3, %r2, 100000;
@%p3 bra SPIN;
mapa.shared::cluster.u32 %r5, %r9, 0;
st.shared::cluster.u32 [%r5], %r2;
ARRIVE:
barrier.cluster.arrive;
barrier.cluster.wait;
ld.shared.u32 %r3, [%r9];
@%p2 st.global.u32 [%out], %r3;)");
  Launch l = p.launch(out.address(), 0, 64, 2);
  l.cluster.x = 2;
  run(l);
  EXPECT_EQ(out[0], 100000u);
}

TEST(EmulatorMemory, DynamicSharedMemoryComesAfterTheStaticOne) {
  Memory<uint32_t> out(8);
  const Program p(R"(.shared .align 4 .b8 fixed[20];
mov.u32 %r1, dynamic;
mov.u32 %r2, fixed;
sub.u32 %r3, %r1, %r2;
st.shared.u32 [%r1+60], %r3;
ld.shared.u32 %r4, [%r1+60];
and.b32 %r5, %r1, 127;
st.global.v2.u32 [%out], {%r4, %r5};)",
                  ".extern .shared .align 128 .b8 dynamic[];");
  Launch l = p.launch(out.address());
  l.dynamic_shared = 64;
  run(l);
  EXPECT_GE(out[0], 20u);
  EXPECT_EQ(out[1], 0u);
}

}  // namespace
}  // namespace emulator
