"""git makes a repository and commits."""

import os
import subprocess

import kit

WHO = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "n"), ("EMAIL", "n@example.com"), ("DATE", "2026-01-01T00:00:00Z"))}


def git(folder, *arguments):
    command = ["git", "-c", "safe.directory=*", "-C", f"{folder}/tree", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **WHO, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"})
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def run(folder, small):
    os.mkdir(f"{folder}/tree")
    git(folder, "init", "-q", "-b", "main")
    kit.write(f"{folder}/tree/file", b"content\n")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "one")
    return verify(folder, small)


def verify(folder, small):
    return kit.digest(git(folder, "rev-parse", "HEAD").encode(), git(folder, "show", "HEAD:file").encode())


kit.main(lambda folder, small: None, run, verify)
