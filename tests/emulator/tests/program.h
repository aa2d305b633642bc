// Runs PTX that a test has written, for tests of the reader and of the machine.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "tests/rig.h"

namespace emulator {

// A kernel of its own name, with parameters `out` and `in`, which `body` finds in %out and %in. Besides it has
// registers %r<40>, %h<20> (.b16), %f<20>, %d<20> (.f64), %l<40> (.b64) and %p<20>; %r0 is its thread, in %mine it
// has the address of its 32 bytes of `out`, and %l0 is 32 times its thread.
struct Program {
  explicit Program(const std::string &body, const std::string &before = "", const std::string &directives = "") {
    static int number = 0;
    static auto *const texts = new std::deque<std::string>;  // modules stay
    name = "kernel" + std::to_string(++number);
    texts->push_back(".version 8.7\n.target sm_90a\n.address_size 64\n" + before + "\n.visible .entry " + name +
                     "(\n.param .u64 " + name + "_out,\n.param .u64 " + name + "_in\n)\n" + directives +
                     R"({
  .reg .pred %p<20>;
  .reg .b16 %h<20>;
  .reg .b32 %r<40>;
  .reg .f32 %f<20>;
  .reg .f64 %d<20>;
  .reg .b64 %l<40>;
  .reg .b64 %out, %in, %mine;
  ld.param.u64 %out, [)" +
                     name + "_out];\n  ld.param.u64 %in, [" + name + R"(_in];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %l0, %r0, 32;
  add.s64 %mine, %out, %l0;
)" + body + "\n}\n");
    add_module(texts->back());
  }
  Launch launch(uint64_t out, uint64_t in = 0, uint32_t threads = 32, uint32_t blocks = 1) const {
    Launch l;
    l.kernel = name;
    l.grid.x = blocks;
    l.block.x = threads;
    l.parameters.resize(16);
    std::memcpy(l.parameters.data(), &out, 8);
    std::memcpy(l.parameters.data() + 8, &in, 8);
    return l;
  }
  std::string name;
};

// What each thread of a block wrote at %mine.
template <class T = uint32_t>
std::vector<T> results(const std::string &body, uint32_t threads = 32, const std::string &before = "",
                       const std::string &directives = "") {
  Memory<std::byte> out(32 * threads), in(32 * threads);
  const Program program(body, before, directives);
  run(program.launch(out.address(), in.address(), threads));
  std::vector<T> all(threads);
  for (uint32_t t = 0; t < threads; ++t) std::memcpy(&all[t], &out[32 * t], sizeof(T));
  return all;
}

// The text of the fault that it ends with; "" where it ends well.
inline std::string fault_of(const std::string &body, uint32_t threads = 32, const std::string &directives = "",
                            std::string *name = nullptr) {
  Memory<std::byte> out(32 * threads), in(32 * threads);
  const Program program(body, "", directives);
  if (name != nullptr) *name = program.name;
  try {
    run(program.launch(out.address(), in.address(), threads));
  } catch (const Fault &fault) {
    return fault.what();
  }
  return "";
}

}  // namespace emulator
