// The CPU as a device: CBLAS and the loops of pointwise.hpp, tile by tile over a team of threads. All in float32.
#pragma once

#include "device.hpp"
#include "team.hpp"

namespace train_lm {

class CpuDevice : public Device {
 public:
  CpuDevice(const Place &place, int threads) : Device(place), team_(threads) {}

  void *allocate(std::size_t bytes) override;
  void release(void *data, std::size_t bytes) noexcept override;
  void zero(void *data, std::size_t bytes) override;
  void copy(void *to, const void *from, std::size_t bytes) override;
  void upload(void *to, const void *from, std::size_t bytes) override { copy(to, from, bytes); }

  int members() const override { return team_.members(); }
  std::int64_t tile() const override { return Team::kTile; }
  void for_tiles(std::int64_t rows, const Body &body) override { team_.for_tiles(rows, body); }

  void multiply(std::int64_t m, int n, int k, Real a, Real b, float beta, Real c) override;
  void multiply(std::int64_t m, int n, int k, Real a, Real b, float *c) override;
  void multiply_transposed(std::int64_t m, int n, int k, Real a, Real b, Real c) override;
  void add_outer(std::int64_t rows, int m, int n, Real a, Real b, float *c) override;
  void gather(const std::uint8_t *tokens, std::int64_t rows, int width, Real table, Real x) override;
  void add_by_token(const std::uint8_t *tokens, std::int64_t rows, int width, Real dx, float *table) override;
  void rms_norm(Real x, const float *gain, std::int64_t rows, const Norm &norm, Real y) override;
  void rms_norm_backward(Real x, const float *gain, Real dy, std::int64_t rows, const Norm &norm, Store store,
                         Real dx, float *d_gain) override;
  void gate(Real gate_up, std::int64_t rows, int width, Real a) override;
  void gate_backward(Real gate_up, Real da, std::int64_t rows, int width, Real d_gate_up) override;
  void cross_entropy(float *logits, const std::uint8_t *targets, std::int64_t rows, int classes, float scale,
                     Real d_logits, double *loss) override;
  void add(const float *y, std::size_t count, float *x) override;
  void total(const double *values, int count, double *sum) override;
  void norms(const float *x, std::size_t count, double *squares_and_sizes) override;
  void narrow(const float *x, std::size_t count, Real y) override;
  void adam(const AdamStep &step, const float *gradient, const double *squares, std::size_t count,
            std::size_t decayed, const AdamArrays &arrays) override;

 private:
  Team team_;
};

}  // namespace train_lm
