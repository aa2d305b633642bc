// Draws the loss curves, and the difference of two on a logarithmic scale.
#include "svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace train_lm {
namespace {

constexpr double kWidth = 860, kLeft = 78, kRight = 24;

__attribute__((format(printf, 2, 3))) void append(std::string &svg, const char *pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  svg += text;
}

// One pair of axes: steps to the right, `low` to `high` upwards.
struct Panel {
  double top, bottom, low, high;
  std::size_t steps;
  double x(double step) const {
    return kLeft + (kWidth - kLeft - kRight) * (steps > 1 ? step / static_cast<double>(steps - 1) : 0.5);
  }
  double y(double value) const { return bottom - (bottom - top) * (value - low) / (high - low); }
};

void draw_frame(std::string &svg, const Panel &p, const char *title, bool step_labels) {
  append(svg, "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='none' stroke='#9aa0a6'/>\n", kLeft, p.top,
         kWidth - kLeft - kRight, p.bottom - p.top);
  append(svg, "<text transform='translate(20 %.1f) rotate(-90)' text-anchor='middle'>%s</text>\n",
         (p.top + p.bottom) / 2, title);
  const double last = static_cast<double>(p.steps);
  double stride = std::max(1.0, std::pow(10.0, std::floor(std::log10(last))));
  while (last / stride < 4 && stride > 1) stride = std::max(1.0, stride / 2);
  for (double step = stride; step <= last; step += stride) {
    append(svg, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' class='grid'/>\n", p.x(step - 1), p.x(step - 1),
           p.top, p.bottom);
    if (step_labels)
      append(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.0f</text>\n", p.x(step - 1), p.bottom + 18, step);
  }
}

void draw_level(std::string &svg, const Panel &p, double value, const std::string &name) {
  append(svg, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' class='grid'/>\n", kLeft, kWidth - kRight, p.y(value),
         p.y(value));
  append(svg, "<text x='%.1f' y='%.1f' text-anchor='end'>%s</text>\n", kLeft - 8, p.y(value) + 4, name.c_str());
}

void draw_curve(std::string &svg, const Panel &p, const std::vector<double> &values, const char *style) {
  append(svg, "<polyline fill='none' stroke-linejoin='round' %s points='", style);
  for (std::size_t i = 0; i < values.size(); ++i)
    append(svg, "%.1f,%.1f ", p.x(static_cast<double>(i)), p.y(std::clamp(values[i], p.low, p.high)));
  svg += "'/>\n";
}

void draw_key(std::string &svg, double x, double y, const char *style, const std::string &name) {
  append(svg, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' %s/>\n", x, x + 34, y, y, style);
  append(svg, "<text x='%.1f' y='%.1f'>%s</text>\n", x + 42, y + 4, name.c_str());
}

constexpr const char *kReference = "stroke='#f4a340' stroke-width='5' stroke-linecap='round'";
constexpr const char *kSplit = "stroke='#1a4f8b' stroke-width='1.8'";
constexpr const char *kBound = "stroke='#b3261e' stroke-width='1.4' stroke-dasharray='6 4'";

void draw_losses(std::string &svg, const Report &report) {
  const std::size_t steps = report.runs[0].steps.size();
  double lowest = HUGE_VAL, highest = 0.0;
  std::vector<std::vector<double>> curves;
  for (const RunResult &run : report.runs) {
    curves.emplace_back();
    for (const StepRecord &step : run.steps) {
      curves.back().push_back(step.loss);
      lowest = std::min(lowest, step.loss), highest = std::max(highest, step.loss);
    }
  }
  const Panel panel = {60, 340, std::floor(lowest), std::max(std::ceil(highest), std::floor(lowest) + 1), steps};
  draw_frame(svg, panel, "loss, nats per byte", report.runs.size() == 1);
  for (double level = panel.low; level <= panel.high; level += 1.0)
    draw_level(svg, panel, level, std::to_string(static_cast<int>(level)));
  const bool two = curves.size() == 2;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const char *style = two && i == 0 ? kReference : kSplit;
    draw_curve(svg, panel, curves[i], style);
    draw_key(svg, kWidth - 190, 84 + 24 * static_cast<double>(i), style, label(report.runs[i]));
  }
}

void draw_difference(std::string &svg, const Report &report) {
  const std::size_t steps = report.bound.size();
  std::vector<double> difference, bound;
  for (std::size_t i = 0; i < steps; ++i) {
    const double d = std::fabs(report.runs[0].steps[i].loss - report.runs[1].steps[i].loss);
    difference.push_back(std::log10(std::max(d, 1e-12)));
    bound.push_back(std::log10(report.bound[i]));
  }
  const double high = std::ceil(std::max(*std::max_element(bound.begin(), bound.end()),
                                         *std::max_element(difference.begin(), difference.end())));
  const double low =
      std::clamp(std::floor(*std::min_element(difference.begin(), difference.end())), -11.0, high - 1);
  const Panel panel = {372, 520, low, high, steps};
  draw_frame(svg, panel, "difference", true);
  for (double level = panel.low; level <= panel.high; level += high - low > 6 ? 2.0 : 1.0)
    draw_level(svg, panel, level, "1e" + std::to_string(static_cast<int>(level)));
  draw_curve(svg, panel, difference, kSplit);
  draw_curve(svg, panel, bound, kBound);
  draw_key(svg, kWidth - 400, 506, kSplit, "|difference|");
  draw_key(svg, kWidth - 250, 506, kBound, "float32 bound");
}

}  // namespace

std::string loss_svg(const Report &report) {
  const Options &o = *report.options;
  const bool two = report.runs.size() == 2;
  const double height = two ? 566 : 386;
  std::string svg;
  append(svg, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' width='%.0f' height='%.0f' ", kWidth,
         height, kWidth, height);
  svg += "font-family='Helvetica, Arial, sans-serif' font-size='13' fill='#202124'>\n";
  svg += "<style>.grid{stroke:#e3e6ea;stroke-width:1}</style>\n<rect width='100%' height='100%' fill='#ffffff'/>\n";
  append(svg,
         "<text x='%.0f' y='28' font-size='17' font-weight='bold'>Training loss, one sequence of %lld "
         "tokens%s</text>\n",
         kLeft, static_cast<long long>(o.seq_len), two ? " on one rank and split" : "");
  append(svg,
         "<text x='%.0f' y='48' fill='#5f6368'>%d blocks, width %d, %d heads, %zu parameters; %zu bytes of "
         "text</text>\n",
         kLeft, o.layers, o.d_model, o.heads, report.runs[0].parameters, report.text->bytes());
  draw_losses(svg, report);
  if (two) draw_difference(svg, report);
  append(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>optimiser step</text>\n</svg>\n",
         (kLeft + kWidth - kRight) / 2, height - 10);
  return svg;
}

}  // namespace train_lm
