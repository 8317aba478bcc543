# SPDX-License-Identifier: Apache-2.0
# kvc_version.h: `git describe` in a checkout that has a version tag, else the VERSION file.
# Written while configuring, and looked at again by each build; only a change touches the file.
find_package(Git QUIET)
set(KVC_GENERATED_DIR "${CMAKE_BINARY_DIR}/generated")
set(KVC_VERSION_COMMAND "${CMAKE_COMMAND}"
  "-DSOURCE_DIR=${CMAKE_SOURCE_DIR}"
  "-DGIT=${GIT_EXECUTABLE}"
  "-DOUTPUT=${KVC_GENERATED_DIR}/kvc_version.h"
  -P "${CMAKE_SOURCE_DIR}/cmake/write_version.cmake")
execute_process(COMMAND ${KVC_VERSION_COMMAND} COMMAND_ERROR_IS_FATAL ANY)
add_custom_target(kvc_version COMMAND ${KVC_VERSION_COMMAND}
  BYPRODUCTS "${KVC_GENERATED_DIR}/kvc_version.h" COMMENT "" VERBATIM)
