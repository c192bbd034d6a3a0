//! The flags of a store, for commands that mount nothing. They are the same as those of `mount-s3`, so the findings of such a command are
//! valid for a mount.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{BucketOptions, ClientOptions, CredentialOptions, bucket, bucket_and_prefix, environment};
use crate::net::ProxyVariables;

/// The bucket, its store, and the way to reach it.
#[derive(Clone, Debug, ClapArgs)]
pub struct StoreOptions {
    /// Bucket, or s3://bucket/prefix/
    #[arg(value_name = "BUCKET_NAME", value_parser = bucket::parse_bucket)]
    pub bucket: String,

    #[command(flatten)]
    pub(crate) bucket_options: BucketOptions,
    #[command(flatten)]
    pub(crate) credentials: CredentialOptions,
    #[command(flatten)]
    pub(crate) client: ClientOptions,

    /// Proxies for requests, from the environment
    #[arg(skip)]
    pub(crate) proxies: ProxyVariables,
    /// Files with credentials, as the environment names them
    #[arg(skip)]
    pub(crate) credential_files: Vec<PathBuf>,
}

impl StoreOptions {
    /// Adds the environment's settings, and checks combinations of flags.
    ///
    /// # Errors
    /// A sentence that names the wrong flag, and its right form.
    pub fn completed(mut self) -> Result<Self, String> {
        bucket_and_prefix(&self.bucket, self.bucket_options.prefix.as_deref())?;
        self.client.check()?;
        self.bucket_options.check()?;
        self.proxies = environment::proxies();
        self.credential_files = environment::credential_files();
        Ok(self)
    }
}
