# SPDX-License-Identifier: Apache-2.0
# How every kvwire target is made: C++20, hidden symbols, warnings and sanitizers on the target itself,
# so that a project which adds kvwire with add_subdirectory() keeps its own flags.

function(kvwire_target_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${kvwire_SOURCE_DIR}>)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wcast-align -Woverloaded-virtual
    # g++ 12 at -O3 reports a false overlap in string concatenation.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
    $<$<BOOL:${KVWIRE_WERROR}>:-Werror>)
  if(KVWIRE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${KVWIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${KVWIRE_SANITIZE})
  endif()
endfunction()

# kvwire_library(<room> SOURCES ... [PUBLIC ...] [PRIVATE ...]) makes the static library kvwire_<room>, alias kvwire::<room>.
function(kvwire_library room)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(kvwire_${room} STATIC ${ARG_SOURCES})
  add_library(kvwire::${room} ALIAS kvwire_${room})
  kvwire_target_defaults(kvwire_${room})
  target_link_libraries(kvwire_${room} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# kvwire_executable(<name> SOURCES ... [LINK ...]) makes a program in <build>/bin.
function(kvwire_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  kvwire_target_defaults(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${kvwire_BINARY_DIR}/bin)
endfunction()

# kvwire_test(<name> SOURCES ... [LINK ...] [LABELS fast|slow|ports ...] [TIMEOUT seconds] [LONG])
# makes a doctest program and registers it with ctest. What is tested is optimized as it ships; the tests' own code is hardly
# optimized, which takes a third off their compilation, but in tests whose own code runs LONG.
function(kvwire_test name)
  cmake_parse_arguments(ARG "LONG" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  kvwire_target_defaults(${name})
  if(NOT ARG_LONG)
    target_compile_options(${name} PRIVATE $<IF:$<CONFIG:Release>,-O1,-O0>)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_LINK} kvwire_test_support kvwire_test_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${kvwire_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
