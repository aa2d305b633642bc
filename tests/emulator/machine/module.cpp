// Modules of PTX, and their kernels, which are read when they are first asked for.
#include "machine/module.h"

#include <mutex>

#include "machine/text.h"

namespace emulator {

bool directive(std::string_view head, std::string_view name, Dim3 &numbers) {
  const size_t at = head.find(name);
  if (at == std::string_view::npos) return false;
  Text t(head.substr(at + name.size()));
  for (uint32_t *const one : {&numbers.x, &numbers.y, &numbers.z}) {
    t.skip();
    *one = static_cast<uint32_t>(t.integer());
    t.skip();
    if (!t.accept(',')) break;
  }
  return true;
}

// Over a declaration or a function; `first` is its first word and begins at `begin`.
static void take(Module &module, Text &t, std::string_view first, size_t begin) {
  std::string_view kind = first;
  while (kind != ".entry" && kind != ".func" && kind != ".shared" && kind != ".global" && kind != ".const") {
    t.skip();
    kind = t.word();
  }
  if (kind != ".entry" && kind != ".func") {
    if (kind == ".shared") module.shared.push_back(module.text.substr(begin, t.find(';') - begin));
    return t.move(t.find(';') + 1);
  }
  t.skip();
  Function f;
  if (t.peek() == '(') f.results = t.parentheses(), t.skip();
  const std::string_view name = t.word();
  const size_t head = t.at(), brace = t.find('{'), semicolon = t.find(';');
  if (semicolon < brace) return t.move(semicolon + 1);  // a declaration
  f.head = module.text.substr(head, brace - head);
  t.move(brace);
  f.body = t.braces();
  module.functions[name] = f;
}

Module scan(std::string_view text) {
  Module module{text, {}, {}};
  Text t(text);
  while (t.skip(), !t.end()) {
    const size_t begin = t.at();
    const std::string_view first = t.word();
    if (first == ".entry" || first == ".func" || first == ".visible" || first == ".weak" || first == ".extern" ||
        first == ".shared") {
      take(module, t, first, begin);
    } else {
      t.move(t.line_end());  // .version, .target, .address_size
    }
  }
  return module;
}

namespace {

std::mutex mutex;
// Never destroyed: kernels may still be launched while the process ends.
std::deque<std::string_view> &waiting() {
  static auto *texts = new std::deque<std::string_view>;
  return *texts;
}
std::deque<Module> &modules() {
  static auto *all = new std::deque<Module>;
  return *all;
}

}  // namespace

void add_module(std::string_view ptx) {
  const std::lock_guard lock(mutex);
  waiting().push_back(ptx);
}

const Kernel *find_kernel(std::string_view name) {
  static auto *kernels = new std::map<std::string, std::unique_ptr<Kernel>, std::less<>>;
  const std::lock_guard lock(mutex);
  if (const auto found = kernels->find(name); found != kernels->end()) return found->second.get();
  for (; !waiting().empty(); waiting().pop_front()) modules().push_back(scan(waiting().front()));
  for (const Module &module : modules()) {
    const auto function = module.functions.find(name);
    if (function == module.functions.end()) continue;
    auto kernel = std::make_unique<Kernel>();
    kernel->name = name;
    try {
      read_kernel(module, function->second, *kernel);
    } catch (const Fault &fault) {
      throw Fault(kernel->name + ": " + fault.what());
    }
    kernel->facts.static_shared = kernel->shared_bytes;
    return ((*kernels)[kernel->name] = std::move(kernel)).get();
  }
  return nullptr;
}

}  // namespace emulator
