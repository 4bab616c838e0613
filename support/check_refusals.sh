# Sourced by the checks of the training examples, which define $part and $program.

fail() {
  echo "check.sh $part: $*" >&2
  exit 1
}

# refused PART-OF-SENTENCE ARGUMENTS...: exit code 2, one line on stderr that holds the part, nothing trained.
refused() {
  sentence=$1
  shift
  code=0
  "$program" "$@" > out 2> err || code=$?
  [ $code -eq 2 ] || fail "$* ended with $code, not 2: $(cat err)"
  [ "$(wc -l < err)" -eq 1 ] || fail "$* wrote $(wc -l < err) lines: $(cat err)"
  grep -q -- "$sentence" err || fail "$* wrote: $(cat err)"
}
