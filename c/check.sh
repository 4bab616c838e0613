#!/bin/sh
# What the programs cannot say of the library.
#   check.sh header CC CXX        tigon_c.h alone is C99 and C++11, without a warning
#   check.sh symbols NM LIBRARY   the library shows every function of tigon_c.h, and nothing else
#   check.sh installed CMAKE BUILD CC PKG_CONFIG FOLDER
#                                 what is installed is complete and may be moved, and train.c compiles and runs against it;
#                                 by EMULATOR, where the library is of another processor
set -eu
fail() { echo "check.sh: $1"; exit 1; }
header=$(dirname "$0")/tigon_c.h
abi=$(sed -n 's/^#define TIGON_ABI_VERSION //p' "$header")

if [ "$1" = header ]; then
  "$2" -std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wstrict-prototypes -Werror -fsyntax-only -x c "$header"
  "$3" -std=c++11 -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only -x c++ "$header"
elif [ "$1" = installed ]; then
  folder=$6
  rm -rf "$folder" && mkdir -p "$folder"
  "$2" --install "$3" --component tigon_c --prefix "$folder/made" > "$folder/log"
  mv "$folder/made" "$folder/prefix"  # a file that remembers where it was made would not be found
  files=$(cd "$folder/prefix" && find . ! -type d | sort)
  for wanted in 'include/tigon_c\.h' 'lib.*/libtigon_c\.so' "lib.*/libtigon_c\.so\.$abi" 'lib.*/pkgconfig/tigon_c\.pc'; do
    echo "$files" | grep -qx "\./$wanted" || fail "$wanted is not installed, but $files"
  done
  [ "$(echo "$files" | wc -l)" -eq 5 ] || fail "these are installed: $files"
  PKG_CONFIG_PATH=$(dirname "$(find "$folder/prefix" -name tigon_c.pc)")
  export PKG_CONFIG_PATH
  version=$("$5" --modversion tigon_c)
  [ -e "$(find "$folder/prefix" -name "libtigon_c.so.$version")" ] || fail "tigon_c.pc is of version $version: $files"
  # shellcheck disable=SC2046
  cp "$(dirname "$0")/train.c" "$folder/program.c"  # not beside the header of the sources
  "$4" -std=c99 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror "$folder/program.c" \
    $("$5" --cflags --libs tigon_c) -lm -Wl,-rpath,"$("$5" --variable=libdir tigon_c)" -o "$folder/program"
  ${EMULATOR-} "$folder/program" > "$folder/log" && ${EMULATOR-} "$folder/program" refuses >> "$folder/log"
else
  # Versions, which come behind @, are not part of the name.
  shown=$("$2" --dynamic --defined-only --extern-only --format=just-symbols "$3" | sed 's/@.*//' | grep -v "^TIGON_C_$abi\$" | sort)
  declared=$(sed -n 's/^TIGON_API .*\b\(tigon_[a-z_0-9]*\)(.*/\1/p' "$header" | sort)
  [ "$(echo "$declared" | wc -l)" -ge 25 ] || fail "only these functions were found in $header: $declared"
  [ "$shown" = "$declared" ] || fail "the library shows $shown; the header declares $declared"
fi
