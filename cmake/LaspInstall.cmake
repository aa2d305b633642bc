# What is installed and where, in three parts: what a program needs (libraries, headers, the CMake package, pkg-config
# files), the tools, and what a person reads. tests/install/tree.txt lists the files, and a test compares. Components are
# the packages that Debian has: runtime, dev, mpi, tools, python. `cmake --install` without one takes all but python.
include(CMakePackageConfigHelpers)

# The packages and the tools find the rest of the tree by relative paths, so that it can be moved or staged.
foreach(kind BINDIR LIBDIR INCLUDEDIR DOCDIR MANDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    message(FATAL_ERROR "CMAKE_INSTALL_${kind}=${CMAKE_INSTALL_${kind}}: must be relative to the prefix")
  endif()
endforeach()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lasp)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(header_dir ${CMAKE_INSTALL_INCLUDEDIR}/lasp)
set(man_dir ${CMAKE_INSTALL_MANDIR}/man1)
set(list_dir share/lasp)  # whatever CMAKE_INSTALL_DATADIR is: scripts/uninstall knows nothing but the prefix
set(examples c cpp train_lm)  # those that need nothing but what is installed here, CUDA or NCCL
set(doc_folders docs/guide docs/reference docs/internals docs/history)

# The first and the last rule: the tree keeps a list of what was put there, for scripts/uninstall. A project that has
# liblasp inside its own build keeps its own.
set(keep_list OFF)
if(PROJECT_IS_TOP_LEVEL AND NOT LASP_DEBIAN)  # dpkg keeps its own
  set(keep_list ON)
endif()
if(keep_list)
  list(TRANSFORM examples PREPEND ${CMAKE_INSTALL_DOCDIR}/examples/ OUTPUT_VARIABLE example_dirs)
  list(JOIN example_dirs " " example_dirs)
  list(TRANSFORM doc_folders PREPEND ${CMAKE_INSTALL_DOCDIR}/ OUTPUT_VARIABLE doc_dirs)
  list(JOIN doc_dirs " " doc_dirs)
  install(CODE "include(\"${CMAKE_CURRENT_LIST_DIR}/InstalledFiles.cmake\")
lasp_note_folders(${CMAKE_INSTALL_BINDIR} ${package_dir} ${pkgconfig_dir} ${header_dir} ${man_dir} ${list_dir}
                  ${doc_dirs} ${example_dirs})" ALL_COMPONENTS)
endif()

# lasp_install_library(target header runtime dev): the library, its header, its CMake targets, its pkg-config file, and
# its debug information as a component that is installed only when asked for (cmake --install ... --component debug).
function(lasp_install_library target header runtime dev)
  if(LASP_INSTALL_LINKS)
    install(TARGETS ${target} EXPORT ${target}Targets
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${runtime} NAMELINK_COMPONENT ${dev})
  else()
    install(TARGETS ${target} EXPORT ${target}Targets
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${runtime} NAMELINK_SKIP)
    set(link ${CMAKE_CURRENT_BINARY_DIR}/link/lib${target}.so)
    file(WRITE ${link} "/* for the linker, in place of a link */\nINPUT(lib${target}.so.${LASP_ABI})\n")
    install(FILES ${link} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${dev})
  endif()
  install(EXPORT ${target}Targets NAMESPACE lasp:: DESTINATION ${package_dir} COMPONENT ${dev})
  install(FILES ${header} DESTINATION ${header_dir} COMPONENT ${dev})
  configure_file(${PROJECT_SOURCE_DIR}/${target}.pc.in ${target}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${target}.pc DESTINATION ${pkgconfig_dir} COMPONENT ${dev})
  if(LASP_SPLIT_DEBUG_INFO)
    install(FILES $<TARGET_FILE:${target}>.debug DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT debug EXCLUDE_FROM_ALL)
  endif()
endfunction()

# pkg-config files find themselves through pcfiledir.
file(RELATIVE_PATH LASP_PC_PREFIX /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" LASP_PC_PREFIX ${LASP_PC_PREFIX})
lasp_install_library(lasp ${PROJECT_SOURCE_DIR}/capi/include/lasp/lasp.h runtime dev)
if(TARGET lasp_mpi)
  lasp_install_library(lasp_mpi ${PROJECT_SOURCE_DIR}/capi/include/lasp/lasp_mpi.h mpi mpi)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/laspConfig.cmake.in laspConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(laspConfigVersion.cmake VERSION ${LASP_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/laspConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/laspConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT dev)

foreach(tool lasp-bench lasp-info)
  if(TARGET ${tool})
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
    configure_file(${PROJECT_SOURCE_DIR}/bench/${tool}.1.in ${tool}.1 @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${tool}.1 DESTINATION ${man_dir} COMPONENT tools)
  endif()
endforeach()

if(TARGET lasp-info)  # a program of Python beside them
  install(PROGRAMS ${PROJECT_BINARY_DIR}/bench/lasp-trace DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  configure_file(${PROJECT_SOURCE_DIR}/bench/lasp-trace.1.in lasp-trace.1 @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lasp-trace.1 DESTINATION ${man_dir} COMPONENT tools)
endif()

if(PROJECT_IS_TOP_LEVEL)
  foreach(file README.md CHANGELOG.md SECURITY.md LICENSE)
    install(FILES ${PROJECT_SOURCE_DIR}/${file} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
  endforeach()
  foreach(folder docs ${doc_folders})
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.md)
    install(FILES ${files} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} COMPONENT dev)
  endforeach()
  foreach(example IN LISTS examples)
    set(folder ${PROJECT_SOURCE_DIR}/examples/${example})
    file(GLOB files CONFIGURE_DEPENDS ${folder}/*.[ch] ${folder}/*.[ch]pp ${folder}/*.cu
         ${folder}/*.cuh ${folder}/*.md ${folder}/CMakeLists.txt)
    install(FILES ${files} DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/${example} COMPONENT dev)
  endforeach()
endif()
if(keep_list)
  install(CODE "lasp_write_installed_files(${list_dir}/installed-files)" ALL_COMPONENTS)
endif()
