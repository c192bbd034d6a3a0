//! The command line as scripts, units and /etc/fstab use it: the binary is run and ends, nothing is mounted.
//!
//! One table says of each option its default and its variable, another which values it takes and which it refuses, with the exit code and the gist of the message. Most of
//! the words are those of AWS's mount-s3, for people that search for them.

mod command_line {
    mod environment;
    mod fstab;
    mod logs;
    mod options;
    mod pages;
    mod run;
    mod table;
}
