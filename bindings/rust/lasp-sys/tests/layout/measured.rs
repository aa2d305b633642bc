//! What this compiler makes of the bindings: sizes, offsets and INIT bytes, measured.
use std::mem::{align_of, size_of, MaybeUninit};
use std::ptr::addr_of;

use lasp_sys::*;

#[derive(Clone, Debug, PartialEq)]
pub struct Struct {
    pub name: &'static str,
    pub size: usize,
    pub align: usize,
    pub fields: Vec<(&'static str, usize, usize)>, // name, offset, size
    pub init: Option<Vec<u8>>,
}

fn size_of_pointee<T>(_: *const T) -> usize {
    size_of::<T>()
}

/// The bytes of an INIT constant. The test has seen that the fields leave no gaps, so that all of them are
/// initialised.
fn bytes_of<T>(value: &T, fields: &[(&'static str, usize, usize)]) -> Vec<u8> {
    let used: usize = fields.iter().map(|(_, _, size)| size).sum();
    assert_eq!(used, size_of::<T>(), "a struct with gaps between its fields cannot be compared by bytes");
    // SAFETY: all of its bytes belong to fields.
    unsafe { std::slice::from_raw_parts((value as *const T).cast(), size_of::<T>()) }.to_vec()
}

macro_rules! structs {
    ($($name:ident $([$init:ident])? { $($field:ident)* })*) => {
        pub fn structs() -> Vec<Struct> {
            vec![$({
                let place = MaybeUninit::<$name>::uninit();
                let base = place.as_ptr();
                // SAFETY: addresses inside the place; nothing is read.
                let fields = vec![$(unsafe {
                    let field = addr_of!((*base).$field);
                    (stringify!($field), field as usize - base as usize, size_of_pointee(field))
                },)*];
                #[allow(unused_mut, unused_assignments)]
                let mut init = None;
                $(init = Some(bytes_of(&$init, &fields));)?
                let (size, align) = (size_of::<$name>(), align_of::<$name>());
                Struct { name: stringify!($name), size, align, fields, init }
            },)*]
        }
    };
}

structs! {
    lasp_build_info [LASP_BUILD_INFO_INIT] {
        size version compiler flags blas cuda nccl has_cuda has_nccl cpu_count reserved
    }
    lasp_nccl_functions [LASP_NCCL_FUNCTIONS_INIT] {
        size get_version comm_count comm_user_rank comm_cu_device comm_get_async_error get_error_string send recv
        all_gather group_start group_end
    }
    lasp_transport [LASP_TRANSPORT_INIT] {
        size name rank nranks local_ranks memory latency_us bandwidth_gbs send receive test wait cancel abort
        destroy wait_for peer_state
    }
    lasp_traffic [LASP_TRAFFIC_INIT] {
        size bytes_sent bytes_received messages_sent messages_received wait_seconds
    }
    lasp_context_options [LASP_CONTEXT_OPTIONS_INIT] {
        size device device_index time_limit_ms cpu_threads log_level log log_user latency_us bandwidth_gbs
        profiler_ranges verify_messages interrupted interrupted_user check_values reserved
    }
    lasp_layout [LASP_LAYOUT_INIT] { dtype flags batch token head reserved }
    lasp_run { tokens rank reserved }
    lasp_problem [LASP_PROBLEM_INIT] {
        size batch tokens heads_q heads_k heads_v head_dim_k head_dim_v dtype decay write mask
        scale_given scale ownership max_sequences schedule pieces cache chunk backward broadcast_final_state
        q k v o decay_layout beta_layout dq dk dv d_o d_decay_layout d_beta_layout segment runs num_runs
    }
    lasp_plan_info [LASP_PLAN_INFO_INIT] {
        size workspace_forward_bytes workspace_backward_bytes state_cache_bytes state_cache_incoming_bytes
        state_cache_chunks_bytes alignment forward_bytes_sent backward_bytes_sent forward_messages_sent
        backward_messages_sent token_begin total_tokens num_sequences local_chunks rank nranks heads chunk schedule
        pieces predicted_us num_runs carry_forward_bytes carry_backward_bytes map_bytes map_transition_offset
        transition reserved workspace_add_bytes
    }
    lasp_packing [LASP_PACKING_INIT] { size cu_seqlens num_sequences dtype memory }
    lasp_buffer [LASP_BUFFER_INIT] { data bytes }
    lasp_const_buffer { data bytes }
    lasp_forward_args [LASP_FORWARD_ARGS_INIT] {
        size q k v decay beta initial_state o final_state state_cache workspace reuse_state_cache reserved
        maps incoming carry packing
    }
    lasp_backward_args [LASP_BACKWARD_ARGS_INIT] {
        size q k v decay beta initial_state d_o d_final_state state_cache dq dk dv d_decay d_beta d_initial_state
        workspace add reserved maps incoming carry packing
    }
    lasp_step_args [LASP_STEP_ARGS_INIT] { size q k v decay beta state o tokens }
    lasp_maps_args [LASP_MAPS_ARGS_INIT] { size maps incoming later earlier to backward reserved }
    lasp_placement [LASP_PLACEMENT_INIT] { size rank nranks device capability multiprocessors reserved }
    lasp_halo_options [LASP_HALO_OPTIONS_INIT] { size rows channels x d_x }
    lasp_halo_info [LASP_HALO_INFO_INIT] {
        size workspace_bytes before_bytes d_before_bytes forward_bytes_sent backward_bytes_sent
        forward_messages_sent backward_messages_sent
    }
    lasp_halo_args [LASP_HALO_ARGS_INIT] { size x before d_before d_x workspace packing }
    lasp_trace_options [LASP_TRACE_OPTIONS_INIT] { size max_records }
    lasp_groups [LASP_GROUPS_INIT] {
        size sequence_rank sequence_ranks sequence_group data_rank data_ranks data_group
    }
}
