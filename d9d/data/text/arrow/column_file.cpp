#include "d9d/data/text/column_file.h"

#include <dlfcn.h>

#include <string>

#include "d9d/base/check.h"

namespace d9d {

namespace {

constexpr const char* kLibrary = "libd9d_arrow.so";

OpenColumnFile open_library() {
  std::error_code error;
  const std::filesystem::path beside = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / kLibrary;
  void* library = dlopen(std::filesystem::exists(beside, error) ? beside.c_str() : kLibrary, RTLD_NOW);
  D9D_CHECK(library != nullptr, ConfigError, "[data::open_column_file] expected ", kLibrary,
            " and the libraries of the pyarrow wheel that it was built with, got ", dlerror(),
            ". Install requirements.txt, or convert the data to JSON lines.");
  void* const symbol = dlsym(library, "d9d_open_column_file");
  D9D_ASSERT(symbol != nullptr, kLibrary, " without its function");
  return reinterpret_cast<OpenColumnFile>(symbol);
}

}  // namespace

std::unique_ptr<ColumnFile> open_column_file(const ColumnRequest& request) {
  static const OpenColumnFile open = open_library();
  return open(request);
}

}  // namespace d9d
