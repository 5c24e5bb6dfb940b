// Builds the text of an SVG picture, element by element.
//
// Example
//   SvgCanvas canvas(300, 200);
//   canvas.rect(0, 0, 10, 10, "fill=\"#0072b2\"");
//   canvas.text(20, 10, "a < b", "class=\"title\"");   // escaped
//   canvas.take();
#pragma once

#include <string>
#include <string_view>

namespace d9d {

// Positions and sizes are in pixels; `attributes` is SVG text.
class SvgCanvas {
 public:
  // style: rules of CSS beside those of the classes that all pictures have: title, small, axis.
  SvgCanvas(double width, double height, std::string_view style = "");

  void rect(double x, double y, double width, double height, std::string_view attributes);
  // `title` is shown while the pointer rests on the rectangle.
  void titled_rect(double x, double y, double width, double height, std::string_view attributes,
                   std::string_view title);
  void text(double x, double y, std::string_view content, std::string_view attributes);
  void path(std::string_view commands, std::string_view attributes);

  [[nodiscard]] std::string take();

 private:
  std::string content_;
};

// `text` as it stands in SVG and HTML.
[[nodiscard]] std::string escaped_markup(std::string_view text);

// The distance of marks on an axis: the smallest of 1, 2 and 5 times a power of ten of which at most `most` steps cover
// `span`.
[[nodiscard]] double tick_step(double span, double most);

}  // namespace d9d
