// A differential fuzz: random valid problems on random groups of ranks, through the public interface, against the
// float64 oracle. See --help. Exit status 1 when a result was wrong; each has then been printed with the command
// that repeats it.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "differential/verdict.h"
#include "support/guarded_buffer.h"

namespace lasp_test {
namespace {

constexpr char kHelp[] =
    "lasp_differential [--seed N] [--first I] [--count M] [--seconds S] [--verbose] [--table]\n"
    "Draws problems I, I+1, ... I+M-1 of seed N and runs forward, backward, recomputation from the state cache "
    "and\n"
    "lasp_step on 1 to 8 ranks (threads); compares with the oracle and with one rank. Stops early after S "
    "seconds.\n"
    "--table: the tables in Markdown, as docs/history/numerics.md has them.\n";

struct Options {
  uint64_t seed = 1, first = 0, count = 150;
  double seconds = 0.0;  // 0: no limit
  bool verbose = false, markdown = false;
};

// What the problems of a run had in them, so that a reader sees what was tested.
class Coverage {
 public:
  void note(const Drawn &d) {
    const Case &c = d.problem;
    const std::vector<int64_t> tokens = tokens_of_ranks(c, d.nranks);
    bool empty_rank = false, empty_sequence = false;
    for (const int64_t count : tokens) empty_rank = empty_rank || count == 0;
    for (size_t i = 1; i < c.cu_seqlens.size(); ++i)
      empty_sequence = empty_sequence || c.cu_seqlens[i] == c.cu_seqlens[i - 1];
    add(std::to_string(d.nranks) + " ranks", true);
    add("a rank without tokens", empty_rank);
    splits_.insert(tokens);
    add(std::string("schedule ") + schedule_name(d.options.schedule), true);
    add("a split freely drawn", c.split == Split::free && d.nranks > 1);
    add("a segment", c.segment > 0);
    add("packed", !c.cu_seqlens.empty());
    add("an empty sequence", empty_sequence);
    add("bidirectional", c.mask == LASP_MASK_BIDIRECTIONAL);
    add("exact", c.exact);
    add("grouped heads", c.heads_q != c.heads_k || c.heads_k != c.heads_v);
    add("strides", c.layout != Layout::contiguous);
    add("no states given", !c.states);
    add("broadcast", c.broadcast);
    add("cache of incoming states only", c.cache == LASP_CACHE_INCOMING);
    add("backward", d.options.backward);
    add("recomputed", d.options.recompute);
    add("repeated", d.options.repeats > 1);
    add("stepped", c.mask == LASP_MASK_CAUSAL && d.prefill < c.tokens);
  }
  void print(std::ostream &out) const {
    out << "Of these:";
    const char *comma = " ";
    for (const auto &[what, count] : counts_) out << comma << count << " " << what, comma = ", ";
    out << "; " << splits_.size() << " different splits\n";
  }

 private:
  void add(const std::string &what, bool yes) { counts_[what] += yes; }
  std::map<std::string, int64_t> counts_;
  std::set<std::vector<int64_t>> splits_;
};

// "" or what is wrong with problem `index`.
std::string check(const Drawn &d, uint64_t index, Tables &tables) {
  const Case &c = d.problem;
  const CaseData data = make_data(c, d.data_seed);
  Verdict verdict(d, data, index, tables);
  const Outputs many = run_case(c, data, d.transport, d.nranks, d.options);
  if (!many.complaints.empty()) return many.complaints;
  std::string wrong = verdict.of_passes(many);
  if (d.nranks > 1) {
    const Outputs one = run_case(c, data, Transport::self, 1, d.options);
    if (!one.complaints.empty()) return wrong + "on one rank: " + one.complaints;
    if (const std::string alone = verdict.of_passes(one); !alone.empty()) wrong += "on one rank: " + alone;
    wrong += verdict.of_ranks(many, one);
  }
  if (c.mask == LASP_MASK_CAUSAL && d.prefill < c.tokens) wrong += verdict.of_decoding(prefill_and_decode(d, data));
  return wrong;
}

int run(const Options &options) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Tables tables;
  Coverage coverage;
  uint64_t done = 0, failed = 0;
  for (; done < options.count && (options.seconds <= 0.0 || seconds() < options.seconds); ++done) {
    const uint64_t index = options.first + done;
    const Drawn drawn = draw(options.seed, index);
    if (options.verbose) std::cout << index << ": " << describe(drawn) << std::endl;
    coverage.note(drawn);
    const std::string wrong = check(drawn, index, tables);
    if (wrong.empty()) continue;
    ++failed;
    std::cout << "WRONG: " << describe(drawn) << "\n"
              << wrong << "Again: lasp_differential --seed " << options.seed << " --first " << index << " --count 1"
              << std::endl;
  }
  std::cout << "seed " << options.seed << ": problems " << options.first << " to "
            << static_cast<int64_t>(options.first + done) - 1 << ", " << done << " of " << options.count << " run, "
            << failed << " wrong, " << static_cast<int64_t>(seconds()) << " s\n";
  coverage.print(std::cout);
  tables.print(std::cout, options.markdown);
  return failed > 0 || done == 0 ? 1 : 0;
}

bool parse(int argc, char **argv, Options &options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--verbose" || name == "--table") {
      (name == "--table" ? options.markdown : options.verbose) = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char *const text = argv[++i];
    char *end = nullptr;
    uint64_t *const number = name == "--seed"    ? &options.seed
                             : name == "--first" ? &options.first
                             : name == "--count" ? &options.count
                                                 : nullptr;
    if (number != nullptr) {
      *number = std::strtoull(text, &end, 10);
    } else if (name == "--seconds") {
      options.seconds = std::strtod(text, &end);
    }
    if (end == nullptr || end == text || *end != '\0') return false;
  }
  return true;
}

}  // namespace
}  // namespace lasp_test

int main(int argc, char **argv) {
  lasp_test::Options options;
  if (!lasp_test::parse(argc, argv, options)) {
    std::cerr << lasp_test::kHelp;
    return 2;
  }
  if (lasp_test::on_cuda()) {
    std::cout << "SKIPPED: the differential fuzz runs on the CPU; unset LASP_TEST_DEVICE\n";
    return 77;
  }
  return lasp_test::run(options);
}
