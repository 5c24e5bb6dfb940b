#include "d9d/data/data_loader.h"

#include <exception>

namespace d9d::detail {

void check_loader_options(const LoaderOptions& options) {
  D9D_CHECK(options.num_workers >= 0, ConfigError, "[data::DataLoader] expected num_workers >= 0, got ",
            options.num_workers, ". Use 0 to read in the calling thread.");
  D9D_CHECK(options.prefetch_factor >= 1, ConfigError, "[data::DataLoader] expected prefetch_factor >= 1, got ",
            options.prefetch_factor, ". Use num_workers = 0 to read nothing ahead.");
  D9D_CHECK(options.timeout_seconds >= 0, ConfigError, "[data::DataLoader] expected timeout >= 0 seconds, got ",
            options.timeout_seconds, ". Use 0 to wait for ever.");
}

void throw_sample_error(std::int64_t sample, const char* what) {
  std::throw_with_nested(
      IoError(cat("[data::DataLoader] expected to read sample ", sample, " of the dataset, got: ", what)));
}

}  // namespace d9d::detail
