//! Standard output that cannot be written to, because a disk is full for one: `print!` makes a panic of that, and a command is to end with an error.

use super::Exit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};

/// How the message of such a panic begins.
const PANIC: &str = "failed printing to stdout: ";

/// Why standard output could not be written to, if that is what a panic was about.
fn why(payload: &(dyn std::any::Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>()?.strip_prefix(PANIC)
}

/// Runs a command, which ends with this exit code when its output is lost.
///
/// # Errors
/// Those of the command, and an [`Exit`].
pub fn or_exit(code: u8, command: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        if why(info.payload()).is_none() {
            usual(info);
        }
    }));
    catch_unwind(AssertUnwindSafe(command)).unwrap_or_else(|payload| match why(&*payload) {
        Some(why) => Err(Exit { code, message: format!("cannot write to standard output: {why}") }.into()),
        None => resume_unwind(payload),
    })
}
