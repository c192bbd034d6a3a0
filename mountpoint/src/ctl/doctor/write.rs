//! The probes that write, below a new random prefix: uploads, their checksums and conditions, and requests that some stores mistake for
//! others. At the end the examination removes their objects, whatever the results are.

use bytes::Bytes;
use http::Method;
use mountpoint::checksum::{Checksum, ChecksumAlgorithm};
use mountpoint::object::ObjectKey;
use mountpoint::s3::{
    CompleteUpload, Error, ErrorKind, ListObjects, ListedObject, NewObject, ObjectClient as _, ProbeAnswer,
    ProbeRequest, PutObject, Replaces, Result, UploadId, UploadPart,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::advice::Advice;
use super::judge::{self, Condition, Trap};
use super::{Examination, said};

/// Bytes of the object for measuring throughput, if the bucket has none.
const LARGE: usize = 16 << 20;
/// The content of small objects.
const SMALL: &[u8] = b"mount-s3-ctl doctor --write-probes made this, and removes it.\n";
/// A name with characters that URLs, XML or headers escape.
const ODD_NAME: &str = "a b+c%20d&e=f;g'h~\u{e9}\u{4e2d}(1).txt";

/// The bytes that are encoded in a header that names a key.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The keys of one run: all begin with a random prefix.
#[derive(Debug)]
pub(super) struct Below {
    pub(super) prefix: String,
}

impl Below {
    fn new(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}mount-s3-doctor-{:016x}/", fastrand::u64(..)) }
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(format!("{}{name}", self.prefix))
    }
}

impl Examination<'_> {
    /// Runs the write probes, then the measurements, with an object of its own if the bucket has none, and then removes everything.
    pub(super) async fn write(&mut self, object: Option<ListedObject>) {
        let below = Below::new(&self.config.s3.prefix);
        let mut object = object;
        if self.begin("writing") && self.upload(&below).await {
            self.odd_names(&below).await;
            self.checksums(&below).await;
            self.multipart(&below).await;
            self.encryption(&below).await;
            self.traps(&below).await;
            self.deleting(&below).await;
            if object.as_ref().is_none_or(|it| it.meta.size < LARGE as u64 / 16) {
                object = self.large(&below).await.or(object);
            }
        }
        self.measure(object.as_ref()).await;
        self.clean(&below).await;
    }

    fn put(&self, key: ObjectKey, body: &[u8], checksum: Option<ChecksumAlgorithm>) -> PutObject {
        PutObject {
            object: NewObject { checksum, ..NewObject::new(key) },
            body: vec![Bytes::copy_from_slice(body)], // copy: a probe of some bytes
            checksum: checksum.map(|algorithm| Checksum::of(algorithm, body)),
        }
    }

    /// Stores a first object as a mount would. If the store refuses, tries other forms. Returns whether to go on.
    async fn upload(&mut self, below: &Below) -> bool {
        let key = below.key("small");
        let named = self.put(key.clone(), SMALL, self.config.checksum);
        let Err(error) = self.client.put_object(&named).await else {
            self.read_back(&key).await;
            return true;
        };
        if *error.kind() == ErrorKind::Denied && error.code() == Some("AccessDenied") {
            self.report.fails("writing", said(&error), "writing: these credentials may not put objects");
            self.report.advise(Advice::Add("--read-only"));
            return false;
        }
        let plain = self.put(key.clone(), SMALL, None);
        if self.config.checksum.is_some() && self.client.put_object(&plain).await.is_ok() {
            let means = "uploads that carry a checksum: the flags below leave it out";
            self.report.fails("writing", said(&error), means);
            self.report.advise(Advice::Set("--upload-checksums", "off".to_owned()));
            self.config.checksum = None;
            return true;
        }
        let signs = self.client.changed(|config| config.sign_payload = true);
        if let Ok(client) = signs
            && !self.config.s3.sign_payload
            && client.put_object(&named).await.is_ok()
        {
            let means = "uploads whose bytes are not signed: the flags below sign them";
            self.report.fails("writing", said(&error), means);
            self.report.advise(Advice::Add("--sign-payload"));
            self.client = client;
            return true;
        }
        self.report.fails("writing", said(&error), "writing: no upload is accepted");
        false
    }

    async fn read_back(&mut self, key: &ObjectKey) {
        let reply = self
            .client
            .ask(&ProbeRequest { key: Some(key), ..ProbeRequest::of("GetObject", Method::GET) })
            .await;
        match reply {
            Ok(reply) if reply.refusal.is_none() && reply.body == SMALL => {
                self.report.fine("writing", "an object is stored, and read back as it was");
            }
            Ok(reply) if reply.refusal.is_none() => self.report.fails(
                "writing",
                format!("{} bytes were stored, and {} others came back", SMALL.len(), reply.body.len()),
                "anything: the store, or a proxy before it, changes bytes",
            ),
            Ok(reply) => self.report.note(
                "writing",
                format!("an object is stored; reading it back is answered {}", reply.word()),
                "a file can't be read again at once",
            ),
            Err(error) => self.report.note("writing", said(&error), "an object is stored, and not read back"),
        }
    }

    /// Checks that a name with characters that URLs, XML and signatures escape comes back unchanged from a listing.
    async fn odd_names(&mut self, below: &Below) {
        if !self.begin("names") {
            return;
        }
        let key = below.key(ODD_NAME);
        if let Err(error) = self.client.put_object(&self.put(key.clone(), SMALL, self.config.checksum)).await
        {
            self.report.fails("names", said(&error), "names with spaces, signs or letters beyond ASCII");
            return;
        }
        let request = ListObjects { prefix: below.prefix.clone(), max_keys: 1000, ..ListObjects::default() };
        match self.client.list_objects(&request).await {
            Ok(page) if page.objects.iter().any(|it| it.key == key) => {
                self.report
                    .fine("names", "a new object is listed at once, odd characters in its name as they were");
            }
            Ok(_) => self.report.fails(
                "names",
                "a new object with odd characters in its name is not listed under this name",
                "names with spaces, signs or letters beyond ASCII; or a listing right after a write",
            ),
            Err(error) => self.report.fails("names", said(&error), "ls after a write"),
        }
    }

    /// Checks whether the store refuses a wrong checksum, and returns a right one.
    async fn checksums(&mut self, below: &Below) {
        if !self.begin("checksums") {
            return;
        }
        let Some(algorithm) = self.config.checksum else {
            self.report.add(judge::checksums(None, None, false));
            return;
        };
        let key = below.key("damaged");
        let wrong = Checksum::of(algorithm, b"other bytes").to_base64();
        let headers = [(algorithm.header(), wrong.as_str())];
        let question = ProbeRequest {
            key: Some(&key),
            headers: &headers,
            body: Some(Bytes::from_static(SMALL)),
            ..ProbeRequest::of("PutObject", Method::PUT)
        };
        // A refusal for another reason, such as a lock, says nothing about checksums.
        let verified = match self.client.ask(&question).await {
            Ok(reply) => reply.refusal.map_or(Some(false), |error| is_about_bytes(&error).then_some(true)),
            Err(_) => None,
        };
        let kept = self.kept_checksum(&below.key("small")).await;
        let echoed = kept.is_ok_and(|sum| sum.is_some());
        self.report.add(judge::checksums(Some(algorithm.name()), verified, echoed));
    }

    /// The checksum that the store reports for a key; `None` without one.
    async fn kept_checksum(&self, key: &ObjectKey) -> Result<Option<String>> {
        let headers = [("x-amz-checksum-mode", "ENABLED")];
        let question = ProbeRequest {
            key: Some(key),
            headers: &headers,
            ..ProbeRequest::of("HeadObject", Method::HEAD)
        };
        let reply = self.client.ask(&question).await?;
        let algorithm = self.config.checksum.unwrap_or_default();
        Ok(reply.header(algorithm.header()).map(str::to_owned))
    }

    /// Completes one multipart upload and aborts another. Then makes an object in both ways under the condition that it must not replace
    /// one.
    async fn multipart(&mut self, below: &Below) {
        if !self.begin("large files") {
            return;
        }
        let key = below.key("parts");
        let done = match self.parts(&key).await {
            Ok(upload) => self.client.complete_multipart_upload(&upload).await.map(drop),
            Err(error) => Err(error),
        };
        let ended = match done {
            Ok(()) => self.abort(below).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            self.report.fails(
                "large files",
                said(&error),
                "writing files of more than one part (8 MiB by default)",
            );
            return;
        }
        self.report.fine("large files", "an upload in parts is completed, another one aborted");
        let put = self.put(below.key("small"), SMALL, self.config.checksum);
        let put = condition(self.client.put_if_absent(&put).await);
        let complete = match self.parts(&key).await {
            Ok(upload) => {
                let ended = self.client.complete_if_absent(&upload).await;
                let _ = self.client.abort_multipart_upload(&upload.upload).await;
                condition(ended)
            }
            Err(error) => Err(error),
        };
        match (put, complete) {
            (Ok(put), Ok(complete)) => {
                let is_generic = self.client.store() == mountpoint::s3::StoreKind::Generic;
                let (finding, advice) = judge::write_conditions(put, complete, is_generic);
                self.report.add(finding);
                advice.into_iter().for_each(|advice| self.report.advise(advice));
            }
            (Err(error), _) | (_, Err(error)) => self.report.note(
                "write conditions",
                said(&error),
                "whether a new file may replace another one is not known",
            ),
        }
    }

    /// Starts a multipart upload, and sends its only part.
    async fn parts(&self, key: &ObjectKey) -> Result<CompleteUpload> {
        let put = self.put(key.clone(), SMALL, self.config.checksum);
        let upload = self.client.create_multipart_upload(&put.object).await?;
        let part =
            UploadPart { upload: upload.clone(), part_number: 1, body: put.body, checksum: put.checksum };
        let parts = vec![self.client.upload_part(&part).await?];
        Ok(CompleteUpload { upload, parts, replaces: Replaces::Anything })
    }

    async fn abort(&self, below: &Below) -> Result<()> {
        let put = self.put(below.key("aborted"), SMALL, self.config.checksum);
        let upload: UploadId = self.client.create_multipart_upload(&put.object).await?;
        self.client.abort_multipart_upload(&upload).await
    }

    /// Reports the encryption of a new object. With `--sse` the engine checks it at each upload.
    async fn encryption(&mut self, below: &Below) {
        if !self.begin("encryption") {
            return;
        }
        let key = below.key("small");
        let question = ProbeRequest { key: Some(&key), ..ProbeRequest::of("HeadObject", Method::HEAD) };
        let Ok(reply) = self.client.ask(&question).await else { return };
        let told = reply.header("x-amz-server-side-encryption").map(str::to_owned);
        let found = match (&self.config.s3.sse, told) {
            (Some(asked), Some(told)) => format!("new objects have {told:?}, {asked:?} was asked for"),
            (Some(asked), None) => format!("{asked:?} was asked for, and the answers to uploads say so"),
            (None, Some(told)) => format!("new objects have {told:?} by default"),
            (None, None) => "the store reports none for new objects".to_owned(),
        };
        self.report.fine("encryption of new objects", found);
    }

    /// Tries copy, append and rename: a store that does not know them may store an empty object and answer 200.
    async fn traps(&mut self, below: &Below) {
        let source = below.key("small");
        let copied = below.key("copied");
        let from = format!("/{}/{}", self.config.s3.bucket, utf8_percent_encode(source.as_str(), ESCAPED));
        if self.begin("copy") {
            let headers = [("x-amz-copy-source", from.as_str())];
            let trap = self.trap("CopyObject", &copied, &[], &headers, SMALL.len() as u64).await;
            let works = trap == Trap::Works;
            self.report.add(judge::trap("copy", Some("--allow-rename and --allow-append"), trap));
            if works {
                self.copy_conditions(&copied, &below.key("copied too"), &from).await;
            }
        }
        if self.begin("append") {
            let grown = below.key("grown");
            let offset = SMALL.len().to_string();
            let _ = self.client.put_object(&self.put(grown.clone(), SMALL, self.config.checksum)).await;
            let headers = [("x-amz-write-offset-bytes", offset.as_str())];
            let trap = self.trap("PutObject", &grown, &[], &headers, SMALL.len() as u64 + 1).await;
            self.report.add(judge::trap("append", None, trap));
        }
        if self.begin("rename") {
            let renamed = below.key("renamed");
            let headers = [("x-amz-rename-source", from.as_str())];
            let trap = self
                .trap("RenameObject", &renamed, &[("renameObject", "")], &headers, SMALL.len() as u64)
                .await;
            self.report.add(judge::trap("rename", None, trap));
        }
    }

    /// Tries copies and a delete with conditions that do not hold: a store that honours conditions refuses them.
    async fn copy_conditions(&mut self, there: &ObjectKey, free: &ObjectKey, from: &str) {
        const OTHER: &str = "\"00000000000000000000000000000000\"";
        let absent = self.copy_if(there, from, ("if-none-match", "*")).await;
        let version = self.copy_if(there, from, ("if-match", OTHER)).await;
        let of_source = self.copy_if(free, from, ("x-amz-copy-source-if-match", OTHER)).await;
        let headers = [("if-match", OTHER)];
        let question = ProbeRequest::of("DeleteObject", Method::DELETE);
        let question = ProbeRequest { key: Some(there), headers: &headers, ..question };
        let delete = fate(self.client.ask(&question).await);
        match (absent, version, of_source, delete) {
            (Ok(absent), Ok(version), Ok(source), Ok(delete)) => {
                self.report.add(judge::copy_conditions(absent, version, source, delete));
            }
            (Err(why), ..) | (_, Err(why), ..) | (_, _, Err(why), _) | (.., Err(why)) => self.report.note(
                "copy conditions",
                why,
                "whether a rename can replace or delete what another client stores at the same moment is not known",
            ),
        }
    }

    /// The store's treatment of a condition on a copy that does not hold.
    async fn copy_if(
        &self,
        key: &ObjectKey,
        from: &str,
        condition: (&'static str, &str),
    ) -> std::result::Result<Condition, String> {
        let headers = [("x-amz-copy-source", from), condition];
        let question = ProbeRequest::of("CopyObject", Method::PUT);
        let body = Some(Bytes::new());
        fate(self.client.ask(&ProbeRequest { key: Some(key), headers: &headers, body, ..question }).await)
    }

    /// Sends such a request, and checks the result: an object of `size` bytes if the store executed it.
    async fn trap(
        &self,
        operation: &'static str,
        key: &ObjectKey,
        query: &[(&'static str, &str)],
        headers: &[(&'static str, &str)],
        size: u64,
    ) -> Trap {
        let is_append = operation == "PutObject";
        let before = self.client.head_object(key).await.ok().map(|meta| meta.etag);
        let body = if is_append { Bytes::from_static(b"+") } else { Bytes::new() };
        let question = ProbeRequest {
            key: Some(key),
            query,
            headers,
            body: Some(body),
            ..ProbeRequest::of(operation, Method::PUT)
        };
        let reply = self.client.ask(&question).await;
        let after = self.client.head_object(key).await.ok();
        match (reply, after) {
            (Ok(reply), Some(after)) if reply.refusal.is_none() && after.size == size => Trap::Works,
            (Ok(reply), Some(after)) if reply.refusal.is_none() => Trap::Sprung(format!(
                "answered {}, and {} bytes are there instead of {size}",
                reply.status, after.size
            )),
            (Ok(reply), None) if reply.refusal.is_none() => {
                Trap::Sprung(format!("answered {}, and nothing is there", reply.status))
            }
            (reply, after) => {
                let word = match &reply {
                    Ok(reply) => reply.word(),
                    Err(error) => {
                        error.http_status().map_or_else(|| "no answer".to_owned(), |it| it.to_string())
                    }
                };
                match after.map(|meta| meta.etag) == before {
                    true => Trap::Refused(word),
                    false => {
                        Trap::Sprung(format!("answered {word}, and the object was replaced all the same"))
                    }
                }
            }
        }
    }

    async fn deleting(&mut self, below: &Below) {
        if !self.begin("deleting") {
            return;
        }
        let key = below.key("damaged");
        let _ = self.client.put_object(&self.put(key.clone(), SMALL, self.config.checksum)).await;
        if let Err(error) = self.client.delete_object(&key).await {
            self.report.fails(
                "deleting",
                said(&error),
                "rm (--allow-delete): these credentials can't delete",
            );
            self.report.advise(Advice::LeaveOut("--allow-delete"));
            return;
        }
        let again = self.client.delete_object(&key).await;
        match (self.client.head_object(&key).await, again) {
            (Err(error), Ok(())) if *error.kind() == ErrorKind::NotFound => {
                self.report
                    .fine("deleting", "a deleted object is gone, and deleting it again is not an error");
            }
            (Ok(_), _) => self.report.fails("deleting", "a deleted object is still there", "rm"),
            (Err(error), _) => {
                self.report.note("deleting", said(&error), "a deleted object may still be listed")
            }
        }
    }

    /// Stores an object for measuring throughput.
    async fn large(&self, below: &Below) -> Option<ListedObject> {
        if !self.begin("an object to measure with") {
            return None;
        }
        let key = below.key("large");
        let put = self.put(key.clone(), &vec![0x5a; LARGE], self.config.checksum);
        self.client.put_object(&put).await.ok()?;
        let meta = self.client.head_object(&key).await.ok()?;
        Some(ListedObject { key, meta, storage_class: None })
    }
}

/// Whether the store refused an upload because the checksum does not match its bytes.
fn is_about_bytes(refusal: &Error) -> bool {
    *refusal.kind() == ErrorKind::Corrupt || ["checksum", "digest"].iter().any(|word| refusal.mentions(word))
}

/// The store's treatment of a condition that does not hold.
fn fate(reply: Result<ProbeAnswer>) -> std::result::Result<Condition, String> {
    let reply = reply.map_err(|error| said(&error))?;
    match &reply.refusal {
        // The answer may be an error with status 200.
        None if reply.body.windows(7).any(|word| word == b"<Error>") => {
            Err("answered 200 and an error".to_owned())
        }
        None => Ok(Condition::Ignored),
        Some(_) if reply.status == 412 => Ok(Condition::Kept),
        Some(_) if reply.status == 501 => Ok(Condition::Unknown),
        Some(_) => Err(format!("answered {}", reply.word())),
    }
}

/// The store's treatment of If-None-Match on a request for a key that has an object.
fn condition<T>(outcome: std::result::Result<T, Error>) -> std::result::Result<Condition, Error> {
    match outcome {
        Ok(_) => Ok(Condition::Ignored),
        Err(error) if *error.kind() == ErrorKind::Exists => Ok(Condition::Kept),
        Err(error) if *error.kind() == ErrorKind::Unsupported => Ok(Condition::Unknown),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_prefix_is_below_the_mounts_and_never_the_same() {
        let (one, other) = (Below::new("team/"), Below::new("team/"));
        assert!(one.prefix.starts_with("team/mount-s3-doctor-") && one.prefix.ends_with('/'));
        assert_ne!(one.prefix, other.prefix);
        assert!(one.key("x").as_str().starts_with(&one.prefix));
    }

    #[test]
    fn a_refusal_is_about_bytes_by_its_kind_or_its_words() {
        let refused =
            |kind, code: &str| is_about_bytes(&Error::new(kind, "PutObject").answer(Some(code.into()), None));
        assert!(refused(ErrorKind::Corrupt, "BadDigest"));
        assert!(refused(ErrorKind::InvalidRequest, "InvalidChecksumValue"));
        assert!(!refused(ErrorKind::InvalidRequest, "MissingUploadObjectWithObjectLockHeaders"));
    }

    #[test]
    fn a_condition_is_kept_ignored_or_not_known() {
        let failed = |kind| condition::<()>(Err(Error::new(kind, "PutObject")));
        assert_eq!(condition(Ok(())).unwrap(), Condition::Ignored);
        assert_eq!(failed(ErrorKind::Exists).unwrap(), Condition::Kept);
        assert_eq!(failed(ErrorKind::Unsupported).unwrap(), Condition::Unknown);
        assert!(failed(ErrorKind::Timeout).is_err());
    }
}
