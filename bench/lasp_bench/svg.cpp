// A picture of a table of shapes: each pass a bar, as long as its share of the floor on a GPU, or of sgemm.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/environment.h"
#include "failure.h"
#include "report.h"

namespace bench {
namespace {

constexpr int kWidth = 900, kBars = 330, kScale = 430, kRow = 36, kBar = 15, kTop = 64;

double share_of(const Result &result, const PassResult &pass) {
  if (result.config.on_cuda()) return result.share_of_floor(pass);
  return result.sgemm() > 0 ? pass.gflops() / result.sgemm() : 0;
}

std::string escaped(const std::string &text) {
  std::string to;
  for (const char c : text) to += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return to;
}

std::string text_at(int x, int y, const char *extra, const std::string &text) {
  return format("<text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, extra, escaped(text).c_str());
}

}  // namespace

std::string draw_shapes(const std::vector<Result> &results) {
  const bool on_gpu = !results.empty() && results.front().config.on_cuda();
  const int height = kTop + kRow * static_cast<int>(results.size()) + 16;
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n"
      "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
      kWidth, height, kWidth, height);
  const std::string where = on_gpu ? results.front().gpu : tools::cpu_name();
  svg += text_at(10, 22, " font-size=\"15\" font-weight=\"bold\"",
                 where + ", " + (results.empty() ? "" : name_of(kDTypes, results.front().config.shape.dtype)) +
                     ": share of " + (on_gpu ? "the copy floor" : "sgemm") + ", and milliseconds");
  svg += format("<rect x=\"%d\" y=\"34\" width=\"12\" height=\"12\" fill=\"#b8631c\"/>\n", kBars);
  svg += text_at(kBars + 18, 45, "", "forward");
  svg += format("<rect x=\"%d\" y=\"34\" width=\"12\" height=\"12\" fill=\"#4b6a88\"/>\n", kBars + 90);
  svg += text_at(kBars + 108, 45, "", "backward, with d_decay where there is one");
  for (int share = 0; share <= 100; share += 25)
    svg += format("<path d=\"M%d %dV%d\" stroke=\"#d5dadf\"/>\n", kBars + kScale * share / 100, kTop - 10,
                  height - 12);
  int y = kTop;
  for (const Result &result : results) {
    svg += text_at(kBars - 8, y + kBar + 5, " text-anchor=\"end\"", result.config.name);
    for (const PassResult &pass : result.passes) {
      const bool tell = result.correct() && result.traffic_agrees();
      const double share = tell ? share_of(result, pass) : 0;
      const int length = static_cast<int>(std::clamp(share, 0.0, 1.0) * kScale),
                at = y + (pass.timed == Timed::kBackward ? kBar : 0);
      svg += format("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", kBars, at, length,
                    kBar - 2, pass.timed == Timed::kBackward ? "#4b6a88" : "#b8631c");
      svg += text_at(kBars + length + 5, at + kBar - 4, " font-size=\"12\"",
                     tell ? format("%.3f ms, %.0f%%", pass.statistics.median * 1e3, share * 100) : "wrong");
    }
    if (!result.refused.empty()) svg += text_at(kBars + 5, y + kBar, " font-size=\"12\"", "refused");
    y += kRow;
  }
  return svg + "</svg>\n";
}

void save_svg(const std::string &file, const std::vector<Result> &results) {
  const std::string svg = draw_shapes(results);
  FILE *const to = std::fopen(file.c_str(), "w");
  const bool written = to != nullptr && std::fwrite(svg.data(), 1, svg.size(), to) == svg.size();
  if (to == nullptr || std::fclose(to) != 0 || !written)
    throw Failure("--svg: cannot write " + file + ": " + std::strerror(errno));
}

}  // namespace bench
