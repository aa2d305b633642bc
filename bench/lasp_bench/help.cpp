#include "options.h"

namespace bench {

const char *help_text() {
  return R"(lasp-bench: checks and measures liblasp's forward and backward passes.

usage: lasp-bench [options]            ranks are threads of this process; --device cuda for a GPU
       mpirun -n 4 lasp-bench [options]   ranks are MPI processes

Lists (a,b,c) are swept: every combination is one configuration. Sizes may end in k (1,024) or m (1,048,576).

What is computed (default)
  --batch LIST            batch rows (1)
  --tokens LIST           tokens of the whole sequence, over all ranks (16k; with --sweep 4k)
  --tokens-per-rank LIST  the same, given per rank
  --heads LIST            heads of q, k and v (8)
  --heads-q N  --heads-k N  --heads-v N   one of them alone (as --heads); each must divide the largest
  --head-dim-k LIST       width K of q and k (128)
  --head-dim-v LIST       width V of v and o (128)
  --decay LIST            none, head, scalar, channel (all four)
  --mask LIST             causal, bidirectional (causal); bidirectional has decay none only
  --write LIST            additive, delta (additive); delta is causal only, and not compared with a recurrence
  --dtype LIST            float32, bfloat16, float16 (float32)
  --pass NAME             forward: a plan without backward; backward; both (both)
  --shapes models         shapes of published models and their neighbours, a row each, in place of the lists above;
                          --tokens N gives all of them so many tokens, --dtype their type (on cuda bfloat16)

How it is run
  --ranks LIST            (1; under mpirun: all processes)
  --schedule LIST         auto, ring, all-gather, all-scan, doubling, head-scatter, relay (auto); once where
                          there is one rank
  --cache LIST            incoming, chunks: what forward keeps for backward (chunks)
  --chunk LIST            0 (the library's choice), 16, 32, 64, 128, 256 (0)
  --segment LIST          tokens of a segment: results that do not depend on the split (0: off)
  --threads LIST          threads of each rank (CPUs / ranks, at least 1)
  --threads-sweep LIST    the same, and the speed-up over the first entry is shown at the end
  --transport NAME        threads, mpi or nccl (threads; mpi under mpirun)
  --device NAME           cpu or cuda (cpu). On cuda, ranks by threads are virtual ranks on GPU 0, and ranks by nccl
                          are threads with a GPU each (--transport nccl implies --device cuda)
  --no-decay-gradient     backward without d_decay, as for decays that are not trained
  --16-bit-decay          decays by token or channel, and d_decay, in the tensors' type instead of float32
  --graph                 cuda: replay each pass from a CUDA graph
  --sweep                 schedules ring to head-scatter and auto by ranks 1, 2, 4 by all decays,
                          where these are not given

How it is measured
  --repeats N  --min-time S   at least N calls (10) and S seconds (0.2) per pass
  --warmup N              calls before that (2)
  --layers N              times steps, too: N forward passes and then N backward passes, before which ranks meet; the row
                          "layer" is of one layer, both passes
  --no-check              do not compare with the float64 recurrence
  --no-sgemm              do not measure the yardstick
  --svg FILE              with --shapes: a picture of the rows, each pass a bar of its share of the floor (of sgemm)
  --json FILE             all results, with the time of every call; "-" writes it to the standard output
  --commit NAME           named in the JSON (asked from git)

Instead of measuring
  --check                 try this machine: results of each family of problems that are known, on each device, latency and
                          bandwidth between ranks; a line each, and status 1 where something is wrong. --json FILE writes
                          them. `lasp-info --check` does this
  --memory                workspace of one rank of a long and of a short sequence, by plans alone
  --model                 predicted exchange time of each schedule for 2 to 1,024 ranks, from latency and bandwidth
                          measured between two ranks of the transport, or from --latency-us A --bandwidth-gbs B
  --calibrate             measure what the automatic schedule needs to know of these ranks (latency, bandwidth, rounds,
                          compositions of maps), and print the line of LASP_LINK that tells it the library
  --fit MODEL             the longest sequence that a model trains on with liblasp.torch.time_segments, by formula:
                          memory by item, segment, time. MODEL: 1b, small (the presets of examples/pytorch/long.py), or
                          d_model=N,layers=N,heads=N,d_ff=N,vocabulary=N. --tokens N asks about one length, --segment N
                          about one segment, in tokens on each GPU (the best); --json FILE writes it
  --gpus N                for --fit: GPUs that share each segment (1)
  --gpu-memory GIB        for --fit: memory of a GPU (80), of which 4 GiB are left free
  --parallel NAME         for --fit: ddp, zero or fsdp2, as GPUs keep the model in examples/pytorch/train.py (ddp)
  --tflops R              for --fit: what a GPU reaches, in TFLOP/s (what an H200 did with the model 1b)
  --version               version of this tool and of the library it runs with, and the library's ABI number
  --help

What the numbers are
  time      of one call, from a barrier to the slowest rank's return; median, 99th percentile, minimum, and spread,
            the interquartile range over the median.
  GFLOP/s   counted, over the median time. FLOP per token and output head at the chunk C used, causal products halved:
              causal         forward (2CK + 2CV) / 2 + 4KV    backward (6CK + 4CV) / 2 + 8KV
              bidirectional  forward 4KV                      backward 8KV
  % sgemm   of the median rate of CBLAS products 1024 x 1024 x 1024, measured before and after each configuration on
            as many threads as its ranks have together (at most the CPUs there are; MPI ranks run one product each at
            the same time, and their rates are added).
  On a GPU the time of a call is taken by events on its stream, of the slowest rank, calls being enqueued one after
  another; buffers are used in turn where they would fit into the L2 cache.
  GB/s      bytes that any implementation must move (each input read once, each output written once; units: such bytes
            over those of o) over the median time; of one GPU.
  % floor   the time of those bytes at the rate of a device-to-device copy (read plus written), measured before and
            after each configuration, over the median time.
  sent      bytes and messages that one call puts on the transport, counted there, of the rank that sends most; they
            must equal the plan's formula on every rank.
  wait      share of the call that ranks spent blocked in the transport, mean over ranks.
  error     largest relative Frobenius error over outputs and ranks, against the recurrence in float64: every token, a
            few elements of two heads; all other elements must be finite. Tolerance: 4 u sqrt(K + V + C + T / C) with
            u = 2^-24, and 2^-8 more for bfloat16, 2^-10 for float16; on a GPU 4e-3 for either. A wrong result has
            no speed.

Exit status: 0; 1 when a result is wrong, a count differs from its formula or the library fails; 1 when --fit is
asked about a length that does not fit; 2 for a word on the command line.

Examples
  lasp-bench                                        the four decay kinds, one rank, all CPUs
  lasp-bench --sweep --json sweep.json
  lasp-bench --threads-sweep 1,2 --decay head
  lasp-bench --ranks 4 --tokens 64k --schedule ring,all-gather --dtype bfloat16 --pass forward
  mpirun -n 4 lasp-bench --tokens 64k --schedule ring,doubling
  lasp-bench --device cuda --dtype bfloat16 --heads 32 --decay head --json one-gpu.json
  lasp-bench --transport nccl --ranks 2,4,8 --dtype bfloat16 --heads 32 --tokens-per-rank 2k,16k
  lasp-bench --device cuda --shapes models --no-check --svg models.svg
  lasp-bench --model --heads 32 --tokens 1m --latency-us 2 --bandwidth-gbs 25
  mpirun -n 4 lasp-bench --calibrate
  lasp-bench --fit 1b --gpus 4 --tokens 32m
)";
}

}  // namespace bench
