//! Asks S3 about one name: HEAD for the file, LIST for the directory, both at once only when neither is known.

use futures_util::future::{Either, select};

use super::error::{Error, ErrorKind, Result};
use crate::first::{Asker, Cause, First};
use crate::listing::path;
use crate::object::{ObjectKey, ObjectMeta};
use crate::s3::{self, ListObjects, ListPage, ObjectClient};
use crate::sync::{Arc, Mutex};

/// The requests of a lookup, chosen by the facts in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Nothing is known: HEAD and LIST together. A GET replaces the HEAD if it brings the tail of a table.
    Both,
    /// The name was a directory: LIST, and HEAD only if no key is left below.
    DirectoryFirst,
    /// The name was a file, and not a directory a moment ago: HEAD, and LIST only if the object is gone.
    FileFirst,
    /// A local entry has the name, and only a directory would win over it: LIST alone.
    DirectoryOnly,
}

/// The answer of S3 about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// S3 has neither the object nor keys below the name.
    Missing,
    /// S3 has the object.
    File {
        /// The object's metadata.
        meta: ObjectMeta,
        /// Whether the answer also proves that no directory has the name.
        alone: bool,
    },
    /// S3 has keys below the name.
    Directory,
}

/// A place in which a request leaves the first bytes that came with the attributes.
pub(super) type Slot = Arc<Mutex<Option<First>>>;

/// A place in which a request leaves the whole listing of a directory that came with the answer that it exists.
pub(super) type PageSlot = Arc<Mutex<Option<ListPage>>>;

/// The LIST of a lookup.
#[derive(Clone, Debug)]
pub(super) struct Lister {
    /// Keys to request where only the existence of a directory is in question.
    pub(super) keys: u16,
    /// Keys to request of a name that may be a new directory. The slot gets the listing if that is all of it.
    pub(super) brought: u16,
    pub(super) slot: PageSlot,
}

/// Most empty pages that the LIST of one lookup follows, before the answer counts as broken. A store may skip deleted keys, but not for
/// ever.
const EMPTY_PAGES_MAX: usize = 16;

/// Asks S3 about `name` in the directory with this key. With a slot, the lookup is the kernel's, perhaps before an open: the slot
/// receives bytes that come with the attributes.
pub(super) async fn ask(
    asker: &Asker,
    directory: &ObjectKey,
    name: &str,
    ask: Ask,
    lister: Lister,
    slot: Option<Slot>,
) -> Result<Remote> {
    let list_keys = lister.keys;
    let client = &**asker.client();
    let Some(file) = path::file_key(directory, name) else {
        return Err(Error::new(ErrorKind::NameTooLong, name));
    };
    // No key is long enough to lie below a key of the greatest length.
    let below = path::directory_key(directory, name);
    let fail = |error: s3::Error| Error::new(ErrorKind::Remote(Arc::new(error)), file.as_str());
    let found = |meta: Option<ObjectMeta>, alone| match meta {
        Some(meta) => Remote::File { meta, alone },
        None => Remote::Missing,
    };
    match ask {
        Ask::Both => {
            let head = Box::pin(look(asker, &file, Cause::Cold, slot));
            let list = Box::pin(new_below(client, below, lister));
            match select(list, head).await {
                Either::Left((below, head)) => match below.map_err(fail)? {
                    true => Ok(Remote::Directory),
                    false => Ok(found(head.await.map_err(fail)?, true)),
                },
                // A directory is an answer even if the HEAD failed: it hides the object.
                Either::Right((meta, list)) => match list.await.map_err(fail)? {
                    true => Ok(Remote::Directory),
                    false => Ok(found(meta.map_err(fail)?, true)),
                },
            }
        }
        // The bytes come along as in an open: a read would be the third round trip.
        Ask::DirectoryFirst => match any_below(client, below, list_keys).await.map_err(fail)? {
            true => Ok(Remote::Directory),
            false => Ok(found(look(asker, &file, Cause::Open, slot).await.map_err(fail)?, true)),
        },
        Ask::FileFirst => match look(asker, &file, Cause::Lookup, slot).await.map_err(fail)? {
            Some(meta) => Ok(Remote::File { meta, alone: false }),
            None => match any_below(client, below, list_keys).await.map_err(fail)? {
                true => Ok(Remote::Directory),
                false => Ok(Remote::Missing),
            },
        },
        Ask::DirectoryOnly => match any_below(client, below, list_keys).await.map_err(fail)? {
            true => Ok(Remote::Directory),
            false => Ok(Remote::Missing),
        },
    }
}

/// The answer about a name in a mount that reads empty objects as marks of directories: a mark is not a file, and a name with only a mark
/// is a directory.
pub(super) async fn with_folder_marks(
    asker: &Asker,
    directory: &ObjectKey,
    name: &str,
    answer: Remote,
) -> Result<Remote> {
    match answer {
        Remote::File { meta, .. } if meta.size == 0 && path::marked(name).is_some() => Ok(Remote::Missing),
        Remote::Missing => {
            let Some(below) = path::directory_key(directory, name) else { return Ok(Remote::Missing) };
            let mark = folder_mark(&**asker.client(), &below).await;
            let mark =
                mark.map_err(|error| Error::new(ErrorKind::Remote(Arc::new(error)), below.as_str()))?;
            Ok(mark.map_or(Remote::Missing, |_| Remote::Directory))
        }
        answer => Ok(answer),
    }
}

/// The key of the empty object that marks a directory, if S3 has that object.
pub(super) async fn folder_mark(
    client: &dyn ObjectClient,
    directory: &ObjectKey,
) -> s3::Result<Option<ObjectKey>> {
    let Some(mark) = directory.folder_mark() else { return Ok(None) };
    Ok(head(client, &mark).await?.filter(|meta| meta.size == 0).map(|_| mark))
}

/// Metadata of one object, for a lookup.
async fn look(
    asker: &Asker,
    key: &ObjectKey,
    cause: Cause,
    slot: Option<Slot>,
) -> s3::Result<Option<ObjectMeta>> {
    let Some(slot) = slot else { return head(&**asker.client(), key).await };
    match asker.ask(key, cause, None).await {
        Ok((meta, first)) => {
            *slot.lock() = Some(first);
            Ok(Some(meta))
        }
        Err(error) if *error.kind() == s3::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Metadata of one object; `None` if S3 has no such object.
pub(super) async fn head(client: &dyn ObjectClient, key: &ObjectKey) -> s3::Result<Option<ObjectMeta>> {
    match client.head_object(key).await {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if *error.kind() == s3::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether any key begins with `prefix`, of which nothing is known. The slot gets a listing that is whole.
async fn new_below(client: &dyn ObjectClient, prefix: Option<ObjectKey>, lister: Lister) -> s3::Result<bool> {
    let Some(prefix) = prefix else { return Ok(false) };
    let page = page_with(client, &prefix, lister.keys.max(lister.brought), |_| true).await?;
    let is_there = page.is_some();
    *lister.slot.lock() = page.filter(|page| lister.brought > 0 && page.next_token.is_none());
    Ok(is_there)
}

/// Whether any key begins with `prefix`.
async fn any_below(client: &dyn ObjectClient, prefix: Option<ObjectKey>, list_keys: u16) -> s3::Result<bool> {
    let Some(prefix) = prefix else { return Ok(false) };
    Ok(page_with(client, &prefix, list_keys, |_| true).await?.is_some())
}

/// Whether S3 has nothing of a directory but its marker, the object whose key equals the directory's.
pub(super) async fn is_marker_alone(
    client: &dyn ObjectClient,
    directory: &ObjectKey,
    list_keys: u16,
) -> s3::Result<bool> {
    let is_other = |key: &str| key != directory.as_str();
    Ok(page_with(client, directory, list_keys.max(2), is_other).await?.is_none())
}

/// The first page of the keys with this prefix that has a `wanted` one.
async fn page_with(
    client: &dyn ObjectClient,
    prefix: &ObjectKey,
    list_keys: u16,
    wanted: impl Fn(&str) -> bool + Send,
) -> s3::Result<Option<ListPage>> {
    let mut request = ListObjects {
        prefix: prefix.as_str().to_string(),
        delimited: true,
        max_keys: list_keys,
        ..Default::default()
    };
    for _ in 0..EMPTY_PAGES_MAX {
        let page = client.list_objects(&request).await?;
        let ours = |key: &str| key.starts_with(prefix.as_str()) && wanted(key);
        if page.objects.iter().any(|object| ours(object.key.as_str()))
            || page.common_prefixes.iter().any(|p| ours(p))
        {
            return Ok(Some(page));
        }
        let Some(token) = page.next_token else { return Ok(None) };
        request.continuation_token = Some(token);
    }
    Err(s3::Error::new(s3::ErrorKind::BadAnswer, "ListObjectsV2")
        .key(prefix)
        .message("the store answers with empty page after empty page, each with a token for more"))
}
