//! The flags of the bucket, and of the properties of new objects.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, ValueEnum};

use crate::checksum::ChecksumAlgorithm;
use crate::inode::Prefix;
use crate::s3::{StoreKind, check_arn};

/// The bucket, and the properties of new objects.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Bucket options")]
pub(crate) struct BucketOptions {
    /// Mount only the keys with this prefix, which must end in '/' [default: the whole bucket]
    #[arg(long, value_parser = parse_prefix)]
    pub(crate) prefix: Option<String>,
    /// Region of the bucket [default: AWS_REGION, ~/.aws/config, on AWS the instance, else us-east-1]
    #[arg(long, env = "AWS_REGION", hide_env_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) region: Option<String>,
    /// URL of an S3-compatible store; AWS_ENDPOINT_URL_S3 wins over AWS_ENDPOINT_URL
    #[arg(long, env = "AWS_ENDPOINT_URL", hide_env_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) endpoint_url: Option<String>,
    /// Kind of store [default: from its endpoint and its answers]
    #[arg(long, value_enum, value_name = "KIND", default_value = "auto", hide_default_value = true)]
    pub(crate) store: StoreArg,
    /// Put the bucket into the path of URLs, not into the host name
    #[arg(long)]
    pub(crate) force_path_style: bool,
    /// Use the endpoints of S3 Transfer Acceleration
    #[arg(long)]
    pub(crate) transfer_acceleration: bool,
    /// Use endpoints that have IPv6 addresses too
    #[arg(long)]
    pub(crate) dual_stack: bool,
    /// Agree to pay for requests and traffic
    #[arg(long)]
    pub(crate) requester_pays: bool,
    /// Kind of bucket; directory buckets are refused [default: from the name]
    #[arg(long, value_enum)]
    pub(crate) bucket_type: Option<BucketType>,
    /// Fail unless the bucket belongs to this account
    #[arg(long, value_name = "AWS_ACCOUNT_ID")]
    pub(crate) expected_bucket_owner: Option<String>,
    /// Storage class of new objects
    #[arg(long)]
    pub(crate) storage_class: Option<String>,
    /// Server-side encryption of new objects
    #[arg(long, value_parser = ["aws:kms", "aws:kms:dsse", "AES256"])]
    pub(crate) sse: Option<String>,
    /// ARN of the key for --sse aws:kms or aws:kms:dsse
    #[arg(long, value_name = "AWS_KMS_KEY_ARN", requires = "sse", value_parser = parse_key_arn)]
    pub(crate) sse_kms_key_id: Option<String>,
    /// Checksum sent with uploads, so that the store refuses damaged bytes [default: crc32c; off for S3 on Outposts, which refuses it]
    #[arg(long, value_enum, value_name = "ALGORITHM")]
    pub(crate) upload_checksums: Option<UploadChecksums>,
    /// Set the Content-Type of new objects from the extension of the file name
    #[arg(long)]
    pub(crate) infer_content_type: bool,
    /// Sign the bytes of uploads too, for stores that require it; costs a SHA-256 of every byte
    #[arg(long)]
    pub(crate) sign_payload: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BucketType {
    GeneralPurpose,
    Directory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreArg {
    Auto,
    Aws,
    Scality,
    Minio,
    Ceph,
    Garage,
    Versitygw,
    R2,
    Scaleway,
    Gcs,
    Generic,
}

impl StoreArg {
    /// The kind of store; `None`: the endpoint and the store's answers decide.
    pub(crate) fn kind(self) -> Option<StoreKind> {
        match self {
            Self::Auto => None,
            Self::Aws => Some(StoreKind::Aws),
            Self::Scality => Some(StoreKind::Scality),
            Self::Minio => Some(StoreKind::Minio),
            Self::Ceph => Some(StoreKind::Ceph),
            Self::Garage => Some(StoreKind::Garage),
            Self::Versitygw => Some(StoreKind::Versitygw),
            Self::R2 => Some(StoreKind::R2),
            Self::Scaleway => Some(StoreKind::Scaleway),
            Self::Gcs => Some(StoreKind::Gcs),
            Self::Generic => Some(StoreKind::Generic),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UploadChecksums {
    Crc32c,
    Crc64nvme,
    Off,
}

impl UploadChecksums {
    fn algorithm(self) -> Option<ChecksumAlgorithm> {
        match self {
            Self::Crc32c => Some(ChecksumAlgorithm::Crc32c),
            Self::Crc64nvme => Some(ChecksumAlgorithm::Crc64Nvme),
            Self::Off => None,
        }
    }
}

/// Suffixes of the names of directory buckets and of their access points.
const DIRECTORY_BUCKET: [&str; 2] = ["--x-s3", "--xa-s3"];

/// Parses bucket and prefix from `BUCKET`, `s3://BUCKET[/PREFIX/]` and `--prefix`.
///
/// # Errors
/// A sentence that names the wrong part, and its right form.
pub(crate) fn bucket_and_prefix(bucket: &str, prefix: Option<&str>) -> Result<(String, String), String> {
    let (bucket, prefix) = match (bucket.strip_prefix("s3://"), prefix) {
        (Some(_), Some(prefix)) if !prefix.is_empty() => {
            return Err(
                "explicit prefix option not allowed with S3 URI: give the prefix in one of them".into()
            );
        }
        (Some(_), _) => in_uri(bucket)?,
        (None, prefix) => (bucket, prefix.unwrap_or("")),
    };
    check_name(bucket)?;
    parse_prefix(prefix)?;
    Ok((bucket.to_owned(), prefix.to_owned()))
}

/// Checks the bucket argument alone.
pub(super) fn parse_bucket(text: &str) -> Result<String, String> {
    let (name, prefix) = in_uri(text)?;
    check_name(name)?;
    parse_prefix(prefix).map_err(|error| format!("invalid bucket prefix: {error}"))?;
    Ok(text.to_owned())
}

/// Splits an `s3://` URI into bucket and prefix. Any other text is a bucket without a prefix.
fn in_uri(text: &str) -> Result<(&str, &str), String> {
    let Some(rest) = text.strip_prefix("s3://") else { return Ok((text, "")) };
    if rest.starts_with("arn:") {
        return Err("the bucket must have a valid name (only letters, numbers, . and -). ARNs are not supported in s3:// URIs".into());
    }
    Ok(rest.split_once('/').unwrap_or((rest, "")))
}

/// Checks that a text names a bucket: by its name, or by the name, alias or ARN of an access point. URIs and prefixes are errors.
///
/// # Errors
/// The reason, as a sentence.
pub fn check_name(name: &str) -> Result<(), String> {
    if !(3..=255).contains(&name.len()) {
        return Err("bucket names must be 3-255 characters long".into());
    }
    if name.starts_with("arn:") {
        return check_arn(name);
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')) {
        return Err(
            "the bucket must have a valid name (only letters, numbers, . and -) or a valid ARN; give a prefix as s3://bucket/prefix/"
                .into(),
        );
    }
    if DIRECTORY_BUCKET.iter().any(|suffix| name.ends_with(suffix)) {
        return Err(
            "directory buckets (S3 Express One Zone) are not supported: mount a general purpose bucket"
                .into(),
        );
    }
    Ok(())
}

fn parse_prefix(text: &str) -> Result<String, String> {
    if !text.is_empty() && !text.ends_with('/') {
        return Err("prefix must end in '/'".into());
    }
    Prefix::new(text).map(|_| text.to_owned())
}

/// Whether a bucket is an access point of S3 on Outposts, by its ARN or its alias.
fn is_on_outposts(bucket: &str) -> bool {
    bucket.split(':').nth(2) == Some("s3-outposts") || bucket.ends_with("--op-s3")
}

/// Checks that a KMS key is named by its ARN. An id or an alias could mean a key of any account, and could not be compared with the store's
/// answer.
fn parse_key_arn(text: &str) -> Result<String, String> {
    let id = text.strip_prefix("arn:").and_then(|rest| rest.split_once(":key/")).map(|(_, id)| id);
    match id {
        Some(id) if !id.is_empty() && text.chars().all(|c| c.is_ascii_graphic()) => Ok(text.to_owned()),
        _ => Err("KMS Key ARN is only accepted as a key identifier, Key Alias ARN is not accepted: \
                  give the key's ARN (arn:aws:kms:REGION:ACCOUNT:key/ID), not its id or an alias"
            .into()),
    }
}

impl BucketOptions {
    /// The algorithm of the checksum sent with uploads to this bucket; `None` without one.
    pub(crate) fn upload_checksum(&self, bucket: &str) -> Option<ChecksumAlgorithm> {
        let default = match is_on_outposts(bucket) {
            true => UploadChecksums::Off,
            false => UploadChecksums::Crc32c,
        };
        self.upload_checksums.unwrap_or(default).algorithm()
    }

    /// Checks combinations of flags.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.bucket_type == Some(BucketType::Directory) {
            return Err("--bucket-type directory is not supported: directory buckets (S3 Express One Zone) can't be mounted here; mount a general purpose bucket".into());
        }
        match (self.sse.as_deref(), &self.sse_kms_key_id) {
            (Some("AES256"), Some(_)) => {
                Err("--sse-kms-key-id can not be used with --sse AES256, which uses the store's own key: \
                 leave --sse-kms-key-id out, or give --sse aws:kms"
                    .into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn a_bucket_may_be_a_name_or_a_uri() {
        let ok = |b, p| bucket_and_prefix(b, p).unwrap();
        assert_eq!(ok("buc", None), ("buc".into(), String::new()));
        assert_eq!(ok("buc", Some("a/b/")), ("buc".into(), "a/b/".into()));
        assert_eq!(ok("s3://buc", None), ("buc".into(), String::new()));
        assert_eq!(ok("s3://buc/", Some("")), ("buc".into(), String::new()));
        assert_eq!(ok("s3://buc/a/b/", None), ("buc".into(), "a/b/".into()));
        for (b, p) in [
            ("s3://buc/a", None),
            ("buc", Some("a")),
            ("s3://buc/", Some("a/")),
            ("buc/a/", None),
            ("bu", None),
            ("s3://arn:aws:s3:::b", None),
            ("", None),
        ] {
            assert!(bucket_and_prefix(b, p).is_err(), "{b} {p:?}");
        }
    }

    #[test]
    fn bucket_and_prefix_can_be_judged_without_a_mount() {
        let judged = |args: &[&str]| parse(args).map_err(|error| error.to_string());
        assert!(judged(&["--prefix", "a/"]).is_ok());
        assert!(judged(&["--prefix", "a"]).unwrap_err().contains("must end in '/'"));
        assert!(judged(&["--prefix", &format!("{}/", "a".repeat(1024))]).is_err());
    }

    #[test]
    fn uploads_carry_crc32c_unless_another_is_named_or_on_outposts() {
        let arn = "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01/accesspoint/data";
        for (bucket, flags, expected) in [
            ("bucket", &[][..], Some(ChecksumAlgorithm::Crc32c)),
            ("bucket", &["--upload-checksums=off"], None),
            ("bucket", &["--upload-checksums=crc64nvme"], Some(ChecksumAlgorithm::Crc64Nvme)),
            ("arn:aws:s3:eu-west-3:123456789012:accesspoint/data", &[], Some(ChecksumAlgorithm::Crc32c)),
            (arn, &[], None),
            ("data-1234--op-s3", &[], None),
            (arn, &["--upload-checksums=crc32c"], Some(ChecksumAlgorithm::Crc32c)),
        ] {
            let options = parse(flags).unwrap().bucket_options;
            assert_eq!(options.upload_checksum(bucket), expected, "{bucket} {flags:?}");
        }
    }

    const KEY: &str = "arn:aws:kms:eu-west-3:111122223333:key/1234-abcd";

    #[test]
    fn the_key_of_an_encryption_is_named_by_its_arn() {
        for sse in ["aws:kms", "aws:kms:dsse"] {
            let named = parse(&["--sse", sse, "--sse-kms-key-id", KEY]).unwrap();
            assert_eq!(named.bucket_options.sse_kms_key_id.as_deref(), Some(KEY));
        }
        let said = parse(&["--sse", "aws:kms", "--sse-kms-key-id", "alias/mine"]).unwrap_err();
        assert_eq!(said.exit_code(), 2);
        assert!(said.to_string().contains("give the key's ARN"), "{said}");
        let own = parse(&["--sse", "AES256", "--sse-kms-key-id", KEY]).unwrap_err();
        assert!(own.to_string().contains("leave --sse-kms-key-id out"), "{own}");
    }
}
