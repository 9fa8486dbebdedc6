//! The client of stores that speak the S3 API.
//!
//! What exists: percent-encoding ([`encode`]) and signatures ([`sign`]).

pub mod encode;
pub mod sign;
