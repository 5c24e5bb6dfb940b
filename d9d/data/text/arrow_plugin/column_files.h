// Opens Parquet and Arrow files as ColumnFile.
#pragma once

#include <memory>

#include "d9d/data/text/column_file.h"

namespace d9d::arrow_plugin {

[[nodiscard]] std::unique_ptr<ColumnFile> open_parquet(const ColumnRequest& request);
[[nodiscard]] std::unique_ptr<ColumnFile> open_arrow(const ColumnRequest& request);

}  // namespace d9d::arrow_plugin
