// What the command line asks for: every setting of a run, with its default.
#pragma once

#include <cstdint>
#include <string>

namespace train_lm {

enum class Transport { threads, mpi };
enum class Mode { train, compare, compare_devices, check_gradients, check_exchange, check_decoding, check_device };

struct Options {
  Mode mode = Mode::train;
  // The split.
  int sequence_ranks = 4;
  int data_groups = 1;
  int group_stride = 1;  // distance in world ranks between neighbours of a sequence group
  Transport transport = Transport::threads;
  int schedule = 0;            // LASP_SCHEDULE_*
  int cache = 1;               // LASP_CACHE_*
  bool drop_exchange = false;  // an experiment: every rank begins from a zero state
  int device = 0;              // LASP_DEVICE_*
  int dtype = -1;              // of activations, LASP_*; -1: what is usual there
  std::string nccl, cublas;    // library files; empty: found by name
  int threads = 0;             // CPU threads of all local ranks together; 0: the CPUs this process may use
  // The model.
  int layers = 2;
  int d_model = 64;
  int heads = 4;
  int d_ff = 128;
  // The training.
  std::int64_t seq_len = 32768;
  int steps = 100;
  int log_every = 10;  // steps between looks at a GPU
  double learning_rate = 3e-3;
  int warmup = 20;
  double weight_decay = 0.01;
  double clip = 1.0;
  std::uint64_t seed = 1;
  std::string text;  // a file; empty: the licence texts that Debian ships
  // The sample.
  int sample_bytes = 200;
  int prompt_bytes = 512;
  double temperature = 0.6;
  // Where results go.
  std::string out;   // a folder; empty: no files
  std::string json;  // a file; empty: none
};

struct ParsedOptions {
  Options options;
  bool help = false;
  std::string error;  // one sentence; empty when the command line was understood
};

ParsedOptions parse_options(int argc, const char *const *argv);
std::string usage();
const char *schedule_name(int schedule);
int dtype_of(const Options &options);  // LASP_FLOAT32 or LASP_BFLOAT16

}  // namespace train_lm
