#!/bin/sh
# check_document.sh DOCUMENT FOLDER: compiles and runs every program of a Markdown document, and compares what it prints.
#
# A program is a fenced block of cpp, c or python that is followed by a block of text, its output, with no other block
# between them. FOLDER is emptied. From the environment: CXX and CC with their flags; LIBRARY, the folder of libtigon_c.so,
# without which programs in C and Python are left out; PYTHON.
set -eu
document=$1 folder=$2
fail() { echo "check_document.sh: $document: $1"; exit 1; }

rm -rf "$folder"
mkdir -p "$folder"
# Block n becomes n.LANGUAGE.
awk -v folder="$folder" '
  /^```/ {
    if (inside) { inside = 0; close(file); next }
    inside = 1
    file = sprintf("%s/%03d.%s", folder, ++n, substr($0, 4) == "" ? "plain" : substr($0, 4))
    printf "" > file
    next
  }
  inside { print > file }' "$document"

cd "$folder"
programs=0 left_out=0
for output in *.text; do
  [ -e "$output" ] || fail "has no output of a program"
  number=$(printf '%03d' $((1$(basename "$output" .text) - 1001)))
  program=program$number  # a name for each: one that was run may still be busy
  for source in "$number".*; do
    case $source in
    *.cpp) $CXX "$source" -o "$program" ;;
    *.c)
      [ -n "${LIBRARY:-}" ] && [ -n "${CC:-}" ] || { left_out=$((left_out + 1)); continue; }
      $CC "$source" -o "$program" "$LIBRARY/libtigon_c.so" "-Wl,-rpath,$LIBRARY"
      ;;
    *.python)
      [ -n "${LIBRARY:-}" ] && [ -n "${PYTHON:-}" ] || { left_out=$((left_out + 1)); continue; }
      printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s %s\n' "$LIBRARY" "$PYTHON" "$source" > "$program"
      chmod +x "$program"
      ;;
    *) continue ;;
    esac
    "./$program" > printed || fail "the program before $output ended with $?: $(cat printed)"
    cmp -s printed "$output" || fail "a program printed
$(cat printed)
where the document has
$(cat "$output")"
    programs=$((programs + 1))
  done
done
[ $((programs + left_out)) -gt 0 ] || fail "has no program with its output"
echo "$document: $programs programs printed what it says, $left_out left out"
