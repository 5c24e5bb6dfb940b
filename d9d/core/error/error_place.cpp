#include "d9d/core/error/error_place.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include <c10/util/Exception.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Replaces line ends by spaces: the text after one may name the file or the remedy.
std::string in_one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < ' '; }, ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// Keeps the places of the last few exceptions whose types cannot store them. Threads may pass such exceptions to each
// other.
class PlacesBeside {
 public:
  static PlacesBeside& of_process() {
    // lint: allow(mutable-global): an exception is known by its address alone; never destroyed, as it holds exceptions
    static auto* const kPlaces = new PlacesBeside;
    return *kPlaces;
  }
  void add(const std::exception_ptr& error, const std::string& place) {
    const std::lock_guard guard(mutex_);
    if (const auto known = find(error); known != recent_.end()) {
      known->places += ", " + place;
      return;
    }
    if (recent_.size() == kMostKept) recent_.pop_front();
    recent_.push_back({.error = error, .places = place});
  }
  [[nodiscard]] std::string of(const std::exception_ptr& error) {
    const std::lock_guard guard(mutex_);
    const auto known = find(error);
    return known == recent_.end() ? "" : known->places;
  }

 private:
  static constexpr std::size_t kMostKept = 16;
  struct Placed {
    std::exception_ptr error;
    std::string places;
  };
  [[nodiscard]] std::deque<Placed>::iterator find(const std::exception_ptr& error) {
    return std::ranges::find(recent_, error, &Placed::error);
  }

  std::mutex mutex_;
  std::deque<Placed> recent_;
};

// A remedy to append to LibTorch's text; may be empty.
std::string remedy_of(const c10::Error& error, const std::string& line) {
  if (is_out_of_memory(error)) return ". d9d_plan says what a job keeps in memory and which changes would help";
  // After materialize(), only tensors that belong to no module are on the meta device.
  const bool is_meta = line.find("meta") != std::string::npos;
  return is_meta ? ". A module that is not registered stays on meta: register_module()" : "";
}

}  // namespace

bool has_error_place() {
  try {
    throw;
  } catch (const Error& error) {
    return error.has_place();
  } catch (const c10::Error& error) {
    return !error.context().empty();
  } catch (...) {
    return !PlacesBeside::of_process().of(std::current_exception()).empty();
  }
}

void add_error_place(const std::string& place) {
  try {
    throw;
  } catch (Error& error) {
    error.add_place(place);
  } catch (c10::Error& error) {
    error.add_context(place);
  } catch (...) {
    PlacesBeside::of_process().add(std::current_exception(), place);
  }
}

bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         error.msg().find("DefaultCPUAllocator") != std::string::npos;
}

std::string error_line(const std::exception& error) {
  const auto* const from_c10 = dynamic_cast<const c10::Error*>(&error);
  if (from_c10 == nullptr) {
    const std::string places = PlacesBeside::of_process().of(std::current_exception());
    return in_one_line(error.what()) + (places.empty() ? "" : " (" + places + ")");
  }
  std::string line = first_line(from_c10->msg());
  for (const std::string& place : from_c10->context()) {
    line += (&place == &from_c10->context().front() ? " (" : ", ") + first_line(place);
  }
  if (!from_c10->context().empty()) line += ")";
  return line + remedy_of(*from_c10, line);
}

}  // namespace d9d
