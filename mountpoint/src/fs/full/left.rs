//! Files that an earlier mount left in the stage for this mount to store, and directories that owe a marker.

use std::time::Instant;

use super::Full;
use super::files::InStage;
use crate::inode::{InodeTable, Pending};
use crate::stage::Left;

impl Full {
    /// Gives these files their names, before the mount serves, and queues them for sending. A file that can't get its name back goes to
    /// `kept/`, and the log names it.
    pub(super) fn take_over(&self, inodes: &InodeTable, now: Instant) {
        self.take_over_directories(inodes, now);
        let left = self.area.take_left();
        let count = left.len();
        for Left { staged, modified } in left {
            let (number, size, key) = (staged.number(), staged.size(), staged.key());
            let pending = Pending { number, size, modified, replaces: staged.replaced_object() };
            match inodes.plant(&key, pending) {
                Ok(ino) => {
                    self.files.lock().insert(ino, InStage::new(staged));
                    self.sending.left(ino, now);
                }
                Err(error) => match staged.keep_now(&error.to_string()) {
                    Ok(kept) => {
                        let kept = kept.display();
                        tracing::error!(
                            "\"{key}\" of an earlier mount is not stored: {error}; what was written is in {kept}"
                        );
                    }
                    Err(disk) => tracing::error!(
                        "\"{key}\" of an earlier mount is not stored: {error}; it stays in the stage: {disk}"
                    ),
                },
            }
        }
        if count > 0 {
            tracing::info!("{count} files that an earlier mount left in the stage are going to be stored");
        }
    }

    fn take_over_directories(&self, inodes: &InodeTable, now: Instant) {
        for (number, key) in self.area.left_directories() {
            match inodes.plant_directory(&key) {
                Ok(ino) => {
                    self.directories.lock().insert(ino, &key, number, true);
                    self.sending.left(ino, now);
                }
                Err(error) => {
                    tracing::error!("the directory \"{key}\" of an earlier mount is not stored: {error}");
                    if let Err(disk) = self.area.owes_no_marker(number) {
                        tracing::debug!(%disk, "the directory stays in the stage");
                    }
                }
            }
        }
    }
}
