#include "d9d/base/svg/svg_canvas.h"

#include <cmath>
#include <utility>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::string_view kStyle = R"(text { font: 12px sans-serif; fill: #333; }
.title { font-size: 15px; font-weight: 600; fill: #111; }
.small { font-size: 10px; fill: #666; }
.axis { stroke: #888; fill: none; }
)";

double rounded(double pixels) { return std::round(10 * pixels) / 10; }

}  // namespace

SvgCanvas::SvgCanvas(double width, double height, std::string_view style)
    : content_(cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", rounded(width), " ", rounded(height),
                   "\" width=\"", rounded(width), "\" height=\"", rounded(height), "\">\n<style>\n", kStyle, style,
                   "</style>\n")) {
  rect(0, 0, width, height, "fill=\"#fff\"");
}

void SvgCanvas::rect(double x, double y, double width, double height, std::string_view attributes) {
  content_ += cat("<rect x=\"", rounded(x), "\" y=\"", rounded(y), "\" width=\"", rounded(width), "\" height=\"",
                  rounded(height), "\" ", attributes, "/>\n");
}

void SvgCanvas::titled_rect(double x, double y, double width, double height, std::string_view attributes,
                            std::string_view title) {
  content_ += cat("<rect x=\"", rounded(x), "\" y=\"", rounded(y), "\" width=\"", rounded(width), "\" height=\"",
                  rounded(height), "\" ", attributes, "><title>", escaped_markup(title), "</title></rect>\n");
}

void SvgCanvas::text(double x, double y, std::string_view content, std::string_view attributes) {
  content_ += cat("<text x=\"", rounded(x), "\" y=\"", rounded(y), "\" ", attributes, ">", escaped_markup(content),
                  "</text>\n");
}

void SvgCanvas::path(std::string_view commands, std::string_view attributes) {
  content_ += cat("<path d=\"", commands, "\" ", attributes, "/>\n");
}

std::string SvgCanvas::take() { return std::move(content_) + "</svg>\n"; }

std::string escaped_markup(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '&') {
      result += "&amp;";
    } else {
      result += c;
    }
  }
  return result;
}

double tick_step(double span, double most) {
  const double power = std::pow(10, std::floor(std::log10(span / most)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (span / (factor * power) <= most) return factor * power;
  }
  return 10 * power;
}

}  // namespace d9d
