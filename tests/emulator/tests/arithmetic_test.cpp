// Arithmetic, logic, comparisons and moves, against the same on the host.
#include <cmath>
#include <limits>
#include <random>

#include "tests/program.h"

namespace emulator {
namespace {

// What a register of the type is called, and how large it is.
template <class T>
struct Type {
  static constexpr bool kFloat = std::is_floating_point_v<T>;
  static constexpr const char *reg = kFloat ? (sizeof(T) == 4 ? "%f" : "%d")
                                            : (sizeof(T) == 2   ? "%h"
                                               : sizeof(T) == 4 ? "%r"
                                                                : "%l");
  static std::string bits() { return (kFloat ? "f" : "u") + std::to_string(8 * sizeof(T)); }
};

// Values near the ends and zero come first, then any.
template <class T>
std::vector<T> values(unsigned seed) {
  using L = std::numeric_limits<T>;
  std::vector<T> all;
  std::mt19937_64 random(seed);
  if constexpr (std::is_floating_point_v<T>) {
    all = {0, T(-0.0), 1, -1, L::quiet_NaN(), L::infinity(), -L::infinity(), L::max(), L::min(), T(1) / 3};
    while (all.size() < 32)
      all.push_back(std::ldexp(T(random() % 2001) - 1000, static_cast<int>(random() % 40) - 20));
  } else {
    all = {0, 1, T(-1), L::max(), L::min(), T(L::max() - 1), T(L::min() + 1), 2, 7, T(-7)};
    while (all.size() < 32) all.push_back(static_cast<T>(random() >> random() % 64));
  }
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

template <class T>
bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return a == b && std::signbit(a) == std::signbit(b);
  }
  return a == b;
}

// `opcode d, a, b, c;` with as many operands as `f` takes, by each of 32 lanes; some lanes are left out the second
// time.
template <class D, class... A, class F>
void expect(const std::string &opcode, const F &f) {
  unsigned seed = 0;
  const auto next = [&]<class T>(T) { return values<T>(++seed); };
  const std::tuple<std::vector<A>...> given{next(A())...};
  for (const bool all : {true, false}) {
    Memory<std::byte> out(32 * 32), in(32 * 32);
    std::string loads, operands;
    int n = 0;
    std::apply(
        [&](const auto &...each) {
          const auto one = [&]<class T>(const std::vector<T> &v) {
            for (size_t lane = 0; lane < 32; ++lane)
              std::memcpy(&in[32 * lane + 8 * static_cast<size_t>(n)], &v[lane], sizeof(T));
            const std::string r = Type<T>::reg + std::to_string(n + 3);
            loads += "ld.global." + Type<T>::bits() + " " + r + ", [%l1+" + std::to_string(8 * n) + "];\n";
            operands += ", " + r;
            ++n;
          };
          (one(each), ...);
        },
        given);
    const std::string d = Type<D>::reg + std::string("2");
    const std::string zero = (sizeof(D) == 2 ? "mov.u16 " : "mov.b" + std::to_string(8 * sizeof(D)) + " ") + d +
                             ", " + (Type<D>::kFloat ? sizeof(D) == 4 ? "0f00000000" : "0d0000000000000000" : "0") +
                             ";\n";
    const Program p("add.s64 %l1, %in, %l0;\n" + loads + zero + "setp.ne.s32 %p0, %r0, 5;\n" +
                    (all ? "" : "@%p0 ") + opcode + " " + d + operands + ";\nst.global." + Type<D>::bits() +
                    " [%mine], " + d + ";\nret;");
    ASSERT_NO_THROW(run(p.launch(out.address(), in.address()))) << opcode;
    for (size_t lane = 0; lane < 32; ++lane) {
      D got;
      std::memcpy(&got, &out[32 * lane], sizeof got);
      const D wanted =
          all || lane != 5
              ? std::apply([&](const auto &...each) { return static_cast<D>(f(each[lane]...)); }, given)
              : D(0);
      EXPECT_TRUE(same(got, wanted)) << opcode << ", lane " << lane << ": " << +got << " instead of " << +wanted;
    }
  }
}

template <class T>
void expect_integers(const std::string &type) {
  using U = std::make_unsigned_t<std::common_type_t<T, int>>;
  expect<T, T, T>("add." + type, [](T a, T b) { return T(U(a) + U(b)); });
  expect<T, T, T>("sub." + type, [](T a, T b) { return T(U(a) - U(b)); });
  expect<T, T, T>("mul.lo." + type, [](T a, T b) { return T(U(a) * U(b)); });
  expect<T, T, T, T>("mad.lo." + type, [](T a, T b, T c) { return T(U(a) * U(b) + U(c)); });
  expect<T, T, T>("min." + type, [](T a, T b) { return std::min(a, b); });
  expect<T, T, T>("max." + type, [](T a, T b) { return std::max(a, b); });
  const auto wraps = [](T a, T b) {
    return std::is_signed_v<T> && a == std::numeric_limits<T>::min() && b == T(-1);
  };
  expect<T, T, T>("div." + type, [&](T a, T b) { return b == 0 ? T(-1) : wraps(a, b) ? a : T(a / b); });
  expect<T, T, T>("rem." + type, [&](T a, T b) { return b == 0 ? a : wraps(a, b) ? T(0) : T(a % b); });
  constexpr uint32_t kBits = 8 * sizeof(T);
  expect<T, T, uint32_t>("shr." + type, [](T a, uint32_t n) {
    return n < kBits ? T(a >> n) : a < T(0) ? T(-1) : T(0);
  });
}

TEST(EmulatorArithmetic, IntegersWrap) {
  expect_integers<int32_t>("s32");
  expect_integers<uint32_t>("u32");
  expect_integers<int64_t>("s64");
  expect_integers<uint64_t>("u64");
  expect_integers<int16_t>("s16");
  expect_integers<uint16_t>("u16");
  expect<int32_t, int32_t>("neg.s32", [](int32_t a) { return int32_t(0u - uint32_t(a)); });
  expect<int64_t, int64_t>("abs.s64", [](int64_t a) { return a < 0 ? int64_t(0 - uint64_t(a)) : a; });
}

TEST(EmulatorArithmetic, WideAndHighProducts) {
  using I = int64_t;
  using U = uint64_t;
  expect<I, int32_t, int32_t>("mul.wide.s32", [](I a, I b) { return a * b; });
  expect<U, uint32_t, uint32_t>("mul.wide.u32", [](U a, U b) { return a * b; });
  expect<int32_t, int16_t, int16_t>("mul.wide.s16", [](int32_t a, int32_t b) { return a * b; });
  expect<uint32_t, uint16_t, uint16_t>("mul.wide.u16", [](uint32_t a, uint32_t b) { return a * b; });
  expect<U, uint32_t, uint32_t, U>("mad.wide.u32", [](U a, U b, U c) { return a * b + c; });
  expect<int32_t, int32_t, int32_t>("mul.hi.s32", [](I a, I b) { return a * b >> 32; });
  expect<uint32_t, uint32_t, uint32_t>("mul.hi.u32", [](U a, U b) { return a * b >> 32; });
  expect<U, U, U>("mul.hi.u64", [](U a, U b) { return U((unsigned __int128)a * b >> 64); });
}

template <class T>
void expect_floats(const std::string &type) {
  expect<T, T, T>("add." + type, [](T a, T b) { return a + b; });
  expect<T, T, T>("sub.rn." + type, [](T a, T b) { return a - b; });
  expect<T, T, T>("mul." + type, [](T a, T b) { return a * b; });
  expect<T, T, T>("div.rn." + type, [](T a, T b) { return a / b; });
  expect<T, T, T, T>("fma.rn." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
  expect<T, T>("neg." + type, [](T a) { return -a; });
  expect<T, T>("abs." + type, [](T a) { return std::fabs(a); });
  expect<T, T>("rcp.rn." + type, [](T a) { return 1 / a; });
  expect<T, T>("sqrt.rn." + type, [](T a) { return std::sqrt(a); });
  const auto less = [](T a, T b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); };
  expect<T, T, T>("min." + type, [&](T a, T b) { return std::isnan(a) ? b : std::isnan(b) || less(a, b) ? a : b; });
  expect<T, T, T>("max." + type, [&](T a, T b) { return std::isnan(a) ? b : std::isnan(b) || less(b, a) ? a : b; });
}

TEST(EmulatorArithmetic, FloatsAreRoundedToNearest) {
  expect_floats<float>("f32");
  expect_floats<double>("f64");
  expect<float, float>("ex2.approx.f32", [](float a) { return std::exp2(a); });
  expect<float, float>("lg2.approx.f32", [](float a) { return std::log2(a); });
  expect<float, float, float>("max.NaN.f32", [](float a, float b) {
    return std::isnan(a) ? a : std::isnan(b) ? b : std::fmax(a, b);
  });
}

TEST(EmulatorArithmetic, FlushesAndRoundsDownWhereItSaysSo) {
  const std::string two = "mov.f32 %f1, 0fC2FE8000;\n";  // -127.25, whose power is not normal
  EXPECT_EQ(results<float>(two + "ex2.approx.ftz.f32 %f2, %f1;\nst.global.f32 [%mine], %f2;")[0], 0.0f);
  EXPECT_EQ(results<float>(two + "ex2.approx.f32 %f2, %f1;\nst.global.f32 [%mine], %f2;")[0], std::exp2(-127.25f));
  const std::string sum =
      "mov.f32 %f1, 0f3F800000;\nmov.f32 %f2, 0f33000000;\nfma.";  // 1 * 1 + 2^-25, and its negative
  const auto rest = ".f32 %f3, %f1, %f1, %f2;\nst.global.f32 [%mine], %f3;";
  EXPECT_EQ(results<float>(sum + "rm" + rest)[3], 1.0f);
  const std::string less = "mov.f32 %f1, 0f3F800000;\nmov.f32 %f2, 0fB2000000;\nfma.";
  EXPECT_EQ(results<float>(less + "rm" + rest)[3], std::nextafter(1.0f, 0.0f));
  EXPECT_EQ(results<float>(less + "rn" + rest)[3], 1.0f);
}

TEST(EmulatorArithmetic, Bits) {
  using U = uint32_t;
  expect<U, U, U>("and.b32", [](U a, U b) { return a & b; });
  expect<uint64_t, uint64_t, uint64_t>("or.b64", [](uint64_t a, uint64_t b) { return a | b; });
  expect<uint16_t, uint16_t, uint16_t>("xor.b16", [](uint16_t a, uint16_t b) { return a ^ b; });
  expect<uint64_t, uint64_t>("not.b64", [](uint64_t a) { return ~a; });
  expect<U, U, U>("shl.b32", [](U a, U n) { return n < 32 ? a << n : 0; });
  expect<uint64_t, uint64_t, U>("shl.b64", [](uint64_t a, U n) { return n < 64 ? a << n : 0; });
  expect<U, U>("popc.b32", [](U a) { return std::popcount(a); });
  expect<U, U>("clz.b32", [](U a) { return std::countl_zero(a); });
  expect<U, U>("bfind.u32", [](U a) { return a == 0 ? ~U(0) : U(31 - std::countl_zero(a)); });
  expect<U, U>("bfind.shiftamt.u32", [](U a) { return a == 0 ? ~U(0) : U(std::countl_zero(a)); });
  EXPECT_EQ(results("mov.u32 %r1, 0x80000003;\nbrev.b32 %r2, %r1;\nst.global.u32 [%mine], %r2;")[9], 0xc0000001u);
  const std::string two = "mov.u32 %r1, 0x83828180;\nmov.u32 %r2, 0x07060504;\n";
  EXPECT_EQ(results(two + "prmt.b32 %r3, %r1, %r2, 0x4F70;\nst.global.u32 [%mine], %r3;")[0], 0x04000780u);
  EXPECT_EQ(results(two + "bfi.b32 %r3, %r1, %r2, 4, 8;\nst.global.u32 [%mine], %r3;")[0], 0x07060804u);
  EXPECT_EQ(results(two + "bfi.b32 %r3, %r1, %r2, 24, 16;\nst.global.u32 [%mine], %r3;")[0], 0x80060504u);
}

// setp, then selp of the result.
template <class T>
void expect_comparisons(const std::string &how, const std::string &type, bool (*f)(T, T)) {
  const std::vector<T> a = values<T>(3), b = values<T>(4);
  Memory<std::byte> out(1024), in(1024);
  for (size_t lane = 0; lane < 32; ++lane) {
    std::memcpy(&in[32 * lane], &a[lane], sizeof(T));
    std::memcpy(&in[32 * lane + 8], lane % 4 == 0 ? &a[lane] : &b[lane], sizeof(T));
  }
  const std::string x = Type<T>::reg + std::string("3"), y = Type<T>::reg + std::string("4"), t = Type<T>::bits();
  const Program p("add.s64 %l1, %in, %l0;\nld.global." + t + " " + x + ", [%l1];\nld.global." + t + " " + y +
                  ", [%l1+8];\nsetp." + how + "." + type + " %p1, " + x + ", " + y +
                  ";\nselp.u32 %r1, 1, 2, %p1;\nst.global.u32 [%mine], %r1;");
  ASSERT_NO_THROW(run(p.launch(out.address(), in.address()))) << how << type;
  for (size_t lane = 0; lane < 32; ++lane)
    EXPECT_EQ(static_cast<int>(out[32 * lane]), f(a[lane], lane % 4 == 0 ? a[lane] : b[lane]) ? 1 : 2)
        << how << type << lane;
}

TEST(EmulatorArithmetic, Comparisons) {
  expect_comparisons<int32_t>("lt", "s32", [](int32_t a, int32_t b) { return a < b; });
  expect_comparisons<uint32_t>("lt", "u32", [](uint32_t a, uint32_t b) { return a < b; });
  expect_comparisons<uint32_t>("hs", "u32", [](uint32_t a, uint32_t b) { return a >= b; });
  expect_comparisons<int64_t>("gt", "s64", [](int64_t a, int64_t b) { return a > b; });
  expect_comparisons<int16_t>("le", "s16", [](int16_t a, int16_t b) { return a <= b; });
  expect_comparisons<uint64_t>("ne", "b64", [](uint64_t a, uint64_t b) { return a != b; });
  expect_comparisons<float>("eq", "f32", [](float a, float b) { return a == b; });
  expect_comparisons<float>("ne", "f32", [](float a, float b) { return a < b || a > b; });
  expect_comparisons<float>("neu", "f32", [](float a, float b) { return a != b; });
  expect_comparisons<float>("leu", "f32", [](float a, float b) { return !(a > b); });
  expect_comparisons<double>("gtu", "f64", [](double a, double b) { return !(a <= b); });
  expect_comparisons<double>("geu", "f64", [](double a, double b) { return !(a < b); });
  expect_comparisons<float>("nan", "f32", [](float a, float b) { return a != a || b != b; });
  expect_comparisons<float>("num", "f32", [](float a, float b) { return a == a && b == b; });
}

TEST(EmulatorArithmetic, PredicatesAndConstants) {
  const auto got = results(R"(setp.lt.u32 %p1, %r0, 20;
setp.ge.u32 %p2, %r0, 10;
and.pred %p3, %p1, %p2;
or.pred %p4, %p1, %p2;
xor.pred %p5, %p1, %p2;
not.pred %p6, %p3;
mov.pred %p7, 1;
and.pred %p8, %p7, 1;
selp.u32 %r1, 1, 0, %p3;
@%p4 or.b32 %r1, %r1, 2;
@%p5 or.b32 %r1, %r1, 4;
@%p6 or.b32 %r1, %r1, 8;
@%p8 or.b32 %r1, %r1, 16;
@!%p8 or.b32 %r1, %r1, 32;
st.global.u32 [%mine], %r1;)");
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], t >= 10 && t < 20 ? 19u : 30u) << t;
}

TEST(EmulatorArithmetic, MovesTakeApartAndPutTogether) {
  const auto got = results<uint64_t>(R"(mov.u64 %l1, 0x1122334455667788;
mov.b64 {%r1, %r2}, %l1;
mov.b32 {%h1, %h2}, %r1;
mov.b32 %r3, {%h2, %h1};
mov.b64 {_, %r4}, %l1;
mov.b64 {%h3, %h4, %h5, %h6}, %l1;
mov.b64 %l2, {%h6, %h5, %h4, %h3};
setp.eq.b32 %p1, %r2, %r4;
mov.b64 %l3, {%r3, %r2};
selp.b64 %l3, %l3, %l2, %p1;
add.s64 %l3, %l3, %l2;
st.global.u64 [%mine], %l3;)");
  EXPECT_EQ(got[0], 0x1122334477885566u + 0x7788556633441122u);
}

}  // namespace
}  // namespace emulator
