//! Admin commands of the simulated controller.

use super::Failure;
use super::state::{Cq, Sq, State};
use format::nvme::health::{self, Health};
use format::nvme::identify::{
    self, CNS_ACTIVE_NAMESPACES, CNS_CONTROLLER, CNS_NAMESPACE, OACS_DOORBELL_BUFFER, VWC_PRESENT, oncs,
};
use format::nvme::queue::{admin as opcode, feature, nvm};
use format::nvme::{Status, Submission};
use zerocopy::{FromZeros, IntoBytes};

const PAGE: u64 = 4096;

/// The critical warning that an event of the health stands for (5.2.1): reliability, temperature, spare.
fn warning_bit(event: u32) -> u8 {
    match event >> 8 & 0xFF {
        0 => 1 << 2,
        1 => 1 << 1,
        _ => 1 << 0,
    }
}

impl State {
    pub(super) fn admin(&mut self, entry: Submission) {
        let cid = entry.cid.get();
        let refused = |status: Status| Err(Status(status.0 | Status::DO_NOT_RETRY));
        let result: Result<u32, Status> = match entry.opcode {
            opcode::IDENTIFY => self.identify(&entry),
            opcode::CREATE_CQ => self.create_cq(&entry),
            opcode::CREATE_SQ => self.create_sq(&entry),
            opcode::SET_FEATURES | opcode::GET_FEATURES => self.feature(&entry),
            opcode::GET_LOG_PAGE => self.log_page(&entry),
            opcode::ABORT => Ok(self.abort(entry.cdw10.get() as u16, (entry.cdw10.get() >> 16) as u16)),
            opcode::ASYNC_EVENT if self.event_request.is_some() => refused(Status::EVENT_LIMIT_EXCEEDED),
            opcode::ASYNC_EVENT => {
                self.event_request = Some(cid);
                return;
            }
            opcode::DOORBELL_BUFFER if self.config.shadow_doorbells => {
                let pages = [entry.dptr1.get(), entry.dptr2.get()];
                if pages.iter().any(|p| p & (PAGE - 1) != 0 || self.memory.at(*p, PAGE).is_none()) {
                    refused(Status::INVALID_FIELD)
                } else {
                    self.shadow = Some(pages);
                    Ok(0)
                }
            }
            _ => refused(Status::INVALID_OPCODE),
        };
        match result {
            Ok(dw0) => self.answer(0, cid, dw0, Status::SUCCESS),
            Err(status) => {
                self.violation(format!("admin command {:#x} refused: {:#x}", entry.opcode, status.0));
                self.answer(0, cid, 0, status)
            }
        }
    }

    pub(super) fn report(&mut self, event: u32) -> bool {
        // Warnings of the health, by the bit of each, are reported to those who want them (5.21.1.11).
        if event & 7 == 1 && self.wanted_warnings & warning_bit(event) == 0 {
            return false;
        }
        let Some(cid) = self.event_request.take() else { return false };
        self.answer(0, cid, event, Status::SUCCESS);
        true
    }

    fn identify(&mut self, entry: &Submission) -> Result<u32, Status> {
        let mut page = [0u8; PAGE as usize];
        match entry.cdw10.get() & 0xFF {
            CNS_CONTROLLER => page.copy_from_slice(self.controller().as_bytes()),
            CNS_NAMESPACE if entry.nsid.get() == self.config.nsid => {
                page.copy_from_slice(self.namespace().as_bytes());
            }
            // An inactive namespace is all zeros (5.15.2.1).
            CNS_NAMESPACE => {}
            CNS_ACTIVE_NAMESPACES if entry.nsid.get() < self.config.nsid => {
                page[..4].copy_from_slice(&self.config.nsid.to_le_bytes());
            }
            CNS_ACTIVE_NAMESPACES => {}
            _ => return Err(Status::INVALID_FIELD),
        }
        let to = self.memory.at(entry.dptr1.get(), PAGE).ok_or(Status::DATA_TRANSFER_ERROR)?;
        // SAFETY: a mapped page that the driver waits for.
        unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), to, page.len()) };
        Ok(0)
    }

    /// Get Log Page (5.14): pages other than that of the health are all zeros.
    fn log_page(&mut self, entry: &Submission) -> Result<u32, Status> {
        let mut page = [0u8; PAGE as usize];
        let len = ((entry.cdw10.get() >> 16) as usize * 4 + 4).min(page.len());
        if entry.cdw10.get() & 0xFF == health::LOG_PAGE {
            page[..size_of::<Health>()].copy_from_slice(self.health().as_bytes());
        }
        let to = self.memory.at(entry.dptr1.get(), len as u64).ok_or(Status::DATA_TRANSFER_ERROR)?;
        // SAFETY: mapped memory that the driver waits for.
        unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), to, len) };
        Ok(0)
    }

    fn health(&self) -> Health {
        let mut h = Health::new_zeroed();
        // 37 degrees Celsius.
        h.temperature = 310.into();
        (h.spare, h.spare_threshold, h.used) = (100, 10, 3);
        h.read_commands = (self.carried_out[nvm::READ as usize] as u128).into();
        h.write_commands = (self.carried_out[nvm::WRITE as usize] as u128).into();
        h.power_cycles = (1 << 100).into();
        h.critical_warning = self.config.warning;
        h
    }

    fn controller(&self) -> identify::Controller {
        let config = &self.config;
        let mut c = identify::Controller::new_zeroed();
        c.sn.copy_from_slice(b"SIM00000000000000001");
        c.mn.fill(b' ');
        c.mn[..9].copy_from_slice(b"Simulated");
        c.fr = *b"1.0     ";
        c.mdts = config.mdts;
        (c.sqes, c.cqes) = (0x66, 0x44);
        c.nn = self.config.nsid.into();
        let optional = |on: bool, bit: u16| if on { bit } else { 0 };
        c.oncs = (optional(config.write_zeroes, oncs::WRITE_ZEROES)
            | optional(config.deallocate, oncs::DATASET_MANAGEMENT))
        .into();
        c.oacs = optional(config.shadow_doorbells, OACS_DOORBELL_BUFFER).into();
        c.vwc = if config.volatile_cache { VWC_PRESENT } else { 0 };
        (c.awun, c.awupf) = ((config.atomic_blocks - 1).into(), (config.atomic_blocks - 1).into());
        c.sgls = (config.sgl as u32).into();
        c
    }

    fn namespace(&self) -> identify::Namespace {
        let mut n = identify::Namespace::new_zeroed();
        let blocks = self.config.bytes / self.config.lba as u64;
        (n.nsze, n.ncap, n.nuse) = (blocks.into(), blocks.into(), blocks.into());
        // The format in use is not the first.
        (n.nlbaf, n.flbas) = (1, 1);
        n.lbaf[0].lbads = if self.config.lba == 512 { 12 } else { 9 };
        n.lbaf[1].lbads = self.config.lba.trailing_zeros() as u8;
        n.lbaf[1].metadata = self.config.metadata.into();
        n.eui64 = *b"simulate";
        n
    }

    fn feature(&mut self, entry: &Submission) -> Result<u32, Status> {
        let set = entry.opcode == opcode::SET_FEATURES;
        let value = entry.cdw11.get();
        match entry.cdw10.get() & 0xFF {
            feature::NUMBER_OF_QUEUES if set => {
                if value & 0xFFFF == 0xFFFF || self.submission.len() > 1 {
                    return Err(Status::INVALID_FIELD);
                }
                // What it has, whatever was asked for.
                let n = self.config.queues as u32 - 1;
                Ok(n << 16 | n)
            }
            feature::VOLATILE_WRITE_CACHE if self.config.volatile_cache => {
                if set {
                    self.cache_on = value & 1 == 1;
                }
                Ok(self.cache_on as u32)
            }
            feature::ASYNC_EVENT_CONFIG => {
                if set {
                    self.wanted_warnings = value as u8;
                }
                Ok(self.wanted_warnings.into())
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Size and number of a queue that is to be created.
    fn queue(&self, entry: &Submission) -> Result<(u16, u32), Status> {
        let (id, entries) = (entry.cdw10.get() as u16, (entry.cdw10.get() >> 16) + 1);
        if id == 0 || id > self.config.queues {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if entries < 2 || entries > self.config.entries_max {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        if entry.dptr1.get() & (PAGE - 1) != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        // Physically contiguous, as CAP.CQR asks for.
        if entry.cdw11.get() & 1 == 0 {
            return Err(Status::INVALID_FIELD);
        }
        Ok((id, entries))
    }

    fn create_cq(&mut self, entry: &Submission) -> Result<u32, Status> {
        let (id, entries) = self.queue(entry)?;
        if self.completion.contains_key(&id) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let interrupts = entry.cdw11.get() & 2 != 0;
        self.completion.insert(id, Cq::new(entry.dptr1.get(), entries as u16, interrupts));
        Ok(0)
    }

    fn create_sq(&mut self, entry: &Submission) -> Result<u32, Status> {
        let (id, entries) = self.queue(entry)?;
        let cq = (entry.cdw11.get() >> 16) as u16;
        if self.submission.contains_key(&id) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if cq == 0 || !self.completion.contains_key(&cq) {
            return Err(Status::COMPLETION_QUEUE_INVALID);
        }
        self.submission.insert(id, Sq::new(entry.dptr1.get(), entries as u16, cq));
        Ok(0)
    }

    /// 0 if the command was aborted (5.1).
    fn abort(&mut self, sq: u16, cid: u16) -> u32 {
        let found = self.executing.iter().position(|e| (e.sq, e.entry.cid.get()) == (sq, cid));
        match found.map(|i| (i, self.executing[i].failure)) {
            Some((i, Some(Failure::Lost { abortable: true, .. } | Failure::Delay(_)))) => {
                self.executing.swap_remove(i);
                self.answer(sq, cid, 0, Status::ABORT_REQUESTED);
                0
            }
            _ => 1,
        }
    }
}
