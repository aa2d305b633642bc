// A GPU as a device: matrix products by cuBLAS, all else by kernels in the files *.cu. Activations are bfloat16 or
// float32; sums, norms and the loss are float32 or wider. Nothing waits, and sums come out the same every time.
#pragma once

#include <cstddef>
#include <vector>

#include "cublas.hpp"
#include "device.hpp"

namespace train_lm {

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const Place &place);
  ~CudaDevice() override;

  lasp_stream stream() const override { return stream_.get(); }
  bool is_idle() const override;

  void *allocate(std::size_t bytes) override;
  void release(void *data, std::size_t bytes) noexcept override;
  void zero(void *data, std::size_t bytes) override;
  void copy(void *to, const void *from, std::size_t bytes) override;
  void upload(void *to, const void *from, std::size_t bytes) override;

  int members() const override { return 1; }
  // Enough for a matrix product to fill the GPU; what exists for a tile alone then takes little memory.
  std::int64_t tile() const override { return 16384; }
  void for_tiles(std::int64_t rows, const Body &body) override;

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
  class Stream {
   public:
    explicit Stream(int device);  // makes the device current first
    ~Stream();
    Stream(const Stream &) = delete;
    lasp_stream get() const { return stream_; }

   private:
    lasp_stream stream_ = nullptr;
  };
  struct Staged;  // page-locked memory on its way to the GPU

  // Memory for a call's own use, in the order of the stream.
  template <typename T>
  T *scratch(std::size_t count) {
    return static_cast<T *>(scratch_of(count * sizeof(T)));
  }
  void *scratch_of(std::size_t bytes);
  // Blocks that fill the GPU `times` over, or as many as there is work for.
  unsigned blocks(std::int64_t wanted, int times = 8) const;

  Stream stream_;
  Cublas cublas_;
  int processors_ = 0;
  std::vector<Staged> staged_;
  DeviceArray<std::byte> scratch_;
};

}  // namespace train_lm
