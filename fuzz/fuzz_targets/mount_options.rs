//! The options of a line in /etc/fstab, with any content: flags that a mount accepts, or a usage error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::cli::{Asked, asked};

fuzz_target!(|input: (bool, Vec<String>)| {
    let (sloppy, options) = input;
    let written = options.join(",");
    let mut line = vec!["mount.mount-s3", "bucket", "/mnt", "-o", &written];
    if sloppy {
        line.push("-s");
    }
    match asked(line.into_iter().map(Into::into)) {
        Ok(Asked::Fstab(args, from_mount)) => {
            assert!(!args.foreground, "a line of fstab starts a daemon");
            assert!(!from_mount.fake && from_mount.namespace.is_none(), "an option of mount(8) out of -o");
            assert_eq!(args.check(), Ok(()), "flags that no mount takes");
        }
        Ok(_) => panic!("not taken for a line of fstab"),
        // 0: `help` and `version` are flags, too.
        Err(error) => assert!([0, 2].contains(&error.exit_code()), "{error}"),
    }
});
