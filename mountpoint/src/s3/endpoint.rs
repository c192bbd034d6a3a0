//! The URL of a key: scheme, host and path, from the bucket's name and the user's configuration. Pure.

use std::net::IpAddr;

use crate::net::authority::Authority;
use crate::s3::auth::arn::{Arn, Resource};
use crate::s3::auth::sign::Signing;
use crate::s3::url::{encode_path, shown};
use crate::s3::{Config, Error, ErrorKind, Result};

/// Host and path of the bucket, and the scope of its signatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    pub(crate) authority: Authority,
    pub(crate) signing: Signing,
    bucket_in_host: bool,
    /// The encoded path in front of each key: `/` or `/bucket/`, after the path of the endpoint URL, if it has one.
    base: String,
}

impl Endpoint {
    /// # Errors
    /// `InvalidRequest`: the URL, the ARN, or flags that can't be combined on AWS.
    pub(crate) fn new(config: &Config, region: &str) -> Result<Self> {
        if config.bucket.is_empty() {
            return Err(refused("the bucket has no name".into()));
        }
        let arn = match config.bucket.starts_with("arn:") {
            true => Some(Arn::parse(&config.bucket).map_err(refused)?),
            false => None,
        };
        check_flags(config, region, arn.as_ref())?;
        let place = match &arn {
            Some(arn) => AwsHost::of_arn(arn, config, region),
            None => AwsHost::of_bucket(config, region),
        };
        let url = match &config.endpoint_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("https://{}", place.host),
        };
        let wrong = |what: &str| {
            let shown = shown(&url);
            refused(format!(
                "the endpoint URL {shown:?} {what}; it should look like https://s3.example.com:9000"
            ))
        };
        let uri: http::Uri = url.parse().map_err(|_| wrong("is not a URL"))?;
        let mut authority =
            Authority::of_uri(&uri).ok_or_else(|| wrong("needs http:// or https:// and a host"))?;
        if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            return Err(wrong("carries a user name"));
        }
        if uri.query().is_some() {
            return Err(wrong("has a query"));
        }
        let mut bucket_in_host = false;
        let mut base = uri.path().trim_end_matches('/').to_owned() + "/";
        if arn.is_none() && (config.force_path_style || !fits_host(&config.bucket, &authority.host)) {
            if config.transfer_acceleration {
                return Err(refused(format!(
                    "--transfer-acceleration needs the bucket's name in the host name, which can't contain {:?}",
                    config.bucket
                )));
            }
            encode_path(&mut base, &config.bucket);
            base.push('/');
        } else if !place.label.is_empty() {
            authority.host = format!("{}.{}", place.label, authority.host);
            bucket_in_host = arn.is_none();
        }
        Ok(Self { authority, bucket_in_host, base, signing: place.signing })
    }

    /// Whether the bucket's name is the first label of the host name (virtual-hosted style).
    pub(crate) fn has_bucket_in_host(&self) -> bool {
        self.bucket_in_host
    }

    /// The request path of the bucket itself.
    pub(crate) fn bucket_path(&self) -> &str {
        // A path-style bucket can be written "/bucket" or "/bucket/". AWS's own SDKs send the first.
        match self.base.len() {
            1 => &self.base,
            n => &self.base[..n - 1],
        }
    }

    /// The request path of a key, encoded once and not normalised: `a//../b` is a key like any other.
    pub(crate) fn key_path(&self, key: &str) -> String {
        let mut path = String::with_capacity(self.base.len() + key.len() + key.len() / 4 + 64);
        path.push_str(&self.base);
        encode_path(&mut path, key);
        path
    }
}

/// The host name and the signing of a bucket or an access point of AWS.
struct AwsHost {
    /// The first labels of the host name: the bucket, or name and account of an access point. Empty if `host` contains them.
    label: String,
    host: String,
    signing: Signing,
}

impl AwsHost {
    fn of_bucket(config: &Config, region: &str) -> Self {
        let suffix = Partition::of(region).suffix;
        let dual = if config.dual_stack { ".dualstack" } else { "" };
        let host = match (config.transfer_acceleration, config.fips) {
            (true, _) => format!("s3-accelerate{dual}.{suffix}"),
            (false, true) => format!("s3-fips{dual}.{region}.{suffix}"),
            (false, false) => format!("s3{dual}.{region}.{suffix}"),
        };
        Self { label: config.bucket.clone(), host, signing: Signing::of("s3", region) }
    }

    fn of_arn(arn: &Arn<'_>, config: &Config, client_region: &str) -> Self {
        let Arn { region, account, .. } = *arn;
        let suffix = Partition::of(if region.is_empty() { client_region } else { region }).suffix;
        let fips = if config.fips { "-fips" } else { "" };
        let dual = if config.dual_stack { ".dualstack" } else { "" };
        match arn.resource {
            Resource::AccessPoint(name) => Self {
                label: format!("{name}-{account}"),
                host: format!("s3-accesspoint{fips}{dual}.{region}.{suffix}"),
                signing: Signing::of("s3", region),
            },
            Resource::ObjectLambda(name) => Self {
                label: format!("{name}-{account}"),
                host: format!("s3-object-lambda{fips}.{region}.{suffix}"),
                signing: Signing::of("s3-object-lambda", region),
            },
            Resource::Outpost { outpost, name } => Self {
                label: format!("{name}-{account}.{outpost}"),
                host: format!("s3-outposts.{region}.{suffix}"),
                signing: Signing::of("s3-outposts", region),
            },
            Resource::MultiRegion(alias) => Self {
                label: String::new(),
                host: format!("{alias}.accesspoint.s3-global.{suffix}"),
                signing: Signing { service: "s3", region: None },
            },
        }
    }
}

/// Refuses combinations that AWS does not offer. The error names the flag or variable to leave out.
fn check_flags(config: &Config, region: &str, arn: Option<&Arn<'_>>) -> Result<()> {
    const FIPS: &str = "AWS_USE_FIPS_ENDPOINT (or the profile's use_fips_endpoint)";
    const DUAL: &str = "--dual-stack";
    const FAST: &str = "--transfer-acceleration";
    let no =
        |flag: &str, with: &str| Err(refused(format!("{flag} can't be used with {with}: leave one out")));
    let on = [(config.fips, FIPS), (config.dual_stack, DUAL), (config.transfer_acceleration, FAST)];
    if config.endpoint_url.is_some()
        && let Some((_, flag)) = on.iter().find(|(on, _)| *on)
    {
        return no(flag, "--endpoint-url, which names the host");
    }
    if config.endpoint_url.is_some()
        && arn.is_some_and(|arn| matches!(arn.resource, Resource::MultiRegion(_)))
    {
        return no("--endpoint-url", "a multi-region access point, which has a host of its own");
    }
    if config.fips && config.transfer_acceleration {
        return no(FIPS, FAST);
    }
    let partition = Partition::of(region);
    if config.fips && !partition.fips {
        return no(FIPS, &format!("region {region}, which has none"));
    }
    if config.transfer_acceleration && config.force_path_style {
        return no(FAST, "--force-path-style");
    }
    if config.transfer_acceleration && partition.name == "aws-cn" {
        return no(FAST, &format!("region {region}, which has none"));
    }
    let Some(arn) = arn else { return Ok(()) };
    if config.force_path_style {
        return no("--force-path-style", "an ARN");
    }
    if config.transfer_acceleration {
        return no(FAST, "an access point");
    }
    let (what, lacks_fips, lacks_dual) = match arn.resource {
        Resource::AccessPoint(_) => ("an access point", false, false),
        Resource::MultiRegion(_) => ("a multi-region access point", true, true),
        Resource::Outpost { .. } => ("S3 on Outposts", true, true),
        Resource::ObjectLambda(_) => ("S3 Object Lambda", false, true),
    };
    if config.fips && lacks_fips {
        return no(FIPS, what);
    }
    if config.dual_stack && lacks_dual {
        return no(DUAL, what);
    }
    let of_arn = if arn.region.is_empty() { partition.name } else { Partition::of(arn.region).name };
    if arn.partition != of_arn || arn.partition != partition.name {
        return Err(refused(format!(
            "the ARN {:?} is of the partition {:?}, and region {region} of {:?}: leave --region out, or give the ARN's",
            config.bucket, arn.partition, partition.name
        )));
    }
    Ok(())
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidRequest, "endpoint").message(message)
}

/// A partition of AWS: regions under one administration, as in AWS's endpoint rules.
struct Partition {
    name: &'static str,
    suffix: &'static str,
    fips: bool,
}

impl Partition {
    fn of(region: &str) -> Self {
        let (name, suffix, fips) = match region {
            _ if region.starts_with("cn-") => ("aws-cn", "amazonaws.com.cn", false),
            _ if region.starts_with("us-gov-") => ("aws-us-gov", "amazonaws.com", true),
            _ if region.starts_with("eusc-") => ("aws-eusc", "amazonaws.eu", true),
            _ if region.starts_with("us-isob-") => ("aws-iso-b", "sc2s.sgov.gov", true),
            _ if region.starts_with("us-isof-") || region.starts_with("eu-isof-") => {
                ("aws-iso-f", "csp.hci.ic.gov", true)
            }
            _ if region.starts_with("eu-isoe-") => ("aws-iso-e", "cloud.adc-e.uk", true),
            _ if region.starts_with("us-iso-") => ("aws-iso", "c2s.ic.gov", true),
            _ => ("aws", "amazonaws.com", true),
        };
        Self { name, suffix, fips }
    }
}

/// Whether the bucket's name can be a label of the host name.
fn fits_host(bucket: &str, host: &str) -> bool {
    let label = (3..=63).contains(&bucket.len())
        && bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !bucket.starts_with('-')
        && !bucket.ends_with('-');
    // No wildcard certificate covers a bucket with dots, and on most machines localhost has no subdomains.
    let named = host.parse::<IpAddr>().is_err() && host != "localhost" && !host.ends_with(".localhost");
    label && named
}

#[cfg(test)]
mod tests;
