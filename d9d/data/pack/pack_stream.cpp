#include "d9d/data/pack/pack_stream.h"

namespace d9d {

AnyPackStream::~AnyPackStream() = default;

void AnyPackStream::start() {}

std::vector<std::int64_t> AnyPackStream::microbatch_numbers() const { return {}; }

DataDescription AnyPackStream::describe() const { return {.line = "packs of a stream of the program's own"}; }

bool AnyPackStream::tells_of_long_waits() const { return false; }

}  // namespace d9d
