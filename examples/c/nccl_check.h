/* The inputs of nccl.c, and what its results must be: the recurrence itself, token by token, in float64. */
#ifndef NCCL_CHECK_H
#define NCCL_CHECK_H
#include <lasp/lasp.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { HEADS = 4, DIM = 64, ROW = HEADS * DIM };
static const float decay[HEADS] = {-0.001f, -0.01f, -0.05f, -0.3f}; /* log of what a token leaves of the state */
/* Relative Frobenius error that docs/reference/numerics.md promises of 16-bit tensors on tensor cores. */
static const double bound = 4e-3;

/* A pass's results, then its inputs. All are [tokens, HEADS, DIM] in bfloat16. */
enum { O, DQ, DK, DV, RESULTS, Q = RESULTS, K, V, DO, TENSORS };

/* A multiple of 1/64 in [-1, 1], which bfloat16 holds exactly, from a token's place in the whole sequence. */
static float input(int tensor, int group, int64_t token, int column) {
  uint32_t x = (uint32_t)(((tensor * 64 + group) * 65536 + token) * ROW + column);
  x = (x ^ (x >> 16)) * 0x7feb352du, x = (x ^ (x >> 15)) * 0x846ca68bu, x ^= x >> 16;
  return (float)((int)(x % 129u) - 64) / 64.0f;
}
static uint16_t to_bfloat16(float x) { /* x is one exactly */
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}
static double from_bfloat16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

/* One head of the whole sequence, token by token. Adds each result's squared error and squared size to sums[]. */
static void compare_head(const lasp_groups *groups, const lasp_plan_info *info, int64_t tokens, int head,
                         const uint16_t *results, double error[], double size[]) {
  static double state[DIM][DIM];
  const double left = exp((double)decay[head]), scale = 1.0 / sqrt((double)DIM);
  const int64_t total = info->total_tokens, begin = info->token_begin;
  const size_t count = (size_t)tokens * ROW;
  for (int backward = 0; backward < 2; ++backward) {
    memset(state, 0, sizeof state);
    for (int64_t i = 0; i < total; ++i) {
      const int64_t token = backward ? total - 1 - i : i;
      double in[TENSORS][DIM], out[RESULTS][DIM] = {{0}};
      for (int tensor = Q; tensor < TENSORS; ++tensor)
        for (int d = 0; d < DIM; ++d)
          in[tensor][d] = (double)input(tensor, groups->sequence_group, token, head * DIM + d);
      for (int a = 0; a < DIM; ++a) {
        for (int b = 0; b < DIM; ++b) {
          double *const s = &state[a][b]; /* S_t forward, its gradient backward */
          *s = left * *s + (backward ? scale * in[Q][a] * in[DO][b] : in[K][a] * in[V][b]);
          if (backward) {
            out[DK][a] += *s * in[V][b], out[DV][b] += *s * in[K][a];
          } else {
            out[O][b] += scale * *s * in[Q][a], out[DQ][a] += scale * *s * in[DO][b];
          }
        }
      }
      if (token < begin || token >= begin + tokens) continue;
      for (int tensor = backward ? DK : O; tensor <= (backward ? DV : DQ); ++tensor) {
        for (int d = 0; d < DIM; ++d) {
          const size_t at = (size_t)tensor * count + (size_t)(token - begin) * ROW + (size_t)(head * DIM + d);
          const double difference = from_bfloat16(results[at]) - out[tensor][d];
          error[tensor] += difference * difference;
          size[tensor] += out[tensor][d] * out[tensor][d];
        }
      }
    }
  }
}

/* The worst relative error of this rank's results; infinity where one is not a number. */
static double worst_error(const lasp_groups *groups, const lasp_plan_info *info, int64_t tokens,
                          const uint16_t *results) {
  double error[RESULTS] = {0}, size[RESULTS] = {0}, worst = 0;
  for (int head = 0; head < HEADS; ++head) compare_head(groups, info, tokens, head, results, error, size);
  for (int i = 0; i < RESULTS; ++i) {
    const double relative = sqrt(error[i] / size[i]);
    if (!(relative <= worst)) worst = relative == relative ? relative : (double)INFINITY;
  }
  return worst;
}

#endif
