// cvt: rounding, limits, signs.
#include <cmath>
#include <limits>

#include "instructions/convert.h"
#include "tests/program.h"

namespace emulator {
namespace {

// The opcode's result, in 64 bits, of a value with these bits in a register of 64 bits, as cvt permits for
// integers.
uint64_t converted(const std::string &opcode, const std::string &to, const std::string &from, uint64_t bits) {
  const std::string load = from[1] == 'l' ? "mov.u64 " + from + ", " + std::to_string(bits) + ";\n"
                                          : "mov.u64 %l9, " + std::to_string(bits) + ";\ncvt.u32.u64 %r9, %l9;\n" +
                                                (from[1] == 'f'   ? "mov.b32 " + from + ", %r9;\n"
                                                 : from[1] == 'h' ? "cvt.u16.u32 " + from + ", %r9;\n"
                                                 : from[1] == 'd' ? "mov.b64 " + from + ", %l9;\n"
                                                                  : "mov.u32 " + from + ", %r9;\n");
  const std::string size = to[1] == 'l' || to[1] == 'd' ? "b64" : to[1] == 'h' ? "b16" : "b32";
  return results<uint64_t>(load + opcode + " " + to + ", " + from + ";\nst.global." + size + " [%mine], " + to +
                           ";")[7];
}
uint64_t of_float(const std::string &opcode, const std::string &to, float x) {
  return converted(opcode, to, "%f1", std::bit_cast<uint32_t>(x));
}
uint64_t of_double(const std::string &opcode, const std::string &to, double x) {
  return converted(opcode, to, "%d1", std::bit_cast<uint64_t>(x));
}
float float_of(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

TEST(EmulatorConversion, ToIntegers) {
  const struct {
    const char *how;
    float x;
    int32_t wanted;
  } cases[] = {
      {"rzi", -1.7f, -1}, {"rni", 2.5f, 2},         {"rni", 3.5f, 4},          {"rmi", -1.2f, -2},
      {"rpi", 1.2f, 2},   {"rzi", 3e9f, INT32_MAX}, {"rzi", -3e9f, INT32_MIN}, {"rzi", kInfinity, INT32_MAX},
      {"rzi", kNaN, 0}};
  for (const auto &c : cases)
    EXPECT_EQ(static_cast<int32_t>(of_float(std::string("cvt.") + c.how + ".s32.f32", "%r1", c.x)), c.wanted)
        << c.how << c.x;
  EXPECT_EQ(of_float("cvt.rzi.u32.f32", "%r1", -5), 0u);
  EXPECT_EQ(of_float("cvt.rzi.u32.f32", "%r1", 5e9f), UINT32_MAX);
  EXPECT_EQ(of_double("cvt.rzi.s64.f64", "%l1", 1e30), static_cast<uint64_t>(INT64_MAX));
  EXPECT_EQ(of_double("cvt.rzi.s64.f64", "%l1", -1e30), static_cast<uint64_t>(INT64_MIN));
  EXPECT_EQ(of_double("cvt.rzi.u64.f64", "%l1", 1e30), UINT64_MAX);
  EXPECT_EQ(of_double("cvt.rzi.u64.f64", "%l1", 0x1p63), uint64_t{1} << 63);
  EXPECT_EQ(of_float("cvt.rzi.s64.f32", "%l1", kNaN), uint64_t{1} << 63);
  EXPECT_EQ(of_double("cvt.rzi.s32.f64", "%r1", std::nan("")), uint64_t{1} << 31);
}

TEST(EmulatorConversion, ToFloats) {
  EXPECT_EQ(float_of(converted("cvt.rn.f32.s32", "%f1", "%r1", uint32_t(-16777217))), -16777216.0f);
  EXPECT_EQ(float_of(converted("cvt.rn.f32.u32", "%f1", "%r1", 0xffffffffu)), 0x1p32f);
  // By way of double this one would be rounded twice, and come out even.
  EXPECT_EQ(float_of(converted("cvt.rn.f32.u64", "%f1", "%l1", 0x8000008000000001u)),
            std::nextafter(0x1p63f, kInfinity));
  EXPECT_EQ(std::bit_cast<double>(converted("cvt.rn.f64.s64", "%d1", "%l1", uint64_t(-3))), -3.0);
  EXPECT_EQ(std::bit_cast<double>(of_float("cvt.f64.f32", "%d1", 0.1f)), double{0.1f});
  EXPECT_EQ(float_of(of_double("cvt.rn.f32.f64", "%f1", 1 + 0x1.8p-24)), std::nextafter(1.0f, 2.0f));
  EXPECT_EQ(float_of(of_float("cvt.rni.f32.f32", "%f2", 2.5f)), 2.0f);
  EXPECT_EQ(float_of(of_float("cvt.rmi.f32.f32", "%f2", -0.5f)), -1.0f);
  EXPECT_EQ(float_of(of_float("cvt.sat.f32.f32", "%f2", 3.0f)), 1.0f);
  EXPECT_EQ(float_of(of_float("cvt.sat.f32.f32", "%f2", -3.0f)), 0.0f);
  EXPECT_EQ(float_of(of_float("cvt.sat.f32.f32", "%f2", 0.25f)), 0.25f);
  EXPECT_EQ(float_of(of_float("cvt.sat.f32.f32", "%f2", kNaN)), 0.0f);
}

TEST(EmulatorConversion, Halves) {
  EXPECT_EQ(of_float("cvt.rn.bf16.f32", "%h1", 1 + 0x1p-8f), 0x3f80u);  // a tie, to even
  EXPECT_EQ(of_float("cvt.rn.bf16.f32", "%h1", 1 + 0x3p-8f), 0x3f82u);  // likewise
  EXPECT_EQ(of_float("cvt.rn.bf16.f32", "%h1", kNaN), 0x7fffu);
  EXPECT_EQ(of_float("cvt.rn.bf16.f32", "%h1", 3.4e38f), 0x7f80u);  // infinite
  EXPECT_EQ(of_float("cvt.rn.f16.f32", "%h1", 65520.0f), 0x7c00u);  // likewise
  EXPECT_EQ(of_float("cvt.rn.f16.f32", "%h1", 0x1p-24f), 1u);       // the least
  EXPECT_EQ(float_of(converted("cvt.f32.f16", "%f1", "%h1", 0x3c01)), 1 + 0x1p-10f);
  EXPECT_EQ(float_of(converted("cvt.f32.bf16", "%f1", "%h1", 0xc049)), -3.140625f);
  const auto pair = results(
      "mov.f32 %f1, 0f3F800000;\nmov.f32 %f2, 0f40000000;\ncvt.rn.f16x2.f32 %r1, %f1, %f2;\n"
      "cvt.rn.bf16x2.f32 %r2, %f1, %f2;\nsetp.lt.u32 %p1, %r0, 16;\nselp.b32 %r1, %r1, %r2, %p1;\n"
      "st.global.u32 [%mine], %r1;");
  EXPECT_EQ(pair[0], 0x3c004000u);  // the first operand is the upper half
  EXPECT_EQ(pair[31], 0x3f804000u);
}

TEST(EmulatorConversion, BetweenIntegers) {
  EXPECT_EQ(converted("cvt.s64.s32", "%l1", "%r1", 0x80000000u), 0xffffffff80000000u);
  EXPECT_EQ(converted("cvt.u64.u32", "%l1", "%r1", 0x80000000u), 0x80000000u);
  EXPECT_EQ(converted("cvt.u32.u64", "%r1", "%l1", 0x123456789au), 0x3456789au);
  EXPECT_EQ(converted("cvt.s32.s8", "%r1", "%r2", 0x1ff), 0xffffffffu);
  EXPECT_EQ(converted("cvt.u32.u8", "%r1", "%h1", 0x1ff), 0xffu);
  EXPECT_EQ(converted("cvt.s64.s8", "%l1", "%l2", 0x80), 0xffffffffffffff80u);
  EXPECT_EQ(converted("cvt.u32.u16", "%r1", "%r2", 0x12345), 0x2345u);  // a source in a wider register
  EXPECT_EQ(converted("cvt.s32.s16", "%r1", "%h1", 0x8000), 0xffff8000u);
  EXPECT_EQ(converted("cvt.sat.s8.s32", "%r1", "%r2", 300), 127u);
  EXPECT_EQ(converted("cvt.sat.u8.s32", "%r1", "%r2", uint32_t(-4)), 0u);
  EXPECT_EQ(converted("cvt.sat.s32.u64", "%r1", "%l2", uint64_t{1} << 40), 0x7fffffffu);
}

}  // namespace
}  // namespace emulator
