//! `--mode full`: SEEK_DATA and SEEK_HOLE.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use super::full::FullMount;
use super::passthrough::has_passthrough;
use crate::common::{Pattern, Store, python};

const MIB: u64 = 1 << 20;

/// Prints the data and the hole from each offset on, in MiB.
const SEEKS: &str = "
def seek(file, at, whence):
    try: return os.lseek(file, at << 20, whence) / (1 << 20)
    except OSError as error: return errno.errorcode[error.errno]
file = os.open(sys.argv[1], int(sys.argv[2]))
for at in map(int, sys.argv[3:]):
    print(at, seek(file, at, os.SEEK_DATA), seek(file, at, os.SEEK_HOLE))
";

/// `O_RDONLY` and `O_RDWR`.
const READ: &str = "0";
const READ_AND_WRITE: &str = "2";

#[test]
fn holes_of_a_file_in_the_stage_show_and_a_stored_file_is_all_data() {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, MIB as usize));
    for commit in ["close", "fsync", "disk"] {
        let Some(full) = FullMount::of(&store, &["--commit", commit]) else { return };
        let path = full.path("file");
        assert_eq!(python(SEEKS, &path, &[READ, "0", "1", "7"]), "0 0.0 1.0\n1 ENXIO ENXIO\n7 ENXIO ENXIO\n");
        // One part is in the bucket alone, one is here, and two are holes.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(6 * MIB).unwrap();
        file.write_all_at(&Pattern(2).bytes(0, MIB as usize), 3 * MIB).unwrap();
        let said = "0 0.0 1.0\n1 3.0 1.0\n3 3.0 4.0\n5 ENXIO 5.0\n6 ENXIO ENXIO\n";
        assert_eq!(python(SEEKS, &path, &[READ, "0", "1", "3", "5", "6"]), said, "{commit}");
        // A mapping of this handle changes pages that the kernel sends later.
        assert_eq!(python(SEEKS, &path, &[READ_AND_WRITE, "1"]), "1 1.0 6.0\n", "{commit}");
        let copy = full.mount.scratch(commit);
        crate::common::run(std::process::Command::new("cp").arg("--sparse=auto").args([&path, &copy]));
        let mut expected = Pattern(1).bytes(0, MIB as usize);
        expected.resize(3 * MIB as usize, 0);
        expected.extend(Pattern(2).bytes(0, MIB as usize));
        expected.resize(6 * MIB as usize, 0);
        assert!(fs::read(&copy).unwrap() == expected, "{commit}");
        file.set_len(MIB).unwrap();
        drop(file);
    }
}

#[test]
fn a_change_in_memory_of_a_hole_is_data_before_the_kernel_sends_it() {
    let store = Store::new();
    for options in [&["--commit", "disk"][..], &["--commit", "disk", "--stage-passthrough", "auto"]] {
        if options.len() > 2 && !has_passthrough() {
            return;
        }
        let Some(full) = FullMount::of(&store, options) else { return };
        let script = "
import mmap
path = sys.argv[1]
file = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 8 << 20)
mapped = mmap.mmap(file, 8 << 20)
mapped[5 << 20] = 7
reader = os.open(path, os.O_RDONLY)
print(os.lseek(reader, 0, os.SEEK_DATA) <= 5 << 20, os.lseek(reader, 5 << 20, os.SEEK_HOLE) > 5 << 20)
";
        assert_eq!(python(script, &full.path("file"), &[]), "True True\n", "{options:?}");
        fs::remove_file(full.path("file")).unwrap();
    }
}
