# Runs PROGRAM with ARGUMENTS. Fails unless it exits with 0 and its output matches the regular expression OUTPUT.
execute_process(COMMAND "${PROGRAM}" ${ARGUMENTS} RESULT_VARIABLE exit_code OUTPUT_VARIABLE text ERROR_VARIABLE text)
message("${text}")
if(NOT exit_code EQUAL 0)
  message(FATAL_ERROR "expected exit code 0, got ${exit_code}")
elseif(NOT text MATCHES "${OUTPUT}")
  message(FATAL_ERROR "expected output that matches '${OUTPUT}'")
endif()
