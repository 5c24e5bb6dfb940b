# Passes if the compiler refuses SOURCE with a message that matches its line "// expect: <regular expression>".
file(STRINGS "${SOURCE}" expected REGEX "^// expect: ")
string(REPLACE "// expect: " "" expected "${expected}")
execute_process(
  COMMAND "${COMPILER}" -std=c++20 -fsyntax-only "-I${SOURCE_DIR}" -isystem "${SITE_PACKAGES}/torch/include"
    -isystem "${SITE_PACKAGES}/torch/include/torch/csrc/api/include" "${SOURCE}"
  RESULT_VARIABLE exit_code ERROR_VARIABLE text)
if(exit_code EQUAL 0)
  message(FATAL_ERROR "expected ${SOURCE} not to compile")
elseif(NOT text MATCHES "${expected}")
  message(FATAL_ERROR "expected a message that matches '${expected}', got:\n${text}")
endif()
