#ifndef EXAMPLE_SUPPORT_SVG_HPP
#define EXAMPLE_SUPPORT_SVG_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "output_file.hpp"

namespace example {

struct chart_series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< values that are not finite are left out
};

struct line_chart {
  std::string title, x_label, y_label;
  std::vector<chart_series> series;
};

/// Ticks at 1, 2 or 5 times a power of ten, about `wanted` of them, that enclose [low, high].
struct axis_ticks {
  double first, step;
  int count;  ///< ticks at first + i * step for i in [0, count]

  double at(int i) const { return first + i * step; }
  double last() const { return at(count); }

  static axis_ticks enclosing(double low, double high, int wanted) {
    if (!(high > low)) {
      const double margin = std::max(std::abs(low) * 0.1, 0.5);
      low -= margin;
      high += margin;
    }
    const double raw = (high - low) / wanted;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    const double part = raw / power;
    const double step = power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
    const double first = std::floor(low / step) * step;
    return {first, step, std::max(1, static_cast<int>(std::ceil((high - first) / step - 1e-9)))};
  }

  std::string label(int i) const {
    const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", decimals, at(i) + 0.0);
    return text;
  }
};

inline std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// The same chart gives the same bytes: no date, no locale, coordinates rounded to hundredths.
inline std::string to_svg(const line_chart& chart) {
  constexpr double width = 760, height = 440, left = 64, right = 20, top = 44, bottom = 52;
  // Okabe and Ito's palette stays distinct for colour-blind readers.
  constexpr std::array<std::string_view, 6> colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

  double low_x = std::numeric_limits<double>::infinity(), low_y = low_x, high_x = -low_x, high_y = -low_x;
  for (const auto& series : chart.series)
    for (const auto& [x, y] : series.points)
      if (std::isfinite(x) && std::isfinite(y)) {
        low_x = std::min(low_x, x), high_x = std::max(high_x, x);
        low_y = std::min(low_y, y), high_y = std::max(high_y, y);
      }
  if (low_x > high_x) low_x = low_y = 0, high_x = high_y = 1;
  const axis_ticks xs = axis_ticks::enclosing(low_x, high_x, 8), ys = axis_ticks::enclosing(low_y, high_y, 6);
  const auto to_x = [&](double x) { return left + (x - xs.first) / (xs.last() - xs.first) * (width - left - right); };
  const auto to_y = [&](double y) { return top + (ys.last() - y) / (ys.last() - ys.first) * (height - top - bottom); };
  const auto num = [](double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", v);
    return std::string(text);
  };
  const auto text = [&](double x, double y, std::string_view extra, std::string_view words) {
    return "<text x=\"" + num(x) + "\" y=\"" + num(y) + "\"" + std::string(extra) + ">" + xml_escaped(words) +
           "</text>\n";
  };
  const auto line = [&](double x1, double y1, double x2, double y2, std::string_view extra) {
    return "<line x1=\"" + num(x1) + "\" y1=\"" + num(y1) + "\" x2=\"" + num(x2) + "\" y2=\"" + num(y2) + "\"" +
           std::string(extra) + "/>\n";
  };

  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 440\" width=\"760\" height=\"440\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n"
      "<rect width=\"760\" height=\"440\" fill=\"#fff\"/>\n";
  out += text(left, 24, " font-size=\"15\"", chart.title);
  for (int i = 0; i <= ys.count; ++i) {
    out += line(left, to_y(ys.at(i)), width - right, to_y(ys.at(i)), " stroke=\"#e4e4e4\"");
    out += text(left - 8, to_y(ys.at(i)) + 4, " text-anchor=\"end\"", ys.label(i));
  }
  for (int i = 0; i <= xs.count; ++i) {
    out += line(to_x(xs.at(i)), height - bottom, to_x(xs.at(i)), height - bottom + 5, " stroke=\"#888\"");
    out += text(to_x(xs.at(i)), height - bottom + 19, " text-anchor=\"middle\"", xs.label(i));
  }
  out += line(left, height - bottom, width - right, height - bottom, " stroke=\"#888\"");
  out += text((left + width - right) / 2, height - 12, " text-anchor=\"middle\"", chart.x_label);
  out += text(
      0, 0, " text-anchor=\"middle\" transform=\"translate(18," + num((top + height - bottom) / 2) + ") rotate(-90)\"",
      chart.y_label);

  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const std::string colour(colours[s % colours.size()]);
    // A second series that covers the first stays visible when every other one is dashed.
    const std::string dash = s % 2 == 1 ? " stroke-dasharray=\"6 4\"" : "";
    out += "<polyline fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"1.6\"" + dash + " points=\"";
    for (const auto& [x, y] : chart.series[s].points)
      if (std::isfinite(x) && std::isfinite(y)) out += num(to_x(x)) + "," + num(to_y(y)) + " ";
    out += "\"/>\n";
    const double y = top + 12 + 18 * static_cast<double>(s);
    out += line(width - 190, y, width - 164, y, " stroke=\"" + colour + "\" stroke-width=\"2\"" + dash);
    out += text(width - 156, y + 4, "", chart.series[s].name);
  }
  return out + "</svg>\n";
}

inline void save_svg(const std::filesystem::path& path, const line_chart& chart) { replace_file(path, to_svg(chart)); }

}  // namespace example
#endif
