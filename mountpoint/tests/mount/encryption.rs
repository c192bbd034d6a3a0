//! `--sse` on a mount: a file is stored only if the store confirms its encryption; an unconfirmed file fails, and the mount goes on.

use std::fs::{self, File};
use std::io::{self, Write as _};

use rustix::io::Errno;
use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, TestMount};

const KEY: &str = "arn:aws:kms:us-east-1:111122223333:key/1234-abcd";
const LARGE: usize = 20 << 20;

#[test]
fn a_store_that_ignores_sse_fails_the_file_and_nothing_else() {
    let setup = Setup::new(&["--sse", "aws:kms", "--sse-kms-key-id", KEY]);
    let Some(mount) = TestMount::with(&setup) else { return };
    let store = mount.store();
    let write = |name: &str, len: usize| -> io::Result<()> {
        let mut file = File::create_new(mount.path(name))?;
        file.write_all(&Pattern(6).bytes(0, len))?;
        file.sync_all()
    };
    for (name, len) in [("small", 10), ("large", LARGE)] {
        write(name, len)
            .unwrap_or_else(|error| panic!("a store that encrypts, {name}: {error}: {}", mount.log()));
    }
    for operation in ["PutObject", "CreateMultipartUpload"] {
        store.faults().add(Fault::on(operation, Effect::IgnoreSse));
    }
    for (name, len, what) in
        [("plain-small", 10, "is in the bucket"), ("plain-large", LARGE, "no byte was sent")]
    {
        let error = write(name, len).expect_err(name);
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{name}: {error}");
        let log = mount.log();
        let told = log.lines().any(|line| line.contains(&format!("\"{name}\"")) && line.contains(what));
        assert!(told, "no line names {name}: {log}");
    }
    assert_eq!(
        (store.pending_uploads(), store.get("plain-large")),
        (0, None),
        "aborted before it was completed"
    );
    store.faults().clear();
    write("after", LARGE).unwrap();
    assert!(fs::read(mount.path("after")).unwrap() == Pattern(6).bytes(0, LARGE), "the mount goes on");
}
