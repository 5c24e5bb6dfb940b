#include "d9d/loop/step/pack_reader.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"

namespace d9d {

PackReader::~PackReader() = default;

std::optional<MicrobatchPack> PackReader::next() { return peeked_ ? std::exchange(peeked_, std::nullopt) : read(); }

const MicrobatchPack* PackReader::peek() {
  if (!peeked_) peeked_ = read();
  return peeked_ ? &*peeked_ : nullptr;
}

void PackReader::rewind(const nlohmann::json& position) {
  peeked_.reset();
  const nlohmann::json before = stream().state();
  with_error_place("in PackStream::load_state", [&] { stream().load_state(position); });
  // A stream that stays where it is would give the job the same data again.
  const bool has_moved = stream().state() != before || position == before;
  D9D_CHECK(has_moved, StateError, "[loop::data] expected a stream that continues at ", position.dump(),
            " after PackStream::load_state(), got one that stays at ", before.dump(), ". Set the position there.");
}

}  // namespace d9d
