//! Entries of submission and completion queues, and what commands carry (sections 4, 5 and 6).

use crate::layout::media_struct;
use zerocopy::little_endian::{U16, U32, U64};

media_struct! {
    /// Submission Queue Entry (4.2).
    pub struct Submission: 64 {
        /// Opcode, CDW0 7:0
        opcode: u8,
        /// CDW0 15:8: fused operation 1:0, PRP or SGL 7:6
        flags: u8,
        /// Command Identifier, CDW0 31:16
        cid: U16,
        /// Namespace Identifier
        nsid: U32,
        /// Command Dword 2
        cdw2: U32,
        /// Command Dword 3
        cdw3: U32,
        /// Metadata Pointer
        mptr: U64,
        /// Data Pointer, first half: PRP entry 1, or the address of an SGL descriptor
        dptr1: U64,
        /// Data Pointer, second half: PRP entry 2, or length and type of an SGL descriptor
        dptr2: U64,
        /// Command Dword 10
        cdw10: U32,
        /// Command Dword 11
        cdw11: U32,
        /// Command Dword 12
        cdw12: U32,
        /// Command Dword 13
        cdw13: U32,
        /// Command Dword 14
        cdw14: U32,
        /// Command Dword 15
        cdw15: U32,
    }
}

/// `Submission::flags`: the data pointer is an SGL descriptor, metadata a contiguous buffer (PSDT 01b, 4.2).
pub const PSDT_SGL: u8 = 1 << 6;

media_struct! {
    /// Completion Queue Entry (4.6).
    pub struct Completion: 16 {
        /// Dword 0, by command
        dw0: U32,
        /// Dword 1, reserved or by command
        dw1: U32,
        /// SQ Head Pointer, DW2 15:0
        sq_head: U16,
        /// SQ Identifier, DW2 31:16
        sq_id: U16,
        /// Command Identifier, DW3 15:0
        cid: U16,
        /// DW3 31:16: phase tag bit 0, status 15:1
        status: U16,
    }
}

impl Completion {
    /// The phase tag (4.6).
    pub fn phase(&self) -> bool {
        self.status.get() & 1 == 1
    }
    /// The status field without the phase tag.
    pub fn status(&self) -> Status {
        Status(self.status.get() >> 1)
    }
}

/// Status Field (4.6.1): status code 7:0, status code type 10:8, command retry delay 12:11, more 13, do not retry 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Successful completion.
    pub const SUCCESS: Status = Status(0);
    /// Generic: invalid command opcode (4.6.1.2.1).
    pub const INVALID_OPCODE: Status = Status(0x01);
    /// Generic: invalid field in command.
    pub const INVALID_FIELD: Status = Status(0x02);
    /// Generic: data transfer error.
    pub const DATA_TRANSFER_ERROR: Status = Status(0x04);
    /// Generic: internal error.
    pub const INTERNAL_ERROR: Status = Status(0x06);
    /// Generic: command abort requested.
    pub const ABORT_REQUESTED: Status = Status(0x07);
    /// Generic: command aborted because its submission queue was deleted.
    pub const ABORTED_SQ_DELETION: Status = Status(0x08);
    /// Generic: invalid namespace or format.
    pub const INVALID_NAMESPACE: Status = Status(0x0B);
    /// Generic: PRP offset invalid.
    pub const PRP_OFFSET_INVALID: Status = Status(0x13);
    /// Generic: namespace is write protected.
    pub const WRITE_PROTECTED: Status = Status(0x20);
    /// Generic, of the NVM command set: LBA out of range.
    pub const LBA_OUT_OF_RANGE: Status = Status(0x80);
    /// Generic, of the NVM command set: capacity exceeded.
    pub const CAPACITY_EXCEEDED: Status = Status(0x81);
    /// Generic, of the NVM command set: namespace not ready.
    pub const NAMESPACE_NOT_READY: Status = Status(0x82);
    /// Command specific: completion queue invalid (4.6.1.2.2).
    pub const COMPLETION_QUEUE_INVALID: Status = Status(0x100);
    /// Command specific: invalid queue identifier.
    pub const INVALID_QUEUE_ID: Status = Status(0x101);
    /// Command specific: invalid queue size.
    pub const INVALID_QUEUE_SIZE: Status = Status(0x102);
    /// Command specific: limit of asynchronous event requests exceeded.
    pub const EVENT_LIMIT_EXCEEDED: Status = Status(0x105);
    /// Media and data integrity: write fault (4.6.1.2.3).
    pub const WRITE_FAULT: Status = Status(0x280);
    /// Media and data integrity: unrecovered read error.
    pub const UNRECOVERED_READ: Status = Status(0x281);
    /// Bit of [`Status::dnr`].
    pub const DO_NOT_RETRY: u16 = 1 << 14;

    /// Status code and status code type, without the bits that qualify them.
    pub fn code(self) -> Status {
        Status(self.0 & 0x7FF)
    }
    /// The command succeeded.
    pub fn is_success(self) -> bool {
        self.code() == Status::SUCCESS
    }
    /// Do Not Retry: the same command would fail again.
    pub fn dnr(self) -> bool {
        self.0 & Status::DO_NOT_RETRY != 0
    }
    /// Status Code Type 2h: the medium or the integrity of data.
    pub fn is_media_error(self) -> bool {
        self.0 >> 8 & 7 == 2
    }
}

/// Opcodes of admin commands (section 5).
pub mod admin {
    /// Delete I/O Submission Queue (5.6).
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O Submission Queue (5.4).
    pub const CREATE_SQ: u8 = 0x01;
    /// Get Log Page (5.14).
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue (5.5).
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O Completion Queue (5.3).
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify (5.15).
    pub const IDENTIFY: u8 = 0x06;
    /// Abort (5.1).
    pub const ABORT: u8 = 0x08;
    /// Set Features (5.21).
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features (5.13).
    pub const GET_FEATURES: u8 = 0x0A;
    /// Asynchronous Event Request (5.2).
    pub const ASYNC_EVENT: u8 = 0x0C;
    /// Doorbell Buffer Config (5.7).
    pub const DOORBELL_BUFFER: u8 = 0x7C;
}

/// Opcodes of the NVM command set (section 6).
pub mod nvm {
    /// Flush (6.8).
    pub const FLUSH: u8 = 0x00;
    /// Write (6.15).
    pub const WRITE: u8 = 0x01;
    /// Read (6.9).
    pub const READ: u8 = 0x02;
    /// Write Zeroes (6.17).
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management (6.7).
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Force Unit Access, CDW12 bit 30 of a read or write (6.15).
    pub const FUA: u32 = 1 << 30;
    /// Attribute Deallocate, CDW11 bit 2 of Dataset Management (6.7).
    pub const DEALLOCATE: u32 = 1 << 2;
    /// Most logical blocks of one read, write or zeroing: CDW12 15:0 is a number minus one (6.9, 6.15, 6.17).
    pub const BLOCKS_MAX: u64 = 1 << 16;
}

/// Identifiers of features (5.21.1).
pub mod feature {
    /// Volatile Write Cache, enable in bit 0 (5.21.1.6).
    pub const VOLATILE_WRITE_CACHE: u32 = 0x06;
    /// Number of Queues: completion queues 31:16, submission queues 15:0, both minus one (5.21.1.7).
    pub const NUMBER_OF_QUEUES: u32 = 0x07;
    /// Asynchronous Event Configuration (5.21.1.11).
    pub const ASYNC_EVENT_CONFIG: u32 = 0x0B;
}

media_struct! {
    /// A range of Dataset Management (6.7).
    pub struct DeallocateRange: 16 {
        /// Context Attributes
        attributes: U32,
        /// Length in logical blocks
        blocks: U32,
        /// Starting LBA
        lba: U64,
    }
}

media_struct! {
    /// SGL Descriptor (4.4)
    pub struct SglDescriptor: 16 {
        /// Address
        address: U64,
        /// Length in bytes
        len: U32,
        /// zero
        reserved: [u8; 3],
        /// Type 7:4, sub type 3:0
        kind: u8,
    }
}

/// SGL Data Block descriptor, sub type address (4.4).
pub const SGL_DATA: u8 = 0x00;
/// SGL Last Segment descriptor, sub type address (4.4).
pub const SGL_LAST_SEGMENT: u8 = 0x30;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use zerocopy::FromZeros;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        assert_eq!((offset_of!(Submission, cid), offset_of!(Submission, nsid)), (2, 4));
        assert_eq!((offset_of!(Submission, mptr), offset_of!(Submission, dptr1)), (16, 24));
        assert_eq!((offset_of!(Submission, cdw10), offset_of!(Submission, cdw15)), (40, 60));
        assert_eq!((offset_of!(Completion, sq_head), offset_of!(Completion, status)), (8, 14));
        let mut done = Completion::new_zeroed();
        done.status = (0x281 << 1 | 1).into();
        assert!(done.phase() && done.status() == Status::UNRECOVERED_READ && done.status().is_media_error());
        let refused = Status(Status::INVALID_FIELD.0 | Status::DO_NOT_RETRY);
        assert!(refused.dnr() && !refused.is_success() && refused.code() == Status::INVALID_FIELD);
    }
}
