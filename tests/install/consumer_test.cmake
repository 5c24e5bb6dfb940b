# Builds tests/install/consumer as another project would, and runs it.
#   WAY=package       installs this build into a prefix, moves it, runs its programs and uses find_package
#   WAY=subdirectory  adds the sources (FetchContent) and builds only one area; all are compiled by the same rules
#   WAY=linked_subdirectory  the same with all areas, which takes minutes

set(work "${BINARY_DIR}/install_test/${WAY}")
file(REMOVE_RECURSE "${work}")
set(configure "${CMAKE_COMMAND}" -G Ninja -S "${SOURCE_DIR}/tests/install/consumer" -B "${work}/build"
  -DCMAKE_BUILD_TYPE=Release "-DD9D_SITE_PACKAGES=${SITE_PACKAGES}")

function(run_consumer)
  execute_process(COMMAND "${work}/build/consumer" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output STREQUAL "consumer: sum = 6\n")
    message(FATAL_ERROR "expected the consumer to print its sum, got '${output}'")
  endif()
endfunction()

if(WAY STREQUAL "package")
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BINARY_DIR}" --prefix "${work}/prefix"
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(RENAME "${work}/prefix" "${work}/moved")
  execute_process(COMMAND "${SOURCE_DIR}/.venv/bin/python" "${SOURCE_DIR}/tests/install/tools_test.py" "${work}/moved"
    COMMAND_ERROR_IS_FATAL ANY)
  foreach(file share/doc/d9d/docs/own_model.md share/doc/d9d/examples/custom_model/main.cpp)
    if(NOT EXISTS "${work}/moved/${file}")
      message(FATAL_ERROR "expected ${file} in what is installed, got none")
    endif()
  endforeach()
  execute_process(COMMAND ${configure} "-DCMAKE_PREFIX_PATH=${work}/moved" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/build" COMMAND_ERROR_IS_FATAL ANY)
  run_consumer()
elseif(WAY STREQUAL "linked_subdirectory")
  execute_process(COMMAND ${configure} "-DD9D_SOURCE_DIR=${SOURCE_DIR}" -DD9D_UNITY=ON COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/build" --target consumer COMMAND_ERROR_IS_FATAL ANY)
  run_consumer()
else()
  execute_process(COMMAND ${configure} "-DD9D_SOURCE_DIR=${SOURCE_DIR}" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/build" --target d9d_base COMMAND_ERROR_IS_FATAL ANY)
endif()
