//! One page of a listing as S3 sent it.

use std::time::Instant;

use super::merge::{Entry, What};
use super::path::{self, BadName, Shown};
use crate::object::ObjectKey;
use crate::s3::ListPage;

/// The time of a page's request, and the latest time that its facts describe.
pub(crate) struct Asked {
    pub(crate) event: u64,
    pub(crate) since: Instant,
    pub(crate) arrived: Instant,
}

/// The entries of a page that names can show. `hide` gets the others, each with the reason. With `folder_marks`, empty objects may mark
/// directories.
pub(crate) fn readable(
    key: &ObjectKey,
    page: ListPage,
    folder_marks: bool,
    mut hide: impl FnMut(&str, BadName),
) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(page.objects.len() + page.common_prefixes.len());
    for object in page.objects {
        if folder_marks
            && object.meta.size == 0
            && let Some(name) = object.key.as_str().strip_prefix(key.as_str()).and_then(path::marked)
        {
            entries.push(Entry { name: name.into(), what: What::Marked });
            continue;
        }
        let what = match path::show(key.as_str(), object.key.as_str()) {
            Shown::File(name) => Entry { name: name.into(), what: What::File(object.meta) },
            Shown::Directory(name) => Entry { name: name.into(), what: What::Directory },
            Shown::Own => continue,
            Shown::Hidden(why) => {
                hide(object.key.as_str(), why);
                continue;
            }
        };
        entries.push(what);
    }
    for prefix in &page.common_prefixes {
        match path::show(key.as_str(), prefix) {
            Shown::File(name) | Shown::Directory(name) => {
                entries.push(Entry { name: name.into(), what: What::Directory });
            }
            Shown::Own => {}
            Shown::Hidden(why) => hide(prefix, why),
        }
    }
    entries
}
