"""The frame of every program here: prepares data from a fixed seed, runs one task, prints one line of JSON.

`prepare FOLDER SCALE` makes the data, `run FOLDER SCALE` runs the task, `direct ENDPOINT/BUCKET SCALE` runs it without a mount, and
`verify FOLDER SCALE` prints the digest of what a task has written. Imports are outside of the time. `SCALE` is `small` or `full`.
"""

import contextlib
import errno
import hashlib
import importlib
import json
import os
import re
import sys
import time

# The keys that the bench gives to every mount.
KEY, SECRET, REGION = "bench", "bench-secret", "us-east-1"
# Libraries for S3 that a program may use without a mount.
LIBRARIES = ["pyarrow.fs", "obstore.store", "s3torchconnector", "runai_model_streamer"]
NAMES = {os.strerror(number).lower(): name for number, name in errno.errorcode.items()}


def digest(*parts):
    """The digest of bytes-like parts, in their order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def write(path, *parts):
    """A file of these parts; the folders above it are made."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)


def errno_of(error):
    """The name of the errno that a library has met, from the error, from what caused it, or from its words."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in errno.errorcode:
            return errno.errorcode[error.errno]
        words = str(error).lower()
        number = re.search(r"(?:errno|os error)[ =:]*(\d+)", words)
        if number and int(number[1]) in errno.errorcode:
            return errno.errorcode[int(number[1])]
        for text, name in NAMES.items():
            if text in words:
                return name
        error = error.__cause__ or error.__context__
    return None


def device(folder):
    """The device of a folder, as the table of mounts spells it."""
    number = os.stat(folder).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def cpu_s():
    """The CPU time of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def arrow_s3(place):
    """pyarrow's file system on the store, and the name of the bucket."""
    from pyarrow import fs

    endpoint, bucket = place.rsplit("/", 1)
    scheme, host = endpoint.split("://")
    keys = {"access_key": KEY, "secret_key": SECRET, "region": REGION}
    return fs.S3FileSystem(endpoint_override=host, scheme=scheme, **keys), bucket


def obstore_s3(place):
    """obstore's client of the bucket."""
    from obstore.store import S3Store

    endpoint, bucket = place.rsplit("/", 1)
    keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": REGION}
    return S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True}, **keys)


def main(prepare, run, verify=None, needed=None, direct=None):
    """Does what the command line says. `needed(folder, small)` is the number of bytes that the task can't do without."""
    action, folder, small = sys.argv[1], sys.argv[2], sys.argv[3] == "small"
    if action == "prepare":
        prepare(folder, small)
        said = {"needed": needed(folder, small) if needed else None}
    elif action == "verify":
        said = {"digest": verify(folder, small) if verify else None}
    else:
        is_direct = action == "direct"
        for library in LIBRARIES if is_direct else []:
            with contextlib.suppress(ImportError, OSError):
                importlib.import_module(library)
        said = {} if is_direct else {"device_before": device(folder)}
        cpu, begun = cpu_s(), time.monotonic()
        try:
            said["digest"] = (direct if is_direct else run)(folder, small)
        except Exception as error:  # a library's own kinds are as good as any
            said["errno"] = errno_of(error)
            said["words"] = f"{type(error).__name__}: {error}"[:300]
        said["seconds"] = time.monotonic() - begun
        said["cpu_s"] = cpu_s() - cpu
        if not is_direct:
            said["device_after"] = device(folder)
    print(json.dumps(said), flush=True)
