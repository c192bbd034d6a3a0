//! Identity: credentials, profiles, signatures, and the ARNs that name access points.

pub(in crate::s3) mod arn;
pub(in crate::s3) mod aside;
pub(in crate::s3) mod credentials;
pub(in crate::s3) mod credentials_http;
pub(in crate::s3) mod printed;
pub(in crate::s3) mod profile;
pub(in crate::s3) mod sign;
pub(in crate::s3) mod tolerant;
