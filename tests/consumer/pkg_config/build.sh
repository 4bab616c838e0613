#!/bin/sh
# build.sh CXX PREFIX WORK: compiles and runs the program with nothing but what pkg-config says.
set -eu
PKG_CONFIG_PATH=$2/share/pkgconfig
export PKG_CONFIG_PATH
libs=$(pkg-config --libs tigon | tr -d ' ')
[ -z "$libs" ] || { echo "a header-only library asks to be linked: $libs"; exit 1; }
[ "$(pkg-config --modversion tigon)" = 0.2.0 ]
# shellcheck disable=SC2046
"$1" -std=c++20 -Wall -Wextra -Werror $(pkg-config --cflags tigon) "$(dirname "$0")/../main.cpp" -o "$3/your_program"
"$3/your_program"
