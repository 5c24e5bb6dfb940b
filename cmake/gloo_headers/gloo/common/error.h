// Empty on purpose, see d9d/core/communicator/process_group/gloo_group.cpp.
#pragma once
