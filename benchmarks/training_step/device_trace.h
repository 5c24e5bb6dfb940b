// What a device does, as a trace that Perfetto and chrome://tracing open, and benchmarks/communication/exposed.py.
#pragma once

#include <filesystem>

namespace benchmarks {

// Begins a trace of kernels and copies of this process's devices; nothing of the host.
void begin_device_trace();
// Ends it, once all devices have done what they have been given, and writes Chrome's JSON.
void end_device_trace(const std::filesystem::path& file);

}  // namespace benchmarks
