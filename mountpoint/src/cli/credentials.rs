//! The flags of credentials.

use clap::Args as ClapArgs;
use clap::builder::NonEmptyStringValueParser;

/// Credentials.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "AWS credentials options")]
pub(crate) struct CredentialOptions {
    /// Send requests without a signature, for public buckets; --profile has no effect then
    #[arg(long)]
    pub(crate) no_sign_request: bool,
    /// Use this profile of ~/.aws and no other source of credentials
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) profile: Option<String>,
}
