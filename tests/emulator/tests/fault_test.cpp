// What is wrong with a kernel ends it with a text that says what, which kernel, and which line.
#include "tests/program.h"

namespace emulator {
namespace {

void expect_fault(const std::string &body, const std::string &why, const std::string &line, uint32_t threads = 32) {
  std::string name;
  const std::string text = fault_of(body, threads, "", &name);
  for (const std::string &part : {why, name, line}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

TEST(EmulatorFaults, OutOfBounds) {
  expect_fault("st.global.u32 [%out+1024], %r0;", "a store of 4 bytes", "st.global.u32 [%out+1024], %r0");
  expect_fault("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%out+-16];", "a load of 16 bytes", "ld.global.v4.u32");
  expect_fault("mov.u64 %l1, -16;\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%l1];", "out of bounds",
               "ld.global.v4.u32");
  expect_fault("mov.u64 %l1, -8;\nld.u64 %l1, [%l1];", "out of bounds", "ld.u64");
  expect_fault(".shared .b32 a[4];\nmov.u32 %r1, a;\nst.shared.u32 [%r1+16], %r1;", "shared memory",
               "st.shared.u32");
  expect_fault("mov.u32 %r1, 0;\nld.shared.u32 %r1, [%r1];", "shared memory", "ld.shared.u32");
  expect_fault(".local .b32 a[2];\nmov.u64 %l1, a;\nst.local.u32 [%l1+8], %r0;", "local memory", "st.local.u32");
  expect_fault("mov.u32 %r1, 0x3000400;\nld.shared::cluster.u32 %r1, [%r1];", "cluster", "ld.shared::cluster.u32");
  expect_fault("mov.u64 %l1, %in;\nld.param.u32 %r1, [%l1];", "parameter", "ld.param.u32");
}

TEST(EmulatorFaults, Misaligned) {
  expect_fault("st.global.u32 [%out+2], %r0;", "no multiple of 4", "st.global.u32 [%out+2], %r0");
  expect_fault("ld.global.v2.u32 {%r1, %r2}, [%out+4];", "no multiple of 8", "ld.global.v2.u32");
  expect_fault(".shared .align 8 .b32 a[4];\nld.shared.u64 %l1, [a+4];", "no multiple of 8", "ld.shared.u64");
}

TEST(EmulatorFaults, Deadlocks) {
  expect_fault("setp.lt.u32 %p1, %r0, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nA:\nbar.sync 2, 64;", "every warp waits",
               "bar.sync 2, 64", 64);
  expect_fault(
      ".shared .align 8 .b64 b;\nmov.u32 %r1, b;\nmbarrier.init.shared::cta.b64 [%r1], 99;\nW:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n@!%p1 bra W;",
      "every warp waits", "mbarrier.try_wait");
  expect_fault("setp.lt.u32 %p1, %r0, 16;\n@%p1 bra A;\nbar.warp.sync -1;\nret;\nA:\nbar.sync 0;",
               "lanes wait for each other in different places", "bar.warp.sync -1");
  expect_fault("setp.lt.u32 %p1, %r0, 16;\n@%p1 shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;", "lanes wait",
               "shfl.sync.idx");
}

TEST(EmulatorFaults, WrongUseOfBarriers) {
  expect_fault("bar.sync 16;", "no barrier 16", "bar.sync 16");
  expect_fault("bar.sync 1, 33;", "a barrier of 33 threads", "bar.sync 1, 33");
  expect_fault("bar.sync 1, 32;\nbar.arrive 2, 64;\nbar.arrive 2, 32;", "more threads", "bar.arrive 2, 32");
  expect_fault("setp.lt.u32 %p1, %r0, 16;\n@%p1 bar.arrive 1, 64;", "lanes wait", "bar.arrive 1, 64");
  expect_fault("setp.lt.u32 %p1, %r0, 16;\n@%p1 bra A;\nvote.sync.any.pred %p2, %p1, 0xffff;\nA:\nret;", "mask",
               "vote.sync");
  expect_fault("barrier.cluster.wait;", "without an arrival", "barrier.cluster.wait");
  expect_fault("barrier.cluster.arrive;\nbarrier.cluster.arrive;", "a second arrival", "barrier.cluster.arrive",
               64);
  expect_fault("trap;", "gave up", "trap");
}

// What is not implemented is refused as the kernel is read, and so are modifiers.
TEST(EmulatorFaults, WhatIsNotKnown) {
  for (const char *line : {"frobnicate.b32 %r1, %r0",
                           "add.sat.s32 %r1, %r0, %r0",
                           "add.cc.u32 %r1, %r0, %r0",
                           "add.rz.f32 %f1, %f1, %f1",
                           "add.ftz.f32 %f1, %f1, %f1",
                           "mul.rm.f32 %f1, %f1, %f1",
                           "fma.rn.ftz.f32 %f1, %f1, %f1, %f1",
                           "fma.rp.f32 %f1, %f1, %f1, %f1",
                           "mul.hi.s16 %h1, %h1, %h1",
                           "mad.hi.u32 %r1, %r0, %r0, %r0",
                           "mul.s32 %r1, %r0, %r0",
                           "min.ftz.f32 %f1, %f1, %f1",
                           "max.xorsign.abs.f32 %f1, %f1, %f1",
                           "rcp.approx.ftz.f32 %f1, %f1",
                           "setp.lt.and.s32 %p1, %r0, %r0, %p2",
                           "setp.lt.s32 %p1|%p2, %r0, %r0",
                           "setp.lt.ftz.f32 %p1, %f1, %f1",
                           "setp.lo.s32 %p1, %r0, %r0",
                           "cvt.rz.f32.f64 %f1, %d1",
                           "cvt.f32.f64 %f1, %d1",
                           "cvt.s32.f32 %r1, %f1",
                           "cvt.rn.relu.bf16.f32 %h1, %f1",
                           "cvt.rn.f16.f64 %h1, %d1",
                           "cvt.rn.ftz.f32.s32 %f1, %r0",
                           "prmt.b32.f4e %r1, %r0, %r0, %r0",
                           "ld.global.b128 %l1, [%in]",
                           "ld.frob.u32 %r1, [%in]",
                           "ld.global.u32 %p1, [%in]",
                           "atom.global.cas.b32 %r1, [%in], %r0, %r0",
                           "atom.global.exch.b32 %r1, [%in], %r0",
                           "red.shared.add.noftz.f16x2 [%in], %r0",
                           "shfl.up.b32 %r1, %r0, 1, 0",
                           "shfl.sync.idx.b32 %l1, %l0, 0, 31, -1",
                           "vote.sync.uni.pred %p1, %p1, -1",
                           "bar.red.popc.u32 %r1, 0, %p1",
                           "barrier.sync 0",
                           "mov.b128 %l1, %l1",
                           "add.s32 %l1, %r0, %r0",
                           "add.s32 %r1, %r0",
                           "add.s64 %l1, %l0, %r0",
                           "shl.b32 %r1, %r0, %l0",
                           "mov.u32 %r1, 1.5",
                           "cvta.const.u64 %l1, %l1",
                           "lop3.b32 %r1, %r0, %r0, %r0, 0x80",
                           "wgmma.frob.sync.aligned",
                           "mbarrier.frob.b64 [%in]",
                           "cp.async.frob [%in]"})
    expect_fault(std::string(line) + ";", "not known", line);
  expect_fault("mov.u32 %r1, %envreg3;", "unknown register", "%envreg3");
  expect_fault("mov.u32 %r1, %r99x;", "unknown", "%r99x");
  expect_fault("bra NOWHERE;", "no label", "NOWHERE");
  expect_fault("@%r0 bra A;\nA:", "unknown guard", "%r0");
  expect_fault("@%p1 call.uni nothing;", "guard", "call.uni");
  expect_fault("call.uni nothing;", "call of nothing", "nothing");
}

TEST(EmulatorFaults, Launches) {
  Memory<uint32_t> out(8);
  Launch l = Program("ret;").launch(out.address(), 0, 32, 3);
  l.cluster.x = 2;
  EXPECT_THROW(run(l), Fault);
  l.cluster.x = 3;
  EXPECT_NO_THROW(run(l));
  l.kernel = "there is none";
  EXPECT_THROW(run(l), Fault);
  EXPECT_THROW(facts("there is none"), Fault);
}

TEST(EmulatorFacts, AreReadFromTheText) {
  Memory<uint32_t> out(64);
  const Program p(
      ".shared .align 16 .b8 used[100];\n.shared .b8 unused[1000];\nmov.u32 %r1, used;\nst.global.u32 [%out], %r1;",
      "// a comment\n.global .align 4 .b32 variable;\n.extern .func other(.param .b32 x);",
      ".maxntid 128, 2, 1\n.minnctapersm 1\n");
  const KernelFacts &f = facts(p.name);
  EXPECT_EQ(f.max_threads, 256);
  EXPECT_EQ(f.static_shared, 100u);
  ASSERT_EQ(f.parameters.size(), 2u);
  EXPECT_EQ(f.parameters[1], std::make_pair(size_t{8}, size_t{8}));
}

}  // namespace
}  // namespace emulator
