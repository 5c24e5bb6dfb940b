#include "d9d/pipelining/simulator/svg_canvas.h"

#include <cmath>
#include <utility>

#include "d9d/base/check.h"

namespace d9d::detail {
namespace {

constexpr std::string_view kStyle = R"(<style>
text { font: 12px sans-serif; fill: #333; }
.title { font-size: 15px; font-weight: 600; fill: #111; }
.rank { font-weight: 600; }
.small { font-size: 10px; fill: #666; }
.light { font-size: 11px; fill: #fff; }
.dark { font-size: 11px; fill: #111; }
.cell { stroke: #fff; stroke-width: 0.8; }
.composed { stroke: #111; stroke-width: 1.1; }
.memory { fill: #cfc3dd; stroke: #6b4c9a; stroke-width: 0.8; }
.message { fill: none; stroke-width: 0.9; stroke-opacity: 0.55; }
.message.activations { stroke: #004b76; } .message.gradients { stroke: #8c3d00; }
.head { fill-opacity: 0.8; } .head.activations { fill: #004b76; } .head.gradients { fill: #8c3d00; }
.axis { stroke: #888; fill: none; }
</style>
)";

double rounded(double pixels) { return std::round(10 * pixels) / 10; }

std::string escaped(std::string_view text) {
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

}  // namespace

SvgCanvas::SvgCanvas(double width, double height)
    : content_(cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", rounded(width), " ", rounded(height),
                   "\" width=\"", rounded(width), "\" height=\"", rounded(height), "\">\n", kStyle)) {
  rect(0, 0, width, height, "fill=\"#fff\"");
}

void SvgCanvas::rect(double x, double y, double width, double height, std::string_view attributes) {
  content_ += cat("<rect x=\"", rounded(x), "\" y=\"", rounded(y), "\" width=\"", rounded(width), "\" height=\"",
                  rounded(height), "\" ", attributes, "/>\n");
}

void SvgCanvas::titled_rect(double x, double y, double width, double height, std::string_view attributes,
                            std::string_view title) {
  content_ += cat("<rect x=\"", rounded(x), "\" y=\"", rounded(y), "\" width=\"", rounded(width), "\" height=\"",
                  rounded(height), "\" ", attributes, "><title>", escaped(title), "</title></rect>\n");
}

void SvgCanvas::text(double x, double y, std::string_view content, std::string_view attributes) {
  content_ +=
      cat("<text x=\"", rounded(x), "\" y=\"", rounded(y), "\" ", attributes, ">", escaped(content), "</text>\n");
}

void SvgCanvas::path(std::string_view commands, std::string_view attributes) {
  content_ += cat("<path d=\"", commands, "\" ", attributes, "/>\n");
}

std::string SvgCanvas::take() { return std::move(content_) + "</svg>\n"; }

}  // namespace d9d::detail
