// Where a rank computes: its memory and every function that the model is made of, on the CPU or on a GPU. The model
// is written once, in these functions' words. On a GPU nothing of them waits: work is in the order of one stream.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "memory.hpp"
#include "pointwise.hpp"

namespace train_lm {

struct Place {
  int device = LASP_DEVICE_CPU;  // LASP_DEVICE_*
  int dtype = LASP_FLOAT32;      // of activations and of the matrices that they meet: LASP_BFLOAT16 on GPUs alone
  int index = 0;                 // which GPU
  std::string cublas;            // on a GPU, cuBLAS's library file; empty: found by name
  bool is_cuda() const { return device == LASP_DEVICE_CUDA; }
};

// The GPUs here are dealt out in turn to the ranks here. Where there is none the place is one that liblasp refuses,
// with a sentence that says what is missing.
Place place_of(const Place &kind, int local_rank);
std::string name_of(const Place &place);

// The first of an array of a place's dtype. It counts in elements, as a pointer does.
struct Real {
  std::byte *data = nullptr;
  std::int64_t size = 4;  // bytes of an element
  Real operator+(std::int64_t elements) const { return {data + elements * size, size}; }
};

// What AdamW does in one step, worked out on the host. The gradient is first shrunk to the norm `clip`.
struct AdamStep {
  float clip = 0.0f, beta1 = 0.0f, beta2 = 0.0f, epsilon = 0.0f;
  float size = 0.0f;          // learning rate / (1 - beta1^step)
  float second_scale = 0.0f;  // 1 / (1 - beta2^step)
  float keep = 1.0f;          // what weight decay leaves of a matrix's entry
};
struct AdamArrays {
  float *parameters, *first, *second;  // the last two are the moments
  Real weights;                        // the parameters as matrix products read them; may be the same array
};

// All pointers are to memory of the device unless they are said to be of the host. Matrices are row-major.
class Device {
 public:
  virtual ~Device() = default;

  bool is_cuda() const { return place_.is_cuda(); }
  std::int64_t element_bytes() const { return place_.dtype == LASP_BFLOAT16 ? 2 : 4; }
  int dtype() const { return place_.dtype; }
  MemoryMeter &meter() { return meter_; }
  virtual lasp_stream stream() const { return nullptr; }
  virtual bool is_idle() const { return true; }
  void wait() const;

  // Memory.
  virtual void *allocate(std::size_t bytes) = 0;  // zeroed, and counted; throws a sentence where there is no room
  virtual void release(void *data, std::size_t bytes) noexcept = 0;
  virtual void zero(void *data, std::size_t bytes) = 0;
  virtual void copy(void *to, const void *from,
                    std::size_t bytes) = 0;  // either may be of the host; waits for that
  virtual void upload(void *to, const void *from, std::size_t bytes) = 0;  // from the host, without waiting

  // Work on rows: body(member, begin, end) for tiles of at most tile() rows, one after the other for each member.
  using Body = std::function<void(int member, std::int64_t begin, std::int64_t end)>;
  virtual int members() const = 0;
  virtual std::int64_t tile() const = 0;
  virtual void for_tiles(std::int64_t rows, const Body &body) = 0;

  // c[m,n] = a[m,k] b[k,n] + beta c; the other as float32.
  virtual void multiply(std::int64_t m, int n, int k, Real a, Real b, float beta, Real c) = 0;
  virtual void multiply(std::int64_t m, int n, int k, Real a, Real b, float *c) = 0;
  // c[m,n] = a[m,k] b[n,k]^T: the gradient of an input, from its output's and the weight.
  virtual void multiply_transposed(std::int64_t m, int n, int k, Real a, Real b, Real c) = 0;
  // c[m,n] += a[rows,m]^T b[rows,n]: the gradient of a weight, from its input and its output's gradient.
  virtual void add_outer(std::int64_t rows, int m, int n, Real a, Real b, float *c) = 0;

  // x[t] = table[tokens[t]], rows of `width`; and table[tokens[t]] += dx[t].
  virtual void gather(const std::uint8_t *tokens, std::int64_t rows, int width, Real table, Real x) = 0;
  virtual void add_by_token(const std::uint8_t *tokens, std::int64_t rows, int width, Real dx, float *table) = 0;

  // Those of pointwise.hpp.
  virtual void rms_norm(Real x, const float *gain, std::int64_t rows, const Norm &norm, Real y) = 0;
  virtual void rms_norm_backward(Real x, const float *gain, Real dy, std::int64_t rows, const Norm &norm,
                                 Store store, Real dx, float *d_gain) = 0;
  virtual void gate(Real gate_up, std::int64_t rows, int width, Real a) = 0;
  virtual void gate_backward(Real gate_up, Real da, std::int64_t rows, int width, Real d_gate_up) = 0;
  // The gradient of the logits goes to d_logits, which may be the same array; the loss of the rows is added to
  // *loss.
  virtual void cross_entropy(float *logits, const std::uint8_t *targets, std::int64_t rows, int classes,
                             float scale, Real d_logits, double *loss) = 0;

  virtual void add(const float *y, std::size_t count, float *x) = 0;                     // x += y
  virtual void total(const double *values, int count, double *sum) = 0;                  // *sum = all of them
  virtual void norms(const float *x, std::size_t count, double *squares_and_sizes) = 0;  // sums of x^2 and of |x|
  virtual void narrow(const float *x, std::size_t count, Real y) = 0;                    // y = x, as y's type
  // Decays the first `decayed` parameters. *squares is the gradient's, as norms() gives it.
  virtual void adam(const AdamStep &step, const float *gradient, const double *squares, std::size_t count,
                    std::size_t decayed, const AdamArrays &arrays) = 0;

 protected:
  explicit Device(const Place &place) : place_(place) {}

 private:
  const Place place_;
  MemoryMeter meter_;
};

// `threads` are the CPU's. A GPU becomes the calling thread's current device. Throws where there is no such device.
std::unique_ptr<Device> make_device(const Place &place, int threads);

// An array of a rank's own on its device, zeroed. Never empty: a rank without tokens still hands valid pointers to
// the collective calls.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device &device, std::size_t count)
      : device_(&device), data_(static_cast<T *>(device.allocate(count * sizeof(T)))), count_(count) {}
  DeviceArray(DeviceArray &&other) noexcept { swap(other); }
  DeviceArray &operator=(DeviceArray &&other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) device_->release(data_, bytes());
  }

  T *data() { return data_; }
  const T *data() const { return data_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  void swap(DeviceArray &other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  Device *device_ = nullptr;
  T *data_ = nullptr;
  std::size_t count_ = 0;
};

// The same of the device's dtype.
class RealArray {
 public:
  RealArray() = default;
  RealArray(Device &device, std::size_t count)
      : size_(device.element_bytes()), bytes_(device, count * static_cast<std::size_t>(size_)) {}

  Real first() { return {bytes_.data(), size_}; }
  std::size_t bytes() const { return bytes_.bytes(); }

 private:
  std::int64_t size_ = 4;
  DeviceArray<std::byte> bytes_;
};

}  // namespace train_lm
