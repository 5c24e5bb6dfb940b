#include "d9d/base/check.h"
#include "d9d/data/text/column_file.h"

namespace d9d {

std::unique_ptr<ColumnFile> open_column_file(const ColumnRequest& request) {
  throw ConfigError(
      cat("[data::open_column_file] expected a build with Arrow C++ to read '", request.path.string(),
          "', got one without. Install requirements.txt (pyarrow) and build again, or convert the data to "
          "JSON lines."));
}

}  // namespace d9d
