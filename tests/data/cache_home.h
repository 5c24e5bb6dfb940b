// Sets the cache folder of a test.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace d9d::test {

// Sets XDG_CACHE_HOME of this process, whose tests run one after the other.
class CacheHome {
 public:
  explicit CacheHome(const std::filesystem::path& folder) { ::setenv("XDG_CACHE_HOME", folder.c_str(), 1); }
  ~CacheHome() { ::unsetenv("XDG_CACHE_HOME"); }
  CacheHome(const CacheHome&) = delete;
  CacheHome& operator=(const CacheHome&) = delete;
};

}  // namespace d9d::test
