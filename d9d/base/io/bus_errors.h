// A mapped file that becomes shorter, or whose disk fails, ends the process by SIGBUS where it is read, without a word.
//
// Example
//   explain_bus_errors();   // once: from then on the process names the file before it ends
#pragma once

namespace d9d {

// Sets the process's handler of SIGBUS, unless it has one. The handler prints the mapping that could not be read, and
// the process ends by the signal as it would have.
void explain_bus_errors();

}  // namespace d9d
