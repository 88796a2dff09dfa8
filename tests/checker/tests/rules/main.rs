//! Every rule on histories that keep it, and on histories that break it and nothing else.

mod ends;
mod reading;
mod sources;
mod story;
mod taken;
