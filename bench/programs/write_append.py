"""A log is opened to append, three times."""

import kit


def run(folder, small):
    for n in range(3):
        with open(f"{folder}/log.txt", "a") as file:
            file.write(f"line {n}\n" * 100)
    return verify(folder, small)


def verify(folder, small):
    return kit.digest(open(f"{folder}/log.txt", "rb").read())


kit.main(lambda folder, small: None, run, verify)
