# shellcheck shell=bash
# The results of the scenarios: results.tsv beside this file, and results.md, whose table is made from it. `ci/e2e --record` writes both, ci/release and
# ci/check read the first, and ci/tidy compares the two.
#
# A row has the scenario, the commit, the date, the seconds and the verdict (passed, failed, or "not run" with "-" before it), with tabs between
# them. Rows are in the order of the scenarios' names.
# shellcheck disable=SC2154 # common.bash gives it
results=$top/ci/kubernetes/results.tsv
results_page=$top/ci/kubernetes/results.md
# Paths that a result is about.
results_of=(csi reconciler helm ci/e2e.d)
# Days after which ci/check warns.
results_days=7

# verdict_of STATUS LOG: of a scenario. One that left something out has not passed.
verdict_of() {
    if [ "$1" -eq 0 ] && ! grep -q '^SKIPPED: ' "$2"; then say passed; else say failed; fi
}

# take_results FILE: rows of FILE, if it is given, in place of those that are known. A scenario without a row gets one, and a row whose scenario
# is gone goes. Then the page.
take_results() {
    local file name row new
    new=$(
        for file in "$top"/ci/e2e.d/*.sh; do
            name=$(basename "$file" .sh)
            row=$(cat "$results" "$@" 2>/dev/null | awk -F '\t' -v name="$name" '$1 == name' | tail -n 1)
            printf '%s\n' "${row:-$(printf '%s\t-\t-\t-\tnot run' "$name")}"
        done
    )
    printf '%s\n' "$new" >"$results"
    make_results_page
}

# The page, with a new table at its end.
make_results_page() {
    local name commit date seconds verdict page
    page=$(
        sed '/^| scenario |/,$d' "$results_page"
        printf '| scenario | what it shows | verdict | date | commit | seconds |\n|---|---|---|---|---|---|\n'
        while IFS=$'\t' read -r name commit date seconds verdict; do
            # shellcheck disable=SC2016 # backticks of the page
            printf '| `%s` | %s | %s | %s | %s | %s |\n' "$name" "$(shows "$name")" "$verdict" "$date" "$commit" "$seconds"
        done <"$results"
    )
    printf '%s\n' "$page" >"$results_page"
}

# shows NAME: the first sentence of the scenario's comment.
shows() {
    sed -n '/^# shellcheck/d; /^# needs:/q; /^[^#]/q; s/^# //p' "$top/ci/e2e.d/$1.sh" | tr '\n' ' ' | sed 's/\([.:]\) .*$/\1/; s/[.: ]*$//; s/|/\\|/g'
}

# results_wanting: a line for each scenario that did not pass, or whose sources have changed since.
results_wanting() {
    local name commit verdict last
    last=$(git -C "$top" log -1 --format=%H -- "${results_of[@]}")
    while IFS=$'\t' read -r name commit _ _ verdict; do
        if [ "$verdict" != passed ]; then
            say "$name: $verdict"
        elif ! git -C "$top" merge-base --is-ancestor "$last" "$commit" 2>/dev/null; then
            say "$name: passed at $commit, before the last change of ${results_of[*]}"
        fi
    done <"$results"
}

# results_old: the scenarios that were run longer ago than results_days, or never.
results_old() {
    local oldest
    oldest=$(date --utc --date="$results_days days ago" +%Y-%m-%d)
    awk -F '\t' -v oldest="$oldest" '$3 == "-" || $3 < oldest { print $1 }' "$results"
}

# longest_first NAME...: the scenarios, those first whose last run took longest, since one that takes minutes and begins last is waited for alone.
# One that was never run takes a minute.
longest_first() {
    local each
    for each in "$@"; do
        awk -F '\t' -v name="$each" '$1 == name && $4 != "-" { seconds = $4 } END { print seconds == "" ? 60 : seconds, name }' "$results"
    done | sort -k 1,1nr -k 2,2 | cut -d ' ' -f 2
}
