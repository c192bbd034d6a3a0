//! ARNs in place of a bucket's name: access points of one region, of several regions, of an outpost, and of S3 Object Lambda. Pure.

/// A mountable ARN, `arn:PARTITION:SERVICE:REGION:ACCOUNT:RESOURCE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Arn<'a> {
    /// The partition: `aws`, `aws-cn` and so on.
    pub(crate) partition: &'a str,
    /// The region; empty for a multi-region access point.
    pub(crate) region: &'a str,
    /// The account: twelve digits on AWS; any host label is accepted.
    pub(crate) account: &'a str,
    pub(crate) resource: Resource<'a>,
}

/// The resource: the part behind the account, with its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource<'a> {
    /// An access point of one region: `s3`, `accesspoint/NAME`.
    AccessPoint(&'a str),
    /// An access point of several regions: `s3` without a region, `accesspoint/ALIAS.mrap`.
    MultiRegion(&'a str),
    /// An access point of an outpost: `s3-outposts`, `outpost/OUTPOST/accesspoint/NAME`.
    Outpost { outpost: &'a str, name: &'a str },
    /// An access point of S3 Object Lambda: `s3-object-lambda`, `accesspoint/NAME`.
    ObjectLambda(&'a str),
}

const FORMS: &str = "a mountable ARN is one of arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME, arn:aws:s3::ACCOUNT:accesspoint/ALIAS.mrap, \
     arn:aws:s3-outposts:REGION:ACCOUNT:outpost/OUTPOST/accesspoint/NAME and arn:aws:s3-object-lambda:REGION:ACCOUNT:accesspoint/NAME";

/// # Errors
/// A sentence: the wrong part of the ARN, and the forms that can be mounted.
pub(crate) fn check(text: &str) -> Result<(), String> {
    Arn::parse(text).map(drop)
}

impl<'a> Arn<'a> {
    /// # Errors
    /// A sentence: the wrong part, and the forms that can be mounted.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        let wrong = |what: &str| format!("the ARN {text:?} {what}; {FORMS}");
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        let &["arn", partition, service, region, account, resource] = &parts[..] else {
            return Err(wrong("has fewer than six parts"));
        };
        if !is_host_label(account) {
            return Err(wrong("has no valid account"));
        }
        if !region.is_empty() && !is_host_label(region) {
            return Err(wrong("has no valid region"));
        }
        // A slash or a colon separates the parts of the resource.
        let names: Vec<&str> = resource.split(['/', ':']).collect();
        let resource = match (service, &names[..]) {
            ("s3", &["accesspoint", alias]) if region.is_empty() => match alias.strip_suffix(".mrap") {
                Some(id) if is_host_label(id) => Resource::MultiRegion(alias),
                _ => return Err(wrong("has no region, and its access point is not one of several regions")),
            },
            (_, _) if region.is_empty() => return Err(wrong("has no region")),
            ("s3", &["accesspoint", name]) if is_host_label(name) => Resource::AccessPoint(name),
            ("s3-object-lambda", &["accesspoint", name]) if is_host_label(name) => {
                Resource::ObjectLambda(name)
            }
            ("s3-outposts", &["outpost", outpost, "accesspoint", name])
                if is_host_label(outpost) && is_host_label(name) =>
            {
                Resource::Outpost { outpost, name }
            }
            ("s3" | "s3-object-lambda" | "s3-outposts", _) => return Err(wrong("names no access point")),
            _ => return Err(wrong("is not of S3")),
        };
        Ok(Self { partition, region, account, resource })
    }
}

/// Whether the text has 1 to 63 letters, digits and hyphens, and does not begin with a hyphen.
fn is_host_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !text.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arn_is_an_access_point_or_its_error_names_the_part_that_is_wrong() {
        let parsed = Arn::parse("arn:aws:s3:eu-west-3:123456789012:accesspoint/my-ap").unwrap();
        assert_eq!((parsed.region, parsed.account), ("eu-west-3", "123456789012"));
        assert_eq!(parsed.resource, Resource::AccessPoint("my-ap"));
        for (text, word) in [
            ("arn:aws:s3", "six parts"),
            ("arn:aws:s3:::my-bucket", "account"),
            ("arn:aws:s3:eu_west:1:accesspoint/x", "region"),
            ("arn:aws:s3::1:accesspoint/x", "several regions"),
            ("arn:aws:s3-outposts::1:outpost/o/accesspoint/x", "has no region"),
            ("arn:aws:s3:r:1:accesspoint/x/object/y", "access point"),
            ("arn:aws:sns:r:1:accesspoint/x", "not of S3"),
        ] {
            let error = Arn::parse(text).unwrap_err();
            assert!(error.contains(word) && error.contains("arn:aws:s3:REGION"), "{text}: {error}");
        }
    }
}
