//! The command line as scripts, units and /etc/fstab use it: the binary is run and ends, nothing is mounted.
//!
//! One table has the default and the variable of each option, another its valid and invalid values, with the exit code and the gist of
//! the message. Most of the words are those of AWS's mount-s3, for people that search for them.

mod command_line {
    mod environment;
    mod fstab;
    mod logs;
    mod options;
    mod pages;
    mod run;
    mod table;
}
