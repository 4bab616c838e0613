#!/bin/sh
# accuracy_report answers bad arguments with one sentence and exit code 2.
# usage: refuses.sh PROGRAM GOLDEN_FOLDER
program=$1
golden=$2

refused() {
  expected=$1
  shift
  said=$("$program" "$@" 2>&1)
  code=$?
  case $code/$said in
    2/*"$expected"*) ;;
    *) echo "wanted exit code 2 and \"$expected\", got $code and: $said"; exit 1 ;;
  esac
  [ "$(echo "$said" | wc -l)" -eq 1 ] || { echo "more than one line: $said"; exit 1; }
}

refused "golden is required" --backend highway --csv /dev/null
refused "backend is required" --golden "$golden" --csv /dev/null
refused "is not a folder" --golden /nonexistent --backend highway --csv /dev/null
refused "holds no .safetensors file" --golden / --backend highway --csv /dev/null
refused "--backend nosuch is unknown; this build has" --golden "$golden" --backend nosuch --csv /dev/null
refused "cannot be written" --golden "$golden" --backend highway --csv /nonexistent/report.csv
refused "No space left on device" --golden "$golden" --backend highway --csv /dev/full
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp "$golden/softmax.safetensors" "$golden/liger_error.csv" "$copy"
refused "name one file" --golden "$copy" --backend highway --csv "$copy/../$(basename "$copy")/liger_error.csv"
refused "name one file" --golden "$copy" --backend highway --csv "$copy/softmax.safetensors"
cmp "$golden/liger_error.csv" "$copy/liger_error.csv" || exit 1
refused "argument" --golden "$golden" --backend highway --csv /dev/null --surprise
