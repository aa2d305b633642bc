// Instructions of matrices against plain products, for all layouts of operands in shared memory.
#include <cmath>
#include <random>

#include "instructions/convert.h"
#include "tests/rig.h"

namespace emulator {
namespace {

uint16_t code(bool bfloat16, float x) { return bfloat16 ? to_bfloat16(x) : to_half(x); }

// Small values that are exact in both types.
struct Matrix {
  Matrix(int rows, int across, unsigned seed) : columns(across), x(static_cast<size_t>(rows * across)) {
    std::mt19937 random(seed);
    for (float &v : x) v = static_cast<float>(static_cast<int>(random() % 33) - 16) / 8;
  }
  float operator()(int row, int column) const { return x[static_cast<size_t>(row * columns + column)]; }
  int columns;
  std::vector<float> x;
};

// How a tile lies: PTX ISA, figures of "Shared memory matrix layout". Width of a swizzled row, 0: not swizzled.
struct Layout {
  int width;
  bool transposed;  // rows of memory run along M or N, not along the sum
  int pieces;       // swizzled and transposed: how far apart panels are, in KiB
};

// Writes element (i, k) of a tile of 16 k at the k'th of a row of memory, and returns the descriptor. `count`: of
// i.
template <typename F>
uint64_t place(Rig &rig, uint32_t at, const Layout &l, int count, bool bfloat16, F element) {
  uint32_t start = kSharedBase + at, leading = 16, stride = 0;
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < 16; ++k) {
      uint32_t byte;
      if (l.width == 0) {
        // 8 x 8 matrices of 128 bytes: 3 matrices from one to the next along the sum, 7 along i.
        const uint32_t row = static_cast<uint32_t>(l.transposed ? k : i) % 8,
                       column = static_cast<uint32_t>(l.transposed ? i : k) % 8;
        byte = static_cast<uint32_t>(k / 8 * 3 + i / 8 * 7) * 128 + row * 16 + column * 2;
        leading = 3 * 128, stride = 7 * 128;
      } else {
        // Rows of a panel; along the sum the second sixteen of a row where it has them.
        const uint32_t width = static_cast<uint32_t>(l.width), per_row = width / 2;
        const uint32_t shift = l.transposed || per_row < 32 ? 0 : 16;
        const uint32_t row = static_cast<uint32_t>(l.transposed ? k : i),
                       along = static_cast<uint32_t>(l.transposed ? i : k) + shift;
        const uint32_t panel = along / per_row, piece = along % per_row / 8,
                       phase = row / (128 / width) % (width / 16);
        byte = panel * static_cast<uint32_t>(l.pieces) * 1024 + row * width + (piece ^ phase) * 16 + along % 8 * 2;
        stride = 8 * width;
        leading = static_cast<uint32_t>(l.pieces) * 1024;
        start = kSharedBase + at + shift * 2;
      }
      rig.half(at + byte) = code(bfloat16, element(i, k));
    }
  const uint64_t mode = l.width == 128 ? 1 : l.width == 64 ? 2 : l.width == 32 ? 3 : 0;
  return start >> 4 | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 | mode << 62;
}

void check_wgmma(int n, bool bfloat16, const Layout *a_layout, const Layout &b_layout, bool accumulate, bool late) {
  const Late mode(late);
  const Matrix a(64, 16, 1), b(n, 16, 2), c(64, n, 3);
  for (int w = 0; w < 4; ++w) {
    Rig rig;
    rig.warp().index = 4 + w;
    std::vector<Operand> o;
    for (int i = 0; i < n / 2; ++i) {
      o.push_back(rig.words(1));
      for (int l = 0; l < kLanes; ++l)
        rig.warp().f32(o.back())[l] = c(16 * w + i / 2 % 2 * 8 + l / 4, i / 4 * 8 + l % 4 * 2 + i % 2);
    }
    const std::vector<Operand> d = o;
    if (a_layout) {
      o.push_back(rig.constant(place(rig, 0, *a_layout, 64, bfloat16, [&](int i, int k) { return a(i, k); }), 2));
    } else {
      for (int r = 0; r < 4; ++r) {
        o.push_back(rig.words(1));
        for (int l = 0; l < kLanes; ++l) {
          const int row = 16 * w + r % 2 * 8 + l / 4, k = r / 2 * 8 + l % 4 * 2;
          rig.set(o.back(), l, code(bfloat16, a(row, k)) | uint32_t{code(bfloat16, a(row, k + 1))} << 16);
        }
      }
    }
    const Operand b_tile =
        rig.constant(place(rig, 24 * 1024, b_layout, n, bfloat16, [&](int i, int k) { return b(i, k); }), 2);
    o.push_back(b_tile);
    o.push_back(rig.predicate(accumulate ? kAllLanes : 0));
    o.push_back(rig.constant(1));
    o.push_back(rig.constant(accumulate ? 1 : ~uint64_t{0}));
    if (a_layout) o.push_back(rig.constant(a_layout->transposed));
    o.push_back(rig.constant(b_layout.transposed));
    const std::string opcode = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) +
                               (bfloat16 ? "k16.f32.bf16.bf16" : "k16.f32.f16.f16");
    rig.run("wgmma.fence.sync.aligned", {});
    rig.run(opcode.c_str(), o);
    rig.run("wgmma.commit_group.sync.aligned", {});
    if (late) {
      EXPECT_EQ(rig.warp().f32(d[0])[0], c(16 * w, 0));
      rig.set(b_tile, 0, 0);  // read when it was issued
      rig.run("wgmma.wait_group.sync.aligned", {rig.constant(1)});
      EXPECT_EQ(rig.warp().f32(d[0])[0], c(16 * w, 0));
    }
    rig.run("wgmma.wait_group.sync.aligned", {rig.constant(0)});
    for (int i = 0; i < n / 2; ++i)
      for (int l = 0; l < kLanes; ++l) {
        const int row = 16 * w + i / 2 % 2 * 8 + l / 4, column = i / 4 * 8 + l % 4 * 2 + i % 2;
        float sum = accumulate ? c(row, column) : 0;
        for (int k = 0; k < 16; ++k) sum += (accumulate ? 1.f : -1.f) * a(row, k) * b(column, k);
        ASSERT_EQ(rig.warp().f32(d[static_cast<size_t>(i)])[l], sum) << row << " " << column << " of " << n;
      }
  }
}

TEST(EmulatorMatrix, Wgmma) {
  std::vector<Layout> layouts;
  for (const int width : {0, 32, 64, 128})
    for (const bool transposed : {false, true}) layouts.push_back({width, transposed, 3});
  for (const Layout &b : layouts)
    for (const bool bfloat16 : {false, true}) {
      for (const int n : {8, 16, 32, 48, 64, 128}) check_wgmma(n, bfloat16, nullptr, b, true, false);
      for (const Layout &a : layouts) check_wgmma(64, bfloat16, &a, b, bfloat16, false);
      check_wgmma(32, bfloat16, &b, b, true, true);
    }
}

TEST(EmulatorMatrix, Mma) {
  for (const bool bfloat16 : {false, true})
    for (const int sum : {8, 16}) {
      Rig rig;
      const Matrix a(16, sum, 1), b(8, sum, 2), c(16, 8, 3);
      std::vector<Operand> o, in;
      for (int i = 0; i < 4; ++i) o.push_back(rig.words(1));
      const auto fragment = [&](const Matrix &m, int registers, int rows) {
        for (int r = 0; r < registers; ++r) {
          o.push_back(rig.words(1));
          for (int l = 0; l < kLanes; ++l) {
            const int row = r % rows * 8 + l / 4, k = r / rows * 8 + l % 4 * 2;
            rig.set(o.back(), l, code(bfloat16, m(row, k)) | uint32_t{code(bfloat16, m(row, k + 1))} << 16);
          }
        }
      };
      fragment(a, sum / 4, 2);
      fragment(b, sum / 8, 1);
      // C is in D's registers, in another order.
      for (int i = 0; i < 4; ++i) {
        o.push_back(o[static_cast<size_t>(3 - i)]);
        for (int l = 0; l < kLanes; ++l) rig.warp().f32(o.back())[l] = c(i / 2 * 8 + l / 4, l % 4 * 2 + i % 2);
      }
      rig.run(("mma.sync.aligned.m16n8k" + std::to_string(sum) + ".row.col.f32." +
               (bfloat16 ? "bf16.bf16.f32" : "f16.f16.f32"))
                  .c_str(),
              o);
      for (int i = 0; i < 4; ++i)
        for (int l = 0; l < kLanes; ++l) {
          const int row = i / 2 * 8 + l / 4, column = l % 4 * 2 + i % 2;
          float expected = c(row, column);
          for (int k = 0; k < sum; ++k) expected += a(row, k) * b(column, k);
          EXPECT_EQ(rig.warp().f32(o[static_cast<size_t>(i)])[l], expected);
        }
    }
}

TEST(EmulatorMatrix, LoadsStoresAndTransposes) {
  for (const bool transposed : {false, true})
    for (const int matrices : {1, 2, 4}) {
      Rig rig;
      const std::string kind =
          ".sync.aligned.m8n8.x" + std::to_string(matrices) + (transposed ? ".trans" : "") + ".shared.b16";
      // Row i of matrix m at 144 m + 16 (7 - i), of element j: 100 m + 10 i + j.
      const Operand from = rig.words(1), to = rig.words(1);
      for (int l = 0; l < 8 * matrices; ++l) {
        const uint32_t at = static_cast<uint32_t>(l / 8 * 144 + (7 - l % 8) * 16);
        rig.set(from, l, kSharedBase + at - 32);
        rig.set(to, l, kSharedBase + 1024 + at);
        for (int j = 0; j < 8; ++j)
          rig.half(at + static_cast<uint32_t>(2 * j)) = static_cast<uint16_t>(100 * (l / 8) + 10 * (l % 8) + j);
      }
      std::vector<Operand> o, loaded;
      for (int m = 0; m < matrices; ++m)
        o.push_back(m == 0 ? from : rig.words(1));  // it may take the address's place
      loaded = o;
      o.push_back(from);
      o.back().offset = 32;
      rig.run(("ldmatrix" + kind).c_str(), o);
      for (int m = 0; m < matrices; ++m)
        for (int l = 0; l < kLanes; ++l)
          for (int e = 0; e < 2; ++e) {
            const int i = l / 4, j = l % 4 * 2 + e;
            EXPECT_EQ(rig.warp().u32(loaded[static_cast<size_t>(m)])[l] >> 16 * e & 0xffff,
                      static_cast<uint32_t>(100 * m + (transposed ? 10 * j + i : 10 * i + j)));
          }
      const Operand turned = rig.words(1);
      rig.run("movmatrix.sync.aligned.m8n8.trans.b16", {turned, loaded[0]});
      for (int l = 0; l < kLanes; ++l)
        EXPECT_EQ(rig.warp().u32(turned)[l] & 0xffff,
                  static_cast<uint32_t>(transposed ? 10 * (l / 4) + l % 4 * 2 : 20 * (l % 4) + l / 4));
      std::vector<Operand> stored = {to};
      stored.insert(stored.end(), loaded.begin(), loaded.end());
      rig.run(("stmatrix" + kind).c_str(), stored);
      EXPECT_EQ(std::memcmp(rig.block.shared.data(), rig.block.shared.data() + 1024,
                            static_cast<size_t>(144 * (matrices - 1) + 128)),
                0);
      EXPECT_THROW(rig.run(("stmatrix" + kind).c_str(), stored, 1), Fault);
    }
}

}  // namespace
}  // namespace emulator
