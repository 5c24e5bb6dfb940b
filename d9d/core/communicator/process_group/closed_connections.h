// Connections between ranks of which one may end at any time.
#pragma once

namespace d9d {

// From here on the process ignores SIGPIPE, unless it handles it already. Gloo and the store write to connections that
// a rank which ends may have closed: an error to tell, as from a read, and not the end of this process without a word.
void survive_closed_connections();

}  // namespace d9d
