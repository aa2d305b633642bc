#include "sgemm.h"

#include <cblas.h>

#include <chrono>
#include <thread>

extern "C" {
[[gnu::weak]] void openblas_set_num_threads(int threads);
[[gnu::weak]] int openblas_get_num_threads(void);
}

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSize = 1024;
constexpr int kSamples = 5;
constexpr double kLongest = 0.5;
// OpenBLAS's threads look for work this long after a product before they sleep; what is measured next is not to
// share the CPUs with them.
constexpr auto kSettle = std::chrono::milliseconds(40);

class BlasThreads {
 public:
  explicit BlasThreads(int threads) {
    if (openblas_set_num_threads == nullptr || openblas_get_num_threads == nullptr) return;
    saved_ = openblas_get_num_threads();
    openblas_set_num_threads(threads);
  }
  ~BlasThreads() {
    if (saved_ > 0) openblas_set_num_threads(saved_);
  }
  BlasThreads(const BlasThreads &) = delete;
  BlasThreads &operator=(const BlasThreads &) = delete;

 private:
  int saved_ = 0;
};

}  // namespace

std::vector<double> sgemm_rates(int threads) {
  const BlasThreads setting(threads);
  const std::vector<float> a(kSize * kSize, 0.5f), b(kSize * kSize, 0.25f);
  std::vector<float> c(kSize * kSize);
  const auto product = [&] {
    const Clock::time_point begin = Clock::now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1.0f, a.data(), kSize, b.data(),
                kSize, 0.0f, c.data(), kSize);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  product();
  std::vector<double> rates;
  double spent = 0;
  while (rates.size() < kSamples && (rates.empty() || spent < kLongest)) {
    const double seconds = product();
    spent += seconds;
    rates.push_back(2.0 * kSize * kSize * kSize / seconds * 1e-9);
  }
  std::this_thread::sleep_for(kSettle);
  return rates;
}

}  // namespace bench
