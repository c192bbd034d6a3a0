"""restic makes a repository and backs a folder up in it."""

import os
import subprocess
import tempfile

import kit

FILES = 20


def restic(folder, *words):
    environment = {**os.environ, "RESTIC_PASSWORD": "bench", "RESTIC_REPOSITORY": f"{folder}/backup"}
    command = ["restic", "--no-cache", "--quiet", *words]
    try:
        # restic tries again for a quarter of an hour what the file system refuses.
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=20)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise RuntimeError((error.stderr or b"").decode(errors="replace").strip()) from None


def run(folder, small):
    restic(folder, "init")
    with tempfile.TemporaryDirectory() as scratch:
        for n in range(FILES):
            kit.write(f"{scratch}/{n:02}", bytes([n]) * 50_000)
        restic(folder, "backup", scratch)
    return verify(folder, small)


def verify(folder, small):
    with tempfile.TemporaryDirectory() as scratch:
        restic(folder, "--no-lock", "restore", "latest", "--target", scratch)
        files = [f"{above}/{name}" for above, _, names in os.walk(scratch) for name in names]
        return kit.digest(*(open(path, "rb").read() for path in sorted(files, key=os.path.basename)))


kit.main(lambda folder, small: None, run, verify)
