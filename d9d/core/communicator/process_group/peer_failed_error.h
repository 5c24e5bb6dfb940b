// The error of a healthy rank whose communication was ended by another rank; the other rank reports the cause.
#pragma once

#include "d9d/base/check.h"

namespace d9d {

// A program whose ranks are processes may ignore it: the rank that failed prints its own error.
struct PeerFailedError : CommunicationError {
  using CommunicationError::CommunicationError;
};

}  // namespace d9d
