mod extents;
mod index;
mod inode;
mod rangeset;
mod space;
