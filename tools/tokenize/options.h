// The command line of d9d_tokenize.
#pragma once

#include <filesystem>

#include "d9d/data/build/config.h"

namespace d9d::tokenize {

struct Options {
  std::filesystem::path target = {};
  SourceConfig source = {};    // flags are its keys
  std::int64_t num_shown = 0;  // documents to print
};

// Throws UsageError, HelpRequested for --help, and ConfigError for a value that a flag cannot have.
[[nodiscard]] Options parse_options(int argc, const char* const* argv);

}  // namespace d9d::tokenize
