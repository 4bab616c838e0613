#!/bin/sh
# Compares the bits of two builds of tigon_bench over all operators, backends, types, variants and directions.
#   same_bits.sh OLD NEW [OPTIONS]
# OPTIONS choose cases as for tigon_bench; without any: every case at 1, 7 and 130 tokens of a small model. Prints the
# cases that differ and ends with 1 if there is one. Both builds need the same compiler and instruction set.
set -eu
old=$1 new=$2
shift 2
[ $# -gt 0 ] || set -- --dtype f32,bf16,f16,f64 --sweep-mode token_length --model small --tokens 1,7,130
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for build in old new; do
  program=$old
  [ $build = old ] || program=$new
  # A build of some types, backends or operators says of the other cases that it does not have them.
  "$program" --digest "$@" > "$folder/$build" 2> "$folder/$build.err" || grep -q ': not measured: ' "$folder/$build.err" ||
    { cat "$folder/$build.err"; exit 2; }
  LC_ALL=C sort -o "$folder/$build" "$folder/$build"  # a build may have its backends in another order
done
cases=$(wc -l < "$folder/old")
[ "$cases" -gt 0 ] || { echo "same_bits: no case was run"; exit 2; }
if diff "$folder/old" "$folder/new" > "$folder/diff"; then
  echo "same_bits: $cases cases, the same bits"
else
  sed -n 's/^>/differs:/p; s/^</  was:   /p' "$folder/diff"
  echo "same_bits: $cases cases, $(grep -c '^<' "$folder/diff") differ"
  exit 1
fi
