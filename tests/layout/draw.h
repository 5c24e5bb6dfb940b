// Random cases for RapidCheck, with plain values first, which it shrinks to.
//
// A new feature adds its axis here: a member of LayoutJob or Layout with a default that leaves it out, its text in
// layout_job.cpp, its effect in layout_model.cpp or layout_loss.cpp, and a line in draw_job() or draw_layout().
#pragma once

#include "tests/layout/layout_job.h"

namespace d9d::test {

// To be called inside a property. Draws a consistent case of at most 8 ranks, sometimes of 16; occasionally one
// that the library refuses.
[[nodiscard]] LayoutCase draw_case();

}  // namespace d9d::test
