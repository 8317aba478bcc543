# SPDX-License-Identifier: Apache-2.0
# kvc_add_plugin(<name> [SOURCES file...] [LIBS library...] [DEFINES definition...] [NO_INSTALL])
#
# Builds kvcellar-plugin-<name>.so, whose only exported symbol is kvc_plugin_entry, into the build's
# plugin folder, and installs it. Without SOURCES every .c file of the folder is taken. A plugin sees
# include/ and plugins/ (so "common/x.h"), never src/.
function(kvc_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_INSTALL" "" "SOURCES;LIBS;DEFINES")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvc_add_plugin(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_SOURCES)
    file(GLOB arg_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.c")
  endif()
  if(NOT arg_SOURCES)
    message(STATUS "kvcellar: plugin ${name} has no sources, left out")
    return()
  endif()
  set(target "kvcellar-plugin-${name}")
  add_library(${target} MODULE ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "${target}"
    LIBRARY_OUTPUT_DIRECTORY "${KVC_PLUGIN_OUTPUT_DIRECTORY}"
    LINK_DEPENDS "${CMAKE_SOURCE_DIR}/cmake/plugin.map")
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/include"
    "${CMAKE_SOURCE_DIR}/plugins")
  target_compile_definitions(${target} PRIVATE ${arg_DEFINES})
  target_link_libraries(${target} PRIVATE kvc_options ${arg_LIBS})
  if(TARGET kvc_plugin_common)
    target_link_libraries(${target} PRIVATE kvc_plugin_common)
  endif()
  target_link_options(${target} PRIVATE
    "-Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/plugin.map" -Wl,--exclude-libs,ALL)
  # The library refuses plugins that others may change; a umask of 002 would make such.
  add_custom_command(TARGET ${target} POST_BUILD VERBATIM
    COMMAND chmod go-w "$<TARGET_FILE:${target}>" "${KVC_PLUGIN_OUTPUT_DIRECTORY}")
  set_property(GLOBAL APPEND PROPERTY KVC_PLUGIN_TARGETS ${target})
  if(NOT arg_NO_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION "${KVC_PLUGIN_INSTALL_DIR}")
  endif()
endfunction()
