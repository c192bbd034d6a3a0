//! `mount-s3-ctl kept` and `restore`: files of `--mode full` that could not be stored. They are in the directory of the stage, mounted or
//! not, so no mount is involved.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use indicatif::{HumanBytes, HumanDuration};
use mountpoint::clock::Clock;
use mountpoint::stage::{Kept, kept_in};
use serde::Serialize;

use super::{printable, quoted, say};

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    kept: Vec<Listed>,
}

/// A kept file, and its size.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    kept: Kept,
    bytes: u64,
}

/// Lists the kept files of the stage at `dir`, oldest first.
pub(super) fn list(dir: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let shown = printable(dir.display());
    let all = kept_in(dir)
        .with_context(|| format!("{shown}: reading kept/ in it: is it the directory of --stage?"))?;
    if json {
        let kept = all.into_iter().map(|kept| Listed { bytes: size(&kept), kept }).collect();
        say(&format!("{}\n", serde_json::to_string_pretty(&Report { kept })?));
        return Ok(ExitCode::SUCCESS);
    }
    let text: String = all.iter().map(about).collect();
    say(if all.is_empty() { "nothing is kept\n" } else { &text });
    Ok(ExitCode::SUCCESS)
}

fn size(kept: &Kept) -> u64 {
    fs::symlink_metadata(&kept.file).map_or(0, |about| about.len())
}

fn about(kept: &Kept) -> String {
    let now = Clock::machine().wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = Duration::from_secs(kept.since.try_into().unwrap_or(0));
    let part = if kept.is_partial { "; only the bytes that were written are in it" } else { "" };
    format!(
        "{}\n  file        {}; {}{part}\n  kept        {} ago: {}\n",
        printable(format_args!("{}/{}", kept.bucket, kept.key.as_deref().unwrap_or("(of unknown name)"))),
        quoted(&printable(kept.file.display())),
        HumanBytes(size(kept)),
        HumanDuration(now.saturating_sub(since)),
        printable(&kept.why),
    )
}

/// Copies a kept file to `to`, which may be in a mount. Removes the file from the stage once the copy is complete.
pub(super) fn restore(file: &Path, to: &Path, takes_parts: bool) -> anyhow::Result<ExitCode> {
    let (shown, target) = (printable(file.display()), printable(to.display()));
    let dir = file.parent().and_then(Path::parent).unwrap_or_else(|| Path::new(""));
    let all = kept_in(dir).with_context(|| {
        format!("{shown}: reading its folder: is it a file that 'mount-s3-ctl kept' names?")
    })?;
    let kept = all.into_iter().find(|kept| kept.file.file_name() == file.file_name());
    let Some(kept) = kept else { bail!("{shown}: no file is kept there: see 'mount-s3-ctl kept'") };
    ensure!(
        takes_parts || !kept.is_partial,
        "{shown}: only the bytes that were written are in it, and zeros elsewhere: compare it with the object, or restore it with --partial"
    );
    let from = kept.open().with_context(|| format!("opening {shown}"))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let into = options.open(to).with_context(|| format!("making {target}: restore replaces no file"))?;
    if let Err(error) = copy(&from, &into) {
        drop(into);
        // The next attempt must not find half a file.
        let _ = fs::remove_file(to);
        return Err(error).with_context(|| format!("{target}: writing it; {shown} is as it was"));
    }
    drop(into);
    kept.remove().with_context(|| format!("{target} is restored; removing {shown}"))?;
    say(&format!("{target} is restored, and kept no more\n"));
    Ok(ExitCode::SUCCESS)
}

/// Copies the bytes, and syncs them: the copy survives a crash of the machine as far as the file system there promises that.
fn copy(from: &File, into: &File) -> io::Result<()> {
    io::copy(&mut &*from, &mut &*into)?;
    into.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(dir: &Path, name: &str, bytes: &[u8], is_partial: bool) -> std::path::PathBuf {
        let file = dir.join("kept").join(name);
        fs::create_dir_all(dir.join("kept")).unwrap();
        fs::write(&file, bytes).unwrap();
        let about = serde_json::json!({
            "file": file, "bucket": "b", "key": "dir/a\u{1b}", "why": "the store refused it", "since": 0, "is_partial": is_partial,
        });
        fs::write(dir.join("kept").join(format!("{name}.json")), about.to_string()).unwrap();
        file
    }

    #[test]
    fn a_kept_file_is_restored_whole_under_a_new_name_or_stays() {
        let (stage, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let whole = keep(stage.path(), "10-a", b"bytes", false);
        let part = keep(stage.path(), "9-b", b"\0\0xy", true);
        let files: Vec<_> = kept_in(stage.path()).unwrap().into_iter().map(|kept| kept.file).collect();
        assert_eq!(files, [part.clone(), whole.clone()], "the oldest first");
        let to = elsewhere.path().join("to");
        fs::write(&to, "there").unwrap();
        assert!(restore(&whole, &to, false).is_err(), "it replaces no file");
        fs::remove_file(&to).unwrap();
        assert!(restore(&part, &to, false).is_err() && !to.exists(), "a part alone is refused");
        assert!(restore(&elsewhere.path().join("kept/1-x"), &to, false).is_err());
        restore(&whole, &to, false).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"bytes");
        fs::remove_file(&to).unwrap();
        restore(&part, &to, true).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"\0\0xy");
        assert!(kept_in(stage.path()).unwrap().is_empty());
        assert_eq!(fs::read_dir(stage.path().join("kept")).unwrap().count(), 0);
    }

    #[test]
    fn a_kept_file_is_named_with_its_reason_and_no_control_characters() {
        let stage = tempfile::tempdir().unwrap();
        keep(stage.path(), "1-a", b"bytes", true);
        let text = about(&kept_in(stage.path()).unwrap()[0]);
        assert!(text.starts_with("b/dir/a?\n"), "{text}");
        assert!(
            text.contains("the store refused it") && text.contains("only the bytes that were written"),
            "{text}"
        );
    }
}
