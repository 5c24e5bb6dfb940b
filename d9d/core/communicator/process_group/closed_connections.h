// Handles connections to ranks that may end at any time.
#pragma once

namespace d9d {

// From this call on the process ignores SIGPIPE, unless it handles it already. Gloo and the store write to connections
// that an ending rank may have closed. Such a write then fails with an error that can be reported, as a read does,
// instead of ending this process silently.
void survive_closed_connections();

}  // namespace d9d
