// Reads a function's PTX into instructions with handlers. Functions that it calls become a part of its code.
#include <algorithm>
#include <set>

#include "machine/module.h"
#include "machine/scope.h"
#include "machine/text.h"

namespace emulator {

void branch(Warp &, const Instruction &, uint32_t) {}
void leave(Warp &, const Instruction &, uint32_t) {}

namespace {

Handler handler_of(std::string_view opcode, Instruction &i) {
  for (auto maker :
       {arithmetic_instruction, memory_instruction, control_instruction, matrix_instruction, async_instruction}) {
    if (Handler h = maker(opcode, i)) return h;
  }
  return nullptr;
}

class Reader {
 public:
  Reader(const Module &module, Kernel &kernel) : module_(module), k_(kernel) {}

  void read(const Function &f) {
    scopes_.emplace_back();
    for (const std::string_view d : module_.shared) declare(Text(d));
    read_parameters(f.head);
    read_directives(f.head);
    read_body(f.body);
    emit_leave();
    close_scope();
  }

 private:
  // ---- declarations
  uint32_t allocate(uint32_t words) {
    const uint32_t slot = k_.words;
    k_.words += words == 0 ? 2 : 32 * words;
    return slot;
  }

  void read_parameters(std::string_view head) {
    Text t(head);
    t.skip();
    if (t.peek() != '(') return;
    Text list(t.parentheses());
    size_t offset = 0;
    while (list.skip(), !list.end()) {
      const Declaration d = Declaration::read(list);
      offset = (offset + d.alignment - 1) / d.alignment * d.alignment;
      scopes_.back().symbols[std::string(d.name)] = {Preset::kParameters, offset};
      k_.facts.parameters.emplace_back(offset, d.bytes());
      offset += d.bytes();
      list.skip();
      list.accept(',');
    }
    k_.parameter_bytes = offset;
  }

  void read_directives(std::string_view head) {
    Dim3 threads;
    if (directive(head, ".maxntid", threads))
      k_.facts.max_threads = static_cast<int>(threads.x * threads.y * threads.z);
    directive(head, ".reqnctapercluster", k_.cluster);
  }

  void declare(Text t) {
    const Declaration d = Declaration::read(t);
    Scope &scope = scopes_.back();
    if (d.space == ".reg") {
      for (const Declaration::Register &r : d.registers) {
        if (r.count < 0) {
          scope.registers[std::string(r.name)] = Operand{allocate(d.words()), d.words(), false, 0};
        } else {
          scope.families[std::string(r.name)] = {k_.words, d.words()};
          k_.words += static_cast<uint32_t>(r.count) * (d.words() == 0 ? 2u : 32u * d.words());
        }
      }
    } else if (d.space == ".shared") {
      if (d.is_extern) {
        scope.symbols[std::string(d.name)] = {Preset::kDynamicShared, 0};
        k_.dynamic_alignment = std::max(k_.dynamic_alignment, d.alignment);
      } else {
        shared_.push_back(d);
        scope.symbols[std::string(d.name)] = {Preset::kShared, SIZE_MAX};  // placed when it is used
      }
    } else if (d.space == ".local") {
      k_.local_bytes = (k_.local_bytes + d.alignment - 1) / d.alignment * d.alignment;
      scope.symbols[std::string(d.name)] = {Preset::kLocal, k_.local_bytes};
      k_.local_bytes += d.bytes();
    } else if (d.space == ".param") {  // of a call: a register
      if (d.elements != 1) throw Fault("a parameter of a call that is no register: " + std::string(d.name));
      scope.registers[std::string(d.name)] = Operand{allocate(d.words()), d.words(), false, 0};
      parameters_of_calls_.insert(std::string(d.name));
    } else {
      throw Fault("declaration in " + std::string(d.space));
    }
  }

  // ---- names
  const Symbol *symbol(std::string_view name) {
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
      const auto found = s->symbols.find(std::string(name));
      if (found == s->symbols.end()) continue;
      if (found->second.kind == Preset::kShared && found->second.offset == SIZE_MAX) place(found->second, name);
      return &found->second;
    }
    return nullptr;
  }

  void place(Symbol &s, std::string_view name) {
    for (const Declaration &d : shared_) {
      if (d.name != name) continue;
      k_.shared_bytes = (k_.shared_bytes + d.alignment - 1) / d.alignment * d.alignment;
      s.offset = k_.shared_bytes;
      k_.shared_bytes += d.bytes();
    }
  }

  bool find_register(std::string_view name, Operand &o) {
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
      if (s->find(name, o)) return true;
    }
    return false;
  }

  Operand preset(Preset::Kind kind, uint8_t words, uint64_t value, std::string_view special = {}) {
    const std::string key =
        std::to_string(kind) + "/" + std::to_string(words) + "/" + std::to_string(value) + std::string(special);
    const auto found = presets_.find(key);
    if (found != presets_.end()) return found->second;
    const Operand o{allocate(words), words, false, 0};
    k_.presets.push_back({kind, o, value, special.empty() ? SpecialRegister() : special_register(special)});
    return presets_[key] = o;
  }

  // ---- operands
  Operand simple(Text &t, uint8_t words) {
    t.skip();
    if (t.is_number()) return preset(Preset::kConstant, words, t.number(words));
    const std::string_view name = t.word();
    if (name == "_") return Operand{0, 1, true, 0};
    Operand o;
    if (find_register(name, o)) return o;
    if (name.starts_with("%")) return preset(Preset::kSpecial, words == 2 ? 2 : 1, 0, name);
    if (const Symbol *s = symbol(name)) return preset(s->kind, words == 2 ? 2 : 1, s->offset);
    throw Fault("unknown name " + std::string(name));
  }

  void one(Text &t, std::vector<Operand> &to, uint8_t words, bool address) {
    t.skip();
    if (t.accept('{')) {
      list(t, to, '}', words);
    } else if (t.accept('[')) {
      one(t, to, 2, true);
      t.skip();
      while (t.accept(',')) one(t, to, 2, true), t.skip();
      t.expect(']');
    } else if (t.accept('(')) {
      list(t, to, ')', words);
    } else {
      if (t.peek() == '!') throw Fault("negated operand");
      Operand o = simple(t, words);
      t.skip();
      if (address && (t.peek() == '+' || t.peek() == '-')) {
        t.accept('+');
        o.offset = t.integer();
      }
      to.push_back(o);
      t.skip();
      if (t.accept('|')) to.push_back(simple(t, words));
    }
  }

  void list(Text &t, std::vector<Operand> &to, char end, uint8_t words) {
    do {
      one(t, to, words, false);
      t.skip();
    } while (t.accept(','));
    t.expect(end);
  }

  // How wide a number is that stands as operand `n` of the instruction.
  static uint8_t width(std::string_view opcode, int n) {
    const std::string_view last = opcode.substr(opcode.rfind('.') + 1);
    const std::string_view first = opcode.substr(0, opcode.find('.'));
    if (last == "pred") return first == "bar" || first == "vote" ? 1 : 0;  // numbers of barriers, masks
    if (opcode.starts_with("mad.wide")) return n == 3 && !last.ends_with("16") ? 2 : 1;
    const bool wide = last == "b64" || last == "u64" || last == "s64" || last == "f64";
    if (!wide || first == "mbarrier") return 1;
    if (n == 2 && (first == "shl" || first == "shr" || first == "mapa")) return 1;
    return 2;
  }

  // ---- code
  void emit(Text &t, std::string_view statement) {
    Instruction i;
    k_.texts.emplace_back(statement);
    i.text = k_.texts.back().c_str();
    read_guard(t, i);
    const std::string_view opcode = t.word();
    t.skip();
    if (opcode == "bra" || opcode == "bra.uni") return emit_branch(t, i);
    if (opcode == "ret" || opcode == "exit" || opcode == "ret.uni") return emit_leave_of(i, opcode == "exit");
    if (opcode == "call" || opcode == "call.uni") {
      if (i.guarded) throw Fault("a call with a guard: " + std::string(statement));
      return inline_call(t);
    }
    read_operands(t, i, opcode);
    // Parameters of calls are registers: their loads and stores are moves.
    if ((opcode.starts_with("ld.param") || opcode.starts_with("st.param")) && parameter_of_call(statement)) {
      if (i.count != 2 || i[0].offset != 0 || i[1].offset != 0) throw Fault(not_known(statement));
      i.run = arithmetic_instruction(i[0].words == 2 ? "mov.b64" : "mov.b32", i);
    } else {
      i.run = handler_of(opcode, i);
    }
    if (i.run == nullptr) throw Fault(not_known(statement));
    if (opcode.find(".aligned") != std::string_view::npos && i.meet == Instruction::kGroup)
      i.meet = Instruction::kWarp;
    k_.code.push_back(i);
  }

  static std::string not_known(std::string_view statement) {
    return "instruction that is not known: " + std::string(statement);
  }

  void read_guard(Text &t, Instruction &i) {
    t.skip();
    if (!t.accept('@')) return;
    i.guarded = true;
    i.guard_negated = t.accept('!');
    Operand o;
    if (!find_register(t.word(), o) || o.words != 0) throw Fault("unknown guard: " + std::string(i.text));
    i.guard = o.slot;
    t.skip();
  }

  void read_operands(Text &t, Instruction &i, std::string_view opcode) {
    std::vector<Operand> operands;
    while (!t.end()) {
      const size_t before = operands.size();
      one(t, operands, width(opcode, i.written), false);
      if (i.written < 8) i.sizes[i.written] = static_cast<uint8_t>(operands.size() - before);
      ++i.written;
      t.skip();
      if (!t.accept(',')) break;
      t.skip();
    }
    if (!t.end() || operands.size() > 255) throw Fault(not_known(i.text));
    i.count = static_cast<uint8_t>(operands.size());
    k_.operands.push_back(std::move(operands));
    i.operands = k_.operands.back().data();
  }

  void emit_branch(Text &t, Instruction i) {
    i.run = branch;
    jumps_.emplace(k_.code.size(), t.word());
    scopes_.back().jumps.push_back(k_.code.size());
    k_.code.push_back(i);
  }

  bool parameter_of_call(std::string_view statement) {
    const size_t bracket = statement.find('[');
    Text t(statement.substr(bracket + 1));
    t.skip();
    return parameters_of_calls_.count(std::string(t.word())) != 0;
  }

  void emit_leave_of(Instruction i, bool exits) {
    if (!exits && !returns_.empty()) {  // of a function that is part of its caller's code
      i.run = branch;
      returns_.back().push_back(k_.code.size());
    } else {
      i.run = leave;
    }
    k_.code.push_back(i);
  }
  void emit_leave() {
    Instruction i;
    i.run = leave;
    i.text = "end";
    k_.code.push_back(i);
  }

  // "call (result), name, (a, b)": the function's code, with its parameters named after the caller's.
  void inline_call(Text &t) {
    const std::string_view results = t.peek() == '(' ? t.parentheses() : std::string_view();
    t.skip();
    if (t.accept(',')) t.skip();
    const std::string_view name = t.word();
    t.skip();
    t.accept(',');
    t.skip();
    const std::string_view arguments = t.peek() == '(' ? t.parentheses() : std::string_view();
    const auto found = module_.functions.find(name);
    if (found == module_.functions.end() || returns_.size() > 8) throw Fault("call of " + std::string(name));
    Scope inner;
    bind(inner, found->second.results, results);
    Text head(found->second.head);
    head.skip();
    bind(inner, head.peek() == '(' ? head.parentheses() : std::string_view(), arguments);
    scopes_.push_back(std::move(inner));
    returns_.emplace_back();
    read_body(found->second.body);
    for (const size_t at : returns_.back()) k_.code[at].detail = k_.code.size();
    returns_.pop_back();
    close_scope();
  }

  void bind(Scope &inner, std::string_view declared, std::string_view given) {
    Text d(declared), g(given);
    while (d.skip(), !d.end()) {
      const Declaration one = Declaration::read(d);
      g.skip();
      Operand o;
      if (!find_register(g.word(), o)) throw Fault("argument of a call");
      inner.registers[std::string(one.name)] = o;
      parameters_of_calls_.insert(std::string(one.name));
      d.skip(), d.accept(','), g.skip(), g.accept(',');
    }
  }

  // Jumps to labels of this scope find them; the others are left to the scope around it.
  void close_scope() {
    const Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const size_t at : scope.jumps) {
      const auto label = scope.labels.find(std::string(jumps_.at(at)));
      if (label != scope.labels.end()) {
        k_.code[at].detail = label->second;
        jumps_.erase(at);
      } else if (scopes_.empty()) {
        throw Fault("no label " + std::string(jumps_.at(at)));
      } else {
        scopes_.back().jumps.push_back(at);
      }
    }
  }

  // ".loc 1 2 3" ends with its line.
  static bool at_line_directive(Text t) {
    if (t.peek() != '.') return false;
    const std::string_view word = t.word();
    return word == ".loc" || word == ".file";
  }

  void read_body(std::string_view body) {
    scopes_.emplace_back();
    size_t depth = 1;
    Text t(body);
    while (t.skip(), !t.end()) {
      if (t.accept('{')) {
        scopes_.emplace_back();
        ++depth;
      } else if (t.accept('}')) {
        close_scope();
        --depth;
      } else if (t.accept(';')) {
      } else if (t.at_label()) {
        const std::string_view name = t.word();
        t.skip(), t.expect(':');
        scopes_.back().labels[std::string(name)] = k_.code.size();
      } else if (at_line_directive(t)) {
        t.move(t.line_end());
      } else {
        const std::string_view statement = t.statement();
        Text s(statement);
        if (statement.starts_with(".pragma")) continue;
        statement.starts_with(".") ? declare(s) : emit(s, statement);
      }
    }
    while (depth-- > 0) close_scope();
  }

  const Module &module_;
  Kernel &k_;
  std::vector<Scope> scopes_;
  std::vector<Declaration> shared_;
  std::map<std::string, Operand> presets_;
  std::map<size_t, std::string_view> jumps_;  // instructions whose label has not been found
  std::set<std::string> parameters_of_calls_;
  std::vector<std::vector<size_t>> returns_;
};

}  // namespace

void read_kernel(const Module &module, const Function &function, Kernel &kernel) {
  Reader(module, kernel).read(function);
}

}  // namespace emulator
