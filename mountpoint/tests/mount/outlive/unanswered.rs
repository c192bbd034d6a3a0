//! Engines that die between the record of an open and its answer. The test stands for such an engine: it takes the request from the device,
//! notes a handle in the journal as an engine does, and answers nothing.

use std::fs;
use std::io::Read as _;

use mountpoint::outlive::{Journal, Mark, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::holder::Holder;
use super::records;
use crate::common::until;

/// Numbers of requests in the FUSE protocol.
const OPEN: u32 = 14;
const OPENDIR: u32 = 27;

/// Waits for a request of this kind and takes it from the device. Returns its number.
fn taken(holder: &Holder, opcode: u32) -> u64 {
    let device = holder.kept.lock().unwrap()["fuse"].try_clone().unwrap();
    let mut device = fs::File::from(device);
    let mut buffer = vec![0; 2 << 20];
    loop {
        until("a request waits at the device", || {
            let mut waits = [PollFd::new(&device, PollFlags::IN)];
            poll(&mut waits, Some(&Timespec::default())).unwrap() > 0
        });
        let read = device.read(&mut buffer).unwrap();
        assert!(read >= 40, "{read} bytes");
        if u32::from_ne_bytes(buffer[4..8].try_into().unwrap()) == opcode {
            return u64::from_ne_bytes(buffer[8..16].try_into().unwrap());
        }
    }
}

#[test]
fn an_open_whose_engine_died_before_its_answer_leaves_no_record() {
    // No request for attributes comes in between.
    let Some(mut holder) = Holder::new(&["--read-mode", "buffered", "--metadata-ttl", "3600"]) else {
        return;
    };
    holder.store.put("d/file", "content");
    holder.start();
    const PROGRAM: &str = "
held = {'file': os.open(f'{mount}/d/file', os.O_RDONLY), 'directory': os.open(f'{mount}/d', os.O_RDONLY)}
os.fstat(held['file']), os.fstat(held['directory'])
tells('held')
for kind in ['file', 'directory']:
    waits_for(f'opens-{kind}')
    again = os.open(f'/proc/self/fd/{held[kind]}', os.O_RDONLY)
    print(os.read(again, 9) if kind == 'file' else os.listdir(again), os.fstat(again).st_ino == os.fstat(held[kind]).st_ino)
    tells(f'opened-{kind}')
    waits_for(f'closes-{kind}')
    os.close(again)
    tells(f'closed-{kind}')
waits_for('end')
drop(held['file'])
print(os.pread(held['file'], 9, 0), os.listdir(held['directory']))
";
    let program = holder.program(PROGRAM, &[]);
    let folder = holder.folder.path().to_owned();
    let tell = |name: String| fs::write(folder.join(name), b"").unwrap();
    let has = |name: String| folder.join(name).exists();
    until("both are open", || has("held".to_owned()));
    let count = |holder: &Holder| records(holder).map(|it| (it.files.len(), it.listings.len()));
    assert_eq!(count(&holder), Some((1, 1)));
    for (kind, opcode) in [("file", OPEN), ("directory", OPENDIR)] {
        holder.kill();
        tell(format!("opens-{kind}"));
        let unique = taken(&holder, opcode);
        let shared = holder.kept.lock().unwrap()["journal"].try_clone().unwrap();
        let (journal, before) = Journal::adopt(shared).unwrap();
        let handle = journal.raise(Mark::Handles, 1) - 1;
        let (file, listing) = (before.files[0].clone(), before.listings[0].clone());
        assert!(file.asked.is_some() && file.asked != Some(unique));
        journal.record(&match kind {
            "file" => Record::File(mountpoint::outlive::File { handle, asked: Some(unique), ..file }),
            _ => Record::Listing(mountpoint::outlive::Listing {
                handle,
                asked: Some(unique),
                places: Default::default(),
                ..listing
            }),
        });
        drop(journal);
        holder.start();
        until("the open is answered", || has(format!("opened-{kind}")));
        tell(format!("closes-{kind}"));
        until("the second handle is closed", || has(format!("closed-{kind}")));
        // The kernel tells of a close after the call.
        until("one file and one directory are noted", || count(&holder) == Some((1, 1)));
    }
    holder.kill();
    holder.start();
    tell("end".to_owned());
    assert_eq!(program.output(), "b'content' True\n['file'] True\nb'content' ['file']\n");
    until("nothing is noted any more", || count(&holder) == Some((0, 0)));
}
