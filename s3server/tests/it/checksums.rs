//! Checksums: verified in header and trailer, stored, returned.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::client::{Answer, Lab};

const CRC32C: &str = "x-amz-checksum-crc32c";
/// The check value, of `123456789`, from the catalogue of CRCs.
const CHECK_CRC32C: [u8; 4] = [0xe3, 0x06, 0x92, 0x83];
const CHECK_CRC64: [u8; 8] = [0xae, 0x8b, 0x14, 0x86, 0x0a, 0x79, 0x98, 0x88];
const BODY: &[u8] = b"123456789";

#[test]
fn a_checksum_in_the_header_is_verified_kept_and_returned() {
    let lab = Lab::new();
    let right = STANDARD.encode(CHECK_CRC32C);
    let put = lab.object("PUT", "k").header(CRC32C, &right).body(BODY).send().ok();
    assert_eq!(put.header(CRC32C), right);
    let head = lab.object("HEAD", "k").header("x-amz-checksum-mode", "ENABLED").send().ok();
    assert_eq!(head.header(CRC32C), right);
    assert_eq!(lab.object("HEAD", "k").send().header(CRC32C), "");
    let wrong = STANDARD.encode([1, 2, 3, 4]);
    lab.object("PUT", "k2").header(CRC32C, &wrong).body(BODY).send().fails(400, "BadDigest");
    lab.get("k2").fails(404, "NoSuchKey");
}

#[test]
fn an_object_without_a_checksum_gets_the_one_s3_gives() {
    let lab = Lab::new();
    lab.put("k", BODY);
    let head = lab.object("HEAD", "k").header("x-amz-checksum-mode", "ENABLED").send().ok();
    assert_eq!(head.header("x-amz-checksum-crc64nvme"), STANDARD.encode(CHECK_CRC64));
}

#[test]
fn content_md5_is_verified_and_becomes_the_etag() {
    let lab = Lab::new();
    let md5 = "25f9e794323b453885f5181f1b624d0b";
    let bytes: Vec<u8> = (0..16).map(|i| u8::from_str_radix(&md5[2 * i..2 * i + 2], 16).unwrap()).collect();
    let put = lab.object("PUT", "k").header("content-md5", &STANDARD.encode(bytes)).body(BODY).send().ok();
    assert_eq!(put.header("etag").trim_matches('"'), md5);
    lab.object("PUT", "k")
        .header("content-md5", &STANDARD.encode([0; 16]))
        .body(BODY)
        .send()
        .fails(400, "BadDigest");
}

fn put_with_trailer(lab: &Lab, value: &str) -> Answer {
    let body = format!("9\r\n123456789\r\n0\r\n{CRC32C}:{value}\r\n\r\n");
    lab.object("PUT", "trailed")
        .header("content-encoding", "aws-chunked")
        .header("x-amz-decoded-content-length", "9")
        .header("x-amz-trailer", CRC32C)
        .body(body.as_bytes())
        .send()
}

#[test]
fn a_checksum_in_the_trailer_is_verified_and_returned() {
    let lab = Lab::new();
    put_with_trailer(&lab, &STANDARD.encode([9, 9, 9, 9])).fails(400, "BadDigest");
    lab.get("trailed").fails(404, "NoSuchKey");
    let right = STANDARD.encode(CHECK_CRC32C);
    assert_eq!(put_with_trailer(&lab, &right).ok().header(CRC32C), right);
    let got = lab.get("trailed").ok();
    assert_eq!(got.body, BODY);
    assert_eq!(got.header("content-encoding"), "");
}

#[test]
fn the_type_of_a_checksum_is_taken_in_any_case() {
    let lab = Lab::new();
    for (sent, meant) in [("full_object", "FULL_OBJECT"), ("Composite", "COMPOSITE")] {
        let start = lab.object("POST", "k").query("uploads", "").header("x-amz-checksum-algorithm", "CRC32C");
        let answer = start.header("x-amz-checksum-type", sent).send().ok();
        assert_eq!(answer.header("x-amz-checksum-type"), meant);
    }
    let start = lab.object("POST", "k").query("uploads", "").header("x-amz-checksum-algorithm", "CRC32C");
    start.header("x-amz-checksum-type", "something").send().fails(400, "InvalidRequest");
}

/// Uploads `bodies` as parts with CRC32C or CRC64NVME; returns the complete request's answer.
fn upload(lab: &Lab, algorithm: &str, bodies: &[&[u8]]) -> Answer {
    let start = lab.object("POST", "mpu").query("uploads", "").header("x-amz-checksum-algorithm", algorithm);
    let id = start.send().ok().first("UploadId");
    let lower = algorithm.to_lowercase();
    let mut named = String::new();
    for (i, body) in bodies.iter().enumerate() {
        let number = (i + 1).to_string();
        let part = lab
            .object("PUT", "mpu")
            .query("partNumber", &number)
            .query("uploadId", &id)
            .body(body)
            .send()
            .ok();
        let sum = part.header(&format!("x-amz-checksum-{lower}")).to_owned();
        assert!(!sum.is_empty());
        named += &format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag><Checksum{algorithm}>{sum}</Checksum{algorithm}></Part>",
            part.header("etag")
        );
    }
    let body = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
    lab.object("POST", "mpu").query("uploadId", &id).body(body.as_bytes()).send().ok()
}

#[test]
fn a_full_object_crc64_of_parts_is_that_of_the_same_bytes_in_one_put() {
    let lab = Lab::new();
    let part: Vec<u8> = (0..5u32 << 20).map(|i| (i / 7) as u8).collect();
    let done = upload(&lab, "CRC64NVME", &[&part, BODY]);
    lab.put("whole", &[&part[..], BODY].concat());
    let head = |key: &str| {
        let head = lab.object("HEAD", key).header("x-amz-checksum-mode", "ENABLED").send().ok();
        head.header("x-amz-checksum-crc64nvme").to_owned()
    };
    assert_eq!(head("mpu"), head("whole"));
    assert_eq!(done.first("ChecksumCRC64NVME"), head("whole"));
    assert_eq!(done.first("ChecksumType"), "FULL_OBJECT");
}

#[test]
fn a_composite_crc32c_counts_the_parts() {
    let lab = Lab::new();
    let part = vec![5; 5 << 20];
    let done = upload(&lab, "CRC32C", &[&part, BODY]);
    assert!(done.first("ChecksumCRC32C").ends_with("-2"), "{}", done.text());
    assert_eq!(done.first("ChecksumType"), "COMPOSITE");
    let second = lab.object("GET", "mpu").query("partNumber", "2").send();
    assert_eq!((second.status, second.body.as_slice()), (206, BODY));
    assert_eq!(second.header("x-amz-mp-parts-count"), "2");
}

#[test]
fn a_range_has_a_checksum_only_if_it_is_the_whole_object() {
    let lab = Lab::new();
    lab.put("one", BODY);
    let part = vec![5; 5 << 20];
    upload(&lab, "CRC32C", &[&part, BODY]);
    let get = |key: &str, range: &str| {
        let asked = lab.object("GET", key).header("x-amz-checksum-mode", "ENABLED");
        asked.header("range", range).send()
    };
    assert_eq!(get("one", "bytes=0-8").header("x-amz-checksum-crc64nvme"), STANDARD.encode(CHECK_CRC64));
    assert_eq!(get("one", "bytes=0-7").header("x-amz-checksum-crc64nvme"), "");
    let whole = lab.object("GET", "mpu").header("x-amz-checksum-mode", "ENABLED").send().ok();
    let composite = whole.header(CRC32C).strip_suffix("-2").expect("of two parts").to_owned();
    let ranged = get("mpu", "bytes=0-");
    assert_eq!((ranged.header(CRC32C), ranged.header("x-amz-checksum-type")), (&*composite, "COMPOSITE"));
    assert_eq!(get("mpu", "bytes=1-").header(CRC32C), "");
}
