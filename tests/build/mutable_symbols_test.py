"""The library has no global state except that of the process: checks the writable data symbols of its archives.

Constants that are computed at their first use (kName, tables of types) do not count as state.
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

BUILD = Path(sys.argv.pop())
COMPILER = re.compile(r"typeinfo|vtable|guard variable|__ioinit|VTT for|DW\.ref|__device_stub__|__fat|__cuda|"
                      "__tls_guard")
CONSTANT = re.compile(r"::k[A-Z]\w*(\[abi:\w+\])?$|json_type<.*>\(\)::type$")
# State that belongs to the process, and why there is only one of each.
PROCESS = {
    "d9d::(anonymous namespace)::stop_signal": "a signal handler can reach nothing else",
    "d9d::(anonymous namespace)::num_scopes": "the signal handlers of a process",
    "d9d::(anonymous namespace)::handlers_mutex": "the signal handlers of a process",
    "d9d::(anonymous namespace)::are_installed": "the signal handlers of a process",
    "d9d::(anonymous namespace)::previous_actions": "the signal handlers of a process",
    "d9d::(anonymous namespace)::current_scope": "the recomputation that a thread of autograd is in",
    "d9d::(anonymous namespace)::innermost": "LibTorch's callbacks of operators know nothing but the thread",
    "d9d::(anonymous namespace)::operator_of(at::RecordFunction const&)::known": "LibTorch has one list of operators",
    "d9d::(anonymous namespace)::newest_that_offloads": "backward fetches in the reverse order of a thread's forwards",
    "d9d::(anonymous namespace)::num_begun_backwards": "the backwards that a thread of autograd has begun",
    "d9d::(anonymous namespace)::num_running_ranks": "exit() ends the process, and is told of nothing else",
    "d9d::(anonymous namespace)::stderr_is_terminal": "asked once",
    "d9d::(anonymous namespace)::refuse_second_launch()::has_launched": "a process is one rank of one job",
    "d9d::(anonymous namespace)::CheckpointEngine::instance()::engine": "autograd has one engine",
    "d9d::install_checkpoint_engine()::once": "autograd has one engine",
    "d9d::lock_starts()::mutex": "libraries are loaded once",
    "d9d::(anonymous namespace)::keep_until_all_have_left(": "other processes have device memory of this one open",
    "d9d::load_cuda()::is_loaded": "libraries are loaded once",
    "d9d::kernels::detail::(anonymous namespace)::cudnn()::graph": "libraries are loaded once",
    "d9d::kernels::detail::write_rows_product_by_cublas": "libraries are loaded once",
    "d9d::open_column_file(d9d::ColumnRequest const&)::open": "libraries are loaded once",
    "d9d::cuda_capability_major(c10::Device)::known": "a device does not change",
    "d9d::detail::(anonymous namespace)::make_seeded": "guards ATen's generator, of which a process has one",
    "d9d::(anonymous namespace)::on_bus_error(": "a signal handler, of which one thread tells how the process ends",
    "d9d::detail::names_modules": "a trace is of the whole process",
    "c10::offsetsAndMasks()": "LibTorch's",
    "c10d::TORCH_GLOO_LAZY_INIT": "LibTorch's",
}


def writable_symbols(library):
    listing = subprocess.run(["nm", "-C", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        match = re.match(r"[0-9a-f]{16} [bBdD] (.*)$", line)
        if match and not COMPILER.search(match[1]) and not CONSTANT.search(match[1]):
            yield match[1]


class MutableSymbols(unittest.TestCase):
    def test_libraries_have_no_state_but_the_process(self):
        libraries = [path for path in sorted(BUILD.glob("libd9d_*.a")) if path.name != "libd9d_pch.a"
                     and "test" not in path.name]
        self.assertGreater(len(libraries), 10)
        for library in libraries:
            for symbol in writable_symbols(library):
                with self.subTest(library.name):
                    self.assertTrue(any(symbol.startswith(known) for known in PROCESS),
                                    f"expected no state of the library, got {symbol} in {library.name}. Pass it, or say "
                                    "in this test why a process has one")


if __name__ == "__main__":
    unittest.main()
