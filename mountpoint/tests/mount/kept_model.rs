//! A reference model of kept attributes and symbolic links beside a real mount: random operations, some of another client.
//!
//! Goal: in any order of steps, each name shows the bytes, mode, time, target and attribute that were set last, on this mount and on one that
//! begins at the end. Method: a map of names is the model. The test prints its seed; MOUNT_S3_MODEL_SEED repeats a run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::common::{Setup, Store, TestMount, until};

const STEPS: usize = 200;
const NAMES: [&str; 5] = ["a", "b", "dir/c", "dir/d e", "\u{fc}"];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// The expected state of a name.
#[derive(Clone, Debug)]
enum Shown {
    File {
        bytes: Vec<u8>,
        mode: u32,
        /// Seconds and nanoseconds; `None` if no program set them.
        modified: Option<(u64, u32)>,
        attribute: Option<Vec<u8>>,
    },
    Link(String),
}

fn compare(dir: &Path, names: &BTreeMap<&str, Shown>, when: &str) {
    for name in NAMES {
        let path = dir.join(name);
        let Some(expected) = names.get(name) else {
            assert!(fs::symlink_metadata(&path).is_err(), "{when}: {name} is there");
            continue;
        };
        let of = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{when}: {name}: {error}"));
        match expected {
            Shown::Link(target) => {
                assert!(of.is_symlink(), "{when}: {name} is not a link");
                assert_eq!(fs::read_link(&path).unwrap().to_str(), Some(target.as_str()), "{when}: {name}");
            }
            Shown::File { bytes, mode, modified, attribute } => {
                assert_eq!(of.mode(), 0o100_000 | mode, "{when}: {name}");
                assert_eq!(&fs::read(&path).unwrap(), bytes, "{when}: {name}");
                if let Some((seconds, nanos)) = modified {
                    assert_eq!(
                        (of.mtime(), of.mtime_nsec()),
                        (*seconds as i64, (*nanos).into()),
                        "{when}: {name}"
                    );
                }
                let mut value = vec![0; 100];
                let found = getxattr(&path, "user.it", &mut value).map(|len| value[..len].to_vec());
                let expected = attribute.clone().ok_or(Errno::NODATA);
                assert_eq!(found, expected, "{when}: {name}");
            }
        }
    }
}

#[test]
fn random_attributes_and_links_agree_with_a_map() {
    let seed = std::env::var("MOUNT_S3_MODEL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1
    });
    eprintln!("MOUNT_S3_MODEL_SEED={seed}");
    let store = Store::new();
    let options =
        ["--keep-metadata", "--allow-delete", "--allow-overwrite", "--allow-rename", "--allow-append"];
    let options = [&options[..], &["--store", "aws"]].concat();
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/stays"), b"1").unwrap();
    let (mut random, mut names) = (Random(seed), BTreeMap::<&str, Shown>::new());
    for step in 0..STEPS {
        let name = NAMES[random.below(NAMES.len())];
        let path = mount.path(name);
        let mode = [0o600, 0o644, 0o755, 0o741][random.below(4)];
        let time = (1_000_000_000 + step as u64, step as u32 * 7);
        let is_link = matches!(names.get(name), Some(Shown::Link(_)));
        let what = match (random.below(9), names.get_mut(name)) {
            (0 | 1, None) => {
                let mut file =
                    OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).unwrap();
                let bytes = format!("{step}").into_bytes();
                file.write_all(&bytes).unwrap();
                let modified = (step % 2 == 0).then_some(time);
                if let Some((seconds, nanos)) = modified {
                    file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)).unwrap();
                }
                drop(file);
                names.insert(name, Shown::File { bytes, mode, modified, attribute: None });
                "create"
            }
            (0, Some(Shown::File { bytes, modified, .. })) => {
                (*bytes, *modified) = (format!("{step}").into_bytes(), None);
                fs::write(&path, &*bytes).unwrap_or_else(|error| panic!("step {step}: {name}: {error}"));
                "replace"
            }
            (1, Some(Shown::File { bytes, modified, .. })) => {
                let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                file.write_all(b"more").unwrap();
                bytes.extend(b"more");
                *modified = None;
                "append"
            }
            (2, None) => {
                let target = format!("to {step}/\u{fc}");
                symlink(&target, &path).unwrap();
                names.insert(name, Shown::Link(target));
                "link"
            }
            (3, Some(Shown::File { mode: shown, .. })) => {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                *shown = mode;
                "chmod"
            }
            (4, Some(Shown::File { modified, .. })) => {
                let then = SystemTime::UNIX_EPOCH + Duration::new(time.0, time.1);
                File::open(&path).unwrap().set_modified(then).unwrap();
                *modified = Some(time);
                "utimens"
            }
            (5, Some(Shown::File { attribute, .. })) => {
                let value = format!("{step}").into_bytes();
                setxattr(&path, "user.it", &value, XattrFlags::empty()).unwrap();
                *attribute = Some(value);
                "setxattr"
            }
            (6, Some(_)) => {
                fs::remove_file(&path).unwrap();
                names.remove(name);
                "unlink"
            }
            (7, Some(_)) => {
                let to = NAMES[random.below(NAMES.len())];
                // A link is replaced as a file is.
                if to != name && !(is_link && step % 2 == 0) {
                    fs::rename(&path, mount.path(to))
                        .unwrap_or_else(|error| panic!("{name} to {to}: {error}"));
                    let moved = names.remove(name).unwrap();
                    names.insert(to, moved);
                }
                "rename"
            }
            (8, _) => {
                let (bytes, word) =
                    (format!("of another {step}").into_bytes(), (0o100_000 | mode).to_string());
                store.put_with(name, bytes.clone(), &[("mode", &word), ("mtime", &format!("{}.5", time.0))]);
                let modified = Some((time.0, 500_000_000));
                names.insert(name, Shown::File { bytes, mode, modified, attribute: None });
                // For a moment the kernel may show what was there.
                until("the mount shows what another client stored", || {
                    let of = fs::symlink_metadata(&path);
                    of.is_ok_and(|of| (of.mtime(), of.mtime_nsec()) == (time.0 as i64, 500_000_000))
                });
                "put into the store"
            }
            _ => "nothing",
        };
        compare(mount.dir(), &names, &format!("step {step}, {what} of {name}"));
    }
    compare(mount.second_mount(&options).dir(), &names, "another mount");
}
