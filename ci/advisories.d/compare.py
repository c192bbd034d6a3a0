"""compare.py SNAPSHOT LOCK...: compares the libraries in these files of Cargo with the known holes in SNAPSHOT.
compare.py --age SNAPSHOT: prints how many days old the database was copied.
compare.py --make REPOSITORY: prints a snapshot of the RustSec database, out of its git repository.

Says "ok: ..." for files without a hit, "warning: ..." for a library that is unmaintained or has a notice, and "FAILED: ..." with status 1 for
a hole or an unsound library. A version has a hole if it is neither in a patched range nor in an unaffected one."""

import datetime
import re
import subprocess
import sys
import tomllib

FAILS = ("hole", "unsound")
URL = "https://rustsec.org/advisories"


def version_key(text):
    """An order of versions: 1.0.0-alpha.2 < 1.0.0-alpha.10 < 1.0.0-beta < 1.0.0. Build metadata has no rank."""
    core, _, pre = text.split("+", 1)[0].partition("-")
    numbers = tuple(int(it) for it in core.split("."))
    if len(numbers) != 3:
        raise ValueError(f"{text} is no version")
    parts = tuple((0, int(it), "") if it.isdigit() else (1, 0, it) for it in pre.split(".")) if pre else ()
    return numbers, not pre, parts


def bounds(comparator):
    """The lower and the upper end of one comparator such as "^1.2", each as (key, whether it belongs to the range), or None for no end."""
    found = re.fullmatch(r"(>=|<=|>|<|=|\^|~)?\s*(\d+)(?:\.(\d+))?(?:\.(\d+))?(-[0-9A-Za-z.-]+)?(?:\+\S+)?", comparator.strip())
    if not found:
        raise ValueError(f"{comparator!r} is no comparator of versions")
    sign, pre = found[1] or "^", found[5] or ""
    given = [int(it) for it in found.groups()[1:4] if it is not None]
    first = given + [0] * (3 - len(given))
    low = version_key(".".join(map(str, first)) + pre)

    def before(numbers):
        # 2.0.0-alpha is no 1.x: the lowest of all versions with these numbers.
        return (tuple(numbers), False, ()), False

    def next_of(place):
        return before(first[:place] + [first[place] + 1] + [0] * (2 - place))

    if sign in (">=", "<"):
        return ((low, True), None) if sign == ">=" else (None, (low, False))
    if sign == ">":
        return (low, False), None
    if sign == "<=":
        return None, (low, True)
    if sign == "=":
        return ((low, True), (low, True)) if len(given) == 3 else ((low, True), next_of(len(given) - 1))
    if sign == "~":
        return (low, True), next_of(0 if len(given) == 1 else 1)
    # A caret keeps the leftmost number that is not 0, or the last one that was given.
    place = next((at for at, it in enumerate(given) if it), len(given) - 1)
    return (low, True), next_of(place)


def within(version, requirement):
    key = version_key(version)
    for comparator in requirement.split(","):
        low, high = bounds(comparator)
        if low and (key < low[0] or (key == low[0] and not low[1])):
            return False
        if high and (key > high[0] or (key == high[0] and not high[1])):
            return False
    return True


def read_snapshot(path):
    """Its date, and for each library its rows: id, kind, the ranges without the hole."""
    date, rows = None, {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("#"):
                if found := re.fullmatch(r"# date: (\d{4}-\d\d-\d\d)\n", line):
                    date = datetime.date.fromisoformat(found[1])
                continue
            name, advisory, kind, *ranges = line.rstrip("\n").split("\t")
            sound = [it for column in ranges for it in column.split(" | ") if it]
            rows.setdefault(name, []).append((advisory, kind, sound))
    if date is None or not rows:
        sys.exit(f"{path} is no snapshot: it has no line '# date: YYYY-MM-DD', or no row")
    return date, rows


def locked(path):
    with open(path, "rb") as file:
        return sorted({(it["name"], it["version"]) for it in tomllib.load(file)["package"] if "source" in it})


def compare(snapshot, locks):
    date, rows = read_snapshot(snapshot)
    failed = False
    for path in locks:
        libraries, hits = locked(path), 0
        for name, version in libraries:
            for advisory, kind, sound in rows.get(name, []):
                if any(within(version, it) for it in sound):
                    continue
                fails = kind in FAILS
                hits += fails
                print(f"{'FAILED' if fails else 'warning'}: {path}: {name} {version}: {kind}, {URL}/{advisory}.html; "
                      f"without it: {' or '.join(sound) or 'no version'}")
        if not hits:
            print(f"ok: {path}: none of {len(libraries)} libraries has a hole known on {date}")
        failed |= hits > 0
    return failed


def make(repository):
    def git(*words, text=None):
        return subprocess.run(["git", "-C", repository, *words], check=True, capture_output=True, text=True, input=text).stdout

    commit, day = git("log", "-1", "--format=%H %cd", "--date=format-local:%Y-%m-%d").split()
    print("# Known holes of Rust libraries: a copy of what the RustSec database (rustsec/advisory-db) says of versions.")
    print("# Made by ci/advisories --snapshot. Columns: library, advisory, kind, patched versions, versions that never had it.")
    print(f"# commit: {commit}\n# date: {day}")
    lines = []
    for path in git("ls-tree", "-r", "--name-only", "HEAD", "crates").splitlines():
        if not path.endswith(".md"):
            continue
        head = git("show", f"HEAD:{path}").split("```toml\n", 1)[1].split("\n```", 1)[0]
        facts = tomllib.loads(head)
        it, versions = facts["advisory"], facts["versions"]
        if "withdrawn" in it:
            continue
        ranges = [" | ".join(versions.get(column, [])) for column in ("patched", "unaffected")]
        for requirement in versions.get("patched", []) + versions.get("unaffected", []):
            for comparator in requirement.split(","):
                bounds(comparator)
        lines.append("\t".join([it["package"], it["id"], it.get("informational", "hole"), *ranges]).rstrip("\t"))
    print("\n".join(sorted(lines)))


if sys.argv[1] == "--make":
    make(sys.argv[2])
elif sys.argv[1] == "--age":
    print((datetime.datetime.now(datetime.timezone.utc).date() - read_snapshot(sys.argv[2])[0]).days)
else:
    sys.exit(compare(sys.argv[1], sys.argv[2:]))
