"""python -m liblasp: what this liblasp is and found, or one of its folders, for a build of C or C++."""

from __future__ import annotations

import argparse
import os

from . import build_info, get_include, get_library_dir, raw


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m liblasp", description="What this liblasp is and what it found on "
                                     "this machine; or a folder of its, for a build of C or C++.")
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--include", action="store_true", help="the folder that has lasp/lasp.h, for -I")
    folders.add_argument("--library-dir", action="store_true", help="the folder that has liblasp.so, for -L and -rpath")
    folders.add_argument("--pkgconfig-dir", action="store_true", help="the folder of lasp.pc, for PKG_CONFIG_PATH")
    folders.add_argument("--cmake-dir", action="store_true", help="the folder of laspConfig.cmake, for lasp_DIR")
    chosen = parser.parse_args()
    try:
        if chosen.include:
            print(get_include())
        elif chosen.library_dir:
            print(get_library_dir())
        elif chosen.pkgconfig_dir:
            print(os.path.join(get_library_dir(), "pkgconfig"))
        elif chosen.cmake_dir:
            print(os.path.join(get_library_dir(), "cmake", "lasp"))
        else:
            print(f"library  {raw.library_path()}")
            for field, value in build_info()._asdict().items():
                print(f"{field:8} {value}")
    except FileNotFoundError as reason:
        parser.error(str(reason))


if __name__ == "__main__":
    main()
