//! Programs under the library: what serves them is compiled once for all of these tests.

mod c_calls;
mod c_descriptors;
mod c_handlers;
mod c_programs;
mod c_sharers;
mod c_streams;
mod descriptors;
mod more_c_programs;
mod more_programs;
mod places;
mod processes;
mod programs;
mod record_locks;
mod rig;
