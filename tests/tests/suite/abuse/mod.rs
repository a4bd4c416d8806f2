//! Tests of hostile and broken requests. Such requests must have no effect, must not break the master, and must not
//! delay other callers. By default, each test sends few requests. `make abuse` sends the full number.

mod browsers;
mod caller;
mod canary;
mod malformed;
mod slow;
