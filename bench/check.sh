#!/bin/sh
# What the tests of the parts cannot see: the program from its options to the table and the pictures, at small sizes.
#   check.sh PROGRAM FOLDER
set -eu
program=$1
folder=$2
here=$(dirname "$0")
rm -rf "$folder"
mkdir -p "$folder"
csv=$folder/table.csv

fail() { echo "check: $1"; exit 1; }
rows() { grep -c "$1" "$csv" || true; }
expect() { [ "$1" = "$2" ] || fail "$3: $1, expected $2"; }
measure() { "$program" --csv "$csv" --budget 0.01 --repetitions 2 "$@" > "$folder/out" 2> "$folder/err"; }
# The word behind `backends` or `dtypes` in --list, of one operator.
listed() { "$program" --list | awk -v op="$1" -v what="$2" '$0 == op { on = 1 } on && $1 == what { print $2; exit }'; }

op=rms_norm
"$program" --list | grep -q "^$op\$" || op=stream_copy
variant=default
backends=$(listed $op backends | tr , '\n' | grep -c .)

# Both sweeps: every backend, two metrics, a row a point.
measure --op $op --variant $variant --mode forward --sweep-mode token_length --tokens 8,16 --backend all
expect "$(rows ',speed,')" $((2 * backends)) "rows of speed"
expect "$(rows ',memory,')" $((2 * backends)) "rows of memory"
expect "$(rows ',BT,tokens,16,')" $((2 * backends)) "rows of 16 tokens"
expect "$(rows 'NaN,NaN,NaN,"')" 0 "rows without numbers"
measure --op $op --variant $variant --mode forward --sweep-mode model_config --bt 8
expect "$(rows ',model_config,model,')" $((7 * 2 * backends)) "rows of models"
expect "$(rows ',model_config,model,qwen2.5_72b,')" $((2 * backends)) "rows of a model"

# One number of the shape alone, and a word that no shape has.
measure --op $op --variant $variant --mode forward --shape 8x64 --sweep-axis tokens,moons --values 4,16
expect "$(rows ',tokens,[^,]*,16,')" $((2 * backends)) "rows of an axis"
expect "$(rows 'has no moons')" $((2 * backends)) "rows without an axis"
sed -i '/has no moons/d; /,tokens,[^,]*,\(4\|16\),/d' "$csv"

# The axes of the documentation, each of the first operator that has it, at a shape of fours.
cp "$csv" "$folder/kept"
for axis in batch vocabulary hidden blocks experts sequence; do
  case $axis in
    vocabulary) words=vocab ;;
    hidden) words='hidden|cols|channels' ;;
    sequence) words='seq_len|positions' ;;
    *) words=$axis ;;
  esac
  # The operator, and how many numbers its shape has.
  with=$("$program" --list | awk -v words="^($words)\$" '/^[a-z]/ { op = $1 }
    $1 == "shape" { for (k = 2; k <= NF; k += 2) if ($k ~ words) { print op, NF / 2; exit } }')
  [ -n "$with" ] || continue
  fours=$(awk -v n="${with#* }" 'BEGIN { for (k = 1; k <= n; ++k) printf "%s4", (k > 1 ? "x" : "") }')
  rm "$csv"
  measure --op "${with% *}" --shape "$fours" --sweep-axis $axis --values 2,6 \
    --backend "$(listed "${with% *}" backends | cut -d, -f1)"
  [ "$(rows ",$axis,[^,]*,[26],")" -gt 0 ] || fail "no rows of ${with% *} over $axis"
  expect "$(rows 'NaN,NaN,NaN,"')" 0 "rows of ${with% *} over $axis without numbers"
done
cp "$folder/kept" "$csv"

# Again: nothing is measured, nothing is changed. --overwrite: the same rows, measured anew.
cp "$csv" "$folder/before"
measure --op $op --variant $variant --mode forward --sweep-mode token_length --tokens 8,16
cmp -s "$csv" "$folder/before" || fail "a second run changed the table"
expect "$(grep -c 'kept: its rows are in' "$folder/err")" $((2 * backends)) "cases kept"
sed -i 's/,2[0-9][0-9][0-9]-[0-9-]* [0-9:]*,/,1999-01-01 00:00:00,/' "$csv"
measure --op $op --variant $variant --mode forward --sweep-mode token_length --tokens 8 --overwrite
expect "$(rows ',1999-01-01 00:00:00,')" $((2 * backends + 7 * 2 * backends)) "rows that --overwrite left"
expect "$(wc -l < "$csv")" "$(wc -l < "$folder/before")" "lines after --overwrite"

# What cannot be measured is a row with a reason, and the others are measured all the same.
rm "$csv"
measure --op $op --variant $variant --mode forward --shape 8x64 --backend "nobody,$(listed $op backends)"
expect "$(rows ',speed,')" $((1 + backends)) "rows beside one that cannot be"
measure --op $op --variant $variant --mode forward --shape 100000x4096 --memory 0.01
measure --op $op --variant $variant --mode forward --shape 8
expect "$(rows 'has no backend nobody')" 2 "rows without a backend"
expect "$(rows 'too much memory: its arrays take more than 0.01 GiB')" $((2 * backends)) "rows without memory"
expect "$(rows 'takes a shape of 2 numbers')" $((2 * backends)) "rows without a shape"
expect "$(rows 'NaN,NaN,NaN,"')" $((2 + 4 * backends)) "rows without numbers"

# Refused options.
for options in "--shape 8x64 --sweep-mode token_length" "--tokens 8" "--values 8" "--sweep-mode moon" "--shape 8xx64" "--budget nan" \
  "--memory nan" "--shape 99999999999999999999x2"; do
  set +e
  # shellcheck disable=SC2086
  measure --op $op $options
  status=$?
  set -e
  expect $status 2 "exit status of $options"
done

# Digests: a build agrees with itself, and other numbers are noticed.
cases="--op $op --variant $variant --mode forward"
# shellcheck disable=SC2086
sh "$here/same_bits.sh" "$program" "$program" $cases --shape 8x64 > "$folder/out" || fail "a build differs from itself"
printf '#!/bin/sh\nexec "%s" --digest %s --shape 8x65\n' "$program" "$cases" > "$folder/other"
chmod +x "$folder/other"
# shellcheck disable=SC2086
if sh "$here/same_bits.sh" "$program" "$folder/other" $cases --shape 8x64 > "$folder/out"; then fail "other numbers are not noticed"; fi

# One command measures and draws.
if command -v python3 > /dev/null; then
  TIGON_BENCH=$program TIGON_BENCH_CSV=$csv TIGON_BENCH_PICTURES=$folder/pictures sh "$here/compare.sh" --op $op \
    --variant $variant --mode forward --sweep-mode token_length --sweep-mode model_config --tokens 8,16 --bt 8 \
    --budget 0.01 --repetitions 2 > "$folder/out" 2> "$folder/err"
  for picture in $op ${op}_token_length ${op}_model_config; do
    [ -s "$folder/pictures/$picture.svg" ] || fail "no picture $picture.svg"
    for backend in $(listed $op backends | tr , ' '); do
      grep -q ">$backend<" "$folder/pictures/$picture.svg" || fail "$picture.svg does not show $backend"
    done
  done
fi
echo "check: $op on $backends backends"
