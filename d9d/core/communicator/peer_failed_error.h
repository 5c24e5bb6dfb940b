// The error of a rank that ends only because another rank failed; the other rank reports the cause.
#pragma once

#include "d9d/base/check.h"

namespace d9d {

// launch() reports this error only if no rank failed by itself.
struct PeerFailedError : CommunicationError {
  using CommunicationError::CommunicationError;
};

}  // namespace d9d
