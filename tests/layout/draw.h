// Random cases for RapidCheck, plain ones first: what it shrinks to.
//
// A new feature adds its axis here: a member of LayoutJob or Layout with a default that leaves it out, its text in
// layout_job.cpp, what it does in layout_model.cpp or layout_loss.cpp, and a line in draw_job() or draw_layout().
#pragma once

#include "tests/layout/layout_job.h"

namespace d9d::test {

// Inside of a property. At most 8 ranks. Consistent; now and then one that the library refuses.
[[nodiscard]] LayoutCase draw_case();

}  // namespace d9d::test
