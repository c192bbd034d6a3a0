//! The exam that every [`ObjectClient`] passes: one function per promise of the trait's documentation.
//!
//! Enters: a client of a bucket without other users, and the known gaps of its store. Leaves: nothing, or a panic at the first broken
//! promise, with its name printed. Names and bytes differ from run to run by a seed, which is printed; `MOUNT_S3_EXAM_SEED` repeats
//! a run.

mod copy;
mod keys;
mod list;
mod multipart;
mod read;
mod write;

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::buffer::{BLOCK, Config, Fill, Pool, Use};
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{
    Begin, BoxFuture, ErrorKind, First, GetFirst, GetObject, ListObjects, ListPage, NewObject, ObjectClient,
    PutObject, Result, Stored,
};
use crate::sync::{Arc, Mutex};

/// The promises and keys that a store does not keep. Made with [`Traits::whole`]; every exception has its reason, which is printed.
#[derive(Clone, Debug)]
pub struct Traits {
    store: &'static str,
    lacks: Vec<(&'static str, &'static str)>,
    refuses_key: fn(&str) -> Option<&'static str>,
    seed: u64,
}

impl Traits {
    /// A store that keeps every promise and every key.
    pub fn whole(store: &'static str) -> Self {
        Self { store, lacks: Vec::new(), refuses_key: |_| None, seed: seed() }
    }

    /// Leaves one promise (by its name in the exam) out.
    ///
    /// # Panics
    /// There is no promise of this name.
    pub fn without(mut self, promise: &'static str, reason: &'static str) -> Self {
        assert!(PROMISES.iter().any(|(name, _)| *name == promise), "the exam has no promise {promise}");
        self.lacks.push((promise, reason));
        self
    }

    /// Skips keys that the store can't keep: those for which `refuses` returns a reason.
    pub fn refusing_keys(mut self, refuses: fn(&str) -> Option<&'static str>) -> Self {
        self.refuses_key = refuses;
        self
    }
}

type Promise = for<'a> fn(&'a Exam) -> BoxFuture<'a, ()>;

macro_rules! promises {
    ($($room:ident :: $name:ident),+ $(,)?) => {
        /// All promises, in the order of their examination.
        const PROMISES: &[(&str, Promise)] = &[$((stringify!($name), |exam| Box::pin($room::$name(exam)))),+];
    };
}

promises! {
    write::a_missing_object_is_not_found,
    write::put_and_head_agree,
    write::a_body_in_pieces_is_stored_whole,
    write::an_empty_object_is_an_object,
    write::put_over_an_object_replaces_it,
    write::put_only_if_absent_spares_what_is_there,
    write::put_with_a_wrong_checksum_is_refused,
    write::put_over_a_version_spares_another,
    write::delete_twice_is_fine,
    write::delete_of_a_version_spares_another,
    write::properties_come_back_as_they_went,
    read::every_range_reads_its_bytes,
    read::a_range_over_several_blocks_fills_them_in_order,
    read::a_stale_version_reads_nothing,
    read::a_wrong_size_reads_nothing,
    read::get_of_a_missing_object_is_not_found,
    read::first_bytes_come_with_the_metadata_of_their_version,
    read::first_bytes_of_another_version_are_refused,
    read::an_object_without_bytes_has_metadata_alone,
    read::many_requests_at_once_do_not_mix,
    list::pages_join_to_all_keys_in_order,
    list::a_listing_agrees_with_head,
    list::a_delimiter_rolls_up,
    list::one_entry_a_page_gives_each_once,
    list::start_after_begins_behind_the_key,
    list::an_empty_prefix_is_an_empty_page,
    list::keys_are_in_the_order_of_their_bytes,
    multipart::three_parts_read_back_whole,
    multipart::nothing_is_visible_before_complete,
    multipart::a_wrong_part_checksum_is_refused,
    multipart::complete_only_if_absent_spares_what_is_there,
    multipart::complete_over_a_version_spares_another,
    multipart::complete_replaces_what_is_there,
    multipart::abort_frees_and_twice_is_fine,
    multipart::pending_uploads_are_listed_by_prefix,
    copy::a_copy_has_bytes_and_properties_of_its_source,
    copy::a_copy_of_another_version_is_refused,
    copy::a_copy_over_nothing_spares_what_is_there,
    copy::a_copy_over_a_version_spares_another,
    copy::a_copy_with_properties_of_its_own_has_those,
    copy::ranges_are_copied_into_parts,
    copy::every_key_is_a_source,
    keys::every_key_comes_back_as_it_went,
    keys::twins_are_two_objects,
}

/// Examines a client. The bucket is empty afterwards, as before. `hostile`: the keys that must come back unchanged.
///
/// # Panics
/// The client broke a promise.
pub async fn exam(client: Arc<dyn ObjectClient>, traits: Traits, hostile: &[String]) {
    for (promise, check) in examined(&traits) {
        let exam = Exam::of(&client, promise, &traits, hostile);
        check(&exam).await;
        exam.clean_up().await;
    }
}

/// Examines a client to the end, in spite of broken promises. Returns these promises, in their order.
pub async fn survey(client: Arc<dyn ObjectClient>, traits: Traits, hostile: &[String]) -> Vec<&'static str> {
    let mut broken = Vec::new();
    for (promise, check) in examined(&traits) {
        let exam = Arc::new(Exam::of(&client, promise, &traits, hostile));
        let examined = Arc::clone(&exam);
        let checked = tokio::spawn(async move { check(&examined).await });
        // The panic of a broken promise is on standard error.
        let is_broken = checked.await.is_err();
        let cleaned = tokio::spawn(async move { exam.clean_up().await });
        if cleaned.await.is_err() || is_broken {
            broken.push(promise);
        }
    }
    broken
}

/// The promises to examine. Each is named on standard error when its examination begins.
fn examined(traits: &Traits) -> impl Iterator<Item = (&'static str, Promise)> {
    eprintln!("exam of {}: MOUNT_S3_EXAM_SEED={}", traits.store, traits.seed);
    PROMISES.iter().copied().filter(|(promise, _)| {
        let lacks = traits.lacks.iter().find(|(name, _)| name == promise);
        match lacks {
            Some((_, reason)) => eprintln!("SKIPPED: {}: {promise}: {reason}", traits.store),
            None => eprintln!("exam of {}: {promise}", traits.store),
        }
        lacks.is_none()
    })
}

fn seed() -> u64 {
    let given = std::env::var("MOUNT_S3_EXAM_SEED").ok();
    given
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64)
}

/// One promise under examination: the client, and a separate folder.
struct Exam {
    client: Arc<dyn ObjectClient>,
    pool: Pool,
    folder: String,
    seed: u64,
    traits: Traits,
    hostile: Vec<String>,
}

/// The result of a GET.
struct Got {
    result: Result<()>,
    /// The bytes of all full blocks.
    bytes: Vec<u8>,
    /// Bytes taken, including those of a begun block.
    filled: u64,
}

impl Exam {
    fn of(client: &Arc<dyn ObjectClient>, promise: &str, traits: &Traits, hostile: &[String]) -> Self {
        Self {
            client: Arc::clone(client),
            pool: Pool::new(&Config::default()),
            folder: format!("exam-{:016x}/{promise}/", traits.seed),
            seed: traits.seed,
            traits: traits.clone(),
            hostile: hostile.to_vec(),
        }
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(format!("{}{name}", self.folder))
    }

    /// Bytes that differ by seed and salt, without a period that a block's size divides.
    fn bytes(&self, salt: u64, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(self.seed.wrapping_add(salt)).fill(&mut bytes);
        bytes.into()
    }

    fn put_request(&self, key: &ObjectKey, bytes: &Bytes) -> PutObject {
        let checksum = ChecksumAlgorithm::Crc32c;
        let object = NewObject { checksum: Some(checksum), ..NewObject::new(key.clone()) };
        PutObject { object, body: vec![bytes.clone()], checksum: Some(Checksum::of(checksum, bytes)) }
    }

    async fn put(&self, key: &ObjectKey, bytes: &Bytes) -> Stored {
        let result = self.client.put_object(&self.put_request(key, bytes)).await;
        result.unwrap_or_else(|error| panic!("put {key}: {error}"))
    }

    async fn head(&self, key: &ObjectKey) -> ObjectMeta {
        self.client.head_object(key).await.unwrap_or_else(|error| panic!("head {key}: {error}"))
    }

    async fn assert_missing(&self, key: &ObjectKey) {
        match self.client.head_object(key).await {
            Err(error) => assert_eq!(*error.kind(), ErrorKind::NotFound, "{error}"),
            Ok(meta) => panic!("{key} is there: {meta:?}"),
        }
    }

    /// Reads into blocks of `BLOCK` bytes from the range's start.
    async fn get(&self, key: &ObjectKey, meta: &ObjectMeta, range: Range<u64>) -> Got {
        let len = (range.end - range.start) as usize;
        let blocks = (0..len).step_by(BLOCK).map(|at| {
            self.pool.try_take(Use::Demand, BLOCK.min(len - at)).expect("the exam's pool is large enough")
        });
        let received = Arc::new(Mutex::new(Vec::with_capacity(len)));
        let mut fill = Fill::new(blocks, {
            let received = Arc::clone(&received);
            move |block| received.lock().extend_from_slice(&block)
        });
        let id = ObjectId::of(key.clone(), meta);
        let result =
            self.client.get_object(&GetObject { id, range, object_size: meta.size }, &mut fill).await;
        let bytes = std::mem::take(&mut *received.lock());
        Got { result, bytes, filled: fill.filled() }
    }

    /// Gets the first bytes or the last, at most `room`.
    async fn first(&self, key: &ObjectKey, etag: Option<ETag>, begin: Begin, room: usize) -> Result<First> {
        let room = self.pool.try_take(Use::Ahead, room).expect("the exam's pool is large enough");
        let request =
            GetFirst { key: key.clone(), etag, begin, is_whole: false, is_lookup: begin == Begin::Tail };
        self.client.get_first(&request, room).await
    }

    /// Asserts that the object's content is `bytes`.
    async fn assert_object(&self, key: &ObjectKey, bytes: &Bytes) {
        let meta = self.head(key).await;
        assert_eq!(meta.size, bytes.len() as u64, "size of {key}");
        if !bytes.is_empty() {
            let got = self.get(key, &meta, 0..meta.size).await;
            got.result.unwrap_or_else(|error| panic!("get {key}: {error}"));
            assert!(got.bytes == bytes[..], "{key} reads other bytes than were stored");
        }
    }

    /// Lists all pages, at most `PAGES_MAX`.
    async fn pages(&self, first: ListObjects) -> Vec<ListPage> {
        const PAGES_MAX: usize = 200;
        let mut request = first;
        let mut pages = Vec::new();
        loop {
            let page =
                self.client.list_objects(&request).await.unwrap_or_else(|error| panic!("list: {error}"));
            let entries = page.objects.len() + page.common_prefixes.len();
            assert!(entries <= usize::from(request.max_keys), "a page of {entries} for {request:?}");
            request.continuation_token.clone_from(&page.next_token);
            request.start_after = None;
            pages.push(page);
            if request.continuation_token.is_none() {
                return pages;
            }
            assert!(pages.len() < PAGES_MAX, "the listing does not end: {request:?}");
        }
    }

    /// Lists all keys under a prefix.
    async fn keys_under(&self, prefix: &str) -> Vec<ObjectKey> {
        let request = ListObjects { prefix: prefix.to_owned(), max_keys: 1000, ..ListObjects::default() };
        let pages = self.pages(request).await;
        pages.into_iter().flat_map(|page| page.objects).map(|object| object.key).collect()
    }

    async fn clean_up(&self) {
        for upload in self.client.list_multipart_uploads(&self.folder).await.expect("list the uploads left") {
            self.client.abort_multipart_upload(&upload.upload).await.expect("abort an upload left");
        }
        for key in self.keys_under(&self.folder).await {
            self.client.delete_object(&key).await.expect("delete an object left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MemoryClient, Settings};

    #[tokio::test]
    async fn the_memory_client_passes_on_one_thread_and_in_short_pages() {
        let client = MemoryClient::with(Settings { page_max: 2, ..Settings::default() });
        exam(client.arc(), Traits::whole("memory, two entries a page"), &testkit::hostile_keys()).await;
        assert!(client.keys().is_empty() && client.pending_uploads().is_empty(), "the exam cleans up");
    }
}
