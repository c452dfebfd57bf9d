# Writes build_info.cpp in every build, if what it says has changed: the commit is that of the sources as they are compiled,
# not as they were when CMake was last run.
# Set by the caller: SOURCE_DIR, OUTPUT, and the variables of cmake/build_info.cpp.in but for ONEBIT_GIT.
set(ENV{GIT_OPTIONAL_LOCKS} 0)  # several builds of one checkout may ask at the same time
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty OUTPUT_VARIABLE ONEBIT_GIT
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
configure_file(${SOURCE_DIR}/cmake/build_info.cpp.in ${OUTPUT} @ONLY)
