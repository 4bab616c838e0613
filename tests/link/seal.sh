#!/bin/sh
# seal.sh CMAKE SCRIPT CXX LD OBJCOPY OBJDUMP NM: what tigon_multi_arch makes of objects, and which it refuses.
set -eu
cmake=$1 script=$2 cxx=$3 ld=$4 objcopy=$5 objdump=$6 nm=$7
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$1"; exit 1; }
compile() { printf '%s\n' "$2" > "$1.cpp"; "$cxx" -std=c++20 -O0 -fPIC $unique -c "$1.cpp" -o "$1.o"; }
seal() { "$cmake" -DOUT="$work/$1.sealed.o" -DENTRY="$2" "-DOBJECTS=$3" -DLD="$ld" -DOBJCOPY="$objcopy" \
  -DOBJDUMP="$objdump" -P "$script" > "$1.log" 2>&1; }
refused() {  # refused NAME SENTENCE
  tr -s ' \n' ' ' < "$1.log" | grep -q "$2" || { cat "$1.log"; fail "$1: the sentence does not say: $2"; }
  [ ! -e "$1.sealed.o" ] || fail "$1: refused, and left an object behind"
}
# As tigon_multi_arch does for g++: a unique symbol would be one for the whole program, whatever objcopy says.
unique=$("$cxx" -dM -E -x c++ /dev/null | grep -q __clang__ || echo -fno-gnu-unique)

# One template, two answers: with weak symbols the linker would keep one of them for both.
body='template <class T> int answer() { static int calls = 0; return ANSWER + 0 * ++calls; }'
compile one "#define ANSWER 1
$body
extern \"C\" int one() { return answer<int>(); }"
compile two "#define ANSWER 2
$body
int other();
extern \"C\" int two() { return other(); }"
compile other "#define ANSWER 2
$body
int other() { return answer<int>(); }"
printf 'extern "C" { int one(); int two(); }\nint main() { return one() == 1 && two() == 2 ? 0 : 1; }\n' > main.cpp
"$cxx" main.cpp one.o two.o other.o -o mixed && ! ./mixed || fail 'weak symbols were not exchanged: this test shows nothing'
seal one one one.o || { cat one.log; fail 'one was refused'; }
seal two two 'two.o;other.o' || { cat two.log; fail 'two was refused'; }
[ "$("$nm" --defined-only --extern-only --format=just-symbols two.sealed.o)" = two ] || fail 'more than the entry is seen'
for order in 'one.sealed.o two.sealed.o' 'two.sealed.o one.sealed.o'; do
  # shellcheck disable=SC2086
  "$cxx" main.cpp $order -o sealed && ./sealed || fail "linked as $order, the objects share a body"
done

# An exception whose type each object has for itself is one type to those who catch it.
type='#include <exception>
struct refusal : std::exception {};'
compile thrower "$type
extern \"C\" void thrower() { throw refusal(); }"
seal thrower thrower thrower.o || { cat thrower.log; fail 'thrower was refused'; }
printf '%s\n' "$type" 'extern "C" void thrower();' 'int main() { try { thrower(); } catch (const refusal&) { return 0; } }' > catch.cpp
"$cxx" catch.cpp thrower.sealed.o -o caught && ./caught || fail 'an exception was not caught across objects'

compile early 'int f(); int before_main = f(); extern "C" int early() { return before_main; }'
! seal early early early.o || fail 'a constructor before main was accepted'
refused early 'have a constructor that runs at the start of the program'
compile empty 'int nothing;'
! seal empty entry empty.o || fail 'an object without an entry was accepted'
refused empty 'no source defines extern "C" ... TIGON_MULTI_ARCH_ENTRY()'
echo 'sealed: two bodies of one template in one program; refused: a constructor before main, a missing entry'
