//! Helpers for trainers: pure functions, no handle.
use lasp_sys as sys;

use crate::error::{check, Result};
use crate::guard;
use crate::values::Schedule;

/// Hybrid data-sequence parallelism: the groups of a world rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Groups {
    /// Rank in the sequence group: the order of the tokens.
    pub sequence_rank: usize,
    /// The size of the sequence group.
    pub sequence_ranks: usize,
    /// Which of the sequence groups: a color for a communicator split.
    pub sequence_group: usize,
    /// Rank among the ranks with the same `sequence_rank`.
    pub data_rank: usize,
    /// The size of the data group.
    pub data_ranks: usize,
    /// Equals `sequence_rank`: a color for a communicator split.
    pub data_group: usize,
}

fn narrow(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

impl Groups {
    /// The groups of `world_rank`. `stride` is the distance in world ranks between neighbours of a sequence group:
    /// 1 makes them adjacent, `world_size / sequence_ranks` makes the data groups adjacent.
    pub fn of_rank(world_size: usize, sequence_ranks: usize, stride: usize, world_rank: usize) -> Result<Groups> {
        guard::enter()?;
        let mut raw = sys::LASP_GROUPS_INIT;
        let [size, ranks, stride, rank] = [world_size, sequence_ranks, stride, world_rank].map(narrow);
        // SAFETY: a struct that states its size.
        check(unsafe { sys::lasp_groups_of_rank(size, ranks, stride, rank, &mut raw) })?;
        Ok(Groups {
            sequence_rank: raw.sequence_rank as usize,
            sequence_ranks: raw.sequence_ranks as usize,
            sequence_group: raw.sequence_group as usize,
            data_rank: raw.data_rank as usize,
            data_ranks: raw.data_ranks as usize,
            data_group: raw.data_group as usize,
        })
    }

    /// The world rank of a member: the inverse of [`of_rank`](Groups::of_rank).
    pub fn world_rank(
        world_size: usize,
        sequence_ranks: usize,
        stride: usize,
        sequence_group: usize,
        sequence_rank: usize,
    ) -> Result<usize> {
        guard::enter()?;
        let mut world_rank = 0;
        let [size, ranks, stride] = [world_size, sequence_ranks, stride].map(narrow);
        let [group, rank] = [sequence_group, sequence_rank].map(narrow);
        // SAFETY: a place to write to.
        check(unsafe { sys::lasp_groups_world_rank(size, ranks, stride, group, rank, &mut world_rank) })?;
        Ok(world_rank as usize)
    }
}

/// The time of one exchange in microseconds, by the latency-bandwidth model of the automatic schedule:
/// `payload_bytes` per rank over links of this latency (microseconds) and bandwidth (GB/s). `pieces` of 0 takes the
/// best number of them.
pub fn predict_exchange(
    schedule: Schedule,
    nranks: usize,
    payload_bytes: u64,
    pieces: usize,
    latency_us: f64,
    bandwidth_gbs: f64,
) -> Result<f64> {
    guard::enter()?;
    let (nranks, pieces, mut us) = (narrow(nranks), narrow(pieces), 0.0);
    // SAFETY: a place to write to.
    check(unsafe {
        let schedule = schedule.to_raw();
        sys::lasp_predict_exchange(schedule, nranks, payload_bytes, pieces, latency_us, bandwidth_gbs, &mut us)
    })?;
    Ok(us)
}
