// The machine that runs PTX on the CPU: a warp executes one instruction for its 32 lanes at a time. What is here is
// seen by the files that implement instructions. Functional alone: no time, no caches, no reordering of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

// What a GPU would report as a failed launch: an address out of bounds, a deadlock, an instruction that is not
// known. The text says which, with the kernel and the instruction.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Warp;
struct Block;
struct LateWarp;
struct LateBlock;
struct Instruction;
// Executes the instruction for the lanes whose bits are set in `lanes` (its guard is already taken into account).
using Handler = void (*)(Warp &warp, const Instruction &instruction, uint32_t lanes);

// A register, a constant or a special register: all live in the warp's register file. `slot` counts 32-bit words; a
// register of one word has 32 of them, lane after lane; one of two words has 32 pairs; a predicate is one word, a
// bit for each lane. In an address "[%rd1+8]" the operand is the register and `offset` the 8.
struct Operand {
  uint32_t slot = 0;
  uint8_t words = 1;  // 1: 32 bits (also .b16 and .b8 values), 2: 64 bits, 0: predicate
  bool sink = false;  // "_"
  int64_t offset = 0;
};

struct Instruction {
  Handler run = nullptr;
  const Operand *operands = nullptr;  // of braces and brackets flattened: {a, b}, [c, {d, e}], f -> a b c d e f
  uint8_t count = 0;
  uint8_t written = 0;    // operands as they are written: 3 in the line above
  uint8_t sizes[8] = {};  // how many each of them has: 2, 3, 1
  bool guarded = false, guard_negated = false;
  uint32_t guard = 0;  // the slot of the predicate
  // Which lanes have to have come here before it runs: those of its group, all, or those of the masks in its last
  // operand, of which each lane that executes it has its own.
  enum Meet : uint8_t { kGroup, kWarp, kMask } meet = kGroup;
  uint64_t detail = 0;    // what the handler's maker wants to keep
  const char *text = "";  // the line, for messages
  const Operand &operator[](int n) const { return operands[n]; }
};

// Threads are lanes of warps; lanes that have diverged are groups with a program counter each.
struct Warp {
  Block *block = nullptr;
  int index = 0;               // in the block
  uint32_t *file = nullptr;    // the register file
  uint32_t alive = kAllLanes;  // lanes that exist and have not exited
  int barrier = -1;            // at which of the block's it waits, since this generation
  uint64_t generation = 0;
  uint64_t cluster_arrivals = 0;  // at the cluster's barrier
  std::byte *local = nullptr;     // local memory: lane after lane, so many bytes each
  size_t local_bytes = 0;
  // A handler sets it where the instruction cannot go on yet (a wait): it is run again, once other warps have run.
  bool again = false;
  // A handler sets it where a wait was asked and is not over, though the instruction is (try_wait): others run
  // next.
  bool yield = false;
  std::shared_ptr<LateWarp> late;  // late.h; null: nothing is

  uint32_t *u32(const Operand &o) const { return file + o.slot; }
  float *f32(const Operand &o) const { return reinterpret_cast<float *>(file + o.slot); }
  uint64_t *u64(const Operand &o) const { return reinterpret_cast<uint64_t *>(file + o.slot); }
  uint32_t &predicate(const Operand &o) const { return file[o.slot]; }
  // Register plus offset, of either width.
  uint64_t address(const Operand &o, int lane) const {
    return (o.words == 2 ? u64(o)[lane] : u32(o)[lane]) + static_cast<uint64_t>(o.offset);
  }
};

struct Cluster {
  std::vector<Block *> blocks;
  uint64_t phase = 0;  // of its barrier
};

// Addresses of shared memory have 32 bits: kSharedBase + offset is the block's own, and with (rank + 1) << 24 added
// that of a block of the cluster. A generic address of shared memory is kSharedWindow plus that.
constexpr uint32_t kSharedBase = 1024;
constexpr uint64_t kSharedWindow = 0x7000'0000'0000'0000u;

struct Block {
  Cluster *cluster = nullptr;
  int rank = 0;  // in the cluster
  std::vector<std::byte> shared;
  std::vector<Warp> warps;
  int threads = 0;
  const std::byte *parameters = nullptr;  // of the kernel
  size_t parameter_bytes = 0;
  struct Barrier {
    int arrived = 0;  // threads, those of whole warps
    uint64_t generation = 0;
    bool any = false, all = true;           // of the predicates of those that have arrived
    bool was_any = false, was_all = false;  // of the last generation
  };
  Barrier barriers[16];
  std::shared_ptr<LateBlock> late;  // late.h; null: nothing is
};

// Host memory behind an address; each throws Fault where [address, address + bytes) is not all in one allocation or
// `bytes` is not a divisor of a misaligned address. `write` is for messages.
std::byte *shared_memory(const Block &block, uint64_t address, size_t bytes);
std::byte *global_memory(uint64_t address, size_t bytes, bool write);
std::byte *generic_memory(const Block &block, uint64_t address, size_t bytes, bool write);
std::byte *local_memory(const Warp &warp, int lane, uint64_t address, size_t bytes);
const std::byte *parameter_memory(const Block &block, uint64_t address, size_t bytes);

// The runtime tells of memory that kernels may use (device memory, and host memory that is pinned).
void add_memory(const void *data, size_t bytes);
void remove_memory(const void *data);
// The size of the allocation that begins here or contains the address; 0: none. `begin` is where it begins.
size_t memory_at(const void *data, const void **begin);

// The makers of handlers, one for each family of instructions. `opcode` is the whole word without its guard, such
// as "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"; null: not of this family. A maker may set `detail`. An
// opcode with a modifier that is not implemented is of no family. Integers, floats, logic, comparisons, cvt, mov.
Handler arithmetic_instruction(std::string_view opcode, Instruction &instruction);
// ld, st, atom, red, cvta, mapa.
Handler memory_instruction(std::string_view opcode, Instruction &instruction);
// mma, wgmma, ldmatrix, stmatrix, movmatrix.
Handler matrix_instruction(std::string_view opcode, Instruction &instruction);
// mbarrier, cp.async, cp.async.bulk, fences.
Handler async_instruction(std::string_view opcode, Instruction &instruction);
// bar, barrier.cluster, shfl, vote, elect, trap.
Handler control_instruction(std::string_view opcode, Instruction &instruction);
// Lanes are about to exit: the bulk copies from shared memory that they have not waited for are performed.
void finish_copies(Warp &warp, uint32_t lanes);

// What cuTensorMapEncodeTiled writes into a CUtensorMap (128 bytes), here in the clear.
struct TensorMap {
  enum Kind : uint8_t { kFloat32, kFloat16, kBFloat16 };
  uint8_t rank = 0;
  Kind kind = kFloat32;
  uint8_t element_bytes = 0;
  uint8_t swizzle = 0;   // 0, 32, 64 or 128 bytes
  uint16_t box[5] = {};  // elements
  uint64_t address = 0;
  uint32_t extent[5] = {};  // elements
  uint64_t stride[5] = {};  // bytes; stride[0] = element_bytes
};
static_assert(sizeof(TensorMap) <= 128);

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

inline constexpr int kMostDevices = 64;
struct Launch {
  std::string_view kernel;  // the name in PTX
  Dim3 grid, block, cluster;
  int device = 0;  // which runs one kernel at a time
  size_t dynamic_shared = 0;
  std::vector<std::byte> parameters;  // as .param space has them
};

// The text of a module; parsed when one of its kernels is first launched. It must stay where it is.
void add_module(std::string_view ptx);
struct KernelFacts {
  std::vector<std::pair<size_t, size_t>> parameters;  // offset and bytes of each
  size_t static_shared = 0;
  int max_threads = 1024;
};
// Throws Fault where there is no such kernel.
const KernelFacts &facts(std::string_view kernel);
// Runs all of it, and returns when it is done. Calls of several threads take turns.
void run(const Launch &launch);

}  // namespace emulator
