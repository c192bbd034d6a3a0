"""ffmpeg writes a film as MP4, which goes back in the file at the end."""

import ffmpeg_cut
import kit


def run(folder, small):
    ffmpeg_cut.film(f"{folder}/film.mp4", 2)
    return verify(folder, small)


def verify(folder, small):
    with open(f"{folder}/film.mp4", "rb") as film:
        return kit.digest(film.read())


kit.main(lambda folder, small: None, run, verify)
