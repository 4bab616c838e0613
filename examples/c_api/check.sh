#!/bin/sh
# What the programs cannot say of the library.
#   check.sh header CC CXX        tigon_c.h alone is C99 and C++11, without a warning
#   check.sh symbols NM LIBRARY   the library shows every function of tigon_c.h, and nothing else
set -eu
fail() { echo "check.sh: $1"; exit 1; }
header=$(dirname "$0")/tigon_c.h

if [ "$1" = header ]; then
  "$2" -std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wstrict-prototypes -Werror -fsyntax-only -x c "$header"
  "$3" -std=c++11 -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only -x c++ "$header"
else
  # Versions, which come behind @, are not part of the name.
  shown=$("$2" --dynamic --defined-only --extern-only --format=just-symbols "$3" | sed 's/@.*//' | grep -v '^TIGON_C_1$' | sort)
  declared=$(sed -n 's/^TIGON_API .*\b\(tigon_[a-z_0-9]*\)(.*/\1/p' "$header" | sort)
  [ "$(echo "$declared" | wc -l)" -ge 25 ] || fail "only these functions were found in $header: $declared"
  [ "$shown" = "$declared" ] || fail "the library shows $shown; the header declares $declared"
fi
