#include <iostream>
#include <string>

#include "d9d/base/check.h"
#include "d9d/base/config/load_config.h"
#include "d9d/base/io/bus_errors.h"
#include "d9d/base/log.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/launch/child_processes.h"
#include "d9d/core/launch/launch.h"

namespace d9d {

int run_reporting_errors(const std::function<void()>& program) {
  explain_bus_errors();
  const auto report = [](const std::string& text) {
    if (!tell_supervisor(text)) write_line_to_stderr("error: " + text);
  };
  try {
    program();
    return 0;
  } catch (const HelpRequested& help) {
    std::cout << help.what() << '\n';
    return 0;
  } catch (const UsageError& error) {
    report(error_line(error));
    return 2;
  } catch (const PeerFailedError&) {
    return kPeerFailedExitCode;  // the failed rank prints its error, and its launcher its exit status
  } catch (const std::exception& error) {
    report(error_line(error));
  } catch (...) {
    report(kUnknownException);
  }
  return 1;
}

}  // namespace d9d
