// The error of a healthy rank that another rank's failure ended; the other rank reports the cause.
#pragma once

#include "d9d/base/check.h"

namespace d9d {

// launch() reports it only where no rank failed by itself.
struct PeerFailedError : CommunicationError {
  using CommunicationError::CommunicationError;
};

}  // namespace d9d
