#include "d9d/base/config/config_path.h"

namespace d9d {

ConfigPath ConfigPath::operator/(std::string_view key) const {
  return {.keys = keys.empty() ? std::string(key) : keys + '.' + std::string(key), .source = source};
}

std::ostream& operator<<(std::ostream& out, const ConfigPath& path) {
  out << config_source(path);
  return path.keys.empty() ? out : out << path.keys << ": ";
}

std::string config_source(const ConfigPath& path) {
  return path.source.empty() ? "[config] " : "[config] " + path.source + ": ";
}

}  // namespace d9d
