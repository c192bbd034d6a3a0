//! S3's operations: recognizes each request and makes its answer.

use super::counters::Kind;
use super::http::{Answer, Body, Head};
use super::list::{ListArgs, MAX_KEYS, Version, escape, page, xml};
use super::store::{Headers, LAST_MODIFIED_HTTP, Object, Store};

/// The bucket and the key in a path; the key is empty for a request to the bucket.
pub(crate) fn bucket_and_key(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').unwrap_or((path, ""))
}

/// The kind of a request.
pub(crate) fn kind(head: &Head) -> Kind {
    let has = |name| head.query(name).is_some();
    let to_key = !bucket_and_key(&head.path).1.is_empty();
    match (head.method.as_str(), to_key) {
        ("GET", true) if !has("uploadId") => Kind::Get,
        ("HEAD", _) => Kind::Head,
        ("GET", false) if !["location", "versioning", "acl", "uploads"].into_iter().any(has) => Kind::List,
        ("PUT", true) if has("partNumber") => Kind::UploadPart,
        ("PUT", true) => Kind::Put,
        ("POST", true) if has("uploads") => Kind::CreateUpload,
        ("POST", true) if has("uploadId") => Kind::CompleteUpload,
        ("DELETE", _) => Kind::Delete,
        ("POST", false) if has("delete") => Kind::Delete,
        _ => Kind::Other,
    }
}

/// The answer to a request with the body `kept`, or with `payload` bytes of a dropped body.
pub(crate) fn answer(store: &Store, kind: Kind, head: &Head, kept: &str, payload: u64) -> Answer {
    let (bucket, key) = bucket_and_key(&head.path);
    match kind {
        Kind::Get => read(store, head, bucket, key, true),
        Kind::Head if key.is_empty() => match store.with(bucket, |_| ()) {
            Some(()) => Answer::new(200).with("x-amz-bucket-region", "us-east-1"),
            None => Answer::new(404),
        },
        Kind::Head => read(store, head, bucket, key, false),
        Kind::List => list(store, head, bucket),
        Kind::Put => put(store, head, bucket, key, payload),
        Kind::UploadPart => upload_part(store, head, payload),
        Kind::CreateUpload => {
            let id = store.begin(bucket, key, headers_to_keep(head));
            let (bucket, key) = (escape(bucket), escape(key));
            Answer::xml(
                200,
                format!(
                    "<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{key}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                ),
            )
        }
        Kind::CompleteUpload => complete(store, head, bucket, key, kept),
        Kind::Delete => delete(store, head, bucket, key, kept),
        Kind::Other => other(head),
    }
}

fn other(head: &Head) -> Answer {
    let empty = |root: &str| Answer::xml(200, format!(r#"<?xml version="1.0" encoding="UTF-8"?><{root}/>"#));
    if head.query("location").is_some() {
        return empty("LocationConstraint");
    }
    if head.query("versioning").is_some() {
        return empty("VersioningConfiguration");
    }
    if head.method == "GET" && head.query("uploads").is_some() {
        return empty("ListMultipartUploadsResult");
    }
    if head.method == "GET" && head.path == "/" {
        return empty("ListAllMyBucketsResult");
    }
    Answer::error(501, "NotImplemented")
}

fn read(store: &Store, head: &Head, bucket: &str, key: &str, with_body: bool) -> Answer {
    let Some(found) = store.with(bucket, |objects| objects.get(key).cloned()) else {
        return Answer::error(404, "NoSuchBucket");
    };
    let Some(object) = found else {
        return if with_body { Answer::error(404, "NoSuchKey") } else { Answer::new(404) };
    };
    let etag = object.etag();
    if head.header("if-match").is_some_and(|wanted| !matches_etag(wanted, &etag)) {
        return if with_body { Answer::error(412, "PreconditionFailed") } else { Answer::new(412) };
    }
    if head.header("if-none-match").is_some_and(|known| matches_etag(known, &etag)) {
        return Answer::new(304);
    }
    let range = match head.header("range").map(|text| range(text, object.size)) {
        None => None,
        Some(Some(range)) => Some(range),
        Some(None) => return Answer::error(416, "InvalidRange"),
    };
    let (first, len) = range.map_or((0, object.size), |(first, last)| (first, last - first + 1));
    let mut answer = Answer::new(if range.is_some() { 206 } else { 200 })
        .with("etag", format!("\"{etag}\""))
        .with("last-modified", LAST_MODIFIED_HTTP)
        .with("accept-ranges", "bytes");
    if let Some((first, last)) = range {
        answer = answer.with("content-range", format!("bytes {first}-{last}/{}", object.size));
    }
    if !object.headers.iter().any(|(name, _)| name == "content-type") {
        answer = answer.with("content-type", "binary/octet-stream");
    }
    answer.headers.extend(object.headers);
    let body =
        if with_body { Body::Pattern { base: object.base, offset: first, len } } else { Body::Length(len) };
    answer.body(body)
}

fn matches_etag(wanted: &str, etag: &str) -> bool {
    wanted.split(',').any(|one| one.trim() == "*" || one.trim().trim_matches('"') == etag)
}

/// First and last byte for a Range header; `None` if the object has none of the bytes.
fn range(text: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let end = size.checked_sub(1)?;
    if first.is_empty() {
        let suffix: u64 = last.parse().ok()?;
        return (suffix > 0).then(|| (size.saturating_sub(suffix), end));
    }
    let first: u64 = first.parse().ok()?;
    let last = if last.is_empty() { end } else { last.parse::<u64>().ok()?.min(end) };
    (first <= last).then_some((first, last))
}

fn list(store: &Store, head: &Head, bucket: &str) -> Answer {
    let text = |name| head.query(name).unwrap_or_default().to_owned();
    let version = if head.query("list-type") == Some("2") { Version::V2 } else { Version::V1 };
    let mut args = ListArgs {
        prefix: text("prefix"),
        delimiter: head.query("delimiter").filter(|delimiter| !delimiter.is_empty()).map(str::to_owned),
        max_keys: head.query("max-keys").and_then(|keys| keys.parse().ok()).unwrap_or(MAX_KEYS).min(MAX_KEYS),
        ..ListArgs::default()
    };
    match version {
        Version::V1 => (args.after, args.resumed) = (text("marker"), true),
        Version::V2 => match head.query("continuation-token") {
            Some(token) => {
                args.after = percent_encoding::percent_decode_str(token).decode_utf8_lossy().into_owned();
                args.resumed = true;
            }
            None => args.after = text("start-after"),
        },
    }
    let url_encoded = head.query("encoding-type") == Some("url");
    let answer = store.with(bucket, |objects| {
        let page = page(objects, &args);
        let keys = page.contents.len() + page.prefixes.len();
        Answer { keys, ..Answer::xml(200, xml(bucket, &args, &page, version, url_encoded)) }
    });
    answer.unwrap_or_else(|| Answer::error(404, "NoSuchBucket"))
}

fn headers_to_keep(head: &Head) -> Headers {
    let keep = |name: &str| name == "content-type" || name.starts_with("x-amz-meta-");
    head.headers.iter().filter(|(name, _)| keep(name)).cloned().collect()
}

/// Checksums in a request's headers. They are stored and returned, and clients compare them.
fn checksums(head: &Head) -> impl Iterator<Item = (String, String)> {
    let of_body = |name: &str| name.starts_with("x-amz-checksum-") && name != "x-amz-checksum-algorithm";
    head.headers.iter().filter(move |(name, _)| of_body(name)).cloned()
}

fn source(store: &Store, head: &Head) -> Option<Option<Object>> {
    let from = head.header("x-amz-copy-source")?;
    let from = percent_encoding::percent_decode_str(from).decode_utf8_lossy();
    let (bucket, key) = bucket_and_key(&from);
    Some(store.with(bucket, |objects| objects.get(key).cloned()).flatten())
}

fn put(store: &Store, head: &Head, bucket: &str, key: &str, payload: u64) -> Answer {
    let there = store.with(bucket, |objects| objects.get(key).map(Object::etag)).flatten();
    let may = match (head.header("if-match"), head.header("if-none-match")) {
        (Some(wanted), _) => there.as_ref().is_some_and(|etag| matches_etag(wanted, etag)),
        (None, Some(_)) => there.is_none(),
        (None, None) => true,
    };
    if !may {
        return Answer::error(412, "PreconditionFailed");
    }
    let (size, base, headers, copied) = match source(store, head) {
        None => (payload, None, headers_to_keep(head), false),
        Some(None) => return Answer::error(404, "NoSuchKey"),
        Some(Some(object)) => {
            let replaced = head.header("x-amz-metadata-directive").is_some_and(|how| how == "REPLACE");
            let headers = if replaced { headers_to_keep(head) } else { object.headers };
            (object.size, Some(object.base), headers, true)
        }
    };
    let Some(etag) = store.put(bucket, key, size, base, headers) else {
        return Answer::error(404, "NoSuchBucket");
    };
    if copied {
        return copy_result("CopyObjectResult", &etag);
    }
    let mut answer = Answer::new(200).with("etag", format!("\"{etag}\""));
    answer.headers.extend(checksums(head));
    answer
}

fn copy_result(root: &str, etag: &str) -> Answer {
    let modified = super::store::LAST_MODIFIED_ISO;
    Answer::xml(
        200,
        format!("<{root}><LastModified>{modified}</LastModified><ETag>&quot;{etag}&quot;</ETag></{root}>"),
    )
}

fn upload_part(store: &Store, head: &Head, payload: u64) -> Answer {
    let (id, number) = (head.query("uploadId").unwrap_or_default(), head.query("partNumber"));
    let Some(number) = number.and_then(|text| text.parse().ok()) else {
        return Answer::error(400, "InvalidArgument");
    };
    let size = match source(store, head) {
        None => payload,
        Some(None) => return Answer::error(404, "NoSuchKey"),
        Some(Some(object)) => {
            match head.header("x-amz-copy-source-range").map(|text| range(text, object.size)) {
                None => object.size,
                Some(Some((first, last))) => last - first + 1,
                Some(None) => return Answer::error(416, "InvalidRange"),
            }
        }
    };
    if !store.part(id, number, size) {
        return Answer::error(404, "NoSuchUpload");
    }
    let etag = format!("{number:016x}{size:016x}");
    if head.header("x-amz-copy-source").is_some() {
        return copy_result("CopyPartResult", &etag);
    }
    let mut answer = Answer::new(200).with("etag", format!("\"{etag}\""));
    answer.headers.extend(checksums(head));
    answer
}

fn complete(store: &Store, head: &Head, bucket: &str, key: &str, kept: &str) -> Answer {
    let numbers: Vec<u32> =
        between(kept, "<PartNumber>", "</PartNumber>").filter_map(|text| text.parse().ok()).collect();
    match store.complete(head.query("uploadId").unwrap_or_default(), &numbers) {
        Ok(etag) => {
            let (bucket, key) = (escape(bucket), escape(key));
            Answer::xml(
                200,
                format!(
                    "<CompleteMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{key}</Key><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
                ),
            )
        }
        Err(error) => {
            Answer::error(if error.to_string() == "InvalidPart" { 400 } else { 404 }, &error.to_string())
        }
    }
}

fn delete(store: &Store, head: &Head, bucket: &str, key: &str, kept: &str) -> Answer {
    if let Some(id) = head.query("uploadId") {
        return if store.abort(id) { Answer::new(204) } else { Answer::error(404, "NoSuchUpload") };
    }
    if !key.is_empty() {
        store.remove(bucket, key);
        return Answer::new(204);
    }
    for key in between(kept, "<Key>", "</Key>") {
        store.remove(bucket, &unescape(key));
    }
    Answer::xml(200, "<DeleteResult/>".to_owned())
}

/// Every text between `open` and `close`.
pub(crate) fn between<'t>(text: &'t str, open: &'t str, close: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(inner, _)| inner))
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}
