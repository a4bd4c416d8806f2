//! What strangers, browsers and broken programs send to a master: nothing of it has an effect, breaks it, or keeps others
//! from being served. Each kind is sent in a small number with the other tests, and in its full number by
//! `make abuse`, which prints the counts.

mod browsers;
mod caller;
mod canary;
mod malformed;
mod slow;
