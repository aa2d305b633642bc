// Declarations of PTX, and what has been declared between two braces.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "machine/program.h"
#include "machine/text.h"

namespace emulator {

// ".shared .align 8 .b8 name[128]", ".reg .b32 %r<12>", ".param .u64 name".
struct Declaration {
  struct Register {
    std::string_view name;
    int count;  // of "%r<12>"; -1: one alone
  };
  std::string_view space, type, name;
  bool is_extern = false;
  size_t alignment = 1, elements = 1;
  std::vector<Register> registers;

  size_t element_bytes() const {
    const std::string_view digits = type.size() > 2 ? type.substr(2) : std::string_view();
    if (digits == "8") return 1;
    if (digits == "16") return 2;
    if (digits == "32") return 4;
    if (digits == "64") return 8;
    throw Fault("a type that is not known: " + std::string(type));
  }
  size_t bytes() const { return elements * element_bytes(); }
  uint8_t words() const { return type == ".pred" ? 0 : element_bytes() == 8 ? 2 : 1; }

  static Declaration read(Text &t) {
    Declaration d;
    t.skip();
    for (t.skip(); t.peek() == '.'; t.skip()) {
      const std::string_view word = t.word();
      if (word == ".extern") {
        d.is_extern = true;
      } else if (word == ".align") {
        t.skip();
        d.alignment = static_cast<size_t>(t.integer());
      } else if (word == ".ptr" || word == ".global" || word == ".visible" || word == ".weak") {
        if (word == ".global") d.space = word;
      } else if (word == ".reg" || word == ".shared" || word == ".local" || word == ".param" || word == ".const") {
        d.space = word;
      } else {
        d.type = word;
      }
    }
    if (d.alignment == 1 && d.type != ".pred") d.alignment = d.element_bytes();
    do {
      t.skip();
      d.name = t.word();
      t.skip();
      int count = -1;
      if (t.accept('<')) {
        count = static_cast<int>(t.integer());
        t.expect('>');
      }
      for (t.skip(); t.accept('['); t.skip()) {
        t.skip();
        if (t.peek() != ']') d.elements *= static_cast<size_t>(t.integer());
        t.skip();
        t.expect(']');
      }
      d.registers.push_back({d.name, count});
      t.skip();
    } while (d.space == ".reg" && t.accept(','));
    return d;
  }
};

struct Symbol {
  Preset::Kind kind;
  size_t offset;
};

struct Scope {
  struct Family {
    uint32_t slot;
    uint8_t words;
  };
  std::map<std::string, Operand> registers;
  std::map<std::string, Family> families;  // "%r" of "%r<12>"
  std::map<std::string, Symbol> symbols;
  std::map<std::string, size_t> labels;
  std::vector<size_t> jumps;  // instructions that go to labels of this scope or of one around it

  bool find(std::string_view name, Operand &o) const {
    if (const auto found = registers.find(std::string(name)); found != registers.end())
      return o = found->second, true;
    size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    if (digits == name.size()) return false;
    const auto family = families.find(std::string(name.substr(0, digits)));
    if (family == families.end()) return false;
    Text t(name.substr(digits));
    const auto n = static_cast<uint32_t>(t.integer());
    const uint32_t step = family->second.words == 0 ? 2u : 32u * family->second.words;
    o = Operand{family->second.slot + n * step, family->second.words, false, 0};
    return true;
  }
};

}  // namespace emulator
