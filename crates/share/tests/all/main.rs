//! Tests of sessions in one program: what they are built of is compiled once for all of them. Beside them stand those that need a process of their own:
//! `many` takes thousands of descriptors, and `stuck` stops processes.

mod aside;
mod attacker;
mod descriptions;
mod descriptor_attacks;
mod direct;
mod directories;
mod directories_random;
mod directory_attacks;
mod given_up;
mod growing;
mod handles;
mod holds;
mod hostile;
mod hostile_pages;
mod kept;
mod lease_attacks;
mod leases;
mod leases_random;
mod left;
mod lent_again;
mod lock_leases;
mod long_calls;
mod new_file_attacks;
mod new_files;
mod notices;
mod order;
mod passes;
mod queues;
mod rig;
mod session;
mod sizes;
mod stats;
mod stopping;
mod trees;
mod windows;
