// A read of a mapped file that was truncated, or whose disk fails, ends the process by SIGBUS without a message. This
// adds the message.
//
// Example
//   explain_bus_errors();   // once: from then on the process names the file before it ends
#pragma once

namespace d9d {

// Sets the process's handler of SIGBUS, unless it has one. The handler prints the mapping that could not be read, and
// the process ends by the signal as it would have.
void explain_bus_errors();

}  // namespace d9d
