//! The program `master` with an injected fault: `MUSTER_CHAOS=POINT:FAULT:N`, for example `before-create-pod:kill:3`.

use std::process::ExitCode;

use clap::Parser;
use master::config::Config;
use testkit::chaos::{Chaos, STRIKE_VARIABLE, Strike, strike};

#[tokio::main]
async fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "this program has the flags of a master, and no others")]
    let armed = std::env::var(STRIKE_VARIABLE).expect("the variable MUSTER_CHAOS is not set");
    let armed: Strike = armed.parse().expect("MUSTER_CHAOS is not of the form POINT:FAULT:N");
    let chaos = Chaos::new([armed]);
    master::exit_code(master::run_with(Config::parse(), |context| strike(context, &chaos)).await)
}
