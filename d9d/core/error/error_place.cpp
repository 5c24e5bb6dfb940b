#include "d9d/core/error/error_place.h"

#include <c10/util/Exception.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

bool has_error_place() {
  try {
    throw;
  } catch (const Error& error) {
    return error.has_place();
  } catch (const c10::Error& error) {
    return !error.context().empty();
  } catch (...) {
    return false;
  }
}

void add_error_place(const std::string& place) {
  try {
    throw;
  } catch (Error& error) {
    error.add_place(place);
  } catch (c10::Error& error) {
    error.add_context(place);
  } catch (...) {  // has no room for it
  }
}

std::string error_line(const std::exception& error) {
  const auto* const from_c10 = dynamic_cast<const c10::Error*>(&error);
  if (from_c10 == nullptr) return first_line(error.what());
  std::string line = first_line(from_c10->msg());
  for (const std::string& place : from_c10->context()) {
    line += (&place == &from_c10->context().front() ? " (" : ", ") + first_line(place);
  }
  if (!from_c10->context().empty()) line += ")";
  // What has no memory after materialize() belongs to no module.
  if (line.find("meta") != std::string::npos)
    line += ". A module that is not registered stays on meta: register_module()";
  return line;
}

}  // namespace d9d
