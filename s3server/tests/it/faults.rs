//! Faults as clients see them.

use s3server::{Effect, Fault, FaultPlan};

use crate::client::Lab;
use crate::multipart::{complete, part, start};

fn lab(fault: Fault) -> (Lab, Vec<u8>) {
    let lab = Lab::new();
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i / 11) as u8).collect();
    lab.put("k", &data);
    lab.server().faults().add(fault);
    (lab, data)
}

#[test]
fn an_error_is_answered_as_often_as_asked_and_nothing_is_done() {
    let effect = Effect::Error { status: 503, code: "SlowDown".into() };
    let (lab, _) = lab(Fault::on("PutObject", effect).times(2));
    for _ in 0..2 {
        lab.object("PUT", "new").body(b"x").send().fails(503, "SlowDown");
    }
    lab.get("new").fails(404, "NoSuchKey");
    lab.put("new", b"x");
    assert_eq!(lab.server().faults().fired(), 2);
}

#[test]
fn throttling_says_when_to_come_back() {
    let (lab, _) = lab(Fault::on("GetObject", Effect::SlowDown { retry_after: Some("7".into()) }).nth(1));
    assert_eq!(lab.get("k").fails(503, "SlowDown").header("retry-after"), "7");
    lab.get("k").ok();
}

#[test]
fn encryption_that_is_ignored_is_not_echoed() {
    let (lab, _) = lab(Fault::on("PutObject", Effect::IgnoreSse).nth(1));
    let put =
        || lab.object("PUT", "e").header("x-amz-server-side-encryption", "AES256").body(b"x").send().ok();
    assert_eq!(put().header("x-amz-server-side-encryption"), "");
    assert_eq!(put().header("x-amz-server-side-encryption"), "AES256");
}

#[test]
fn a_truncated_body_ends_in_order_after_exactly_so_many_bytes() {
    let (lab, data) = lab(Fault::on("GetObject", Effect::Truncate { after_bytes: 300_001 }).nth(1));
    let got = lab.get("k");
    assert_eq!(got.header("content-length"), "1000000");
    assert_eq!(got.body, &data[..300_001]);
    assert!(got.broken.is_some_and(|e| !e.contains("ConnectionReset")));
    assert_eq!(lab.get("k").ok().body, data);
}

#[test]
fn a_reset_comes_before_the_answer_or_within_the_body() {
    let (lab, data) = lab(Fault::on("GetObject", Effect::Reset { after_bytes: Some(1000) }).nth(1));
    let got = lab.get("k");
    assert!(got.broken.is_some_and(|e| e.contains("ConnectionReset")));
    assert!(data.starts_with(&got.body) && got.body.len() <= 1000);
    lab.server().faults().clear();
    lab.server().faults().add(Fault::on("PutObject", Effect::Reset { after_bytes: None }));
    lab.object("PUT", "new").body(b"x").try_send().unwrap_err();
    lab.get("new").fails(404, "NoSuchKey");
}

#[test]
fn a_dropped_answer_leaves_the_object_there() {
    let (lab, _) = lab(Fault::on("PutObject", Effect::DropAnswer).key("new"));
    lab.object("PUT", "new").body(b"kept").try_send().unwrap_err();
    assert_eq!(lab.get("new").ok().body, b"kept");
}

#[test]
fn an_upload_that_is_cut_leaves_nothing() {
    let (lab, data) = lab(Fault::on("PutObject", Effect::ResetUpload { after_bytes: 500_000 }));
    lab.object("PUT", "new").body(&data).try_send().unwrap_err();
    lab.get("new").fails(404, "NoSuchKey");
    let staged = std::fs::read_dir(lab.root.path().join(".s3server/staged")).unwrap().count();
    assert_eq!(staged, 0);
}

#[test]
fn one_flipped_bit_is_one_wrong_byte() {
    let (lab, data) = lab(Fault::on("GetObject", Effect::FlipBit { at_byte: 777_777 }));
    let got = lab.get("k").ok().body;
    let wrong: Vec<_> = (0..data.len()).filter(|&i| got[i] != data[i]).collect();
    assert_eq!(wrong, [777_777]);
}

#[test]
fn a_stalled_body_stops_and_then_goes_on() {
    let stall = Effect::Stall { after_bytes: 5, for_ms: 300 };
    let (lab, data) = lab(Fault::on("GetObject", stall));
    let start = std::time::Instant::now();
    assert_eq!(lab.get("k").ok().body, data);
    assert!(start.elapsed().as_millis() >= 300);
}

#[test]
fn a_delayed_answer_comes_late_and_whole() {
    let (lab, data) = lab(Fault::on("GetObject", Effect::Delay { for_ms: 200 }));
    let start = std::time::Instant::now();
    assert_eq!(lab.get("k").ok().body, data);
    assert!(start.elapsed().as_millis() >= 200);
}

#[test]
fn a_held_answer_comes_once_it_is_released_and_later_ones_are_not_held() {
    let (lab, data) = lab(Fault::on("GetObject", Effect::Hold));
    let faults = lab.server().faults();
    for release in [FaultPlan::release, FaultPlan::clear] {
        let fired = faults.fired();
        std::thread::scope(|scope| {
            let getting = scope.spawn(|| lab.get("k").ok().body);
            while faults.fired() == fired {
                std::thread::yield_now();
            }
            assert_eq!(lab.object("HEAD", "k").send().status, 200, "others are not held");
            assert!(!getting.is_finished(), "it is held");
            release(faults);
            assert_eq!(getting.join().unwrap(), data);
        });
        assert_eq!(lab.get("k").ok().body, data);
        faults.add(Fault::on("GetObject", Effect::Hold));
    }
}

#[test]
fn an_answer_can_lie_about_its_etag_or_ignore_what_was_asked() {
    let (lab, data) = lab(Fault::on("GetObject", Effect::WrongEtag));
    let etag = lab.object("HEAD", "k").send().header("etag").to_owned();
    assert_ne!(lab.get("k").ok().header("etag"), etag);
    lab.server().faults().clear();
    lab.server().faults().add(Fault::on("GetObject", Effect::IgnoreRange));
    let got = lab.object("GET", "k").header("range", "bytes=5-6").send();
    assert_eq!((got.status, got.body.len()), (200, data.len()));
    lab.server().faults().clear();
    lab.server().faults().add(Fault::on("GetObject", Effect::IgnoreIfMatch));
    assert_eq!(lab.object("GET", "k").header("if-match", "\"no\"").send().status, 200);
}

#[test]
fn a_bucket_that_is_there_can_be_made_again_and_keeps_its_objects() {
    let (lab, data) = lab(Fault::on("CreateBucket", Effect::OwnBucketAgain));
    lab.bucket("PUT").send().ok();
    assert_eq!(lab.get("k").ok().body, data);
    lab.server().faults().clear();
    lab.bucket("PUT").send().fails(409, "BucketAlreadyOwnedByYou");
}

#[test]
fn a_complete_can_fail_with_status_200() {
    let (lab, _) =
        lab(Fault::on("CompleteMultipartUpload", Effect::OkWithError { code: "InternalError".into() }));
    let id = lab.object("POST", "mpu").query("uploads", "").send().ok().first("UploadId");
    let part =
        lab.object("PUT", "mpu").query("partNumber", "1").query("uploadId", &id).body(b"x").send().ok();
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.header("etag")
    );
    let done = lab.object("POST", "mpu").query("uploadId", &id).body(body.as_bytes()).send();
    done.fails(200, "InternalError");
    lab.get("mpu").fails(404, "NoSuchKey");
}

#[test]
fn a_store_that_demands_an_md5_takes_no_upload_without_one() {
    let (lab, _) = lab(Fault::on("PutObject", Effect::DemandMd5));
    lab.server().faults().add(Fault::on("UploadPart", Effect::DemandMd5));
    let refused = lab.object("PUT", "new").body(b"x").send().fails(400, "InvalidRequest");
    assert!(refused.text().contains("Content-MD5"), "{}", refused.text());
    // The MD5 of "x".
    lab.object("PUT", "new").header("content-md5", "ndTkYSaMgDT1yFZOFVxnpg==").body(b"x").send().ok();
    let id = start(&lab, "parts");
    let part = lab.object("PUT", "parts").query("partNumber", "1").query("uploadId", &id).body(b"x");
    part.send().fails(400, "InvalidRequest");
}

#[test]
fn a_store_of_few_parts_refuses_the_number_of_one_more() {
    let (lab, _) = lab(Fault::on("UploadPart", Effect::PartsMax { parts: 2 }));
    let id = start(&lab, "k");
    part(&lab, "k", &id, 2, b"x");
    let third = lab.object("PUT", "k").query("partNumber", "3").query("uploadId", &id).body(b"x");
    third.send().fails(400, "InvalidArgument");
}

#[test]
fn a_store_of_equal_parts_completes_nothing_else() {
    let (lab, _) = lab(Fault::on("CompleteMultipartUpload", Effect::EqualParts));
    let (small, large) = (vec![1; 5 << 20], vec![1; 6 << 20]);
    for (sizes, is_taken) in [([&small, &large, &small], false), ([&small, &small, &large], true)] {
        let id = start(&lab, "k");
        let etags: Vec<_> = (1..).zip(sizes).map(|(n, body)| (n, part(&lab, "k", &id, n, body))).collect();
        let named: Vec<_> = etags.iter().map(|(n, etag)| (*n, etag.as_str())).collect();
        let answer = complete(&lab, "k", &id, &named, None);
        match is_taken {
            true => _ = answer.ok(),
            false => _ = answer.fails(400, "InvalidPart"),
        }
    }
}
