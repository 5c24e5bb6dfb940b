// The error of a rank that is well itself: another one ended the communication, and reports the cause.
#pragma once

#include "d9d/base/check.h"

namespace d9d {

// A program whose ranks are processes may pass over it: the rank that failed prints its own error.
struct PeerFailedError : CommunicationError {
  using CommunicationError::CommunicationError;
};

}  // namespace d9d
