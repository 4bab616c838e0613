# Sourced by the checks of the training examples behind check_refusals.sh; they define $program and stand in their folder.

# small_text: the file `text`, with a pattern that a small model learns.
small_text() {
  i=0
  while [ $i -lt 1200 ]; do
    echo "Line $i of a text: the number $((i * i % 977)) comes after the number $(((i - 1) * (i - 1) % 977))."
    i=$((i + 1))
  done > text
}

# outputs_are_checked OPTIONS...: what these options would write is refused before the first step where it cannot be
# written, or would replace another file of the run.
outputs_are_checked() {
  echo old > kept
  cp text same
  mkdir folder
  ln kept hard
  ln -s kept link
  for option in --csv --svg --checkpoint; do
    refused "the folder .*/nowhere does not exist" "$@" $option nowhere/file
    refused "it is a folder" "$@" $option folder
    refused "Not a directory" "$@" $option kept/file
    refused "$option and --text name one file\|--text and $option name one file" "$@" $option ./text
    refused "$option and --cache-dir name one file" "$@" --cache-dir new/cache $option new
  done
  refused "--csv and --checkpoint name one file" "$@" --csv new --checkpoint ./new
  refused "--csv and --svg name one file" "$@" --csv kept --svg hard
  refused "--svg and --checkpoint name one file" "$@" --svg link --checkpoint folder/../kept
  [ "$(cat kept)" = old ] || fail "an output of a refused run was changed"
  cmp text same || fail "the text was changed"
  [ ! -e new ] || fail "a refused run left a file"

  # As a user who may not write everywhere, where everybody may look.
  place=$(mktemp -d)
  trap 'rm -rf "$place"' EXIT
  chmod 755 "$place"
  cp "$program" "$place/program"
  cp text "$place/text"
  mkdir -m 777 "$place/open"
  mkdir -m 555 "$place/closed"
  echo old > "$place/open/kept"
  chmod 444 "$place/open/kept"
  (
    other=
    [ "$(id -u)" -ne 0 ] || other="setpriv --reuid=65534 --regid=65534 --clear-groups"
    printf '#!/bin/sh\nexec %s %s/program "$@"\n' "$other" "$place" > "$place/run"
    chmod 755 "$place/run"
    program=$place/run
    cd "$place"
    set -- "$@" --cache-dir open/cache
    for option in --csv --svg --checkpoint; do
      refused "$option closed/file cannot be written: Permission denied" "$@" $option closed/file
      refused "$option open/kept cannot be written: Permission denied" "$@" $option open/kept
      refused "$option /dev/full cannot be written: No space left" "$@" $option /dev/full
    done
    refused "cannot be kept in closed/cache; choose another --cache-dir" "$@" --cache-dir closed/cache
    [ "$(cat open/kept)" = old ] || fail "a file that may not be written was changed"
  )
  rm -rf "$place"
  if find . -name '*partial*' | grep .; then fail "a refused run left a file"; fi
}

# six_runs_at_once OPTIONS...: they find no tokenizer in the cache, and each of them ends well.
six_runs_at_once() {
  for round in 1 2 3 4 5; do
    rm -rf cold
    jobs=
    for run in 1 2 3 4 5 6; do
      "$program" "$@" --cache-dir cold > out 2> $run.err &
      jobs="$jobs $!"
    done
    for job in $jobs; do
      wait $job || fail "one of six runs at once, round $round: $(cat [1-6].err)"
    done
    [ "$(ls -A cold | wc -l)" -eq 1 ] || fail "six runs left more than one tokenizer: $(ls -A cold)"
  done
}
