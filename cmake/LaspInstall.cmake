# Libraries, headers, the CMake package and the pkg-config files.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lasp)

install(FILES ${PROJECT_SOURCE_DIR}/capi/include/lasp/lasp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lasp)
install(TARGETS lasp EXPORT laspTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT laspTargets NAMESPACE lasp:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/laspConfig.cmake.in laspConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(laspConfigVersion.cmake VERSION ${LASP_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/laspConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/laspConfigVersion.cmake
        DESTINATION ${package_dir})

# pkg-config files find themselves through pcfiledir, so that an installed tree can be moved or staged.
file(RELATIVE_PATH LASP_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" LASP_PC_PREFIX ${LASP_PC_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/lasp.pc.in lasp.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lasp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET lasp_mpi)
  install(FILES ${PROJECT_SOURCE_DIR}/capi/include/lasp/lasp_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lasp)
  install(TARGETS lasp_mpi EXPORT lasp_mpiTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT lasp_mpiTargets NAMESPACE lasp:: DESTINATION ${package_dir})
  configure_file(${PROJECT_SOURCE_DIR}/lasp_mpi.pc.in lasp_mpi.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lasp_mpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
