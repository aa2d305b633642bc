// The composition of maps that the exchange asks for, and factors that all ranks can work out. One thread per
// element of a state, bound by memory.
#include "states.cuh"

namespace lasp::gpu {
namespace {

// The code of a later map's factor.
__device__ float later_code(const ComposeMaps &p, int map, int64_t factor) {
  return p.later_factor[map] != nullptr ? p.later_factor[map][factor] : -0.0f;
}
__device__ float later_code(const ComposeKnownMaps &p, int map, int64_t factor) {
  return known_code(p.known[map], p.head_decay, factor % p.shape.heads);
}

template <class Element, class Maps>
__global__ void compose_kernel(int64_t first, Maps p) {
  constexpr int kWidth = sizeof(Element) / sizeof(float), kAhead = 4;
  const int64_t at = p.begin * p.shape.dim_v + thread_index(first) * kWidth;
  if (at >= p.end * p.shape.dim_v) return;
  const StateOffsets at_element(p.shape, at);
  const auto element = [&](const float *states) { return *reinterpret_cast<const Element *>(states + at); };
  Element state = element(p.earlier_state);
  for (int begin = 0; begin < p.count; begin += kAhead) {
    Element later[kAhead];
    float factor[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < p.count)
        later[i] = element(p.later_state[begin + i]), factor[i] = later_code(p, begin + i, at_element.factor);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < p.count) state = follow(state, factor[i], later[i]);
  }
  *reinterpret_cast<Element *>(p.to_state + at) = state;
}

// After compose_kernel, which reads the factors that this may overwrite.
__global__ void compose_factor_kernel(int64_t first, ComposeMaps p, int64_t count) {
  const int64_t at = thread_index(first);
  if (at >= count) return;
  double decay = decay_value(p.earlier_factor[at]);
  for (int i = 0; i < p.count; ++i) decay *= decay_value(p.later_factor[i][at]);
  p.to_factor[at] = value_code(decay);
}

__global__ void known_factor_kernel(int64_t first, float *factor, int64_t count, int64_t heads, bool reset,
                                    int64_t tokens, const float *head_decay) {
  const int64_t at = thread_index(first);
  if (at >= count) return;
  factor[at] = known_code({reset, tokens}, head_decay, at % heads);
}

template <class Maps>
int compose_states(const Maps &p, Stream stream) {
  const int64_t elements = (p.end - p.begin) * p.shape.dim_v;
  bool four = p.shape.dim_v % 4 == 0 && aligned_for_four(p.to_state) && aligned_for_four(p.earlier_state);
  for (int i = 0; i < p.count; ++i) four = four && aligned_for_four(p.later_state[i]);
  return four ? launch_elements(compose_kernel<float4, Maps>, elements / 4, stream, p)
              : launch_elements(compose_kernel<float, Maps>, elements, stream, p);
}

}  // namespace

int launch_compose_known(const ComposeKnownMaps &p, Stream stream) { return compose_states(p, stream); }

int launch_compose(const ComposeMaps &p, Stream stream) {
  if (const int error = compose_states(p, stream)) return error;
  if (p.to_factor == nullptr) return cudaSuccess;
  const int64_t count = p.shape.rows * factor_floats(p.shape);
  return launch_elements(compose_factor_kernel, count, stream, p, count);
}

int launch_known_factor(float *factor, int64_t rows, int64_t heads, bool reset, int64_t tokens,
                        const float *head_decay, Stream stream) {
  return launch_elements(known_factor_kernel, rows * heads, stream, factor, rows * heads, heads, reset, tokens,
                         head_decay);
}

int load_compositions() {
  return load_kernels(compose_kernel<float, ComposeMaps>, compose_kernel<float4, ComposeMaps>,
                      compose_kernel<float, ComposeKnownMaps>, compose_kernel<float4, ComposeKnownMaps>,
                      compose_factor_kernel, known_factor_kernel);
}

}  // namespace lasp::gpu
