//! A program that writes file after file, while engines are killed.

use std::fs;

use super::holder::Holder;
use super::kills;
use crate::common::until;

/// Writes a file until a call fails, then the next one. A file is closed only after an error.
const WRITER: &str = "
rounds = 0
while not os.path.exists(f'{local}/stop'):
    fd = os.open(f'{mount}/new{rounds}', os.O_WRONLY | os.O_CREAT)
    try:
        os.write(fd, b'x' * (20 << 20))
        tells(f'round{rounds}')
        while not os.path.exists(f'{local}/stop'):
            os.write(fd, b'x' * (1 << 20))
            time.sleep(0.02)
    except OSError as error:
        assert error.errno == errno.EIO, error
        rounds += 1
    finally:
        try:
            os.close(fd)
        except OSError as error:
            assert error.errno == errno.EIO, error
print(rounds)
";

#[test]
fn killed_engines_leave_no_upload_and_no_part_of_a_file() {
    let Some(mut holder) = Holder::new(&[]) else { return };
    holder.start();
    let mut program = holder.program(WRITER, &[]);
    let kills = kills() / 5;
    let (mut uploads, mut parts) = (0, 0);
    let count = |holder: &Holder, request: &str| holder.store.requests().count(request);
    for kill in 0..kills {
        let written = holder.folder.path().join(format!("round{kill}"));
        // The journal has an upload before its first part goes out.
        until("a part goes out", || {
            assert_eq!(program.ended(), None, "the writer goes on");
            // A part of the engine before may arrive late, its upload does not.
            let has_begun = count(&holder, "CreateMultipartUpload") > uploads;
            written.exists() && has_begun && count(&holder, "UploadPart") > parts
        });
        holder.kill();
        assert!(holder.store.pending_uploads() > 0, "a killed engine aborts nothing itself");
        (uploads, parts) = (count(&holder, "CreateMultipartUpload"), count(&holder, "UploadPart"));
        holder.start();
    }
    let last = holder.folder.path().join(format!("round{kills}"));
    until("the writer has another file", || last.exists());
    fs::write(holder.folder.path().join("stop"), b"").unwrap();
    assert_eq!(program.output(), format!("{kills}\n"));
    until("the uploads are aborted", || holder.store.pending_uploads() == 0);
    assert_eq!(holder.store.keys(), [format!("new{kills}")]);
}
