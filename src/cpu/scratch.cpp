#include "scratch.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels.h"

namespace lasp::cpu {

void Scratch::Free::operator()(std::byte *p) const { ::operator delete (p, std::align_val_t{kAlignment}); }

Scratch::Scratch(const Problem &problem, int32_t states) {
  Carver count(nullptr);
  place(count, problem, states);
  memory_.reset(static_cast<std::byte *>(::operator new (count.used(), std::align_val_t{kAlignment})));
  std::memset(memory_.get(), 0, count.used());  // touched by its own backend once, never read uninitialised
  Carver real(memory_.get());
  place(real, problem, states);
}

void Scratch::place(Carver &carver, const Problem &p, int32_t states) {
  const int64_t chunk = p.chunk, keys = p.head_dim_k, values = p.head_dim_v;
  for (float **tile : {&q, &k, &q_in, &k_out, &dq, &dk}) *tile = carver.take<float>(chunk * keys);
  for (float **tile : {&v, &d_o, &o, &dv}) *tile = carver.take<float>(chunk * values);
  const int64_t widest = std::max(keys, values), columns = p.delta ? widest : values;
  wide = carver.take<float>(chunk * widest);
  turned = carver.take<float>(widest * std::max(chunk + 8, widest));
  run = carver.take<double>(states * keys * columns);
  part = carver.take<float>(keys * columns);
  joined = carver.take<float>(p.segment > 0 || p.delta ? keys * columns : 0);
  score = carver.take<float>(chunk * chunk);
  grad = carver.take<float>(chunk * chunk);
  for (float **row : {&decay_row, &column_sums, &in, &out}) *row = carver.take<float>(chunk + 8);
  for (double **row : {&sums, &dg_tokens}) *row = carver.take<double>(chunk + 8);
  dots = carver.take<double>(std::max(chunk, keys));
  shorts = carver.take<uint16_t>(chunk + 8);
  total = carver.take<float>(keys);
  log_total = carver.take<double>(keys);
  const bool channel = p.decay == Decay::kChannel;
  const int64_t tile = channel ? chunk * keys : 0, blocks = channel ? chunk / kBlock * keys : 0;
  for (float **x : {&g, &step, &head, &tail, &mixed, &acc_q, &acc_k, &dg}) *x = carver.take<float>(tile);
  for (double **x : {&block_log, &outward}) *x = carver.take<double>(blocks);
  for (float **x : {&block_in, &block_out}) *x = carver.take<float>(blocks);
  level = carver.take<float>(4 * blocks);
  block_work = carver.take<float>(channel ? kBlock * keys : 0);
  if (p.delta) place_delta(carver, p);
}

void Scratch::place_delta(Carver &carver, const Problem &p) {
  const int64_t chunk = p.chunk, keys = p.head_dim_k, widest = std::max(p.head_dim_k, p.head_dim_v);
  beta = carver.take<float>(chunk + 8);
  for (float **x : {&key_score, &solved, &key_grad}) *x = carver.take<float>(chunk * chunk);
  solving = carver.take<double>((chunk + 1) * chunk);
  for (float **x : {&k_in, &wide_k}) *x = carver.take<float>(chunk * keys);
  for (float **x : {&errors, &written, &d_written, &d_errors}) *x = carver.take<float>(chunk * widest);
  const int64_t tile = p.decay == Decay::kChannel ? chunk * keys : 0;
  for (float **x : {&acc_query, &acc_key}) *x = carver.take<float>(tile);
}

}  // namespace lasp::cpu
