#!/bin/sh
# common_symbols.sh NM ALLOWED A.o [B.o]: fails if two objects built with different -m flags share a weak symbol of
# tigon that is not allowed; of one object, if one does not name its instruction set, and so would be
# shared. What belongs to the standard library or to Eigen is counted, not judged: those name no instruction set, which
# docs/tuning.md tells who builds such programs.
set -eu
nm=$1 allowed=$2 first=$3 second=${4:-}
tag='v[0-9]*_[0-9]*_[a-z0-9_]*_checks'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
weak() { "$nm" --defined-only "$1" | awk '$2 ~ /[WVu]/ { print $3 }' | sort -u; }
weak "$first" > "$work/first"
if [ -n "$second" ]; then
  weak "$second" | comm -12 "$work/first" - > "$work/both"
else
  grep -v "$tag" "$work/first" > "$work/both"
fi
c++filt < "$work/both" > "$work/common"
ours=$(grep -c . "$work/first")
tagged=$(grep -c "$tag" "$work/first" || true)
echo "weak symbols: $ours in the first object, $tagged of them with their instruction set in the name, $(wc -l < "$work/common") common"
echo "of the common ones: $(grep -c tigon "$work/common" || true) name tigon, $(grep -c Eigen:: "$work/common" || true) Eigen"
[ "$tagged" -gt 0 ] || { echo "no kernel was found: nothing was tested"; exit 1; }
grep -v '^#' "$allowed" | grep . > "$work/allowed"
if grep tigon "$work/common" | grep -vE -f "$work/allowed" > "$work/shared"; then
  echo "shared by both instruction sets, and not in $(basename "$allowed"):"
  cut -c1-220 "$work/shared"
  exit 1
fi
